"""Runs in which one rank is stopped, or leaves out one collective: the watchdog ends the job, exit status 1, and names
the right rank and instruction; each rank that lives leaves a record of what it did last. The first argument is the
number of rounds. ESPALIER_DEVICE=cuda sends the runs to a device, ESPALIER_TRANSPORT=nccl their messages over NCCL.
NCCL messages carry no instruction number, so a message that is left out is replaced by the next of its communicator,
emulated or not: there the last message of the last step is left out, which has no successor."""
import os, random, re, signal, sys, tempfile, time

from support.jobs import Job, alive, kill, read
from support.runs import Checks, DECK, ON_DEVICE, TRANSPORT, launch
from support.waiting import wait_until

PATIENCE = 120  # seconds, for operations that should take some
LIMIT = 3       # run.watchdog_s
OVER_NCCL = bool(ON_DEVICE) and TRANSPORT == "nccl"
BASE = ["model.layers=2", "batch.global=4", "checkpoint.every_steps=0", f"run.watchdog_s={LIMIT}", *ON_DEVICE]
LAYOUTS = [(2, ["parallel.tp=2"]), (2, ["parallel.pp=2"]), (3, ["parallel.dp_shard=3", "batch.global=6"]),
           (2, ["parallel.cp=2"]), (4, ["parallel.pp=2", "parallel.tp=2"]),
           (4, ["parallel.dp_replicate=2", "parallel.tp=2"]), (4, ["parallel.pp=2", "parallel.dp_shard=2"])]
# A communication instruction in the output of `plan --program`: index, lane, role and microbatch, op.
LINE = re.compile(r" *(\d+) (tp|cp|dp|pp-send) +(\S+) (\w+) ")


def start(home, ranks, overrides, fault=None, rank=None):
    return Job(home, ranks, [*BASE, *overrides], fault, rank, patience=PATIENCE)


def collectives(ranks, overrides, rank):
    """(index, op, role and microbatch) of this rank's communication, without receives, since nobody waits for them."""
    done = launch(1, ["plan", DECK, "--ranks", str(ranks), "--program", str(rank), *BASE, *overrides], PATIENCE)
    found = [LINE.match(line) for line in done.stdout.splitlines()]
    return [(int(m[1]), m[4], m[3]) for m in found if m]


def check_status(checks, status, what):
    """mpirun of Open MPI 4.1 itself sometimes crashes while ranks abort. The ranks' messages are checked all the
    same."""
    crashed = status == -signal.SIGSEGV
    end = "mpirun itself crashed" if crashed else f"exit status {status}"
    checks.that(status == 1 or crashed, f"{what}: {end}")


def records(home):
    """Flight records by rank."""
    folder = os.path.join(home, "flight")
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return {int(name[5:10]): read(os.path.join(folder, name)) for name in names}


def check_records(checks, home, ranks, waiting, instruction, what, stopped=None):
    """All `ranks` have left a record; the one of a rank that waits has the instruction as the next of its lane. The
    launcher lets a `stopped` rank go on before it kills it, which gives it a second to find the others gone."""
    left = records(home)
    line = re.search(rf"^\S+ +step \d+ +next +{instruction} ", left.get(waiting, ""), re.M)
    checks.that(left.keys() - {stopped} == set(ranks) and line, f"{what}: flight records of ranks {sorted(left)}" +
                ("" if line else f", without {instruction} in\n{left.get(waiting)}"))


def stopped(checks, home, draw, round):
    ranks, overrides = LAYOUTS[round % len(LAYOUTS)]
    rank, step = draw.randrange(ranks), draw.randint(2, 6)
    what = f"round {round}, {' '.join(overrides)}: rank {rank} stopped after step {step}"
    with start(home, ranks, ["run.steps=1000000", *overrides]) as job:
        if not job.until(lambda: job.steps() >= step):
            return checks.that(False, f"{what}: it never came there\n{job.text()}")
        time.sleep(draw.random() * 0.05)
        process = job.processes()[rank]
        os.kill(process, signal.SIGSTOP)
        try:
            status, text = job.end(), job.text()
        finally:
            kill([process])
    check_status(checks, status, what)
    once = text.count("watchdog of rank") == 1 and f"rank {rank} is stopped" in text
    checks.that(once, f"{what}: named, once" + ("" if once else "\n" + text))
    waits = re.search(r"^rank (\d+) waits in instruction (\d+) ", text, re.M)
    if waits:
        check_records(checks, home, set(range(ranks)) - {rank}, int(waits[1]), waits[2], what, rank)


def skipped(checks, home, draw, round):
    ranks, overrides = LAYOUTS[(round // 2 * 3 + 1) % len(LAYOUTS)]
    rank, step = draw.randrange(ranks), draw.randint(2, 5)
    choices = collectives(ranks, overrides, rank)
    index, op, part = choices[-1] if round % 4 == 1 or OVER_NCCL else draw.choice(choices)
    last = ", its last" if index == choices[-1][0] else ""
    what = f"round {round}, {' '.join(overrides)}: rank {rank} leaves out instruction {index} ({op}, {part}{last}) " \
           f"of step {step}"
    with start(home, ranks, [f"run.steps={step if OVER_NCCL else 1000000}", *overrides],
               f"instruction-{index}:skip:{step}", rank) as job:
        status, text = job.end(), job.text()
    check_status(checks, status, what)
    waits = re.search(r"rank \d+ waits in instruction \d+ \((\w+), role (\w)(?:, microbatch (\d+))?, .*of step (\d+),",
                      text)
    past = re.search(r"rank (\d+) went past instruction \d+ of rank", text)
    named = past and int(past[1]) == rank and waits and waits[1] == {"send": "recv"}.get(
        op, op) and waits[2] + (waits[3] or "") == part and int(waits[4]) == step
    checks.that(named, f"{what}: rank, instruction, microbatch and step are named" + ("" if named else "\n" + text))
    waits = re.search(r"^rank (\d+) waits in instruction (\d+) ", text, re.M)
    if waits:
        check_records(checks, home, range(ranks), int(waits[1]), waits[2], what)


def skipped_in_a_ramp(checks, home):
    """The diagnosis uses the program of the step: here of the first step with the larger batch."""
    ranks, overrides, step = 2, ["parallel.tp=2"], 4
    grown = [*overrides, "batch.ramp_start=1", "batch.ramp_step=3", "batch.ramp_steps=3", "run.steps=1000000"]
    index, op, part = next(row for row in collectives(ranks, overrides, 1) if row[2] in ("B3", "W3"))
    with start(home, ranks, grown, f"instruction-{index}:skip:{step - 3}", 1) as job:
        status, text = job.end(), job.text()
    named = f"rank 1 went past instruction {index} of rank 0" in text and f"of step {step}, group tp" in text
    checks.that(status == 1 and named, f"a ramp: rank 1 leaves out instruction {index} ({op}, {part}) of step {step}, "
                "which smaller steps do not have: named" + ("" if named else f", {status}\n" + text))


def await_end(processes):
    """The indices of processes that still exist after the patience."""
    wait_until(lambda: not any(map(alive, processes)), PATIENCE)
    return [index for index, process in enumerate(processes) if alive(process)]


def launcher_stopped(checks, home):
    """A rank dies while the launcher is stopped: the others end by themselves."""
    ranks, overrides = LAYOUTS[2]
    with start(home, ranks, ["run.steps=1000000", *overrides, "run.watchdog_s=3600"]) as job:
        if not job.until(lambda: job.steps() >= 2):
            return checks.that(False, f"it never came to step 2\n{job.text()}")
        processes = [pid for _, pid in sorted(job.processes().items())]
        job.launcher.send_signal(signal.SIGSTOP)
        os.kill(processes[1], signal.SIGKILL)
        left = await_end(processes)
        job.launcher.send_signal(signal.SIGCONT)
        status, text = job.end(), job.text()
    checks.that(
        not left and status not in (0, None),
        f"the launcher is stopped and rank 1 killed: every rank has ended; still there: {left}; exit status {status}")
    said = re.findall(r"watchdog of rank \d+: .*", text)
    checks.that(
        len(said) == 1 and "rank 0: rank 1 is gone" in said[0], f"... and the lowest one says why, once: {said}")
    left = records(home)
    checks.that(left.keys() == {0, 2} and all("\nrank 1 is gone\n" in text for text in left.values()),
                f"... and flight records of ranks {sorted(left)}")


def all_stopped(checks, home):
    """A rank and the launcher are stopped: the others end by themselves, and one of them reports why."""
    ranks, overrides = LAYOUTS[2]
    with start(home, ranks, ["run.steps=1000000", *overrides]) as job:
        if not job.until(lambda: job.steps() >= 2):
            return checks.that(False, f"it never came to step 2\n{job.text()}")
        processes = [pid for _, pid in sorted(job.processes().items())]
        job.launcher.send_signal(signal.SIGSTOP)
        os.kill(processes[0], signal.SIGSTOP)
        left = await_end(processes[1:])
        os.kill(processes[0], signal.SIGKILL)
        job.launcher.send_signal(signal.SIGCONT)
        status, text = job.end(), job.text()
    checks.that(
        not left and status not in (0, None),
        f"rank 0 and the launcher are stopped: the others have ended; still there: {left}; exit status {status}")
    said = re.findall(r"watchdog of rank (\d+): .*", text)
    checks.that(said == ["1"] and "rank 0 is stopped" in text, f"... and the lowest one says why, once: {said}")


def aborted(checks, home, ranks):
    """A rank that fails leaves a record before it ends the job."""
    keys = ["run.steps=1000000", "run.watchdog_s=3600", f"parallel.dp_shard={ranks}"]
    with start(home, ranks, keys, "step:nomem:3", ranks - 1) as job:
        status, text = job.end(), job.text()
    left = records(home).get(ranks - 1, "")
    found = f"rank {ranks - 1} of {ranks}, process " in left and "\nstep 2, between steps\n" in left
    checks.that(status == 1 and found, f"rank {ranks - 1} of {ranks} fails in step 3: its flight record ({status})" +
                ("" if found else f"\n{left}\n{text[-500:]}"))


def good_end(checks, home):
    with start(home, 2, ["run.steps=5", "parallel.tp=2"]) as job:
        status = job.end()
    left = [name for name in ("heartbeat", "flight") if os.path.exists(os.path.join(home, name))]
    checks.that(status == 0 and not left, f"a good end leaves no heartbeat and no flight record ({status}, {left})")


def main():
    checks = Checks()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    draw = random.Random(int(os.environ.get("ESPALIER_SEED", "1")))
    with tempfile.TemporaryDirectory() as folder:
        good_end(checks, os.path.join(folder, "good"))
        if not ON_DEVICE:
            launcher_stopped(checks, os.path.join(folder, "dead"))
            all_stopped(checks, os.path.join(folder, "stopped"))
            skipped_in_a_ramp(checks, os.path.join(folder, "ramp"))
            aborted(checks, os.path.join(folder, "aborted"), 2)
            aborted(checks, os.path.join(folder, "aborted-alone"), 1)
        for round in range(rounds):
            (skipped if round % 2 else stopped)(checks, os.path.join(folder, f"round-{round}"), draw, round)
    checks.finish()


main()
