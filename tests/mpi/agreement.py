"""Agreement of a run with itself, for random decks: families, recipes, number formats, odd sizes, layouts and switches.
  agreement.py [--full] [--pairs] [--seed S] [--draw N] [DRAWS [STATE]]
      STATE: a file that records finished work, so that a stopped campaign continues
A draw trains a random deck for ten steps, up to five times:
  alone      on one rank
  regrouped  on one rank with another microbatch size: shows the effect of rounding alone
  layout     on 2 to 4 ranks
  twin       in the same layout with other switches
  restart    from a random step of "layout" on, in another layout or with other switches
Runs that differ only in switches must have the same bits. Layouts must agree within the bounds below, at their first
step before rounding has grown, and at the last. --pairs trains only runs that must have the same bits: layout, twin and
a restart with other switches. --full prints each draw; --draw repeats one draw. Variables that begin with ESPALIER_ or
ONEDNN_ reach all ranks, and are printed. Needs ESPALIER."""
import argparse, collections, itertools, os, random, signal, subprocess, sys

from support.campaign import State
from support.checkpoints import same_bits, tensors
from support.random_decks import KINDS, PlanFailed, RandomDeck
from support.runs import scratch, train

STEPS = 10
RANKS = (2, 2, 3, 4, 4)
SHORT = 6  # draws of CI
# Largest relative differences of loss and norm between layouts, by kind of numbers: in the first step, and in any. Tiny
# models round more than large ones: these are about three times the differences in campaigns (doc/dev/campaigns.md).
BOUNDS = dict(zip(KINDS, [((1e-2, 1e-1), (3e-2, 6e-1)), ((2e-3, 6e-2), (2e-2, 3e-1)), ((1e-6, 1e-3), (1e-3, 1e-2)),
                          ((1e-6, 1e-5), (1e-4, 1e-3)), ((1e-6, 1e-5), (1e-5, 1e-3)), ((1e-6, 1e-5), (1e-5, 1e-3))]))
FLIPPED = 5  # times the bounds after the first step, where rounding to bf16 may send a token to another expert
CURVES = ("loss", "grad_norm")
OF_TESTS = ("ESPALIER_SEED", "ESPALIER_TEST_ERRORS", "ESPALIER_TEST_SHARE")  # variables that no run reads
STAGES = ("parallel.pp", "pipeline.schedule", "pipeline.chunks")  # switches that must be changed together


class Failed(Exception):
    """A run that did not end well."""


def environment():
    return {name: value for name, value in os.environ.items()
            if name.startswith(("ESPALIER_", "ONEDNN_")) and name not in OF_TESTS}


def apart(mine, theirs, first):
    """[[loss, norm] in step `first`, maximum of [loss, norm] from there on]: relative differences."""
    far = [[abs(a - b) / abs(b) for a, b in zip(mine.curve(key, first), theirs.curve(key, first))] for key in CURVES]
    return [[steps[0] for steps in far], [max(steps) for steps in far]]


def same_run(mine, theirs):
    """Whether two runs have equal bits in all steps that both have."""
    first = min(mine.steps)
    return (len(mine.steps) == STEPS - first + 1 and
            all(mine.curve(key) == theirs.curve(key, first) for key in CURVES) and
            all(theirs.validation[step] == loss for step, loss in mine.validation.items()) and
            same_bits(tensors(mine.checkpoint(STEPS)), tensors(theirs.checkpoint(STEPS))))


class Draw:
    """The runs of one random deck, in a folder of their own."""

    def __init__(self, chooser, folder, number):
        self.random, self.folder, self.number, self.count = chooser, folder, number, itertools.count()
        self.decks, self.figures, self.findings, self.switches = [], [], [], []

    def train(self, deck, every=0, flags=()):
        keys = [f"run.steps={STEPS}", "guard.on_spike=warn", f"checkpoint.every_steps={every}", "checkpoint.keep=99"]
        try:
            return train(os.path.join(self.folder, f"run{next(self.count)}"), deck.ranks, keys, deck.path, flags)
        except (SystemExit, subprocess.TimeoutExpired) as failed:
            raise Failed(f"{failed}\n{deck.text}") from None

    def variant(self, make, *arguments):
        deck = make(*arguments, self.folder)
        self.decks.append(deck)
        return deck

    def draw(self):
        self.deck = RandomDeck(self.random, self.folder, self.number, RANKS)
        self.decks.append(self.deck)
        return self.deck, self.random.randint(1, STEPS - 1)

    def pairs(self):
        deck, at = self.draw()
        layout = self.train(deck, every=at)
        self.twin(layout)
        self.restart(layout, at, False)

    def all(self):
        deck, at = self.draw()
        alone = self.train(self.variant(deck.alone, deck.micro))
        if others := [micro for micro in deck.micros if micro != deck.micro]:
            regrouped = self.train(self.variant(deck.alone, self.random.choice(others)))
            self.figure("regrouped", regrouped, alone, deck)
        layout = self.train(deck, every=at)
        self.figure("layout", layout, alone, deck)
        self.twin(layout)
        self.restart(layout, at, self.random.random() < 0.5)

    def twin(self, layout):
        twin = self.variant(self.deck.with_other_switches, self.random)
        self.must_be_same(self.train(twin), layout, twin)

    def restart(self, layout, at, elsewhere):
        deck = self.variant(self.deck.in_another_layout if elsewhere else self.deck.with_other_switches, self.random)
        restarted = self.train(deck, flags=["-r", layout.checkpoint(at)])
        if elsewhere:
            self.figure("restart", restarted, layout, self.deck, deck, first=at + 1)
        else:
            self.must_be_same(restarted, layout, deck)

    def figure(self, what, mine, theirs, *decks, first=1):
        """Distance of two runs; runs on one rank show the effect of rounding alone."""
        kind = min((deck.numbers for deck in decks), key=KINDS.index)
        far = apart(mine, theirs, first)
        self.figures.append([what, kind, *far])
        flips = FLIPPED if any("[experts]" in deck.text and deck.compute == "bf16" for deck in decks) else 1
        over = [f"{curve} {value:.1e}" for values, bounds, more in zip(far, BOUNDS[kind], (1, flips))
                for curve, value, bound in zip(CURVES, values, bounds) if not value <= more * bound]
        if over and what != "regrouped":
            self.findings.append(f"{what}, {kind}: {', '.join(over)}\n" + "\n".join(deck.text for deck in decks))

    def must_be_same(self, mine, theirs, deck):
        if not same_run(mine, theirs):
            self.switches = self.to_blame(theirs, deck) or ["several switches together"]
            self.findings.append(f"other bits by {' '.join(self.switches)}\n{self.deck.text}\n{deck.text}")

    def to_blame(self, layout, deck):
        """Switches that, if left unchanged, make the bits equal."""
        units = [STAGES, *([key] for key in sorted({*self.deck.switches, *deck.switches} - {*STAGES}))]
        found = []
        for unit in units:
            switches = {key: value for key, value in deck.switches.items() if key not in unit}
            switches |= {key: self.deck.switches[key] for key in unit if key in self.deck.switches}
            other = switches != deck.switches and self.deck.with_switches(switches, self.folder)
            if other and same_run(self.train(other), layout):
                found += [key for key in unit if deck.switches.get(key) != self.deck.switches.get(key)]
        return found


class Agreement:
    """The campaign: draws, counts, and keeps every finding."""

    def __init__(self, state_path, seed):
        begun = {"seed": seed, "environment": environment()}
        self.state = State(state_path, **begun, draws=0, decks=0, refused=0, figures=[], findings=[],
                           switches=[])
        if (kept := {key: self.state[key] for key in begun}) != begun:
            sys.exit(f"{state_path} is of a campaign with {kept}, not {begun}")
        print(f"seed {seed}, environment {begun['environment']}", flush=True)

    def one(self, number, speaks, pairs):
        chooser = random.Random(f"{self.state['seed']} {number}")
        with scratch() as folder:
            draw = Draw(chooser, folder, number)
            try:
                draw.pairs() if pairs else draw.all()
            except (Failed, PlanFailed) as failed:
                draw.findings.append(str(failed))
        for finding in draw.findings:
            print(f"FINDING in draw {number}: {finding}\n", flush=True)
        self.state["decks"] += len(draw.decks)
        self.state["refused"] += sum(deck.refused for deck in draw.decks)
        self.state["figures"] += [[number, *figure] for figure in draw.figures]
        self.state["findings"] += [f"draw {number}: {finding}" for finding in draw.findings]
        self.state["switches"] += draw.switches
        if speaks:
            far = ", ".join(f"{what} {far[0]:.1e} {far[1]:.1e}" for what, _, _, far in draw.figures)
            what = f"{draw.deck.numbers}, {draw.deck.layout}" if draw.decks else "none"
            print(f"draw {number}: {what}: loss and norm {far}", flush=True)

    def report(self):
        """A row for each kind: number of draws, then loss and norm, in the first step and in all."""
        by_kind = collections.defaultdict(list)
        for _, what, kind, *far in self.state["figures"]:
            by_kind[kind, what].append([*far[0], *far[1]])
        print(f"{'':30} {'':10} {'runs':>5}  first step          all steps")
        for kind, what in itertools.product(KINDS, ("layout", "restart", "regrouped")):
            if rows := by_kind[kind, what]:
                worst = "   ".join(f"{max(column):.1e}" for column in zip(*rows))
                print(f"{kind:30} {what:10} {len(rows):5}  {worst}")
        print(f"{self.state['decks']} decks, and {self.state['refused']} that plan refused")
        for switch, count in collections.Counter(self.state["switches"]).items():
            print(f"{switch} changed bits in {count} draws")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("draws", nargs="?", type=int, default=SHORT)
    parser.add_argument("state", nargs="?")
    parser.add_argument("--full", action="store_true", help="print each draw")
    parser.add_argument("--pairs", action="store_true", help="only what must have the same bits")
    parser.add_argument("--seed", default="1", help="another campaign")
    parser.add_argument("--draw", type=int, help="only this draw")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the interrupted draw does not count
    campaign = Agreement(options.state, options.seed)
    if options.draw is not None:
        campaign.one(options.draw, True, options.pairs)
    else:
        while campaign.state["draws"] < options.draws:
            campaign.one(campaign.state["draws"], options.full, options.pairs)
            campaign.state["draws"] += 1
            campaign.state.remember()
    campaign.report()
    found = len(campaign.state["findings"])
    print(f"{campaign.state['draws']} draws, {found} findings")
    sys.exit(1 if found else 0)


main()
