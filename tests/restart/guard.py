"""A gradient that is not finite, on one rank in one step: it updates nothing, tensor and rank are named, and the run
stops, skips the step or rolls back, bitwise alike in layouts that are bitwise neutral, and after a restart."""
import json, os, re, subprocess, tempfile

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ENVIRONMENT, Metrics, executable, program

STEPS, BAD, PATIENCE = 8, 4, 240
NAME = "gradients/model.layers.0.self_attn.o_proj.weight"
BASE = [
    "model.layers=2", "batch.global=4", "checkpoint.every_steps=3", "checkpoint.keep=100", "checkpoint.restart=auto"
]
ONE, STAGES, SHARDS, TENSOR = (1, []), (2, ["parallel.pp=2"]), (2, ["parallel.dp_shard=2"]), (2, ["parallel.tp=2"])


def instruction(layout, rank):
    """Where this rank first writes the gradient."""
    ranks, overrides = layout
    found = [
        re.match(r" *(\d+) compute +[BW]0 .*-> \((?:.*, )?" + re.escape(NAME) + "@", line)
        for line in program(ranks, rank, [*BASE, *overrides])
    ]
    return next(int(m[1]) for m in found if m)


def run(home, layout, more, rank=None, step=BAD):
    ranks, overrides = layout
    line = [executable(), "run", DECK, "-d", home, *BASE, *overrides, *more]
    if rank is not None:
        fault = f"export ESPALIER_FAULT=instruction-{instruction(layout, rank)}:nan:{step}"
        line = ["bash", "-c", f'[ "${{OMPI_COMM_WORLD_RANK:-0}}" = {rank} ] && {fault}; exec "$@"', "bash", *line]
    launcher = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
                "--mca", "btl_vader_single_copy_mechanism", "none"] if ranks > 1 else []
    return subprocess.run(launcher + line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", errors="replace", timeout=PATIENCE, stdin=subprocess.DEVNULL)


def events(home, event):
    with open(os.path.join(home, "metrics.jsonl")) as file:
        return [line for line in map(json.loads, file) if line.get("event") == event]


def same(one, other):
    a, b = Metrics(one), Metrics(other)
    curves = all(a.curve(key) == b.curve(key) for key in ("loss", "grad_norm"))
    return curves and len(a.steps) == len(b.steps) == STEPS and \
        same_bits(tensors(a.checkpoint(STEPS)), tensors(b.checkpoint(STEPS)))


def check_stop(checks, home):
    straight = home("straight")
    run(straight, SHARDS, ["run.steps=3"])
    for layout, rank in ((ONE, 0), (SHARDS, 1), (TENSOR, 1), (STAGES, 0)):
        where = home(f"stop-{rank}-{'-'.join(layout[1])}")
        done = run(where, layout, [f"run.steps={STEPS}"], rank)
        what = f"stop, {layout[0]} ranks {' '.join(layout[1])}"
        named = f"first not finite: {NAME} on rank {rank}: " in done.stdout and f"step {BAD}: " in done.stdout
        checks.that(done.returncode == 1 and named,
                    f"{what}: exit 1, tensor, rank and step are named" + ("" if named else "\n" + done.stdout))
        kept = sorted(os.listdir(os.path.join(where, "checkpoints")))
        checks.that([n for n in kept if n.startswith("step-")] == ["step-00000003"],
                    f"{what}: only the checkpoint before is there ({kept})")
    checks.that(
        same_bits(tensors(Metrics(home(f"stop-1-{SHARDS[1][0]}")).checkpoint(3)),
                  tensors(Metrics(straight).checkpoint(3))), "... and it is the unbroken run's")


def check_going_on(checks, home, way):
    guard = [f"guard.on_nonfinite={way}"]
    first = home(f"{way}-one")
    done = run(first, ONE, [f"run.steps={STEPS}", *guard], 0)
    event = events(first, {"skip": "skipped", "rollback": "rollback"}[way])
    checks.that(done.returncode == 0 and [e["step"] for e in event] == [BAD] and NAME in event[0]["reason"],
                f"{way}: recorded with step and tensor {event}")
    if way == "rollback":
        checks.that(event[0]["to"] == 3, "rollback: to the checkpoint before")
        manifest = open(os.path.join(Metrics(first).checkpoint(STEPS), "MANIFEST")).read()
        checks.that(f"samples {4 * (STEPS + 1)}" in manifest,
                    "rollback: the samples passed over are counted in the MANIFEST")
    stages = home(f"{way}-stages")
    done = run(stages, STAGES, [f"run.steps={STEPS}", *guard], 0)
    checks.that(done.returncode == 0 and same(first, stages), f"{way}: bitwise equal in two stages")
    broken = home(f"{way}-restart")
    halves = ["run.steps=6", f"lr.decay_steps={STEPS - 4}", *guard], [f"run.steps={STEPS}",
                                                                      *guard]  # 4 of warm-up: equal rates
    codes = [run(broken, ONE, halves[0], 0).returncode, run(broken, ONE, halves[1]).returncode]
    whole = home(f"{way}-whole")
    codes.append(run(whole, ONE, halves[1], 0).returncode)
    checks.that(codes == [0, 0, 0] and same(broken, whole), f"{way}: a continued run is the unbroken one {codes}")


def check_limits(checks, home):
    where = home("nothing")
    done = run(where, ONE, [f"run.steps={STEPS}", "guard.on_nonfinite=rollback", "checkpoint.every_steps=0"], 0)
    checks.that(done.returncode == 1 and NAME in done.stdout, "rollback without a checkpoint: exit 1")
    where = home("skips")
    done = run(where, ONE, [
        f"run.steps={STEPS}", "guard.on_nonfinite=skip", "guard.max_skips=2", "optimizer.lr=1e38",
        "optimizer.clip_norm=0"
    ])
    checks.that(done.returncode == 1 and "guard.max_skips = 2" in done.stdout and len(events(where, "skipped")) == 2,
                "no more skips in a row than allowed")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        check_stop(checks, home)
        for way in ("skip", "rollback"):
            check_going_on(checks, home, way)
        check_limits(checks, home)
    checks.finish()


main()
