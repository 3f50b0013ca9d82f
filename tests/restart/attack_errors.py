"""Errors of one rank while the others wait for it, and ranks that do not answer: the job ends, names the rank and the
reason, and keeps what can be kept. Each check has the number of its finding."""
import os, re, shutil, signal, sys, tempfile

from support import jobs
from support.disturbed import events, same_run, verified, visible
from support.jobs import Job, kill
from support.runs import Checks, DECK, ROOT, launch, train

jobs.PATIENCE = 150  # seconds until a job counts as hung, on a machine that may be very busy
SAMPLE = 24          # model.seq_len of the deck
BASE = ["model.layers=1", "batch.global=4", "parallel.dp_shard=2", "lr.decay_steps=40", "checkpoint.every_steps=0",
        "run.watchdog_s=2", "run.watchdog_slow_s=4", "checkpoint.restart=auto"]
ENDLESS = ["run.steps=1000000", "report.every_steps=1000", *BASE]


def text_of(path, samples):
    """A text of `samples` samples, and one more byte for the last target."""
    with open(os.path.join(ROOT, "tests", "oracle", "data", "text.txt"), "rb") as source, open(path, "wb") as file:
        file.write(source.read(samples * SAMPLE + 1))
    return path


def steps(home):
    path = os.path.join(home, "metrics.jsonl")
    return sum('"loss"' in line for line in open(path)) if os.path.exists(path) else 0


def ended(job):
    """Exit status (None: a process hangs), and the output."""
    return job.wait()[0], job.text()


def process_of(home, rank):
    """From the heartbeats of a job on this host: a file of equally long records (heartbeat.hpp)."""
    with open(os.path.join(home, "heartbeat", "node-00000"), "rb") as file:
        records = file.read()
    start = [found.start() for found in re.finditer(b"ESPBEAT1", records)][rank]
    assert int.from_bytes(records[start + 8:start + 12], "little") == rank
    return int.from_bytes(records[start + 12:start + 16], "little")


def newest(home):
    """Step of the newest checkpoint, if it is whole."""
    found = visible(home)[-1:]
    return int(found[0][-8:]) if found and verified(found[0]) else None


def named(checks, what, status, expected, text, *patterns):
    """Checks the exit status, and that every pattern is in the text."""
    missing = [pattern for pattern in patterns if not re.search(pattern, text)]
    checks.that(status == expected and not missing, f"{what}: exit status {expected}, with rank and cause")
    if status != expected or missing:
        print(f"exit status {status}, missing: {missing}\n{text[-2000:]}")


def h2_validation_data_that_one_rank_cannot_read(checks, home):
    data = text_of(home + ".txt", 16)
    keys = [f'data.validation=["{data}"]', "data.validate_every_steps=2", "data.validate_sequences=16"]
    with Job(home, 2, [*ENDLESS, *keys], "step:hold:4", 0) as job:
        job.held()
        os.truncate(data, 16 * SAMPLE - 2)  # the last sample, which is rank 1's
        job.release()
        status, text = ended(job)
    named(checks, "h2: validation data of rank 1 is cut while it runs", status, 3, text, re.escape(data),
          "ends after step [0-9]+, whose state is saved")
    step = newest(home)
    checks.that(step and step == steps(home), f"h2: ... and the state is saved (step {step} of {steps(home)})")


def l_training_data_that_one_rank_cannot_read(checks, home):
    data = text_of(home + ".txt", 43)
    overrides = [*BASE, f'data.paths=["{data}"]']
    with Job(home, 2, ["run.steps=1000000", *overrides], "step:hold:4", 0) as job:
        job.held()
        os.truncate(data, 43 * SAMPLE - 2)  # the last sample, which some rank reads once in 11 steps
        job.release()
        status, text = ended(job)
    step = newest(home)
    named(checks, "l: data that one rank cannot read", status, 3, text, re.escape(data), "whose state is saved")
    checks.that(step and step == steps(home), f"l: ... and the last step is saved (step {step} of {steps(home)})")
    if not step:
        return
    checks.that([e["step"] for e in events(home, "stop")] == [step], "l: ... and metrics.jsonl says where it stopped")
    text_of(data, 43)
    straight = train(home + "-straight", 2, [f"run.steps={step + 2}", *overrides])
    train(home, 2, [f"run.steps={step + 2}", *overrides])
    checks.that(same_run(home, straight, step + 2), "l: ... and with the data whole again the run goes on bitwise")


def h2_any_error_of_one_rank(checks, home):
    """Wherever the error occurs, the others do not wait for ever."""
    for fault, cause in (("step:eio:3", "Input/output error"),
                         ("step:nomem:2", "bad_alloc: the system has no more memory"),
                         ("proof:eio", "Input/output error"), ("copy:enospc", "No space left")):
        with Job(f"{home}-{fault.replace(':', '-')}", 2, [*ENDLESS, "checkpoint.every_steps=3"], fault, 1) as job:
            status, text = ended(job)
        named(checks, f"h2: {fault} on rank 1", status, 1, text, f"rank 1: .*{cause}")


def m7_memory_that_one_rank_lacks_in_a_save(checks, home):
    with Job(home, 2, [*ENDLESS, "checkpoint.every_steps=2"], "reported:nomem:2", 1) as job:
        status, text = ended(job)
    named(checks, "m7: no memory on rank 1 in its second save", status, 1, text,
          "rank 1: in the save of step 4: .*bad_alloc: the system has no more memory")
    checks.that(visible(home) and verified(visible(home)[0]), "m7: ... and the checkpoint before is whole")


def h2_a_rank_without_heartbeat_that_is_stopped(checks, home):
    with Job(home, 2, ENDLESS, "step:hold:4", 0) as job:
        job.held()
        process = process_of(home, 1)
        shutil.rmtree(os.path.join(home, "heartbeat"))
        os.kill(process, signal.SIGSTOP)
        job.release()
        status, text = ended(job)
        kill([process])
    named(checks, "h2: rank 1 is stopped, and all heartbeats are removed", status, 1, text, "rank 1 is stopped")


def h2_a_rank_that_stops_in_a_save(checks, home):
    with Job(home, 2, [*ENDLESS, "checkpoint.every_steps=2"], "shard-data:stop", 1) as job:
        status, text = ended(job)
    named(checks, "h2: a save that never ends", status, 1, text, "watchdog of rank", "is saving, step 4")


def h2_a_rank_that_does_not_end(checks, home):
    with Job(home, 2, ["run.steps=3", *BASE], "end:stop", 1) as job:
        status, text = ended(job)
    named(checks, "h2: a rank that does not end MPI", status, 1, text, "rank 0: MPI has not ended for 4 s")


def l_heartbeats_that_are_truncated(checks, home):
    with Job(home, 2, ["run.steps=40", *BASE], "step:hold:4", 0) as job:
        job.held()
        os.truncate(os.path.join(home, "heartbeat", "node-00000"), 0)
        job.release()
        status, text = ended(job)
    checks.that(status == 0 and steps(home) == 40, f"l: heartbeats are truncated: the run goes on ({status})")
    if status:
        print(text[-1000:])


def h5_the_folder_of_heartbeats(checks, home):
    mine, run = os.path.join(home, "heartbeat"), ["run.steps=2", *BASE, "parallel.dp_shard=1"]
    os.makedirs(mine)
    names = ["patient1.csv", "node-1", "node-00000.bak"]
    for name in [*names, "node-00000"]:
        open(os.path.join(mine, name), "w").write("mine, or of a run that was killed")
    train(home, 1, run)
    checks.that(sorted(os.listdir(mine)) == sorted(names), "h5: other files in the folder of heartbeats stay")
    shutil.rmtree(mine)
    os.makedirs(home + "-theirs")
    victim = os.path.join(home + "-theirs", "node-00000")
    open(victim, "w").write("theirs")
    os.symlink(home + "-theirs", mine)
    done = launch(1, ["run", DECK, "-d", home, *run])
    refused = done.returncode == 1 and mine in done.stdout and open(victim).read() == "theirs"
    checks.that(refused, f"h5: a folder of heartbeats that is a link is refused ({done.returncode})")


def m13_bounds_of_the_watchdog(checks, home):
    for value, allowed in (("1e10", "0 to 1000000"), ("1e19", "0 to 1000000"), ("1e-4", "0 (off) or at least 1")):
        done = launch(1, ["check", DECK, f"run.watchdog_s={value}"])
        refused = done.returncode == 2 and allowed in done.stdout
        checks.that(refused, f"m13: run.watchdog_s={value} is refused: {done.stdout.strip().splitlines()[-1]}")


CHECKS = [h2_validation_data_that_one_rank_cannot_read, l_training_data_that_one_rank_cannot_read,
          h2_any_error_of_one_rank, m7_memory_that_one_rank_lacks_in_a_save,
          h2_a_rank_without_heartbeat_that_is_stopped, h2_a_rank_that_stops_in_a_save, h2_a_rank_that_does_not_end,
          l_heartbeats_that_are_truncated, h5_the_folder_of_heartbeats, m13_bounds_of_the_watchdog]


def main():
    """Arguments: the names of the checks to run; all without."""
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for check in CHECKS:
            if not sys.argv[1:] or check.__name__ in sys.argv[1:]:
                check(checks, os.path.join(folder, check.__name__))
    checks.finish()


main()
