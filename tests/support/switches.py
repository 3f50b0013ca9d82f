"""The switches of communication: their settings, and where each matters. `cover` gives the rows of a table settings
such that every two settings of two switches occur together in some row, if both switches matter in one row. A setting
that a row states itself stays."""
import itertools

DEFAULTS = {"parallel.pp": 1, "parallel.dp_replicate": 1, "parallel.dp_shard": 1, "parallel.cp": 1, "parallel.tp": 1,
            "parallel.ep": 1, "pipeline.schedule": "1f1b", "precision.compute": "fp32", "parallel.reduce": "auto"}


class Deck(dict):
    """The settings of a list of overrides; degrees are numbers."""

    def __init__(self, overrides):
        super().__init__(DEFAULTS)
        for override in overrides:
            key, value = override.split("=", 1)
            self[key] = int(value) if value.isdigit() else value
        self.setdefault("parallel.zero", 1 if self["parallel.pp"] > 1 else 3)
        self.shards = self["parallel.dp_shard"] * self["parallel.cp"]
        self.reduces = self.shards * self["parallel.dp_replicate"] > 1
        self.gathers = self.shards > 1 and self["parallel.zero"] == 3


class Switch:
    """Settings as in a deck, the default first, and which of them is "off". `settings_of(deck)` are the settings that
    the deck allows, its default first; none: the switch has no effect there."""

    def __init__(self, key, settings, off, matters):
        self.key, self.settings, self.off, self.matters = key, settings, off, matters

    def settings_of(self, deck):
        if not self.matters(deck):
            return []
        return [str(deck[self.key]).lower()] if self.key in deck else self.settings

    def overrides(self, setting, deck):
        return [] if self.key in deck or setting == self.settings[0] else [f"{self.key}={setting}"]


class Reduce(Switch):
    """parallel.reduce, whose "auto" depends on the deck."""

    def __init__(self):
        super().__init__("parallel.reduce", ["step", "microbatch"], "step", lambda deck: deck.reduces)

    def settings_of(self, deck):
        if not self.matters(deck):
            return []
        if deck[self.key] != "auto":
            return [deck[self.key]]
        if deck.shards == 1 or deck["parallel.zero"] == 1:
            return self.settings
        return ["microbatch"] if deck["parallel.zero"] == 2 else self.settings[::-1]

    def overrides(self, setting, deck):
        auto = deck[self.key] == "auto"
        return [f"{self.key}={setting}"] if auto and setting != self.settings_of(deck)[0] else []


class Interleave(Switch):
    """overlap.interleave, whose default depends on schedule and tp."""

    def __init__(self):
        super().__init__("overlap.interleave", ["true", "false"], "false",
                         lambda deck: deck["pipeline.schedule"] in ("1f1b", "interleaved", "dualpipev"))

    def settings_of(self, deck):
        settings = super().settings_of(deck)
        return settings if deck["pipeline.schedule"] != "1f1b" and tensor_parallel(deck) else settings[::-1]

    def overrides(self, setting, deck):
        return [] if self.key in deck or setting == self.settings_of(deck)[0] else [f"{self.key}={setting}"]


def tensor_parallel(deck):
    return deck["parallel.tp"] > 1


def rounds(deck):
    """Gradients may be sent in bf16 without leaving the bounds of the tests."""
    return deck.reduces and deck["precision.compute"] == "bf16"


SWITCHES = [
    Switch("overlap.gradients", ["true", "false"], "false", lambda deck: deck.reduces),
    Switch("overlap.prefetch", ["1", "0", "2"], "0", lambda deck: deck.gathers),
    Switch("overlap.tensor", ["true", "false"], "false", tensor_parallel),
    Switch("overlap.tensor_strips", ["1", "2", "3"], "1", tensor_parallel),
    Switch("overlap.context", ["true", "false"], "false", lambda deck: deck["parallel.cp"] > 1),
    Switch("overlap.experts", ["true", "false"], "false", lambda deck: deck["parallel.ep"] > 1),
    Interleave(),
    Reduce(),
    Switch("parallel.reduce_dtype", ["fp32", "bf16"], "fp32", rounds),
]


def meetings(choice):
    """Every [(key, setting)] alone, and every two of them."""
    return {*itertools.combinations(choice, 1), *itertools.combinations(choice, 2)}


def choices(deck):
    """Every combination of the switches that have an effect, the defaults first."""
    switches = [switch for switch in SWITCHES if switch.settings_of(deck)]
    for settings in itertools.product(*(switch.settings_of(deck) for switch in switches)):
        chosen = [(switch.key, setting) for switch, setting in zip(switches, settings)]
        yield chosen, [o for s, setting in zip(switches, settings) for o in s.overrides(setting, deck)]


class Cover:
    """`added[i]`: overrides for the i-th list of overrides. `missing`: settings, and pairs of them, that could occur
    and do not."""

    def __init__(self, rows):
        possible, met, self.added = set(), set(), []
        for deck in map(Deck, rows):
            ways = [(meetings(chosen), overrides) for chosen, overrides in choices(deck)]
            found, overrides = max(ways, key=lambda way: len(way[0] - met))  # the first of equally good ones
            possible.update(*(found for found, _ in ways))
            met |= found
            self.added.append(overrides)
        self.count, self.missing = len(possible), possible - met

    def check(self, checks, what):
        """Checks that no settings ("settings"), or no pairs of them either ("pairs"), are missing."""
        size = {"settings": 1, "pairs": 2}[what]
        missing = [some for some in self.missing if len(some) <= size]
        text = ", ".join(" with ".join(f"{key}={setting}" for key, setting in some) for some in sorted(missing))
        checks.that(not missing, f"{what} of switches that do not occur: {text or 'none'} (of {self.count})")
