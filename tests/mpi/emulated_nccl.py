"""Whole runs on emulated GPUs over NCCL, emulated too: every schedule and axis, in random sizes. If every instruction
is an exchange they bitwise equal runs over MPI; with library collectives they agree to rtol 1e-5. Each call waits for
its peers, so an order of issue that could deadlock GPUs hangs. Skipped if the emulated module is not built."""
import os
import re

from support.checkpoints import same_bits, tensors
from support.emulated import LAYOUTS, skip_without_module
from support.runs import Checks, DECK, ENVIRONMENT, difference, launch, scratch, train
from support.sizes import Sizes

STEPS = 2
BASE = ["run.device=cuda", f"run.steps={STEPS}", "batch.global=8", "optimizer.eps=1e-6"]
RTOL = 1e-5


def run(folder, name, ranks, overrides, **settings):
    ENVIRONMENT.update(ESPALIER_EMULATED_GPUS="8", **settings)
    return train(os.path.join(folder, name), ranks, [*BASE, *overrides])


def check(checks, folder, sizes, ranks, layout):
    layout = [*layout, *sizes.draw(layout)]
    mpi = run(folder, "mpi", ranks, [*layout, "run.transport=mpi"])
    over = {
        way: run(folder, way, ranks, [*layout, "run.transport=nccl"], ESPALIER_NCCL_NATIVE=native)
        for way, native in (("exchanges", "0"), ("native", "1"))
    }
    name = " ".join(layout)
    same = all(over["exchanges"].curve(key) == mpi.curve(key) for key in ("loss", "grad_norm"))
    bits = same_bits(tensors(over["exchanges"].checkpoint(STEPS)), tensors(mpi.checkpoint(STEPS)))
    checks.that(same and bits, f"{name}: exchanges over NCCL and over MPI bitwise")
    far = max(difference(over["native"].curve(key), mpi.curve(key)) for key in ("loss", "grad_norm"))
    checks.that(far <= (1e-2 if "precision.compute=bf16" in layout else RTOL), f"{name}: collectives to {far:.1e}")


def by_switches(folder, name, *keys, **settings):
    """The functions that switches computed in a run of three shards."""
    ENVIRONMENT.update(ESPALIER_EMULATED_GPUS="8", ESPALIER_NCCL_NATIVE="1", ESPALIER_EMULATED_NVLS="1,say", **settings)
    done = launch(3, ["run", DECK, "-d", os.path.join(folder, name), *BASE, "model.layers=2", "parallel.dp_shard=3",
                      "batch.global=6", "run.transport=nccl", *keys])
    for setting in ("ESPALIER_EMULATED_NVLS", *settings):
        del ENVIRONMENT[setting]
    return done.returncode, sorted(set(re.findall(r"emulated NCCL: switches compute (\w+)", done.stdout)))


def check_switches(checks, folder):
    """Switches gather, and add only if sums may have any order. Settings of the user are kept."""
    gathers, all_of_them = (0, ["allgather"]), (0, ["allgather", "allreduce", "reducescatter"])
    for name, expected, keys, settings in (
        ("deterministic", gathers, (), {}),
        ("free", all_of_them, ("run.deterministic=false",), {}),
        ("old", (0, []), (), {"ESPALIER_EMULATED_VERSIONS": "NCCL=2.23"}),
        ("ring", (0, []), (), {"NCCL_ALGO": "allreduce:ring"}),
        ("asked", all_of_them, (), {"NCCL_NVLS_ENABLE": "1"})):
        found = by_switches(folder, name, *keys, **settings)
        checks.that(found == expected, f"switches, {name}: {found}")


def check_failed_init(checks, folder):
    """A communicator that cannot be made is named."""
    ENVIRONMENT.update(ESPALIER_EMULATED_GPUS="8", ESPALIER_EMULATED_NCCL_ERROR="1:init")
    done = launch(2, ["run", DECK, "-d", os.path.join(folder, "init"), *BASE, "parallel.tp=2", "run.transport=nccl"])
    del ENVIRONMENT["ESPALIER_EMULATED_NCCL_ERROR"]
    named = "making the communicator of ranks 0, 1 for tp failed: an error of emulated NCCL" in done.stdout
    checks.that(done.returncode == 1 and named, f"a communicator that cannot be made: {done.returncode}" +
                ("" if named else "\n" + done.stdout))


def check_order_of_sums(checks, folder):
    """If switches reduced, the order would change with every call; run.deterministic does not let them."""
    three = ["model.layers=2", "parallel.dp_shard=3", "batch.global=6", "run.transport=nccl", "run.deterministic=true"]
    first, again = (run(folder, name, 3, three, ESPALIER_NCCL_NATIVE="1", ESPALIER_EMULATED_NVLS="1")
                    for name in ("first", "again"))
    del ENVIRONMENT["ESPALIER_EMULATED_NVLS"]
    checks.that(same_bits(tensors(first.checkpoint(STEPS)), tensors(again.checkpoint(STEPS))),
                "switches that add up: twice bitwise equal")


def main():
    skip_without_module()
    checks, sizes = Checks(), Sizes()
    for ranks, layout in LAYOUTS:
        with scratch() as folder:
            check(checks, folder, sizes, ranks, layout)
    with scratch() as folder:
        check_order_of_sums(checks, folder)
        check_switches(checks, folder)
        check_failed_init(checks, folder)
    checks.finish()


main()
