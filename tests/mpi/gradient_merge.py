"""Gradients merged over microbatches: 4 microbatches of 8 sequences are 1 of 32, on one rank and on two, reduced once
per step or after each microbatch. Loss and norm agree to rtol 1e-6, and so does every merged, clipped gradient: after
step 1 the first moment is (1 - beta1) times the gradient."""
import math, os

from support.checkpoints import distance, tensors
from support.runs import Checks, difference, layout, scratch, train

RTOL = 1e-6
BETA1, CLIP = 0.9, 0.5
STEP = ["run.steps=1", "batch.global=32", f"optimizer.beta1={BETA1}", f"optimizer.clip_norm={CLIP}"]
EACH = "parallel.reduce=microbatch"

# layout, sequences of a microbatch per rank, further keys; all have 32 sequences per step
RUNS = [
    ("111", 8, []),
    ("111", 8, [EACH]),
    ("121", 16, []),
    ("121", 4, []),
    ("121", 4, [EACH]),
    ("121", 4, [EACH, "parallel.zero=2"]),
    ("121", 4, [EACH, "parallel.zero=1"]),
    ("121", 4, ["recompute.mode=full"]),
    ("211", 8, []),
]


def moments(run):
    prefix = "optimizer/exp_avg/"
    return {name: values for name, values in tensors(run.checkpoint(1)).items() if name.startswith(prefix)}


def norm(values):
    return math.sqrt(math.fsum(v * v for v in values))


def main():
    checks = Checks()
    with scratch() as folder:
        whole = train(os.path.join(folder, "whole"), 1, STEP + ["batch.micro=32"])
        expected = moments(whole)
        checks.that(whole.curve("grad_norm")[0] > CLIP, "the gradient is clipped")
        total = math.sqrt(math.fsum(norm(m) ** 2 for m in expected.values()))
        checks.that(
            abs(total / ((1 - BETA1) * CLIP) - 1) < 1e-5, f"the moments' norm is (1 - beta1) clip_norm: {total:.6f}")
        for number, (digits, micro, keys) in enumerate(RUNS):
            degrees, ranks = layout(digits)
            run = train(os.path.join(folder, f"run{number}"), ranks, STEP + degrees + keys + [f"batch.micro={micro}"])
            name = f"{digits}, microbatches of {micro} {' '.join(keys)}"
            for curve in ("loss", "grad_norm"):
                worst = difference(run.curve(curve), whole.curve(curve))
                checks.that(worst <= RTOL, f"{name}: {curve} differs by {worst:.1e}")
            merged = moments(run)
            worst = max(distance(merged[n], expected[n]) / norm(expected[n]) for n in expected)
            checks.that(merged.keys() == expected.keys() and worst <= RTOL,
                        f"{name}: merged gradients differ by {worst:.1e}")
    checks.finish()


main()
