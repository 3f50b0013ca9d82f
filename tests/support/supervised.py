"""Supervised runs on several hosts of this machine, whose processes, launchers and supervisors can be killed. Standard
library only."""
import contextlib, glob, json, os, signal, time

from .jobs import alive, kill, read
from .runs import DECK, executable
from .waiting import wait_until

PATIENCE = 240  # seconds for anything that should take some, on a machine that may be very busy
MARK = "ESPALIER_SUPERVISED="


def lines(path):
    return [json.loads(line) for line in read(path).splitlines() if line.startswith("{") and line.endswith("}")]


class Supervised:
    """`espalier supervise` on host1 of `hosts`, in the background. `where`: of --hosts; `environment`: of its ranks."""

    def __init__(self, hosts, home, where, overrides, flags=(), environment=()):
        self.hosts, self.home, self.log = hosts, home, open(home + ".log", "a+", errors="replace")
        self.began = time.time()
        self.temporary = home + ".tmp"
        os.makedirs(self.temporary, exist_ok=True)
        self.process = hosts.start_on(
            "host1", [executable(), "supervise", DECK, "-d", home, "--hosts", where, *flags, *overrides], self.log,
            {"TMPDIR": self.temporary, **dict(environment)})

    def ledger(self, event=None):
        found = lines(os.path.join(self.home, "supervise.jsonl"))
        return [line for line in found if event is None or line["event"] == event]

    def steps(self):
        """Lines of steps, as written: those made again are there more than once."""
        return [line for line in lines(os.path.join(self.home, "metrics.jsonl")) if "loss" in line and "step" in line]

    def starts(self):
        return len(self.ledger("start"))

    def supervisor(self):
        """Its process: what was started on the host has become it."""
        return self.process.pid

    def marked(self):
        """Processes of the run on all hosts: launcher, ranks, and what they have started."""
        mark = f"\0{MARK}{self.home}\0"
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if alive(pid) and mark in "\0" + read(f"/proc/{pid}/environ")]

    def launcher(self):
        return self.ledger("start")[-1]["launcher"]

    def ranks(self):
        """Process ids by rank, of processes that run the executable."""
        found = {}
        for pid in self.marked():
            variables = "\0" + read(f"/proc/{pid}/environ")
            with contextlib.suppress(OSError, IndexError):
                if os.path.samefile(f"/proc/{pid}/exe", executable()):
                    found[int(variables.split("\0OMPI_COMM_WORLD_RANK=")[1].split("\0")[0])] = pid
        return found

    def until(self, condition, what):
        """Waits until the condition holds; raises if the supervisor ends before, or it takes too long."""
        wait_until(lambda: condition() or self.process.poll() is not None, PATIENCE)
        if not condition():
            raise TimeoutError(f"{what}: {self.process.poll()}\n{self.text()}")

    def until_step(self, step, start=1):
        """Waits until this start, from 1, has reported a step that is at least `step`."""
        def there():
            begun = [line for line in self.ledger("start")]
            return len(begun) >= start and any(
                line["step"] >= step and line["time"] >= begun[start - 1]["time"] for line in self.steps())
        self.until(there, f"step {step} of start {start}")

    def end(self):
        """The exit status; what is left of the run is in `left`."""
        if not wait_until(lambda: self.process.poll() is not None, PATIENCE):
            raise TimeoutError(f"the supervisor has not ended\n{self.text()}")
        return self.process.returncode

    def left(self):
        """Processes and files that should have gone."""
        wait_until(lambda: not self.marked(), 20)
        segments = [path for path in glob.glob("/dev/shm/vader_segment.host*")
                    if os.stat(path).st_mtime >= self.began - 1 and not self._others_use(path)]
        return [f"process {pid}: {read(f'/proc/{pid}/cmdline')}" for pid in self.marked()] + segments

    @staticmethod
    def _others_use(path):
        return any(path in read(f"/proc/{pid}/maps") for pid in os.listdir("/proc") if pid.isdigit())

    def text(self):
        return read(self.home + ".log")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        kill([pid for pid in [self.process.pid, *self.marked()] if alive(pid)])
        self.process.wait()
        self.log.close()


def stop(pids):
    kill(pids, signal.SIGSTOP)


def go_on(pids):
    kill(pids, signal.SIGCONT)
