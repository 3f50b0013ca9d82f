"""run.costs puts ops in order and changes nothing else: in each layout below the program follows the file, but
losses, norms, weights and moments are those of the run without a file, bit for bit, and every rank uses the bytes of
the plan. A run continues after the file has changed. Ranks that read different contents refuse to start, and each is
named."""
import os, subprocess

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ENVIRONMENT, ROOT, executable, launcher, planned_peaks, program, scratch, train

STEPS = 3
GPUS = os.path.join(ROOT, "inputs", "clusters", "h100-8x400g.toml")  # a start of a kernel takes longer than its work
CPUS = os.path.join(ROOT, "tests", "predict", "cpu.toml")
KEYS = [f"run.steps={STEPS}", "batch.global=8"]
WIDE = ["model.dim=128", "model.ffn_dim=512", "model.seq_len=128"]
EXPERTS = ["experts.count=4", "experts.per_token=2", "experts.ffn_dim=23", "experts.shared_ffn_dim=96"]
LAYOUTS = {
    "strips": (2, ["parallel.tp=2", "overlap.tensor_strips=3", *WIDE]),
    "automatic strips": (2, ["parallel.tp=2", "overlap.tensor_strips=0", "precision.compute=bf16", *WIDE]),
    "strips and cp": (4, ["parallel.tp=2", "parallel.cp=2", "overlap.tensor_strips=2", "recompute.mode=full", *WIDE]),
    "gathered keys": (2, ["parallel.cp=2", "parallel.context=all_gather", *WIDE]),
    "ring": (4, ["parallel.cp=4", "parallel.context=ring", "recompute.mode=full"]),
    "joint jobs": (4, ["parallel.pp=2", "parallel.tp=2", "overlap.interleave=true", "batch.micro=1", *WIDE]),
    "both directions": (4, ["parallel.pp=2", "parallel.tp=2", "pipeline.schedule=dualpipev", "batch.micro=1",
                            "dropout.attention=0.1"]),
    "experts": (2, ["parallel.dp_shard=2", "parallel.ep=2", *EXPERTS]),
}


def costs(path):
    return [f"run.costs={path}"]


def slow_links(folder):
    """A file of CPUs whose messages take about as long as their kernels."""
    path = os.path.join(folder, "slow-links.toml")
    with open(CPUS) as file, open(path, "w") as out:
        out.write(file.read().replace("\nbytes_per_us = 2_000.0", "\nbytes_per_us = 100.0"))
    return path


def same_results(checks, folder):
    files = [slow_links(folder), GPUS]
    for name, (ranks, keys) in LAYOUTS.items():
        keys = [*KEYS, *keys]
        runs, programs = [], []
        for i, more in enumerate([[], *map(costs, files)]):
            run = train(os.path.join(folder, f"{name}-{i}"), ranks, [*keys, *more])
            runs.append(((run.curve("loss"), run.curve("grad_norm")), tensors(run.checkpoint(STEPS))))
            programs.append(program(ranks, 0, [*keys, *more]))
            peaks = planned_peaks(folder, ranks, [*keys, *more])
            checks.that(run.end["rank_peak_bytes"] == peaks, f"{name} {i}: every rank uses the bytes of the plan")
            checks.that(("costs" in run.starts[0]) == bool(more), f"{name} {i}: the start names the file, if any")
        for i, (curves, state) in enumerate(runs[1:]):
            checks.that(curves == runs[0][0] and same_bits(state, runs[0][1]), f"{name} {files[i]}: the same bits")
        checks.that(programs[1] != programs[2], f"{name}: the program follows the file")


def restart(checks, folder):
    """The file changes between two starts."""
    ranks, keys = LAYOUTS["strips"]
    keys = [*KEYS, *keys, "checkpoint.every_steps=1"]
    whole = train(os.path.join(folder, "whole"), ranks, keys)
    path, run = os.path.join(folder, "costs.toml"), os.path.join(folder, "parts")
    for steps, source in zip((1, STEPS), (CPUS, GPUS)):
        with open(source) as text, open(path, "w") as copy:
            copy.write(text.read())
        parts = train(run, ranks, [*keys, *costs(path), f"run.steps={steps}"])
    checks.that(parts.starts[0]["costs"] != parts.starts[1]["costs"], "restart: the starts name different contents")
    checks.that(parts.curve("loss") == whole.curve("loss") and
                same_bits(tensors(parts.checkpoint(STEPS)), tensors(whole.checkpoint(STEPS))), "restart: the same bits")


def agreement(checks, folder):
    """Three ranks read costs.toml in folders of their own; two of the files differ from that of rank 0."""
    start = []
    for rank, source in enumerate([CPUS, GPUS, GPUS]):
        place = os.path.join(folder, f"rank{rank}")
        os.mkdir(place)
        os.symlink(source, os.path.join(place, "costs.toml"))
        start += [":"] * bool(start) + ["-n", "1", "--wdir", place, executable(), "run", DECK, "-d",
                                        os.path.join(folder, "refused"), "parallel.dp_shard=3", "batch.global=12",
                                        "run.costs=costs.toml"]
    options = launcher(3)
    done = subprocess.run([options[0], *options[3:], *start], env=ENVIRONMENT, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120)
    checks.that(done.returncode == 2, f"agreement: exit status 2, not {done.returncode}")
    for rank in (1, 2):
        checks.that(f"run.costs: rank {rank} on " in done.stdout, f"agreement: rank {rank} is named\n{done.stdout}")
    checks.that("run.costs: rank 0" not in done.stdout, "agreement: rank 0 is not")
    checks.that(not os.path.exists(os.path.join(folder, "refused")), "agreement: nothing is written")


def main():
    checks = Checks()
    with scratch() as folder:
        checks.each([same_results, restart, agreement], folder)
    checks.finish()


main()
