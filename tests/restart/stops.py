"""Runs that are asked to stop or to save: by signals at any moment, by the clock, by files. They end with status 75 and a checkpoint of the
step they ended at, and go on bitwise as the unbroken run."""
import contextlib, os, re, signal, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
import disturbed
from disturbed import command, events, same_run, verified, visible
from runs import Checks, DECK, Metrics, layout

PATIENCE = 120  # seconds for anything that should take one
STEPS, EVERY = 8, 3
MODEL = ["checkpoint.restart=auto", "model.layers=2", "batch.global=4", "lr.decay_steps=40"]
BASE = [f"run.steps={STEPS}", f"checkpoint.every_steps={EVERY}", *MODEL]
ENDLESS = ["run.steps=1000000", "checkpoint.every_steps=0", "report.every_steps=1000", *MODEL]
LAYOUTS = {1: "111", 2: "121", 4: "221"}
# Where a rank is held while the signal comes, and the steps after which the run may then end. A save that is held lets training go on until the
# next save has to wait for it.
MOMENTS = {"at the start": ("staging:hold", {0}), "before the first step": ("step:hold", {1}), "in the middle": ("step:hold:5", {5}),
           "inside a save": ("shard-fsync:hold", set(range(EVERY, 2 * EVERY + 2)))}
SIGNALS = [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT]


def await_that(condition, what):
    disturbed.await_that(condition, what, PATIENCE)


class Run:
    """A run in the background. Its ranks leave their process ids in files, for signals; whatever is left of it ends with the test."""

    def __init__(self, ranks, home, overrides, held=None, flags=(), environment=()):
        self.home, self.ranks, self.hold = home, ranks, home + ".hold"
        line, variables = command(ranks, ["run", DECK, "-d", home, *flags, *layout(LAYOUTS[ranks])[0], *overrides], held, ranks - 1 if ranks > 1 else None)
        os.makedirs(home + ".pids", exist_ok=True)
        for name in os.listdir(home + ".pids"):
            os.remove(os.path.join(home + ".pids", name))
        start = next(i for i, word in enumerate(line) if word in (variables["ESPALIER"], "bash"))
        leave = ["bash", "-c", f'echo $$ > "{home}.pids/.$$" && mv "{home}.pids/.$$" "{home}.pids/${{OMPI_COMM_WORLD_RANK:-0}}"; exec "$@"', "bash"]
        self.log = open(home + ".log", "w+")
        self.process = subprocess.Popen(line[:start] + leave + line[start:], env={**variables, "ESPALIER_FAULT_HOLD": self.hold, **dict(environment)},
                                        stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        for name in os.listdir(self.home + ".pids"):
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, ValueError):
                if self.home in open(f"/proc/{self.pid(name)}/cmdline").read():
                    os.kill(self.pid(name), signal.SIGKILL)
        self.log.close()

    def pid(self, rank):
        return int(open(os.path.join(self.home + ".pids", str(rank))).read())

    def alive_and(self, condition, what):
        await_that(lambda: condition() or self.process.poll() is not None, what)
        if not condition():
            sys.exit(f"ended before: {what}\n{self.text()}")

    def send(self, rank, number):
        """Returns when the rank has taken the signal."""
        os.kill(self.pid(rank), number)
        pending = lambda: [int(mask, 16) for mask in re.findall(r"^(?:Sig|Shd)Pnd:\s*(\S+)", open(f"/proc/{self.pid(rank)}/status").read(), re.M)]
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            await_that(lambda: not any(mask >> (number - 1) & 1 for mask in pending()), "the signal is taken")

    def wait_held(self):
        self.alive_and(lambda: os.path.exists(self.hold), "a rank is held")

    def release(self):
        os.remove(self.hold)

    def ended(self):
        """Exit status; minus the signal."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            return sys.exit(f"not ended after {PATIENCE} s\n{self.text()}")

    def text(self):
        return open(self.home + ".log").read()


def finished(ranks, home, overrides, **more):
    with Run(ranks, home, overrides, **more) as run:
        return run.ended(), run.text()


def stopped(home):
    """Step and reason of the last stop, if the newest checkpoint is of this step and whole."""
    said = (events(home, "stop") or [{"step": None, "reason": None}])[-1]
    newest = visible(home)[-1:] or [""]
    whole = newest[0].endswith(f"step-{said['step'] or 0:08d}") and verified(newest[0])
    return (said["step"], said["reason"]) if whole else (None, f"{said}, but {newest}")


def check_signals(checks, home, straight):
    kinds = 0
    for ranks in LAYOUTS:
        for moment, (held, steps) in MOMENTS.items():
            number, target = SIGNALS[kinds % 4], kinds % ranks
            kinds += 1 if moment != "inside a save" else 2  # so that signals and moments change partners
            where = home(f"signal-{ranks}-{kinds}")
            with Run(ranks, where, BASE, held) as run:
                run.wait_held()
                run.send(target, number)
                run.release()
                status = run.ended()
            step, reason = stopped(where)
            what = f"{ranks} ranks, {number.name} to rank {target} {moment}"
            checks.that(status == 75 and step in steps and reason == f"{number.name} to rank {target}", f"{what}: {status}, step {step}, {reason}")
            status, text = finished(ranks, where, BASE)
            checks.that(status == 0 and same_run(where, straight[ranks], STEPS), f"{what}: goes on bitwise")
            if status != 0:
                print(text)


def check_second_start(checks, home, straight):
    where = home("second")
    with Run(2, where, BASE, "step:hold:5") as run:
        run.wait_held()
        run.send(0, signal.SIGUSR1)
        run.release()
        run.ended()
    with Run(2, where, BASE, "staging:hold") as run:
        run.wait_held()
        before = visible(where)
        run.send(1, signal.SIGTERM)
        run.release()
        status = run.ended()
    checks.that(status == 75 and visible(where) == before and not os.path.exists(os.path.join(where, "done")),
                f"stopped before its first step, its checkpoint is there: {status}, nothing new")
    checks.that(finished(2, where, BASE)[0] == 0 and same_run(where, straight[2], STEPS), "... and it goes on bitwise")
    checks.that(open(os.path.join(where, "done")).read() == f"step {STEPS}\n", "the end leaves the file done")


def check_two_interrupts(checks, home):
    with Run(1, home("impatient"), BASE, "step:hold:2") as run:
        run.wait_held()
        run.send(0, signal.SIGINT)
        checks.that(run.process.poll() is None, "an interrupt waits for the end of the step")
        run.send(0, signal.SIGINT)
        checks.that(run.ended() == -signal.SIGINT, "a second one does not")


def goes_on(ranks, home, where):
    """What stopped after k steps makes two more, and equals the run that never stopped."""
    step = stopped(where)[0] or 0
    some = [*ENDLESS, f"run.steps={step + 2}"]
    statuses = [finished(ranks, where, some)[0], finished(ranks, where + "-straight", some)[0]]
    return statuses == [0, 0] and same_run(where, Metrics(where + "-straight"), step + 2)


def check_launcher(checks, home):
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        where = home(f"launcher-{number.name}")
        with Run(2, where, ENDLESS) as run:
            run.alive_and(lambda: events(where, "start"), "the run has started")
            run.process.send_signal(number)
            status = run.ended()
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
    checks.that(status == 75 and reason == "run.time_limit = 00:00:05", f"a time limit: {status}, step {step}, {reason}")
    checks.that("stops by itself before" in text and not os.path.exists(os.path.join(where, "done")), "... it says when, and removes an old done")
    checks.that(goes_on(2, home, where), "... and goes on bitwise")
    where = home("slurm")
    status, _ = finished(1, where, ENDLESS, environment={"SLURM_JOB_END_TIME": str(int(time.time()) + 5)}.items())
    step, reason = stopped(where)
    checks.that(status == 75 and reason == "the end of the Slurm job", f"Slurm's end of the job: {status}, step {step}, {reason}")


def check_checkpoint_now(checks, home):
    where = home("now")
    asked = os.path.join(where, "checkpoint_now")
    with Run(2, where, ENDLESS) as run:
        for time_of_asking in (1, 2):
            run.alive_and(lambda: events(where, "start"), "the run has started")
            open(asked, "w").close()
            run.alive_and(lambda: not os.path.exists(asked), "the file is removed")
            checks.that(len(visible(where)) >= 1 and verified(visible(where)[-1]), f"checkpoint_now, time {time_of_asking}: {visible(where)[-1]}")
            run.alive_and(lambda: len(events(where, "checkpoint")) >= time_of_asking, "the save is reported")
        saved = events(where, "checkpoint")[-1]["step"]
        run.alive_and(lambda: max(Metrics(where).steps, default=0) > saved + 1, "the run goes on")
        run.send(0, signal.SIGUSR2)
        checks.that(run.ended() == 75, "... and goes on until it is stopped")
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
        check_signals(checks, home, straight)
        check_second_start(checks, home, straight)
        check_two_interrupts(checks, home)
        check_launcher(checks, home)
        check_time_limit(checks, home)
        check_checkpoint_now(checks, home)
    checks.finish()


main()
