"""Sends runs a signal at random times, in their first second and inside saves, until the requested number has arrived
in time.
  signals.py [SIGNALS [STATE]]     STATE: a file that records finished work, so that a stopped campaign continues
TERM, INT, USR1 or USR2 goes to a random rank, or USR1 or USR2 to the launcher, once every rank is in `main`. Each such
start must end with exit status 75 and a whole checkpoint of its last step, and must continue bitwise like the run that
nobody stopped. Needs ESPALIER."""
import signal, sys, time

from support.campaign import Campaign, run, times
from support.disturbed import events, verified, visible
from support.jobs import STOP_SIGNALS, kill
from support.runs import Checks

# Stages at which all ranks are held while the signal is sent; none after the commit of a run's end.
SAVE = [
    "copy", "begin", "make-dir", "shard-open", "shard-data", "shard-fsync", "shard-check", "gather", "master",
    "manifest", "announce", "rename", "commit", "latest", "settled", "retention", "remove"
]
START = ["staging", "load", "proof", "step"]
LAST_VISIT = 4
FIRST_SECOND = 1.0


class Signals(Campaign):
    def __init__(self, folder, state_path):
        super().__init__(folder, state_path, "signals",
                         {"inside_a_save": 0, "at_a_start": 0, "too_late": 0, "wrong": 0}, steps=400, every=40)

    def disturb(self, home, layout):
        moment = self.random.choice(["at random", "in the first second", "in a save", "at a start"])
        stage = self.random.choice({"in a save": SAVE, "at a start": START}.get(moment, [None]))
        begun = len(events(home, "stop"))
        with self.start(home, layout, stage and f"{stage}:hold:{self.random.randint(1, LAST_VISIT)}") as job:
            if not job.until(lambda: len(job.in_main()) == job.size):
                sys.exit(f"not every rank came to main\n{job.text()}")
            if stage:
                job.held()
            else:
                time.sleep(
                    self.random.uniform(
                        0, FIRST_SECOND if moment == "in the first second" else self.undisturbed(layout)[1]))
            what = f"{self.send(job)} {f'at {stage}' if stage else moment}"
            job.release()
            status = self.ended(job, what)
        if status == 0:
            self.state["too_late"] += 1
            return False
        self.state["signals"] += 1
        self.state["inside_a_save"] += stage in SAVE
        self.state["at_a_start"] += moment in ("at a start", "in the first second")
        stops = events(home, "stop")[begun:]
        step = stops[0]["step"] if len(stops) == 1 else -1
        newest = visible(home)[-1:]
        if status != 75 or not newest or not newest[0].endswith(f"step-{step:08d}") or not verified(newest[0]):
            self.state["wrong"] += 1
            print(f"{layout}, {what}: exit status {status}, stops {stops}, newest checkpoint {newest}\n{job.text()}")
        return True

    def send(self, job):
        """To a random rank, or to the launcher, which forwards two of the four. A start that is over receives none."""
        rank, launcher = self.random.randrange(job.size), self.random.random() < 0.1
        number = self.random.choice(STOP_SIGNALS[2:] if launcher else STOP_SIGNALS)
        job.ending_since = time.monotonic()
        if launcher:
            kill([job.launcher.pid], number)
        else:
            kill([pid for other, pid in job.in_main().items() if other == rank], number)
        return f"{signal.Signals(number).name} to {'the launcher' if launcher else f'rank {rank}'}"


def main():
    found, checks = run(Signals, default=10), Checks()
    checks.that(
        found["wrong"] == 0,
        f"{found['signals']} signals, {found['inside_a_save']} inside a save, {found['at_a_start']} at a start: "
        "exit status 75 and a whole checkpoint of the step, each time")
    checks.that(found["different"] == 0, f"{found['runs']} runs: each bitwise the one that nobody stopped")
    checks.that(found["hung"] == 0, f"every job ended: {times(found['ends'])} after the signal")
    checks.finish()


main()
