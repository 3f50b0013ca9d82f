"""The matrix of layouts: one table, and every row of it equals one rank.

A row trains 5 steps (some 20) on distinct samples with clipping on and must agree with one rank that has the same
model:
  fp32   every loss and gradient norm to rtol 1e-5; every parameter after the last step to 1e-4 of how far it moved
  bf16   every loss and gradient norm to rtol 1e-2
and the planned peak of every rank is what the executor used, exactly.

    matrix.py             run the whole table
    matrix.py list        print it
    matrix.py rows TEXT   run the rows whose name holds TEXT
    matrix.py named NAME ...   run the rows of these names
    matrix.py share I N   run the I-th of N equal shares, from 1
"""
import os, shutil, sys

from support.checkpoints import distance, tensors
from support.layouts import cover, plain_table, table
from support.runs import Checks, difference, planned_peaks, scratch, train

RTOL = {"fp32": 1e-5, "bf16": 1e-2}
WEIGHTS = 1e-4


def without_key_biases(name, values):
    """GPT-2's key biases have an exact gradient of zero: what moves them is rounding."""
    if not name.endswith("attn.c_attn.bias"):
        return values
    third = len(values) // 3
    return values[:third] + values[2 * third:]


class Serial:
    """The one-rank runs by model; what they trained is read once."""

    def __init__(self, folder):
        self.folder, self.runs = folder, {}

    def of(self, row):
        key = (row.deck, *row.model)
        if key not in self.runs:
            run = train(os.path.join(self.folder, f"serial{len(self.runs)}"), 1,
                        [*row.model, "checkpoint.at_start=true"], deck=row.deck)
            steps = max(run.steps)
            self.runs[key] = run, parameters(run, 0), parameters(run, steps)
        return self.runs[key]


def parameters(run, step):
    found = tensors(run.checkpoint(step))
    return {n: without_key_biases(n, v) for n, v in found.items() if n.startswith("parameters/")}


def apart(mine, before, after):
    """Largest distance of a parameter from one rank's, over how far that one moved."""
    if mine.keys() != after.keys():
        return float("inf")
    return max(distance(mine[n], after[n]) / distance(before[n], after[n]) for n in after)


def check(row, serial, folder, checks, worst):
    one, before, after = serial.of(row)
    home = os.path.join(folder, "run")
    run = train(home, row.ranks, [*row.model, *row.keys], deck=row.deck)
    far = {curve: difference(run.curve(curve), one.curve(curve)) for curve in ("loss", "grad_norm")}
    if row.compute == "fp32":
        far["weights"] = apart(parameters(run, max(run.steps)), before, after)
    bounds = {"loss": RTOL[row.compute], "grad_norm": RTOL[row.compute], "weights": WEIGHTS}
    text = ", ".join(f"{what} {far[what]:.1e}" for what in far)
    checks.that(all(far[what] <= bounds[what] for what in far), f"{row}: {text}")
    checks.that(run.end["rank_peak_bytes"] == planned_peaks(folder, row.ranks, [*row.model, *row.keys], row.deck),
                f"{row}: planned peak is what was used")
    for what in far:
        worst[row.compute, what] = max(worst.get((row.compute, what), 0), far[what])
    shutil.rmtree(home)


def chosen(command, text):
    """The rows that the command line asks for."""
    rows = table()
    if command == "named":
        unknown = set(text) - {row.name for row in rows}
        assert not unknown, f"no such rows: {sorted(unknown)}"
        return [row for row in rows if row.name in text]
    if command == "share":
        share, shares = map(int, text)
        return rows[share - 1::shares]
    return [row for row in rows if all(part in str(row) for part in text)]


def main():
    command, *text = sys.argv[1:] or ["rows", ""]
    rows = chosen(command, text)
    if command == "list":
        print(*rows, f"{len(rows)} rows", sep="\n")
        return
    checks, worst = Checks(), {}
    cover(plain_table()).check(checks, "pairs")
    with scratch() as folder:
        serial = Serial(folder)
        for row in rows:
            check(row, serial, folder, checks, worst)
    for (compute, what), most in sorted(worst.items()):
        print(f"largest difference of {what} in {compute}: {most:.1e}")
    checks.finish()


main()
