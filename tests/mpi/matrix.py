"""The matrix of layouts: one table, each of whose rows must equal one rank.

A row trains 5 steps (some 20) on distinct samples with clipping on and must agree with one rank that has the same
model:
  fp32   every loss (that of further tokens, too) and gradient norm to rtol 1e-5; every parameter after the last step to
         1e-4 of its total change
  bf16   every loss and gradient norm to rtol 1e-2
With moments of bf16 a result that differs in its last bit is sometimes rounded to the other neighbour: at least 97 % of
the moments must be equal (with other random bits it would be half of them), parameters agree to 5e-3 of how far they
moved, since Muon magnifies small directions, and gradient norms, which follow the parameters, to 5e-5. The planned peak
of every rank of every row is what the executor used, exactly.

    matrix.py             run the whole table, or the share of it that ESPALIER_TEST_SHARE names
    matrix.py list        print it
    matrix.py rows TEXT   run the rows whose name holds TEXT
    matrix.py named NAME ...   run the rows of these names
"""
import os, shutil, sys

from support.checkpoints import distance, tensors
from support.layouts import cover, plain_table, table
from support.runs import Checks, difference, planned_peaks, scratch, train
from support.share import share

RTOL = {"fp32": 1e-5, "bf16": 1e-2}
WEIGHTS, ROUNDED_WEIGHTS = 1e-4, 5e-3
ROUNDED_NORM = 5e-5
EQUAL_MOMENTS = 0.97


def without_key_biases(name, values):
    """GPT-2's key biases have an exact gradient of zero: only rounding moves them."""
    if not name.endswith("attn.c_attn.bias"):
        return values
    third = len(values) // 3
    return values[:third] + values[2 * third:]


class Serial:
    """The one-rank runs by model; their results are read once."""

    def __init__(self, folder):
        self.folder, self.runs = folder, {}

    def of(self, row):
        key = (row.deck, *row.model)
        if key not in self.runs:
            run = train(os.path.join(self.folder, f"serial{len(self.runs)}"), 1,
                        [*row.model, "checkpoint.at_start=true"], deck=row.deck)
            steps = max(run.steps)
            self.runs[key] = run, parameters(run, 0), parameters(run, steps), moments(run, steps)
        return self.runs[key]


def parameters(run, step):
    found = tensors(run.checkpoint(step))
    return {n: without_key_biases(n, v) for n, v in found.items() if n.startswith("parameters/")}


def moments(run, step):
    return {n: v for n, v in tensors(run.checkpoint(step)).items() if n.startswith("optimizer/")}


def equal_share(mine, theirs):
    """Share of equal elements among all moments."""
    if mine.keys() != theirs.keys():
        return 0
    same = sum(a == b for n in theirs for a, b in zip(mine[n], theirs[n]))
    return same / sum(len(values) for values in theirs.values())


def apart(mine, before, after):
    """Largest distance of a parameter from one rank's, relative to how far that one moved."""
    if mine.keys() != after.keys():
        return float("inf")
    return max(distance(mine[n], after[n]) / distance(before[n], after[n]) for n in after)


def check(row, serial, folder, checks, worst):
    one, before, after, rounded = serial.of(row)
    home = os.path.join(folder, "run")
    run = train(home, row.ranks, [*row.model, *row.keys], deck=row.deck)
    curves = ["loss", "grad_norm", *(["mtp_loss"] if row.predicts_further() else [])]
    far = {curve: difference(run.curve(curve), one.curve(curve)) for curve in curves}
    if row.compute == "fp32":
        far["weights"] = apart(parameters(run, max(run.steps)), before, after)
    has_rounded = "precision.moments=bf16" in row.model
    if has_rounded and row.compute == "fp32":
        equal = equal_share(moments(run, max(run.steps)), rounded)
        checks.that(equal >= EQUAL_MOMENTS, f"{row}: {100 * equal:.2f} % of the moments are equal")
    bounds = {"loss": RTOL[row.compute], "grad_norm": max(RTOL[row.compute], ROUNDED_NORM if has_rounded else 0),
              "mtp_loss": RTOL[row.compute], "weights": ROUNDED_WEIGHTS if has_rounded else WEIGHTS}
    text = ", ".join(f"{what} {far[what]:.1e}" for what in far)
    checks.that(all(far[what] <= bounds[what] for what in far), f"{row}: {text}")
    checks.that(run.end["rank_peak_bytes"] == planned_peaks(folder, row.ranks, [*row.model, *row.keys], row.deck),
                f"{row}: planned peak is what was used")
    kind = f"{row.compute} with moments of bf16" if has_rounded else row.compute
    for what in far:
        worst[kind, what] = max(worst.get((kind, what), 0), far[what])
    shutil.rmtree(home)


def chosen(command, text):
    """The rows that the command line asks for."""
    rows = table()
    if command == "named":
        unknown = set(text) - {row.name for row in rows}
        assert not unknown, f"no such rows: {sorted(unknown)}"
        return [row for row in rows if row.name in text]
    if command == "share":
        return share(rows)
    return [row for row in rows if all(part in str(row) for part in text)]


def main():
    command, *text = sys.argv[1:] or ["share"]
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
