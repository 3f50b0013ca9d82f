"""The communication that each switch hides: as `espalier simulate` predicts it, and as runs that wait measure it.

For each switch a layout in which it matters, with the switch off and on:
  the program of rank 0 changes, and the predicted hidden share of the axis rises by at least the points of the table;
  the measured share is at least the predicted one less 3 points, and every rank uses the bytes of the plan.
Shares are those of rank 0, the median of all steps but the first. A run on a machine with other work is late, which
counts as exposed: a run that misses is repeated once with times four times as long.

    overlap.py                     the rows of the test, several runs at a time
    overlap.py measure [TEXT ...]  all rows, or those whose name holds a TEXT, with steps of six seconds, one by one
"""
import concurrent.futures, os, statistics, sys, tempfile

from support.runs import Checks, Metrics, launch
from support.sleeping import DECK, here, predict, sleep

AT_ONCE = 4        # runs; each waits more than it computes
STEP_S, STEPS = 1.5, 4
AGAIN = 4          # how many times as long the second attempt waits
POINTS = 3         # of the measured share below the predicted one
MEASURED_STEP_S, MEASURED_STEPS = 6, 11
SMALL = ["model.layers=4", "batch.global=4"]


def degrees(**axes):
    return [f"parallel.{axis}={degree}" for axis, degree in axes.items()]


class Row:
    """`off` and `on` are overrides; `rise`: percentage points by which the predicted share rises at least."""

    def __init__(self, name, axis, ranks, overrides, off, on, rise, test=True):
        self.name, self.axis, self.ranks, self.rise, self.test = name, axis, ranks, rise, test
        self.overrides = {"off": [*SMALL, *overrides, *off], "on": [*SMALL, *overrides, *on]}


def schedule(name, chunks=1):
    return [f"pipeline.schedule={name}", f"pipeline.chunks={chunks}", "model.layers=8", "batch.global=16"]


LATE, EARLY = ["overlap.gradients=false"], ["overlap.gradients=true"]
AT_USE, AHEAD = ["overlap.prefetch=0"], ["overlap.prefetch=1"]
ALONE, BESIDE = ["overlap.tensor=false"], ["overlap.tensor=true"]
WHOLE, STRIPS = ["overlap.tensor_strips=1"], ["overlap.tensor_strips=2"]
APART, TOGETHER = ["overlap.interleave=false"], ["overlap.interleave=true"]
STEP, EACH = ["parallel.reduce=step"], ["parallel.reduce=microbatch"]
AT_NEED, BEFORE = ["overlap.context=false"], ["overlap.context=true"]
FP32, BF16 = ["parallel.reduce_dtype=fp32"], ["parallel.reduce_dtype=bf16"]
LONGER = False  # not in the test
ROWS = [
    Row("gradients", "dp", 2, degrees(dp_replicate=2), LATE, EARLY, 60),
    Row("gradients in 1f1b", "dp", 4, degrees(pp=2, dp_shard=2), LATE, EARLY, 20),
    Row("prefetch", "dp", 4, degrees(dp_shard=4), AT_USE, AHEAD, 50),
    Row("tensor", "tp", 2, degrees(tp=2), ALONE, BESIDE, 20),
    Row("strips", "tp", 2, degrees(tp=2), WHOLE, STRIPS, 8),
    Row("interleave in 1f1b", "tp", 4, [*degrees(pp=2, tp=2), "batch.global=12"], APART, TOGETHER, 20),
    Row("reduce in 1f1b", "dp", 4, degrees(pp=2, dp_shard=2), STEP, EACH, 30),
    Row("context", "cp", 2, degrees(cp=2, context="all_gather"), AT_NEED, BEFORE, 50),
    Row("reduce_dtype", "dp", 2, degrees(dp_replicate=2), FP32, BF16, 15),
    *(Row(f"{what} in {name}", axis, 8, [*degrees(pp=2, **{degree: 4}), *schedule(name, chunks)], off, on, rise, LONGER)
      for name, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2), ("dualpipev", 2))
      for what, axis, degree, off, on, rise in (("gradients of 4 ranks", "dp", "dp_shard", LATE, EARLY, 40),
                                                ("strips of 4 ranks", "tp", "tp", WHOLE, STRIPS, 15))),
    *(Row(f"interleave in {name}", "tp", 8, [*degrees(pp=2, tp=4), *schedule(name, chunks)], APART, TOGETHER, 20,
          LONGER)
      for name, chunks in (("1f1b", 1), ("interleaved", 2), ("dualpipev", 2))),
    Row("prefetch of 8 ranks", "dp", 8, degrees(dp_shard=8) + ["batch.global=16"], AT_USE, AHEAD, 50, LONGER),
]


def share(figures, axis):
    """The hidden share of an axis's communication, in percent."""
    hidden, exposed = figures["hidden_ms"][axis], figures["exposed_ms"][axis]
    return 100 * hidden / (hidden + exposed)


class Attempt:
    """A run of a row with a setting, its prediction, and the same again with longer times if it was late."""

    def __init__(self, row, setting, step_s, steps, attempts):
        overrides = row.overrides[setting]
        with tempfile.TemporaryDirectory() as folder:
            prediction = predict(folder, row.ranks, overrides)
            self.predicted = share(prediction["by_rank"][0], row.axis)
            self.peaks = [rank["peak_bytes"] for rank in prediction["by_rank"]]
            for attempt in range(attempts):
                self.dilation = step_s * 1e3 * AGAIN**attempt / prediction["step_ms"]
                run = os.path.join(folder, f"run{attempt}")
                sleep(run, row.ranks, [*overrides, f"run.steps={steps}", f"run.dilation={self.dilation}"], timeout=1200)
                metrics = Metrics(run)
                self.used = metrics.end["rank_peak_bytes"]
                self.measured = statistics.median(share(metrics.steps[s], row.axis) for s in metrics.steps if s > 1)
                if self.measured >= self.predicted - POINTS:
                    break


def program(row, setting):
    return launch(1, ["plan", DECK, "--ranks", str(row.ranks), "--program", "0", *here(row.overrides[setting])]).stdout


def check(checks, row, off, on):
    checks.that(program(row, "off") != program(row, "on"), f"{row.name}: the program changes")
    checks.that(on.predicted >= off.predicted + row.rise,
                f"{row.name}: of {row.axis} {on.predicted:.1f} % are hidden instead of {off.predicted:.1f} %, "
                f"at least {row.rise} points more")
    for setting, run in (("off", off), ("on", on)):
        checks.that(run.measured >= run.predicted - POINTS,
                    f"{row.name} {setting}: measured {run.measured:.1f} %, predicted {run.predicted:.1f} %")
        checks.that(run.used == run.peaks, f"{row.name} {setting}: every rank uses the bytes of the plan")


def run_rows(rows, at_once, *how):
    """Rows with the attempts of both settings, as they end."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        running = [(row, *(pool.submit(Attempt, row, setting, *how) for setting in ("off", "on"))) for row in rows]
        for row, off, on in running:
            yield row, off.result(), on.result()


def main():
    checks = Checks()
    if sys.argv[1:2] == ["measure"]:
        rows = [row for row in ROWS if any(text in row.name for text in sys.argv[2:] or [""])]
        runs = run_rows(rows, 1, MEASURED_STEP_S, MEASURED_STEPS, 1)
    else:
        runs = run_rows([row for row in ROWS if row.test], AT_ONCE, STEP_S, STEPS, 2)
    for row, off, on in runs:
        check(checks, row, off, on)
    checks.finish()


main()
