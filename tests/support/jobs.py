"""Jobs to be killed: started under mpirun in a session and a TMPDIR of their own, so that whatever they leave can be
found and removed. Standard library only."""
import contextlib, glob, os, re, shutil, signal, subprocess, sys, time

from .disturbed import command
from .recorded import record
from .runs import DECK, executable
from .waiting import TICK, await_that, wait_until

PATIENCE = 600  # seconds, for operations that should take a few, on a machine that may be very busy
STAYED = 20     # seconds that a launcher may outlive its last rank
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


def read(path):
    with contextlib.suppress(OSError):
        with open(path, errors="replace") as file:
            return file.read()
    return ""


def stat(pid):
    """State character, parent and session; nothing if the process is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return (fields[0], int(fields[1]), int(fields[3])) if len(fields) > 3 else ("", 0, 0)


def alive(pid):
    return stat(pid)[0] not in ("", "Z", "X")


def kill(victims, number=signal.SIGKILL):
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


class Job:
    """One start in the background. `fault` is set on one rank, or on all; held ranks continue after `release`.
    `before`: shell words that each rank runs first. `stdout`: a descriptor that takes the output instead of the log.
    `patience`: limit of any wait in seconds."""

    def __init__(self, home, ranks, overrides, fault=None, rank=None, deck=DECK, flags=(), before="", stdout=None,
                 patience=PATIENCE, environment=()):
        self.home, self.size, self.patience = home, ranks, patience
        self.hold, self.temporary = home + ".hold", home + ".tmp"
        os.makedirs(self.temporary)
        line, variables = command(ranks, ["run", deck, "-d", home, *flags, *overrides], fault, rank, before)
        variables.update(environment, TMPDIR=self.temporary, ESPALIER_FAULT_HOLD=self.hold)
        self.log = open(home + ".log", "w+", encoding="utf-8", errors="replace")
        self.launcher = subprocess.Popen(line, env=variables, stdin=subprocess.DEVNULL,
                                         stdout=self.log if stdout is None else stdout, stderr=subprocess.STDOUT,
                                         start_new_session=True)
        self.seen, self.namespace, self.ending_since, self.released = {self.launcher.pid}, None, None, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.look()
        kill(filter(alive, self.seen))
        record(self.launcher.wait(), self.text())
        self.log.close()
        # Open MPI leaves its shared memory when ranks are killed, and its folders when the launcher is killed.
        for path in glob.glob(f"/dev/shm/vader_segment.*.{self.namespace:x}.*") if self.namespace else []:
            os.remove(path)
        shutil.rmtree(self.temporary, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.hold)

    def look(self):
        """The live processes, without the launcher; records them, and when the first death was seen, unless
        `ending_since` is set."""
        if self.released:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.hold)
        living = [
            pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if stat(pid)[2] == self.launcher.pid and alive(pid)
        ]
        self.seen.update(living)
        if self.ending_since is None and not all(map(alive, self.seen)):
            self.ending_since = time.monotonic()
        for pid in living if self.namespace is None else []:
            if match := re.search(r"\0PMIX_NAMESPACE=(\d+)\0", read(f"/proc/{pid}/environ")):
                self.namespace = int(match[1])
        return sorted(pid for pid in living if pid != self.launcher.pid)

    def processes(self):
        """Process ids by rank, of processes that run the executable."""
        ranks = {}
        for pid in [*self.look(), self.launcher.pid]:
            rank = re.search(r"\0OMPI_COMM_WORLD_RANK=(\d+)\0", read(f"/proc/{pid}/environ"))
            with contextlib.suppress(OSError):
                if (rank or self.size == 1) and os.path.samefile(f"/proc/{pid}/exe", executable()):
                    ranks[int(rank[1]) if self.size > 1 else 0] = pid
        return ranks

    def in_main(self):
        """The same, for processes whose `main` catches all four signals."""
        def catches(pid):
            caught = re.search(r"^SigCgt:\s*(\S+)", read(f"/proc/{pid}/status"), re.M)
            return caught and all(int(caught[1], 16) >> (number - 1) & 1 for number in STOP_SIGNALS)
        return {rank: pid for rank, pid in self.processes().items() if catches(pid)}

    def running(self):
        """Whether the launcher, or the only rank, runs."""
        return self.launcher.poll() is None

    def until(self, condition, patience=None):
        """Waits until the condition holds, the launcher has ended, or the patience is over; returns whether it
        holds."""
        wait_until(lambda: condition() or not self.running(), patience or self.patience)
        self.look()
        return condition()

    def must(self, condition, what):
        """Waits until the condition holds; ends the test if the run ends before."""
        if not self.until(condition):
            sys.exit(f"{'waited in vain' if self.running() else 'ended before'}: {what}\n{self.text()}")

    def steps(self):
        """The reported steps."""
        return read(os.path.join(self.home, "metrics.jsonl")).count('"loss"')

    def held(self):
        return self.until(lambda: os.path.exists(self.hold))

    def must_be_held(self):
        self.must(lambda: os.path.exists(self.hold), "a rank is held")

    def release(self):
        """Releases held ranks, including ranks that reach the stage later."""
        self.released = True
        self.look()

    def send(self, rank, number):
        """Sends a rank a signal; returns when the rank has received it."""
        pid = self.processes()[rank]
        kill([pid], number)

        def pending():
            masks = re.findall(r"^(?:Sig|Shd)Pnd:\s*(\S+)", read(f"/proc/{pid}/status"), re.M)
            return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
        await_that(lambda: not pending(), "the signal is taken", self.patience)

    def end(self):
        """Exit status of the launcher, or of the only rank; negative: the signal; None: it outlived the patience."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.launcher.wait(self.patience)

    def wait(self):
        """Waits until every process has ended. Returns exit status (None: something outlived the patience), seconds
        since the strike, or else since the first death, and whether the launcher outlived its last rank. Open MPI's
        launcher may deadlock when all ranks have died: it is ended then."""
        begin = last_rank = time.monotonic()
        while (ranks := self.look()) or self.launcher.poll() is None:
            now = time.monotonic()
            last_rank = now if ranks else last_rank
            if now > begin + self.patience or now > last_rank + STAYED and len(self.seen) > 1:
                break
            time.sleep(TICK)
        end, stayed = time.monotonic(), not ranks and self.launcher.poll() is None
        if stayed:
            kill([self.launcher.pid])
            self.launcher.wait()
        since = self.ending_since or begin
        return None if ranks else self.launcher.returncode, max(0, last_rank - since) if stayed else end - since, stayed

    def text(self):
        return read(self.home + ".log")
