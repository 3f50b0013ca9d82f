"""Whole runs on emulated GPUs whose streams go on in random orders, whose graphs run in random orders of their edges
and whose events are not ready at once: bitwise the run whose work runs when it is issued. A seed draws a row of the
matrix of layouts, or a layout with random sizes, the transport, graph or not, the order, and how many multiprocessors
the calls of NCCL share. Arguments: the number of seeds (20), the first one (the day's), and the most ranks of a row
(4). Skipped if the emulated module is not built."""
import os, random, sys, time

from support.checkpoints import same_bits, tensors
from support.emulated import LAYOUTS, environment, skip_without_module
from support.layouts import table
from support.runs import Checks, DECK, launch, scratch, train
from support.share import share
from support.sizes import Sizes

STEPS = 3
GPUS = 8
CTAS = 16  # of a call over the axis that takes most of them (overlap.tp_ctas)


def drawn_run(chooser, seed, rows):
    """Ranks, keys and deck."""
    if chooser.random() < 0.7:
        row = chooser.choice(rows)
        return row.ranks, [*row.model, *row.keys], row.deck
    ranks, layout = chooser.choice(LAYOUTS)
    return ranks, ["batch.global=8", *layout, *Sizes(seed).draw(layout)], DECK


def check(checks, seed, rows):
    chooser = random.Random(f"orders {seed}")
    ranks, keys, deck = drawn_run(chooser, seed, rows)
    transport = chooser.choice(["nccl", "nccl", "mpi"])
    keys += ["run.device=cuda", f"run.steps={STEPS}", f"run.transport={transport}"]
    native, graph, room = chooser.choice("01"), chooser.choice("011"), chooser.choice((1, 8, 100))
    environment(ESPALIER_EMULATED_GPUS=str(GPUS), ESPALIER_NCCL_NATIVE=native, ESPALIER_CUDA_GRAPH=graph)
    with scratch() as folder:
        in_order = train(os.path.join(folder, "in-order"), ranks, keys, deck=deck)
        environment(ESPALIER_EMULATED_STREAMS=f"random:{seed},not-ready:{chooser.randrange(3)},"
                    f"processors:{CTAS + room}")
        mixed = train(os.path.join(folder, "random"), ranks, keys, deck=deck)
        environment(ESPALIER_EMULATED_STREAMS=None)
        curves = all(mixed.curve(key) == in_order.curve(key) for key in ("loss", "grad_norm"))
        bits = same_bits(tensors(mixed.checkpoint(STEPS)), tensors(in_order.checkpoint(STEPS)))
    checks.that(curves and bits, f"seed {seed}, {ranks} ranks, native {native}, graph {graph}, room {room}: "
                f"{os.path.basename(deck)} {' '.join(keys)}")


def check_calls_that_hold_processors(checks):
    """Two calls of NCCL do not fit side by side. Begun in the order of the program, they end; in an order of its own on
    each rank, some rank waits for a call that another one has no room to begin, until the watchdog ends the run."""
    keys = ["run.device=cuda", f"run.steps={STEPS}", "run.transport=nccl", "batch.global=8", "model.layers=2",
            "parallel.tp=2", "parallel.dp_shard=2"]

    def status(home, order, seed, *more):
        environment(NCCL_LAUNCH_ORDER_IMPLICIT=order, ESPALIER_EMULATED_GPUS=str(GPUS),
                    ESPALIER_EMULATED_STREAMS=f"random:{seed},processors:{CTAS + 1}")
        return launch(4, ["run", DECK, "-d", home, *keys, *more]).returncode

    with scratch() as folder:
        home = lambda name: os.path.join(folder, f"run-{name}")
        checks.that(status(home("order"), None, 0) == 0,
                    "calls that share the multiprocessors end in the order of the program")
        hangs = lambda seed: status(home(seed), "0", seed, "run.watchdog_s=4", "run.watchdog_slow_s=4") == 1
        found = any(map(hangs, range(5)))
        checks.that(found, "the same without NCCL_LAUNCH_ORDER_IMPLICIT: a run hangs, and its watchdog ends it")
    environment(NCCL_LAUNCH_ORDER_IMPLICIT=None, ESPALIER_EMULATED_STREAMS=None)


def main():
    skip_without_module()
    today = int(time.strftime("%Y%m%d", time.gmtime())) * 1000
    given = [int(argument) for argument in sys.argv[1:]]
    count, first, most_ranks = given + [20, today, 4][len(given):]
    checks = Checks()
    rows = [row for row in table() if row.ranks <= min(most_ranks, GPUS)]
    for seed in share(range(first, first + count)):
        check(checks, seed, rows)
    check_calls_that_hold_processors(checks)
    checks.finish()


main()
