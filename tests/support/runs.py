"""Starts the executable under mpirun for the tests, and reads its output. Standard library only."""
import json, os, re, shutil, subprocess, sys, tempfile

from .recorded import recorded

# The real path of this file is in tests/support, even if it is imported through the links in the folders of tests.
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Every test has its own folder for Open MPI's session files. In a shared one, a job that ends may remove the folder in
# which another job is just starting.
SESSIONS = tempfile.TemporaryDirectory(prefix="espalier-mpi-")
# On one host Open MPI chooses ob1 in the end; looking for fast networks first takes 0.2 s of every start.
ENVIRONMENT = {"OMPI_MCA_pml": "ob1", **os.environ, "TMPDIR": SESSIONS.name, "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
DECK = os.path.join(ROOT, "tests", "decks", "small.toml")
# Another device for every run of a test, ESPALIER_DEVICE=cuda: there may then be more ranks than GPUs, since messages
# use MPI unless ESPALIER_TRANSPORT=nccl.
TRANSPORT = os.environ.get("ESPALIER_TRANSPORT", "mpi")
ON_DEVICE = [f"run.device={os.environ['ESPALIER_DEVICE']}", f"run.transport={TRANSPORT}"
             ] if os.environ.get("ESPALIER_DEVICE") else []


MEMORY, ROOM = "/dev/shm", 4 << 30  # a folder in memory, and bytes that must be free there


def scratch():
    """A folder for runs, removed at its end. In memory if there is room, so that saves do not wait for a disk."""
    room = os.path.isdir(MEMORY) and shutil.disk_usage(MEMORY).free > ROOM
    return tempfile.TemporaryDirectory(dir=MEMORY if room else None)


def executable():
    return os.environ["ESPALIER"]


def launcher(ranks):
    """The command prefix that starts `ranks` ranks; empty for one rank."""
    if ranks == 1:
        return []
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1",
            "--mca", "btl_vader_single_copy_mechanism", "none", "--mca", "orte_base_help_aggregate", "0"]


def launch(ranks, arguments, timeout=400):
    """Runs the executable; returns the finished process with its text."""
    return recorded(subprocess.run([*launcher(ranks), executable(), *arguments], env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                                   errors="surrogateescape", timeout=timeout, stdin=subprocess.DEVNULL))


def train(run_dir, ranks, overrides=(), deck=DECK, flags=(), expect=0, timeout=400):
    """Trains and returns Metrics of the run; any exit status but the expected one ends the test."""
    done = launch(ranks, ["run", deck, "-d", run_dir, *flags, *ON_DEVICE, *overrides], timeout)
    if done.returncode != expect:
        sys.exit(
            f"{ranks} ranks, {' '.join(overrides)}: exit status {done.returncode}, expected {expect}\n{done.stdout}")
    return Metrics(run_dir)


class Metrics:
    """metrics.jsonl of a run: steps by number (the last line of each), and the end event of the last start."""

    def __init__(self, run_dir):
        self.dir = run_dir
        with open(os.path.join(run_dir, "metrics.jsonl")) as file:
            lines = [json.loads(line) for line in file]
        self.steps = {line["step"]: line for line in lines if "loss" in line and "step" in line}
        self.validation = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
        self.starts = [line for line in lines if line.get("event") == "start"]
        self.end = ([line for line in lines if line.get("event") == "end"] or [None])[-1]

    def curve(self, key, first=1):
        return [self.steps[s][key] for s in sorted(self.steps) if s >= first]

    def checkpoint(self, step):
        return os.path.join(self.dir, "checkpoints", f"step-{step:08d}")


def layout(digits, dp_axis="dp_shard"):
    """'222' -> overrides for pp 2, dp 2, tp 2, and the number of ranks."""
    pp, dp, tp = (int(d) for d in digits)
    other = "dp_replicate" if dp_axis == "dp_shard" else "dp_shard"
    return [f"parallel.pp={pp}", f"parallel.{dp_axis}={dp}", f"parallel.{other}=1", f"parallel.tp={tp}"], pp * dp * tp


def planned_peaks(folder, ranks, overrides, deck=DECK):
    """Peak bytes of every rank, from `plan`."""
    return planned(folder, ranks, overrides, deck)["rank_peak_bytes"]


def planned(folder, ranks, overrides, deck=DECK):
    """The output of `plan --json`."""
    path = os.path.join(folder, "plan.json")
    done = launch(1, ["plan", deck, "--ranks", str(ranks), "--json", path, *ON_DEVICE, *overrides])
    if done.returncode != 0:
        sys.exit(done.stdout)
    with open(path) as file:
        return json.load(file)


def program(ranks, rank, overrides, deck=DECK):
    """The lines that `plan --program` prints of a rank, one per instruction."""
    done = launch(1, ["plan", deck, "--ranks", str(ranks), "--program", str(rank), *overrides])
    if done.returncode != 0:
        sys.exit(done.stdout)
    return re.sub(r"\n {18}", " ", done.stdout).splitlines()


def difference(mine, theirs):
    """Largest relative difference of two curves of equal length."""
    assert len(mine) == len(theirs) and mine, (len(mine), len(theirs))
    return max(abs(a - b) / abs(b) for a, b in zip(mine, theirs))


class Checks:
    """Counts checks that held; a test prints every failure and exits 1 if there was one."""

    def __init__(self):
        self.failed = self.passed = 0

    def that(self, holds, what):
        print(("ok    " if holds else "FAIL  ") + what, flush=True)
        self.passed += bool(holds)
        self.failed += not holds
        return bool(holds)

    def each(self, findings, *arguments):
        """Calls a function for each finding; one that ends early counts as a failure."""
        for finding in findings:
            try:
                finding(self, *arguments)
            except (Exception, SystemExit) as error:
                self.that(False, f"{finding.__name__}: {type(error).__name__}: {error}")

    def finish(self):
        print(f"{self.passed} passed, {self.failed} failed")
        sys.exit(1 if self.failed or not self.passed else 0)
