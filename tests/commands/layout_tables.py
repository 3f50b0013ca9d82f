"""Each row of the tables of doc/layouts.md is what `espalier simulate` says of the command above the table with the
row's keys: the peak within 1 %, the time of a step within 3 %, and whether it fits."""
import json, os, re, tempfile

from support.runs import Checks, ROOT, launch

PAGE = os.path.join(ROOT, "doc", "layouts.md")
COMMAND = re.compile(r"^build/espalier (simulate (?:.*\\\n)*.*)$", re.M)
ROW = re.compile(r"^\| `([^`]+=[^`]+)` \| ([\d.]+)(, does not fit)? \| ([\d.]+) \|", re.M)


def rows(text):
    """(words of the command, keys, GB, fits, seconds) of every row, with the last command before it."""
    commands = [(match.start(), match[1].replace("\\\n", " ").split()) for match in COMMAND.finditer(text)]
    for row in ROW.finditer(text):
        command = [words for place, words in commands if place < row.start()][-1]
        yield command, row[1].split(), float(row[2]), row[3] is None, float(row[4])


def simulate(command, keys, folder):
    """Peak in GB, whether it fits, seconds of a step. Later keys win."""
    path = os.path.join(folder, "figures.json")
    arguments = [word if not word.startswith("inputs/") else os.path.join(ROOT, word) for word in command]
    launch(1, [*arguments, *keys, "--json", path])
    with open(path) as file:
        figures = json.load(file)
    os.remove(path)
    return figures["peak_bytes"] / 1e9, figures["fits"], figures["step_ms"] / 1e3


def near(mine, theirs, share):
    return abs(mine - theirs) <= share * theirs


def main():
    checks = Checks()
    with open(PAGE) as file:
        found = list(rows(file.read()))
    checks.that(len(found) >= 25, f"{len(found)} rows in doc/layouts.md")
    with tempfile.TemporaryDirectory() as folder:
        for command, keys, peak, fits, seconds in found:
            is_peak, does_fit, is_seconds = simulate(command, keys, folder)
            checks.that(near(peak, is_peak, 0.01) and near(seconds, is_seconds, 0.03) and fits == does_fit,
                        f"{' '.join(keys)}: {is_peak:.1f} GB, {is_seconds:.3g} s, fits: {does_fit}")
    checks.finish()


main()
