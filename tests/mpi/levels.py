"""The promises of doc/numerics.md at one instruction level of the CPU: pipeline, recompute and strips of rows change no
bit, a layout trains like one rank, and fp32 losses equal the lowest level's.

    levels.py LEVEL     exit status 77: the processor lacks it
"""
import os, sys

from support.checkpoints import same_bits, tensors
from support.runs import ENVIRONMENT, Checks, difference, launch, scratch, train

LOWEST = "sse2"
RTOL = {"fp32": 1e-5, "bf16": 1e-2}
STEPS, LONG = 4, 20
LAYOUT = ["parallel.dp_replicate=2", "parallel.pp=2", "parallel.tp=2"]
EQUAL = [["recompute.mode=full"], ["overlap.tensor_strips=3", "recompute.mode=selective"],
         ["parallel.pp=2", "overlap.tensor_strips=2"]]


def run(folder, name, level, ranks, *overrides):
    ENVIRONMENT["ESPALIER_ISA"] = level
    metrics = train(os.path.join(folder, name), ranks, overrides)
    assert metrics.starts[-1]["cpu_level"] == level, metrics.starts[-1]
    return metrics


def curves(metrics):
    return metrics.curve("loss"), metrics.curve("grad_norm")


def check_bits(folder, level, compute, checks):
    common = [f"precision.compute={compute}", "parallel.tp=2", f"run.steps={STEPS}"]
    first = run(folder, f"{compute}-first", level, 2, *common)
    for i, more in enumerate(EQUAL):
        ranks = 4 if "parallel.pp=2" in more else 2
        other = run(folder, f"{compute}-{i}", level, ranks, *common, *more)
        same = same_bits(tensors(other.checkpoint(STEPS)), tensors(first.checkpoint(STEPS)))
        checks.that(same and curves(other) == curves(first), f"{level} {compute} {' '.join(more)}: bitwise")


def check_layout(folder, level, compute, checks):
    common = [f"precision.compute={compute}", f"run.steps={LONG}"]
    one = run(folder, f"{compute}-one", level, 1, *common)
    eight = run(folder, f"{compute}-eight", level, 8, *common, *LAYOUT)
    far = max(map(difference, curves(eight), curves(one)))
    checks.that(far <= RTOL[compute], f"{level} {compute}: eight ranks against one: {far:.1e}")
    return one


def main():
    level = sys.argv[1]
    ENVIRONMENT["ESPALIER_ISA"] = level
    info = launch(1, ["info"])
    if info.returncode == 2:
        print(f"skipped: {info.stdout}")
        sys.exit(77)
    checks = Checks()
    with scratch() as folder:
        for compute in RTOL:
            check_bits(folder, level, compute, checks)
            one = check_layout(folder, level, compute, checks)
            if compute == "fp32":
                lowest = run(folder, "lowest", LOWEST, 1, f"run.steps={LONG}", "precision.compute=fp32")
                far = max(map(difference, curves(one), curves(lowest)))
                checks.that(far <= RTOL["fp32"], f"{level} against {LOWEST}, {LONG} steps in fp32: {far:.1e}")
    checks.finish()


main()
