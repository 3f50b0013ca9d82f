"""The directory of checkpoints: only a run's own files are removed or replaced, retention and restarts follow the line
of a checkpoint, and an inspection never succeeds without reading. Runs are tiny; every function is named after the
findings of a review that it covers."""
import os, shutil, signal, subprocess, sys, tempfile

from support.checkpoints import reseal
from support.disturbed import events
from support.jobs import Job
from support.recorded import recorded
from support.runs import Checks, DECK, ENVIRONMENT, Metrics, executable, launch, train
from support.waiting import await_that

PATIENCE = 240
SMALL = ["model.layers=1", "batch.global=4", "checkpoint.restart=auto", "lr.decay_steps=60"]


def run(home, *overrides, flags=(), ranks=1, environment=()):
    """Exit status and text."""
    before = dict(ENVIRONMENT)
    ENVIRONMENT.update(environment)
    try:
        done = launch(ranks, ["run", DECK, "-d", home, *flags, *SMALL, *overrides], PATIENCE)
    finally:
        ENVIRONMENT.clear()
        ENVIRONMENT.update(before)
    return done.returncode, done.stdout


def look(arguments, environment=()):
    done = recorded(subprocess.run([executable(), *arguments], env=dict(ENVIRONMENT, **dict(environment)),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                                   errors="surrogateescape", timeout=PATIENCE, stdin=subprocess.DEVNULL))
    return done.returncode, done.stdout


def step(number):
    return f"step-{number:08d}"


def folder(home, name=""):
    return os.path.join(home, "checkpoints", name)


def steps_in(home):
    return [int(name[5:]) for name in sorted(os.listdir(folder(home))) if name.startswith("step-")]


def flip(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 16]))


class Told(Checks):
    """Prints a run's output if a check of it fails."""

    def that(self, holds, what, text=""):
        super().that(holds, what if holds or not text else what + "\n" + text)


def h5_what_is_the_users_stays(checks, home):
    where = home("mine")
    train(where, 1, [*SMALL, "run.steps=3"])
    kept = {
        "latest-best/weights": "1", "tmp-notes.txt": "2", "tmp-mine/x": "3", "del-me/x": "4",
        step(3) + "/results/eval.csv": "5",
        step(4) + "/results/eval.csv": "6",
        step(5) + "/MANIFEST": "not ours\n", "step-000000002/x": "8"
    }
    for name, text in kept.items():
        os.makedirs(os.path.dirname(folder(where, name)), exist_ok=True)
        with open(folder(where, name), "w") as file:
            file.write(text)
    os.remove(folder(where, "latest"))
    os.makedirs(folder(where, "latest"))
    status, text = run(where, "run.steps=9", "checkpoint.every_steps=1", "checkpoint.keep=2")
    found = {
        open(os.path.join(place, name), errors="replace").read() for place, _, names in os.walk(folder(where))
        for name in names if not name.endswith(".h5")
    }
    checks.that(status == 0 and set(kept.values()) <= found,
                f"H5: every file of the user is there afterwards ({status})", text)
    checks.that(all(os.path.exists(folder(where, name)) for name in kept if not name.startswith((step(4), step(5)))),
                "H5: nothing moved that is not in the way")
    for number in (4, 5):
        checks.that(text.count(f"{step(number)} is now kept-") == 1, f"H5: {step(number)} is moved aside, said once")
    checks.that(text.count(f"{step(3)} is not removed") == 1, "H5: a checkpoint with results in it is kept, said once")
    checks.that(
        open(folder(where, "latest")).read() == step(9) + "\n" and look(["inspect", where, "--verify"])[0] == 0,
        "L: a directory `latest` makes way")


def h7_the_line_of_a_checkpoint(checks, home):
    where = home("line")
    train(where, 1, [*SMALL, "run.steps=50", "checkpoint.every_steps=10", "checkpoint.keep=5"])
    again = ["run.steps=35", "checkpoint.every_steps=7", "checkpoint.keep=2", "optimizer.lr=1e-2"]
    status, text = run(where, *again, flags=["-r", folder(where, step(20))])
    checks.that(status == 0 and "(step 20)" in text, f"H7: -r of an earlier step begins there ({status})", text)
    checks.that(steps_in(where) == [28, 30, 35, 40, 50], f"H7: retention counts the new line alone {steps_in(where)}")
    checks.that(
        text.count("does not continue 3 checkpoints") == 1 and f"rm -r {step(30)} {step(40)} {step(50)}" in text,
        "H7: the branch that is left is told, and how to delete it")
    losses = Metrics(where).curve("loss", 28)
    flip(os.path.join(folder(where, step(35)), "shard-00000.h5"), 3000)
    status, text = run(where, *again)
    checks.that(status == 0 and f"not restarted from {folder(where, step(35))}" in text and "(step 28)" in text,
                f"H7: after damage the one before it in its line is taken ({status})", text)
    checks.that(Metrics(where).curve("loss", 28)[:8] == losses[:8], "H7: ... and the continuation is the unbroken run")
    flip(os.path.join(folder(where, step(35)), "MANIFEST"), 0)
    status, text = run(where, *again, "run.steps=36")
    checks.that(status == 3 and "several branches" in text and "-r " in text,
                f"H7: where the line is lost nobody guesses ({status})", text)
    status, text = run(where, *again, flags=["-r", folder(where, step(28))])
    checks.that(status == 0 and "(step 28)" in text, f"H7: ... and naming one helps ({status})", text)


def m4_wrecked_weights(checks, home):
    straight = home("straight")
    train(straight, 1, [*SMALL, "run.steps=22"])
    for keep in (3, 1):
        where = home(f"wrecked-{keep}")
        train(where, 1, [*SMALL, "run.steps=20", "checkpoint.every_steps=4", f"checkpoint.keep={keep}"])
        status, text = run(where, "run.steps=40", "optimizer.lr=1e30", "guard.on_nonfinite=skip",
                           "checkpoint.every_steps=1", f"checkpoint.keep={keep}")
        skipped = [event["step"] for event in events(where, "skipped")]
        checks.that(status == 1 and skipped, f"M4, keep {keep}: the weights are wrecked ({status}, skipped {skipped})")
        left = steps_in(where)
        checks.that(20 in left and max(left) < min(skipped),
                    f"M4, keep {keep}: the good checkpoint is there, none of a step left out {left}, {skipped[:2]}")
        status, text = run(where, "run.steps=22", flags=["-r", folder(where, step(20))])
        checks.that(status == 0 and Metrics(where).curve("loss", 21)[:2] == Metrics(straight).curve("loss", 21),
                    f"M4, keep {keep}: sane from there ({status})")
    where = home("wrecked-end")
    train(where, 1, [*SMALL, "run.steps=20", "checkpoint.every_steps=4"])
    status, text = run(where, "run.steps=24", "optimizer.lr=1e30", "guard.on_nonfinite=skip", "checkpoint.keep=1")
    checks.that(status == 0 and steps_in(where) == [12, 16, 20, 24] and "no older checkpoint is removed" in text,
                f"M4: an end after a skip removes nothing {status} {steps_in(where)}")


def m8_exit_75_keeps_what_was_loaded(checks, home):
    a, b, straight = home("a"), home("b"), home("b-straight")
    train(a, 1, [*SMALL, "run.steps=8"])
    train(straight, 1, [*SMALL, "run.steps=12", "run.seed=5"])
    train(b, 1, [*SMALL, "run.steps=8", "run.seed=5"])
    named = ["-r", folder(b, step(8))]
    status, text = run(a, "run.steps=12", "run.seed=5", flags=named, environment={"SLURM_JOB_END_TIME": "1"})
    checks.that(status == 75, f"M8: stops before the first step ({status})", text)
    status, text = run(a, "run.steps=12", "run.seed=5")
    checks.that(status == 0 and Metrics(a).curve("loss", 9) == Metrics(straight).curve("loss", 9),
                f"M8: goes on with the weights that were loaded ({status})", text)


def m9_the_same_command_again(checks, home):
    source, where, straight = home("source"), home("again"), home("again-straight")
    train(straight, 1, [*SMALL, "run.steps=14"])
    train(source, 1, [*SMALL, "run.steps=8"])
    named = ["-r", folder(source, step(8))]
    for flags in (named, ["-r", source]):
        shutil.rmtree(where, ignore_errors=True)
        status, text = run(where, "run.steps=11", flags=flags)
        checks.that(status == 0 and "goes on from" not in text,
                    f"M9: the first start begins at the checkpoint named ({status})", text)
        status, text = run(where, "run.steps=14", flags=flags)
        checks.that(status == 0 and f"goes on from {folder(where, step(11))}" in text and "another run.dir" in text,
                    f"M9: the same again goes on, and says so ({status})", text)
        checks.that(
            Metrics(where).curve("loss") == Metrics(straight).curve("loss", 9), "M9: ... and is the unbroken run")
    where = home("again-75")
    for attempt in range(2):
        status, text = run(where, "run.steps=14", flags=named, environment={"SLURM_JOB_END_TIME": "1"})
        checks.that(status == 75 and ("goes on from" in text) == (attempt == 1),
                    f"M9: stopped before the first step, start {attempt + 1} ({status})", text)
    status, text = run(where, "run.steps=14", flags=named)
    checks.that(status == 0 and Metrics(where).curve("loss") == Metrics(straight).curve("loss", 9),
                f"M9: ... and on to the end ({status})")


def m11_looks_on_every_rank(checks, home):
    where = home("looked-at")
    train(where, 1, [*SMALL, "run.steps=2"])
    broken = shutil.copytree(folder(where, step(2)), home("broken"))
    flip(os.path.join(broken, "shard-00000.h5"), 3000)
    for variables in ({"SLURM_PROCID": "3"}, {"PMIX_RANK": "1"}, {"PMI_RANK": "1"}, {"OMPI_COMM_WORLD_RANK": "1"},
                      {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}):
        alone = "OMPI_COMM_WORLD_SIZE" not in variables
        for arguments, wanted, says in ((["inspect", home("nowhere"), "--verify"], 3, "no checkpoint"),
                                        (["inspect", broken,
                                          "--verify"], 3, "is damaged"), (["inspect", where,
                                                                           "--verify"], 0, "verified"),
                                        (["check", DECK, *SMALL], 0, "batch.global"), (["check", DECK,
                                                                                        "nonsense=1"], 2, "nonsense")):
            if alone or arguments[0] == "inspect":
                status, text = look(arguments, variables)
                checks.that(status == wanted and (says in text or not alone),
                            f"M11: {variables} {arguments[0]} {arguments[-1]}: {status}", text)
    done = launch(2, ["inspect", where, "--verify"], PATIENCE)
    checks.that(done.returncode == 0 and done.stdout.count("verified") == 1,
                f"M11: two ranks look, one speaks ({done.returncode})")


def trains(where, *overrides):
    return Job(where, 1, [*SMALL, "run.steps=1000000", "report.every_steps=1000", *overrides], patience=PATIENCE)


def l_removed_lock(checks, home):
    where = home("lock")
    with trains(where, "checkpoint.every_s=0.5") as first:
        first.must(lambda: os.path.exists(folder(where, "latest")), "the first checkpoint")
        os.remove(os.path.join(where, "run.lock"))
        second = subprocess.Popen([executable(), "run", DECK, "-d", where, *SMALL, "run.steps=1000000"],
                                  env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  stdin=subprocess.DEVNULL)
        await_that(lambda: not first.running() or second.poll() is not None, "one of the two ends", PATIENCE)
        text = first.text()
        taken = not first.running() and first.end() == 1 and "another run has taken the directory" in text
        # If a save came first, the lock was made again and the second start is refused.
        checks.that(taken or second.poll() == 1 and "run.lock was removed; it is there again" in text,
                    f"L: with run.lock removed one of two runs ends ({first.launcher.poll()}, {second.poll()})", text)
        for process in (first.launcher, second):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)
    checks.that(look(["inspect", where, "--verify"])[0] == 0, "L: what the runs left is whole")


def l_a_wish_that_cannot_be_removed(checks, home):
    where = home("wish")
    os.makedirs(os.path.join(where, "checkpoint_now", "x"))
    status, text = run(where, "run.steps=30")
    saved = [event["step"] for event in events(where, "checkpoint")]
    checks.that(status == 0 and len(saved) == 2 and text.count("cannot be removed") == 1,
                f"L: it asks once ({status}, {saved})", text)


def l_what_inspect_shows(checks, home):
    where = home("shown")
    train(where, 1, [*SMALL, "run.steps=1"])
    copy = shutil.copytree(folder(where, step(1)), home("escapes"))
    reseal(copy, deck=lambda text: text + "# \x1b]0;title\x07\x1b[31m\n")
    status, text = look(["inspect", copy, "--deck"])
    checks.that(status == 0 and "\x1b" not in text and "\x07" not in text and "]0;title" in text,
                f"L: no control characters reach the terminal ({status})")
    status, text = look(["inspect", where, "--verify"])
    checks.that(status == 0 and text.startswith("verified") and len(text.splitlines()) < 30 and "lm_head" not in text,
                f"C11: short, and the verdict first ({status})", text)
    checks.that("lm_head.weight" in look(["inspect", where, "--tensors"])[1], "C11: --tensors lists them")
    copy = shutil.copytree(folder(where, step(1)), home("unproved"))
    reseal(copy, manifest=lambda text: "".join(line for line in text.splitlines(True) if not line.startswith("proof ")))
    status, text = run(home("unproved-run"), flags=["-r", copy])
    checks.that(status == 3 and "the proof is missing" in text, f"L: a proof that was left out is refused ({status})",
                text)


def l_verify_while_the_run_prunes(checks, home):
    where = home("pruned")
    with trains(where, "checkpoint.every_steps=1", "checkpoint.keep=1") as job:
        job.must(lambda: os.path.exists(folder(where, "latest")), "the first checkpoint")
        found = [look(["inspect", where, "--verify"]) for _ in range(25)]
        job.send(0, signal.SIGTERM)
        job.end()
    wrong = [text for status, text in found if not (status == 0 or status == 3 and "removed meanwhile" in text)]
    checks.that(not wrong, f"L: no checkpoint is called damaged that was only retired {wrong[:1]}")


def main():
    checks = Told()
    with tempfile.TemporaryDirectory() as place:
        home = lambda name: os.path.join(place, name)
        for check in (h5_what_is_the_users_stays, h7_the_line_of_a_checkpoint, m4_wrecked_weights,
                      m8_exit_75_keeps_what_was_loaded, m9_the_same_command_again, m11_looks_on_every_rank,
                      l_removed_lock, l_a_wish_that_cannot_be_removed, l_what_inspect_shows,
                      l_verify_while_the_run_prunes):
            if len(sys.argv) == 1 or check.__name__.startswith(sys.argv[1]):
                check(checks, home)
    checks.finish()


main()
