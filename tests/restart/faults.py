"""Runs that are killed or run out of space at every stage of a save: no committed checkpoint is lost, every visible one
is valid, and the continuation bitwise equals the undisturbed run. Also the run lock, the fallback over damage, and the
proof after a load."""
import json, os, shutil, struct, subprocess, sys, tempfile

from support.checkpoints import reseal
from support.disturbed import PATIENCE, command, events, same_run, verified, visible
from support.jobs import Job, alive
from support.runs import Checks, DECK, Metrics, launch, layout
from support.waiting import wait_until

STEPS, EVERY = 8, 2
BASE = [
    f"run.steps={STEPS}", f"checkpoint.every_steps={EVERY}", "checkpoint.restart=auto", "model.layers=2",
    "batch.global=4"
]
# Stage, visit at which it happens (inside the second save if the first one has many visits), overrides.
KILLS = [("staging", 1, []), ("step", 4, []), ("proof", 2, []), ("compare", 2, []),
         ("copy", 2, []), ("begin", 2, []), ("make-dir", 2, []),
         ("shard-open", 2, []), ("shard-layout", 2, []), ("shard-data", 90, []), ("shard-fsync", 2, []),
         ("shard-check", 2, []), ("gather", 2, []), ("deck", 2, []), ("master", 2, []), ("manifest", 2, []),
         ("fsync-dir", 2, []), ("announce", 2, []), ("rename", 2, []), ("commit", 2, []), ("latest", 2, []),
         ("settled", 2, []), ("settled", 3, ["checkpoint.asynchronous=false"]), ("retention", 1, ["checkpoint.keep=1"]),
         ("remove", 1, ["checkpoint.keep=1"])]


def run(ranks, home, overrides, fault=None, rank=None, flags=()):
    line, environment = command(ranks, ["run", DECK, "-d", home, *flags, *BASE, *overrides], fault, rank)
    return subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                          errors="replace", timeout=4 * PATIENCE, stdin=subprocess.DEVNULL)


def kept(home):
    """The checkpoint that the run reported last still exists."""
    reported = events(home, "checkpoint")
    return not reported or reported[-1]["dir"] in visible(home) or max(visible(home), default="") > reported[-1]["dir"]


def rewrite_proof(checkpoint, change, version=None):
    """Changes the proof's line; None removes it. `version` is then the version that wrote the checkpoint."""
    def changed(text):
        lines = [change(line) if line.startswith("proof ") else line for line in text.splitlines()]
        if version:
            lines = [f"version {version}" if line and line.startswith("version ") else line for line in lines]
        return "".join(line + "\n" for line in lines if line is not None)
    reseal(checkpoint, changed)


def check_kills(checks, home, straight, degrees):
    for stage, visit, more in KILLS:
        where = home(f"kill-{stage}-{visit}")
        done = run(2, where, degrees + more, f"{stage}:kill:{visit}")
        what = f"killed at {stage}"
        checks.that(done.returncode not in (0, 1, 2, 3), f"{what}: the job ended by the kill ({done.returncode})")
        checks.that(
            all(verified(c) for c in visible(where)) and kept(where),
            f"{what}: {len(visible(where))} visible, all valid, none lost")
        again = run(2, where, degrees + more)
        checks.that(again.returncode == 0 and same_run(where, straight, STEPS),
                    f"{what}: the continuation is bitwise the unbroken run")
        if again.returncode != 0:
            print(again.stdout)
        left = [n for n in os.listdir(os.path.join(where, "checkpoints")) if n.startswith(("tmp-", "del-", "latest-"))]
        checks.that(not left, f"{what}: nothing is left over {left}")
        shutil.rmtree(where)


def check_one_rank(checks, home):
    degrees, ranks = layout("211")
    degrees = degrees + ["parallel.dp_replicate=2"]
    straight = home("four")
    run(4, straight, degrees)
    for rank in (1, 3):
        where = home(f"rank-{rank}")
        run(4, where, degrees, "shard-data:kill:40", rank)
        checks.that(
            all(verified(c) for c in visible(where)) and kept(where),
            f"4 ranks, rank {rank} killed while it writes: all valid")
        again = run(4, where, degrees)
        checks.that(again.returncode == 0 and same_run(where, Metrics(straight), STEPS),
                    f"4 ranks, rank {rank} killed while it writes: goes on bitwise")


def check_failures(checks, home, straight, degrees):
    where = home("middle")
    done = run(2, where, degrees, "manifest:enospc:2")
    failed = events(where, "checkpoint_failed")
    checks.that(done.returncode == 0 and [e["step"] for e in failed] == [2 * EVERY],
                "a failed save in the middle: training goes on, exit 0")
    checks.that(failed and "No space left on device" in failed[0]["reason"] and "checkpoint failed" in done.stdout,
                "... and says why")
    checks.that(same_run(where, straight, STEPS), "... and changes no number")
    where = home("last")
    done = run(2, where, degrees, f"shard-fsync:eio:{STEPS // EVERY}")
    checks.that(done.returncode == 1 and "the last checkpoint could not be saved" in done.stdout and
        "the last good checkpoint is " in done.stdout and "to try: more room there" in done.stdout,
                "the last save failed: exit 1")
    checks.that(
        visible(where)[-1].endswith(f"{STEPS - EVERY:08d}") and verified(visible(where)[-1]),
        "... and the one before is valid")
    where = home("wrong")
    done = run(1, where, [], "shard-date:kill")
    checks.that(done.returncode == 2 and "is no stage" in done.stdout, "a wrong ESPALIER_FAULT is exit 2")


def check_lock(checks, home, degrees):
    where, lock = home("lock"), os.path.join(home("lock"), "run.lock")
    with Job(where, 2, [*BASE, *degrees], "step:stop:3", patience=PATIENCE) as first:
        first.must(lambda: events(where, "start"), "the first run starts")
        second = run(2, where, degrees)
        holder = open(lock).read().strip()
        checks.that(
            second.returncode == 1 and "another run is in this directory" in second.stdout and holder in second.stdout,
            f"a second run is refused and names the first ({holder})")
    pid = int(holder.split("process ")[1].split(",")[0])
    wait_until(lambda: not alive(pid), PATIENCE)
    third = run(2, where, degrees)
    checks.that(third.returncode == 0 and "taken over" in third.stdout, "the lock of a dead run is taken over")


def check_fall_back(checks, home, straight, degrees):
    where = home("damaged")
    for name, damage in (("shard-00001.h5", lambda b: b[:-1000] + b"\1" + b[-999:]), ("MANIFEST", lambda b: b[:-30]),
                         ("deck.toml", lambda b: b + b"\n")):
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(straight.dir, where)
        os.remove(os.path.join(where, "metrics.jsonl"))
        path = os.path.join(where, "checkpoints", f"step-{STEPS:08d}", name)
        bytes_before = open(path, "rb").read()
        with open(path, "wb") as file:
            file.write(damage(bytes_before))
        done = run(2, where, degrees)
        checks.that(
            done.returncode == 0 and f"not restarted from {os.path.dirname(path)}" in done.stdout and
            name in done.stdout, f"damaged {name}: refused by name")
        checks.that(
            Metrics(where).curve("loss") == straight.curve("loss", STEPS - EVERY + 1),
            f"damaged {name}: goes on from the one before")
    for restart in ("auto", "required"):
        shutil.rmtree(where)
        shutil.copytree(straight.dir, where)
        for step in range(EVERY, STEPS, EVERY):
            shutil.rmtree(straight.checkpoint(step).replace(straight.dir, where), ignore_errors=True)
        os.remove(os.path.join(where, "checkpoints", f"step-{STEPS:08d}", "MANIFEST"))
        fresh = run(2, where, degrees + [f"checkpoint.restart={restart}"])
        checks.that(fresh.returncode == 3 and "MANIFEST" in fresh.stdout,
                    f"the only checkpoint lost its MANIFEST: no silent fresh start ({restart})")
    shutil.rmtree(where)
    shutil.copytree(straight.dir, where)
    os.truncate(os.path.join(where, "checkpoints", f"step-{STEPS:08d}", "MANIFEST"), 100)
    strict = run(2, where, degrees + ["checkpoint.fallback=0"])
    checks.that(strict.returncode == 3 and "MANIFEST" in strict.stdout, "no step back is allowed: exit 3")


def check_proof(checks, home, straight, degrees):
    where = home("proof")
    checkpoint = lambda: os.path.join(where, "checkpoints", f"step-{STEPS:08d}")

    def restart(change, more=(), version=None):
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(straight.dir, where)
        rewrite_proof(checkpoint(), change, version)
        return run(2, where, degrees + [f"run.steps={STEPS + 1}", *more])

    words = next(line for line in open(os.path.join(straight.checkpoint(STEPS), "MANIFEST"))
                 if line.startswith("proof ")).split()
    loss = struct.unpack("<f", struct.pack("<f", float(words[1])))[0]
    next_up = struct.unpack("<f", struct.pack("<I", struct.unpack("<I", struct.pack("<f", loss))[0] + 1))[0]
    checks.that(words[2] == "fp32" and restart(lambda line: line).returncode == 0, f"the proof ({words[1]}) holds")
    ulp_off = lambda line: f"proof {next_up:.9g} {words[2]} {words[3]}"
    far_off = lambda line: f"proof {loss * 1.001:.9g} {words[2]} 00000000"
    strict = ["checkpoint.fallback=0"]
    ulp = restart(ulp_off, strict)
    checks.that(ulp.returncode == 3 and words[1] in ulp.stdout and f"{next_up:.9g}" in ulp.stdout,
                "equal conditions: one last bit off is exit 3, with both losses")
    back = restart(ulp_off)
    checks.that(back.returncode == 0 and words[1] in back.stdout and f"{next_up:.9g}" in back.stdout and
                events(where, "start")[-1]["first_step"] <= STEPS,
                "... and if the checkpoint before is allowed, the run begins there, with both losses")
    checks.that(
        restart(lambda line: f"proof {next_up:.9g} {words[2]} 00000000").returncode == 0,
        "other conditions: a last bit may differ")
    checks.that(restart(far_off, strict).returncode == 3, "other conditions: a thousandth may not")
    none = restart(lambda line: None, version="0.1.0")
    checks.that(none.returncode == 0 and "no proof of its weights" in none.stdout,
                "no proof, of version 0.1: accepted with a warning")
    lost = restart(lambda line: None, strict)
    checks.that(lost.returncode == 3 and "the proof is missing" in lost.stdout,
                "no proof, of a version that always writes one: refused")
    other = restart(lambda line: line, ["model.rope_theta=10000.0"])
    checks.that(
        other.returncode == 0 and
        "model.rope_theta = 10000.0 (command line), 500000.0 in the checkpoint" in other.stdout,
        "a deck that computes otherwise: said, with both values")


def check_bf16(checks, home, degrees):
    where, bf16 = home("bf16"), ["precision.compute=bf16"]
    first = run(2, where, degrees + bf16)
    same = run(2, where, degrees + bf16 + [f"run.steps={STEPS + 1}"])
    other = run(4, where, layout("212")[0] + bf16 + [f"run.steps={STEPS + 2}"])
    exact = run(1, where, layout("111")[0] + [f"run.steps={STEPS + 3}", "precision.compute=fp32"])
    checks.that([d.returncode for d in (first, same, other, exact)] == [0] * 4,
                "bf16: the proof holds in the same layout, in another one, and in fp32")


def check_plan(checks, home, degrees):
    path = home("plan.json")
    staging = []
    for more in ([], ["checkpoint.asynchronous=false"]):
        launch(1, ["plan", DECK, "--ranks", "2", "--json", path, *BASE, *degrees, *more], PATIENCE)
        staging.append(json.load(open(path))["staging_bytes"])
    checks.that(staging[0] > 0 == staging[1], f"plan shows the staging buffer: {staging}")


def check_ways(checks, home, straight, degrees):
    where = home("synchronous")
    checks.that(
        run(2, where, degrees + ["checkpoint.asynchronous=false"]).returncode == 0 and same_run(where, straight, STEPS),
        "synchronous saves write the same files")
    where = home("clock")
    run(2, where, degrees + ["checkpoint.every_steps=0", "checkpoint.every_s=0.001", "checkpoint.keep=100"])
    checks.that(
        len(visible(where)) >= 2 and all(verified(c) for c in visible(where)) and same_run(where, straight, STEPS),
        f"by the clock: {len(visible(where))} checkpoints")
    record = events(where, "checkpoint")[-1]
    checks.that(record["blocked_ms"] > 0 and record["proof_ms"] > 0 and record["committed_ms"] > 0,
                f"times are reported: {record}")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        degrees, ranks = layout("121")
        done = run(2, home("straight"), degrees)
        if done.returncode != 0:
            sys.exit(done.stdout)
        straight = Metrics(home("straight"))
        check_ways(checks, home, straight, degrees)
        check_proof(checks, home, straight, degrees)
        check_bf16(checks, home, degrees)
        check_plan(checks, home, degrees)
        check_fall_back(checks, home, straight, degrees)
        check_failures(checks, home, straight, degrees)
        check_lock(checks, home, degrees)
        check_kills(checks, home, straight, degrees)
        check_one_rank(checks, home)
    checks.finish()


main()
