"""Rewrites documented outputs with the real ones. Lines `...` stay where they are, between the lines that are there."""
import collections
import re

from compare import ANY, Patterns, difference, is_any, segments

LIKE = 0.5  # share of words that two lines have in common, for one to take the place of the other


def words(text):
    return re.findall(r"\s*(?:[A-Za-z_/.]+|[0-9.]+|[^\sA-Za-z_/.0-9])", text)


def likeness(one, other):
    """2 for equal lines, else the share of common words, or 0 if that is below LIKE."""
    if one.split() == other.split():
        return 2.0
    mine, theirs = (collections.Counter(re.findall(r"[A-Za-z_/.]+|\d+", text)) for text in (one, other))
    share = 2 * (mine & theirs).total() / max(1, mine.total() + theirs.total())
    return share if share >= LIKE else 0.0


def partners(documented, printed):
    """{k: place} of documented lines among the printed ones, in order, together as alike as can be."""
    n, m = len(documented), len(printed)
    alike = [[0.0 if is_any(line) or not line.strip() else likeness(line, other) for other in printed]
             for line in documented]
    best = [[0.0] * (m + 1) for _ in range(n + 1)]
    for k in reversed(range(n)):
        for place in reversed(range(m)):
            pair = best[k + 1][place + 1] + alike[k][place] if alike[k][place] else 0.0
            best[k][place] = max(pair, best[k + 1][place], best[k][place + 1])
    found, k, place = {}, 0, 0
    while k < n and place < m:
        if alike[k][place] and best[k][place] == best[k + 1][place + 1] + alike[k][place]:
            found[k] = place
            k, place = k + 1, place + 1
        elif best[k][place] == best[k + 1][place]:
            k += 1
        else:
            place += 1
    return found


def shortened(documented, line):
    """A printed line with `...` where the documented one has it: as many words before and after it."""
    before, any_text, after = documented.partition(ANY)
    text, theirs, tail = line.text.rstrip(), words(line.text.rstrip()), len(words(after))
    if not any_text or len(words(before)) + tail >= len(theirs):
        return text
    space = " " if before.endswith(" ") else ""
    short = "".join(theirs[:len(words(before))]) + space + ANY + "".join(theirs[len(theirs) - tail:] if tail else [])
    return short if difference([short], [line]) is None else text


def new_segment(k, bounds, documented, printed, found, patterns):
    """The lines for documented[begin:end], the k-th of its segments; None if none of them is there any more."""
    begin, end = bounds
    places = [found[line] for line in range(begin, end) if line in found]
    first, last = k == 0, end == len(documented)
    if not places and not (first and last):
        return None
    low = 0 if first else places[0]
    high = len(printed) if last else places[-1] + 1
    line_of = {place: line for line, place in found.items() if begin <= line < end}
    lines = []
    for place in range(low, high):
        line = line_of.get(place)
        if line is None:
            lines.append(printed[place].text.rstrip())
        elif patterns.match(line, printed[place]):
            lines.append(documented[line])
        else:
            lines.append(shortened(documented[line], printed[place]))
    return lines


def rewritten(documented, printed):
    """(lines, lost): an output as it is now, and the documented lines that have no place in it."""
    if difference(documented, printed) is None:
        return documented, []
    while printed and not printed[-1].text.strip():
        printed = printed[:-1]
    found, patterns = partners(documented, [line.text for line in printed]), Patterns(documented)
    lines, lost = [], []
    for k, (begin, end) in enumerate(segments(documented)):
        if k > 0:
            lines.append(documented[begin - 1])
        if begin == end:
            continue
        new = new_segment(k, (begin, end), documented, printed, found, patterns)
        if new is None:
            lost.append(documented[begin])
            new = documented[begin:end]
        lines += new
    return lines, lost


def updated(page, text, outputs):
    """(text, changes, lost) of a page: its text with real outputs, what was changed, and what must be done by hand.

    `outputs` are pairs of Output and the list of printed Line, None where the commands did not run."""
    lines, changes, lost = text.split("\n"), [], []
    for output, printed in reversed(outputs):
        if printed is None:
            continue
        new, gone = rewritten(output.lines, printed)
        lost += [f"{page}:{output.begin + 1}: no printed line is like this one: {line}" for line in gone]
        if not gone and difference(new, printed) is not None:
            lost.append(f"{page}:{output.begin + 1}: the output could not be rewritten: mend it by hand")
        if new != output.lines:
            change = "".join([f"\n  - {line}" for line in output.lines if line not in new]
                             + [f"\n  + {line}" for line in new if line not in output.lines])
            changes.append(f"{page}:{output.begin + 1}: updated{change}")
            lines[output.begin:output.end] = [(" " * output.indent + line).rstrip() for line in new]
    return "\n".join(lines), changes[::-1], lost
