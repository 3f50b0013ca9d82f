"""Runs that are asked to stop or to save: by signals at any moment, by the clock, by files. They end with status 75 and
a checkpoint of their last step, and continue bitwise like the uninterrupted run."""
import os, signal, sys, tempfile, time

from support.disturbed import events, same_run, verified, visible
from support.jobs import Job
from support.runs import Checks, Metrics, layout

PATIENCE = 300  # seconds, for operations that should take one, on a machine that may stall
STEPS, EVERY = 8, 3
MODEL = ["checkpoint.restart=auto", "model.layers=2", "batch.global=4", "lr.decay_steps=40"]
BASE = [f"run.steps={STEPS}", f"checkpoint.every_steps={EVERY}", *MODEL]
ENDLESS = ["run.steps=1000000", "checkpoint.every_steps=0", "report.every_steps=1000", *MODEL]
LAYOUTS = {1: "111", 2: "121", 4: "221"}
# Where a rank is held when the signal arrives, and the steps after which the run may then end. A held save lets
# training continue until the next save has to wait for it.
MOMENTS = {
    "at the start": ("staging:hold", {0}), "before the first step": ("step:hold", {1}),
    "in the middle": ("step:hold:5", {5}), "inside a save": ("shard-fsync:hold", set(range(EVERY, 2 * EVERY + 2)))
}
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT]


def start(ranks, home, overrides, held=None, **more):
    """A run whose last rank is held at a stage."""
    rank = ranks - 1 if ranks > 1 else None
    return Job(home, ranks, [*layout(LAYOUTS[ranks])[0], *overrides], held, rank, patience=PATIENCE, **more)


def ended(job):
    """Exit status; minus the signal."""
    status = job.end()
    return sys.exit(f"not ended after {PATIENCE} s\n{job.text()}") if status is None else status


def finished(ranks, home, overrides, **more):
    with start(ranks, home, overrides, **more) as job:
        return ended(job), job.text()


def stopped(home):
    """Step and reason of the last stop, if the newest checkpoint is of this step and whole."""
    said = (events(home, "stop") or [{"step": None, "reason": None}])[-1]
    newest = visible(home)[-1:] or [""]
    whole = newest[0].endswith(f"step-{said['step'] or 0:08d}") and verified(newest[0])
    return (said["step"], said["reason"]) if whole else (None, f"{said}, but {newest}")


def check_said(checks, home):
    """A signal is reported immediately, once, while the step still runs."""
    with start(1, home("said"), BASE, "step:hold:5") as job:
        job.must_be_held()
        job.send(0, signal.SIGTERM)
        end = time.monotonic() + PATIENCE
        line = "espalier: stop asked by SIGTERM: the run ends after this step"
        while line not in job.text() and time.monotonic() < end:
            time.sleep(0.05)
        said = line in job.text()
        job.release()
        status = ended(job)
        checks.that(said and status == 75 and job.text().count("stop asked by") == 1,
                    f"a stop is said before the step ends: {said}, status {status}, {job.text()[-300:]}")


def check_signals(checks, home, straight):
    kinds = 0
    for ranks in LAYOUTS:
        for moment, (held, steps) in MOMENTS.items():
            number, target = SIGNALS[kinds % 4], kinds % ranks
            kinds += 1 if moment != "inside a save" else 2  # so that signals and moments are combined differently
            where = home(f"signal-{ranks}-{kinds}")
            with start(ranks, where, BASE, held) as job:
                job.must_be_held()
                job.send(target, number)
                job.release()
                status = ended(job)
            step, reason = stopped(where)
            what = f"{ranks} ranks, {number.name} to rank {target} {moment}"
            checks.that(status == 75 and step in steps and reason == f"{number.name} to rank {target}",
                        f"{what}: {status}, step {step}, {reason}")
            status, text = finished(ranks, where, BASE)
            checks.that(status == 0 and same_run(where, straight[ranks], STEPS), f"{what}: goes on bitwise")
            if status != 0:
                print(text)


def check_second_start(checks, home, straight):
    where = home("second")
    with start(2, where, BASE, "step:hold:5") as job:
        job.must_be_held()
        job.send(0, signal.SIGUSR1)
        job.release()
        ended(job)
    with start(2, where, BASE, "staging:hold") as job:
        job.must_be_held()
        before = visible(where)
        job.send(1, signal.SIGTERM)
        job.release()
        status = ended(job)
    checks.that(status == 75 and visible(where) == before and not os.path.exists(os.path.join(where, "done")),
                f"stopped before its first step, its checkpoint is there: {status}, nothing new")
    checks.that(finished(2, where, BASE)[0] == 0 and same_run(where, straight[2], STEPS), "... and it goes on bitwise")
    checks.that(open(os.path.join(where, "done")).read() == f"step {STEPS}\n", "the end leaves the file done")


def check_two_interrupts(checks, home):
    with start(1, home("impatient"), BASE, "step:hold:2") as job:
        job.must_be_held()
        job.send(0, signal.SIGINT)
        checks.that(job.running(), "an interrupt waits for the end of the step")
        job.send(0, signal.SIGINT)
        checks.that(ended(job) == -signal.SIGINT, "a second one does not")


def goes_on(ranks, home, where):
    """A run that stopped after k steps makes two more, and equals the run that never stopped."""
    step = stopped(where)[0] or 0
    some = [*ENDLESS, f"run.steps={step + 2}"]
    statuses = [finished(ranks, where, some)[0], finished(ranks, where + "-straight", some)[0]]
    return statuses == [0, 0] and same_run(where, Metrics(where + "-straight"), step + 2)


def check_launcher(checks, home):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        where = home(f"launcher-{number.name}")
        with start(2, where, ENDLESS) as job:
            job.must(lambda: events(where, "start"), "the run has started")
            job.launcher.send_signal(number)
            status = ended(job)
        step, reason = stopped(where)
        both = f"{number.name} to rank 0, {number.name} to rank 1"
        checks.that(status == 75 and reason in (both, both[:len(both) // 2 - 1], both[len(both) // 2 + 1:]),
                    f"{number.name} to mpirun: {status}, step {step}, {reason}")
        checks.that(goes_on(2, home, where), "... and goes on bitwise")


def check_time_limit(checks, home):
    where = home("limit")
    os.makedirs(where)
    open(os.path.join(where, "done"), "w").close()
    status, text = finished(2, where, ENDLESS, flags=["-t", "00:00:05"])
    step, reason = stopped(where)
    checks.that(status == 75 and reason == "run.time_limit = 00:00:05",
                f"a time limit: {status}, step {step}, {reason}")
    checks.that("stops by itself before" in text and not os.path.exists(os.path.join(where, "done")),
                "... it says when, and removes an old done")
    checks.that(goes_on(2, home, where), "... and goes on bitwise")
    where = home("slurm")
    status, _ = finished(1, where, ENDLESS, environment={"SLURM_JOB_END_TIME": str(int(time.time()) + 5)}.items())
    step, reason = stopped(where)
    checks.that(status == 75 and reason == "the end of the job",
                f"Slurm's end of the job: {status}, step {step}, {reason}")


def check_checkpoint_now(checks, home):
    where = home("now")
    asked = os.path.join(where, "checkpoint_now")
    with start(2, where, ENDLESS) as job:
        for time_of_asking in (1, 2):
            job.must(lambda: events(where, "start"), "the run has started")
            open(asked, "w").close()
            job.must(lambda: not os.path.exists(asked), "the file is removed")
            checks.that(
                len(visible(where)) >= 1 and verified(visible(where)[-1]),
                f"checkpoint_now, time {time_of_asking}: {visible(where)[-1]}")
            job.must(lambda: len(events(where, "checkpoint")) >= time_of_asking, "the save is reported")
        saved = events(where, "checkpoint")[-1]["step"]
        job.must(lambda: max(Metrics(where).steps, default=0) > saved + 1, "the run goes on")
        job.send(0, signal.SIGUSR2)
        checks.that(ended(job) == 75, "... and goes on until it is stopped")
    checks.that(goes_on(2, home, where), "... and goes on bitwise")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        straight = {}
        for ranks in LAYOUTS:
            status, text = finished(ranks, home(f"straight-{ranks}"), BASE)
            if status != 0:
                sys.exit(text)
            straight[ranks] = Metrics(home(f"straight-{ranks}"))
        check_said(checks, home)
        check_signals(checks, home, straight)
        check_second_start(checks, home, straight)
        check_two_interrupts(checks, home)
        check_launcher(checks, home)
        check_time_limit(checks, home)
        check_checkpoint_now(checks, home)
    checks.finish()


main()
