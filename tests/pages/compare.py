"""Compares the documented output of a command with the real one.

A line `...` stands for any lines, and `...` in a line for any text. Spaces count as one. Lines of the log have no time.
All else must be equal, but for figures that depend on the machine or on the text of this repository, which must be
there:

- times, rates and shares that a run measures: a number with a unit of these, or in a column with such a heading;
- dates, ids of processes, hashes, and what is said about this host: its free memory, its threads;
- norms of gradients, which jump from batch to batch;
- losses and counts of data: within TOLERANCE, since decks train on this repository.

Commands that only compute (EXACT) measure nothing but the time that they take themselves ("in 101 ms").
"""
import dataclasses
import re

EXACT = re.compile(r"\bespalier (plan|simulate|tune|check|inspect|help|completion|man|doc-deck|--help)\b")
TOLERANCE = 1 / 3
ANY = "..."

NUMBER = r"[-+]?(?:\d[\d,_]*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?"
TIME = rf"(?:{NUMBER}\s?(?:us|ms|s|min|h|d)(?![\w/])\s?|\d+[dhms](?=\d))+"
RATE = rf"{NUMBER}\s?[kMGTP]?i?\s?(?:tokens|samples|steps|bytes|B|FLOPs?|FLOP)/s"
SHARE = rf"{NUMBER}\s?%"
OWN_TIME = rf"(?:in|after|took) {TIME}"
DATE = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[-+]\d\d:?\d\d)?)?|\b\d\d:\d\d:\d\d\b"
HASH = r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*\d)[0-9a-f]{7,40}(?:-dirty)?\b"
PROCESS = r"(?:process|-USR1) \(?\d+(?: on \S+?(?=[\s),:;]|$))?"
# The search for settings ends after some time.
HOST = r"this host has .*|nearest settings that fit: .*|[\d.]+ [KMGT]iB (?:were|are) free|\d+ threads?(?: each)?"
JSON_TIME = rf'"\w+(?:_ms|_us|_s|_per_s|mfu|_bytes_per_us)":\s*{NUMBER}'
COUNT = rf"{NUMBER}[kMG]?(?=\s(?:files|documents|tokens|samples|epochs|[KMG]iB of text)\b)"
OF_DATA = re.compile(r"data\b|\d+ files, ")  # how a line with such counts begins
LOSS = rf"(?:(?<=loss )|(?<=lowest )|(?<=\"loss\":)){NUMBER}|{NUMBER}(?= +validation)"
NORM = rf"(?:(?<=norm )|(?<=\"grad_norm\":)){NUMBER}"

ALWAYS = {"date": DATE, "hash": HASH, "process": PROCESS, "host": HOST}
MEASURED = {"json": JSON_TIME, "rate": RATE, "share": SHARE, "time": TIME, "norm": NORM, **ALWAYS}
COMPUTED = {"own": OWN_TIME, **ALWAYS}
NEAR = {"loss": LOSS}
NEAR_OF_DATA = {"count": COUNT, **NEAR}

MEASURED_COLUMN = re.compile(rf"(?:us|ms|s|%|mfu|time left|grad norm|[\w ]+/s|[\w ]+ (?:ms|s|us))")
NEAR_COLUMN = ("loss", "val loss")


@dataclasses.dataclass
class Line:
    """A line that a command printed, and whether the command measures."""
    text: str
    measured: bool


def is_any(line):
    return line.strip() == ANY


def columns_of(header):
    """The headings of a table, or nothing if the line has none that matters."""
    cells = re.split(r"\s{2,}", header.replace(ANY, "").strip())
    return cells if len(cells) > 2 and any(MEASURED_COLUMN.fullmatch(c) or c in NEAR_COLUMN for c in cells) else []


def row_kinds(line, columns):
    """(cell, kind) of a row of a table, which may end with `...`; nothing if the line is none."""
    cells = line.split()
    figures = [cell for cell in cells if re.match(rf"{NUMBER}|-$", cell)]
    if not columns or (cells != figures or len(cells) != len(columns)) and cells != [*figures, ANY]:
        return []
    if len(columns) < len(cells) - cells.count(ANY):
        return []
    cells, columns = figures, columns[:len(figures)]
    return [(cell, "measured" if MEASURED_COLUMN.fullmatch(column) else "near" if column in NEAR_COLUMN else "exact")
            for cell, column in zip(cells, columns)]


def value(text):
    """The number at the beginning of a text, with its prefix."""
    number = re.match(NUMBER, text)[0]
    scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[len(number):][:1], 1)
    return float(number.replace(",", "").replace("_", "")) * scale


def is_near(mine, theirs):
    return abs(value(mine) - value(theirs)) <= TOLERANCE * max(abs(value(mine)), abs(value(theirs)))


class Pattern:
    """The rule of a documented line: matches(text) of a line that a command of this kind printed."""

    def __init__(self, documented, measured, columns=()):
        self.near = []
        row = row_kinds(documented, columns) if measured else []
        parts = [self.cell(*cell) for cell in row] if row else [self.words(documented.strip(), measured)]
        rest = ".*" if row and documented.strip().endswith(ANY) else r"\s*"
        self.regex = re.compile(r"\s+".join(parts) + rest)

    def cell(self, text, kind):
        if kind == "measured":
            return r"\S+"
        return self.number(text) if kind == "near" else re.escape(text)

    def number(self, text):
        self.near.append(text)
        return rf"({NUMBER}[kMG]?)"

    def words(self, text, measured):
        near = NEAR_OF_DATA if OF_DATA.match(text) else NEAR
        kinds = {**near, **(MEASURED if measured else COMPUTED)}
        figure = "|".join(f"(?P<{name}>{regex})" for name, regex in kinds.items())
        parts, end = [], 0
        for found in re.finditer(figure, text):
            parts.append(self.literal(text[end:found.start()]))
            parts.append(self.number(found[0]) if found.lastgroup in near else self.presence(kinds[found.lastgroup]))
            end = found.end()
        return "".join([*parts, self.literal(text[end:])])

    @staticmethod
    def presence(regex):
        return f"(?:{regex})" + (r"\s*" if regex == TIME else "")

    @staticmethod
    def literal(text):
        pieces = [r"\s+".join(re.escape(word) for word in re.split(r"\s+", piece)) for piece in text.split(ANY)]
        return ".*".join(pieces)

    def matches(self, text):
        found = self.regex.fullmatch(text.strip())
        return bool(found) and all(is_near(mine, theirs) for mine, theirs in zip(self.near, found.groups()))


class Patterns:
    """The patterns of documented lines, both of commands that measure and of those that do not."""

    def __init__(self, documented):
        self.documented, self.made, columns = documented, [], []
        for line in documented:
            columns = columns_of(line) or (columns if line.strip() else [])
            self.made.append({measured: Pattern(line, measured, columns) for measured in (False, True)})

    def match(self, index, line):
        return self.made[index][line.measured].matches(line.text)


def segments(documented):
    """Runs of lines between `...`, as (begin, end)."""
    found, begin = [], 0
    for k, line in enumerate([*documented, ANY]):
        if is_any(line):
            found.append((begin, k))
            begin = k + 1
    return found


def fit(segment, patterns, printed, at):
    """The first line of the segment that does not match when it begins at this line; None if all match."""
    begin, end = segment
    for k in range(begin, end):
        place = at + k - begin
        if place >= len(printed) or not patterns.match(k, printed[place]):
            return k
    return None


def best_place(segment, patterns, printed, first):
    """(place, first line that does not match or None): the first place that fits, or where most lines do."""
    best = (first, segment[0])  # nothing fits at all
    for at in range(first, len(printed)):
        bad = fit(segment, patterns, printed, at)
        if bad is None:
            return at, None
        best = max(best, (at, bad), key=lambda found: found[1])
    return best


def strip_blank(lines, blank):
    """Without blank lines at both ends."""
    begin, end = 0, len(lines)
    while begin < end and blank(lines[begin]):
        begin += 1
    while begin < end and blank(lines[end - 1]):
        end -= 1
    return lines[begin:end]


def difference(documented, printed):
    """None if the output is as documented, or (index of the documented line, what is there instead).

    `documented` are lines of a page, `printed` is a list of Line."""
    documented = strip_blank(documented, lambda line: not line.strip())
    printed = strip_blank(printed, lambda line: not line.text.strip())
    patterns, parts, at = Patterns(documented), segments(documented), 0
    for k, (begin, end) in enumerate(parts):
        last = k == len(parts) - 1
        if begin == end:
            continue
        if k == 0:
            place, bad = 0, fit((begin, end), patterns, printed, 0)
        elif last:
            place = max(at, len(printed) - (end - begin))
            bad = fit((begin, end), patterns, printed, place)
        else:
            place, bad = best_place((begin, end), patterns, printed, at)
        if bad is not None:
            there = place + bad - begin
            if begin < bad or k == 0 or last:
                return bad, printed[there].text if there < len(printed) else "the end of the output"
            return bad, "no such line"
        at = place + end - begin
    open_end = is_any(documented[-1]) if documented else True
    if not open_end and at < len(printed):
        return len(documented), printed[at].text
    return None
