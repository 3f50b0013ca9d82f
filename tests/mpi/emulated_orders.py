"""Whole runs on emulated GPUs whose streams go on in random orders, whose graphs run in random orders of their edges
and whose events are not ready at once: bitwise the run whose work runs when it is issued. A seed draws the layout, the
sizes, the transport, graph or not, and the order. Argument: the number of seeds, from the day's on; the first seed may
follow. Skipped if the emulated module is not built."""
import os, random, sys, time

from support.checkpoints import same_bits, tensors
from support.emulated import LAYOUTS, environment, skip_without_module
from support.runs import Checks, scratch, train
from support.sizes import Sizes

STEPS = 3
BASE = ["run.device=cuda", f"run.steps={STEPS}", "batch.global=8"]


def check(checks, seed):
    chooser = random.Random(f"orders {seed}")
    ranks, layout = chooser.choice(LAYOUTS)
    keys = [*BASE, *layout, *Sizes(seed).draw(layout)]
    keys.append("run.transport=" + chooser.choice(["nccl", "nccl", "mpi"]))
    native, graph = chooser.choice("01"), chooser.choice("011")
    environment(ESPALIER_EMULATED_GPUS="8", ESPALIER_NCCL_NATIVE=native, ESPALIER_CUDA_GRAPH=graph)
    with scratch() as folder:
        in_order = train(os.path.join(folder, "in-order"), ranks, keys)
        environment(ESPALIER_EMULATED_STREAMS=f"random:{seed},not-ready:{chooser.randrange(3)}")
        mixed = train(os.path.join(folder, "random"), ranks, keys)
        environment(ESPALIER_EMULATED_STREAMS=None)
        curves = all(mixed.curve(key) == in_order.curve(key) for key in ("loss", "grad_norm"))
        bits = same_bits(tensors(mixed.checkpoint(STEPS)), tensors(in_order.checkpoint(STEPS)))
    checks.that(curves and bits, f"seed {seed}, {ranks} ranks, native {native}, graph {graph}: {' '.join(keys[2:])}")


def main():
    skip_without_module()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    first = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.strftime("%Y%m%d", time.gmtime())) * 1000
    checks = Checks()
    for seed in range(first, first + count):
        check(checks, seed)
    checks.finish()


main()
