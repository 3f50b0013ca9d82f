"""A gradient that is not finite, on one rank in one step: it updates nothing, tensor and rank are named, and the run
stops, skips the step or rolls back, with equal bits in bit-neutral layouts, and after a restart. The same for a spike,
from a batch of noise."""
import json, os, re, shutil, subprocess, tempfile

from support.checkpoints import same_bits, tensors
from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, Metrics, executable, program

STEPS, BAD, PATIENCE = 8, 4, 240
NAME = "gradients/model.layers.0.self_attn.o_proj.weight"
BASE = [
    "model.layers=2", "batch.global=4", "checkpoint.every_steps=3", "checkpoint.keep=100", "checkpoint.restart=auto"
]
ONE, STAGES, SHARDS, TENSOR = (1, []), (2, ["parallel.pp=2"]), (2, ["parallel.dp_shard=2"]), (2, ["parallel.tp=2"])


def instruction(layout, rank, sequences=4):
    """Where this rank first writes the gradient in a step of `sequences` sequences."""
    ranks, overrides = layout
    found = [
        re.match(r" *(\d+) compute +[BW]0 .*-> \((?:.*, )?" + re.escape(NAME) + "@", line)
        for line in program(ranks, rank, [*BASE, *overrides, f"batch.global={sequences}"])
    ]
    return next(int(m[1]) for m in found if m)


def run(home, layout, more, rank=None, step=BAD, sequences=4):
    ranks, overrides = layout
    line = [executable(), "run", DECK, "-d", home, *BASE, *overrides, *more]
    if rank is not None:
        fault = f"export ESPALIER_FAULT=instruction-{instruction(layout, rank, sequences)}:nan:{step}"
        line = ["bash", "-c", f'[ "${{OMPI_COMM_WORLD_RANK:-0}}" = {rank} ] && {fault}; exec "$@"', "bash", *line]
    launcher = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
                "--mca", "btl_vader_single_copy_mechanism", "none"] if ranks > 1 else []
    return recorded(subprocess.run(launcher + line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   encoding="utf-8", errors="replace", timeout=PATIENCE, stdin=subprocess.DEVNULL))


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


def check_ramp(checks, home):
    """Repeated steps have the sizes of their numbers, and read on after the samples already read."""
    sizes = [1, 1, 2, 2, 3, 3, 4, 4]
    ramp = ["batch.ramp_start=1", "batch.ramp_steps=2", "guard.on_nonfinite=rollback", f"run.steps={STEPS}"]
    one, stages = home("ramp-one"), home("ramp-stages")
    codes = [run(where, layout, ramp, 0, sequences=sizes[BAD - 1]).returncode
             for where, layout in ((one, ONE), (stages, STAGES))]
    back = [(event["step"], event["to"], NAME in event["reason"]) for event in events(one, "rollback")]
    checks.that(codes == [0, 0] and back == [(BAD, 3, True)],
                f"in a ramp: rolled back, the tensor is named {codes} {back}")
    checks.that(same(one, stages), "in a ramp: bitwise equal in two stages")
    checks.that(Metrics(one).curve("sequences") == sizes, "in a ramp: sizes follow the steps")
    manifest = open(os.path.join(Metrics(one).checkpoint(STEPS), "MANIFEST")).read()
    checks.that(f"samples {sum(sizes) + sizes[BAD - 1]}\n" in manifest,
                "in a ramp: the samples passed over are those of the step given up")
    halves, first = home("ramp-halves"), [*ramp, "run.steps=6", f"lr.decay_steps={STEPS - 4}"]
    codes = [run(halves, ONE, first, 0, sequences=sizes[BAD - 1]).returncode, run(halves, ONE, ramp).returncode]
    checks.that(codes == [0, 0] and same(halves, one), f"in a ramp: a continued run is the unbroken one {codes}")


def check_copies(checks, home):
    """In bf16 a rollback remakes the copies of the weights, and a skipped step leaves them unchanged."""
    bf16, bad = "precision.compute=bf16", BAD + 1  # so that the checkpoint is two steps back
    for way in ("skip", "rollback"):
        homes = [home(f"bf16-{way}-{ranks}") for ranks in (1, 2)]
        keys = [f"run.steps={STEPS}", f"guard.on_nonfinite={way}"]
        codes = [run(where, (ranks, [*layout, bf16]), keys, 0, bad).returncode
                 for where, (ranks, layout) in zip(homes, (ONE, STAGES))]
        checks.that(codes == [0, 0] and same(*homes), f"bf16, {way}: bitwise equal in two stages {codes}")
    back = events(homes[0], "rollback")
    checks.that([(event["step"], event["to"]) for event in back] == [(bad, 3)], f"bf16: rolled back {back}")


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


def remedy(done):
    """The checkpoint at which the error message says to begin, and whether in another run.dir; status and output if it
    does not."""
    found = re.search(r"the same command with -r (\S+)(?: in place of its own -r)?( and another run\.dir)? begins at "
                      "the checkpoint before it; to try: a lower optimizer.lr", done.stdout)
    return (found[1], bool(found[2])) if done.returncode == 1 and found else (done.returncode, done.stdout)


def check_ruined(checks, home):
    """Finite but unusable weights are saved, and no finite step follows: the error names the previous checkpoint, and
    the command that it prints continues from there, even if an earlier start has already begun there."""
    where, straight, again = home("ruined"), home("ruined-straight"), home("ruined-again")
    often = ["checkpoint.every_steps=1", f"run.steps={STEPS}"]
    for folder in (where, straight):
        run(folder, ONE, [*often, "run.steps=4"])
    run(straight, ONE, often)
    good = os.path.join(where, "checkpoints", "step-00000004")
    done = run(where, ONE, [*often, "optimizer.lr=1e30"])
    checks.that(remedy(done) == (good, False), f"ruined weights: the checkpoint before is named {remedy(done)}")
    done = run(where, ONE, often)
    checks.that(remedy(done) == (good, False) and "-00000005, so its weights may be ruined" in done.stdout,
                f"ruined weights: ... also by a start that goes on from them {remedy(done)}")
    shutil.copytree(where, again)
    done = run(where, ONE, [*often, "-r", good])
    checks.that(done.returncode == 0 and same(where, straight),
                "ruined weights: that command goes on as if undisturbed")
    good = os.path.join(again, "checkpoints", "step-00000004")
    done = run(again, ONE, [*often, "-r", good, "optimizer.lr=1e30"])
    checks.that(remedy(done) == (good, True), f"ruined once more: another run.dir {remedy(done)}")
    other, alone = home("ruined-other"), home("ruined-alone")
    done = run(other, ONE, [*often, "-r", good])
    checks.that(done.returncode == 0 and Metrics(other).curve("loss") == Metrics(straight).curve("loss")[4:],
                "ruined once more: that command begins there" + ("" if done.returncode == 0 else "\n" + done.stdout))
    done = run(alone, ONE, [*often, "optimizer.lr=1e30"])
    only = f"no finite step has followed {alone}/checkpoints/step-00000001, the only checkpoint: the same command goes "
    said = only in done.stdout and "with another run.dir begins anew" in done.stdout
    checks.that(done.returncode == 1 and said,
                "ruined from the start: it is said to be the only one" + ("" if said else "\n" + done.stdout))


# Step t reads bytes 96 (t - 1) to 96 t. The bytes of step SPIKE are noise, in a text that is learnt quickly.
SPIKE, SPIKE_STEPS = 14, 20
WATCH = ["guard.spike_z=4", "guard.spike_window=6", "data.shuffle=false", "checkpoint.every_steps=4",
         f"run.steps={SPIKE_STEPS}"]


def poisoned(home):
    """The override that reads such a text."""
    path = home("poisoned.txt")
    text = bytearray((b"the quick brown fox jumps over the lazy dog. " * 60)[:96 * (SPIKE_STEPS + 8) + 1])
    text[96 * (SPIKE - 1):96 * SPIKE] = bytes((i * i * 37 + i * 101 + 13) % 251 for i in range(96))
    with open(path, "wb") as file:
        file.write(text)
    return f"data.paths=['{path}']"


def curve(home):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metric_lines(home) if "loss" in line]


def metric_lines(home):
    with open(os.path.join(home, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def same_end(one, other):
    return same_bits(tensors(Metrics(one).checkpoint(SPIKE_STEPS)), tensors(Metrics(other).checkpoint(SPIKE_STEPS)))


def check_spike(checks, home, way, data):
    """A batch of noise: the messages, that the update was left out (or not), and the same in layouts and restarts."""
    watch = [*WATCH, data, f"guard.on_spike={way}"]
    one = home(f"spike-{way}")
    done = run(one, ONE, watch)
    event = events(one, {"warn": "spike", "skip": "skipped", "rollback": "rollback"}[way])
    said = [e["step"] for e in event] == [SPIKE] and "is a spike: above" in event[0]["reason"]
    checks.that(done.returncode == 0 and said and event[0]["reason"] in done.stdout,
                f"spike, {way}: recorded and on the console {event}" + ("" if said else "\n" + done.stdout))
    plain = home("spike-plain")
    if not os.path.isdir(plain):
        run(plain, ONE, [*WATCH, data, "guard.spike_z=0"])
    following = [row for row in curve(one) if row[0] == SPIKE + 1][-1]
    unguarded = [row for row in curve(plain) if row[0] == SPIKE + 1][-1]
    checks.that((following == unguarded) == (way == "warn") and curve(one)[:SPIKE] == curve(plain)[:SPIKE],
                f"spike, {way}: the update is {'made' if way == 'warn' else 'left out'}, and none before it")
    stages = home(f"spike-{way}-stages")
    done = run(stages, STAGES, watch)
    checks.that(done.returncode == 0 and curve(one) == curve(stages) and same_end(one, stages),
                f"spike, {way}: bitwise equal in two stages")
    # The window survives: the run is stopped between the window's first step and the spike, and continued on two
    # stages.
    halves = home(f"spike-{way}-halves")
    codes = [run(halves, ONE, [*watch, "run.steps=8", f"lr.decay_steps={SPIKE_STEPS - 4}"]).returncode,
             run(halves, STAGES, watch).returncode]
    checks.that(codes == [0, 0] and curve(halves) == curve(one) and same_end(one, halves),
                f"spike, {way}: a continued run is the unbroken one {codes}")


def check_spike_stop(checks, home, data):
    where = home("spike-stop")
    done = run(where, SHARDS, [*WATCH, data, "guard.on_spike=stop"])
    told = f"step {SPIKE}: loss" in done.stdout and "a higher guard.spike_z" in done.stdout
    checks.that(done.returncode == 1 and told,
                "spike, stop: exit 1, the step is named" + ("" if done.returncode == 1 else "\n" + done.stdout))


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        check_stop(checks, home)
        for way in ("skip", "rollback"):
            check_going_on(checks, home, way)
        check_ramp(checks, home)
        check_copies(checks, home)
        check_limits(checks, home)
        check_ruined(checks, home)
        data = poisoned(home)
        for way in ("warn", "skip", "rollback"):
            check_spike(checks, home, way, data)
        check_spike_stop(checks, home, data)
    checks.finish()


main()
