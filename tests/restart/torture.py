"""Kills runs at random times and inside saves, until as many as asked have been killed, and says what was lost: nothing may be.
  torture.py [KILLS [STATE]]     STATE: a file that remembers what was done, so that a stopped campaign goes on
After every kill: no committed checkpoint is lost, what is visible is whole (`inspect --verify`). At the end of every run: losses, norms and
shards are bitwise those of the run that nobody killed. Needs ESPALIER. Leaves nothing behind in TMPDIR and /dev/shm."""
import glob, json, os, random, re, shutil, signal, subprocess, sys, tempfile, time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "support"))
from runs import Checks, DECK, ENVIRONMENT, Metrics, executable, launch, layout

STEPS, EVERY, RANKS = 12, 2, 2
DECK_OF_ALL = [f"run.steps={STEPS}", f"checkpoint.every_steps={EVERY}", "checkpoint.restart=auto", "checkpoint.keep=3", "model.layers=2", "batch.global=4",
               *layout("121")[0]]
STAGES = ["copy", "make-dir", "shard-open", "shard-data", "shard-fsync", "gather", "master", "manifest", "announce", "rename", "commit", "latest",
          "settled", "retention", "remove", "load", "proof", "step"]
SEGMENT = re.compile(r"/dev/shm/vader_segment\S+")
PATIENCE = 120  # seconds for anything that should take a few


class Run:
    """One start of the executable, in a session of its own: its launcher and ranks can be found and ended."""

    def __init__(self, home, fault=None):
        environment = dict(ENVIRONMENT, TMPDIR=os.environ["TMPDIR"])
        if fault:
            environment["ESPALIER_FAULT"] = fault
        line = ["mpirun", "-n", str(RANKS), "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca",
                "btl_vader_single_copy_mechanism", "none", executable(), "run", DECK, "-d", home, *DECK_OF_ALL]
        self.ranks, self.segments = set(), set()
        self.log = open(home + ".log", "w+", encoding="utf-8", errors="replace")
        self.launcher = subprocess.Popen(line, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def look(self):
        """The ranks that live now. Remembers them, and the shared memory that they map: Open MPI leaves it behind when they are killed."""
        living = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent(pid) == self.launcher.pid]
        self.ranks.update(living)
        for pid in living:
            self.segments.update(SEGMENT.findall(read(f"/proc/{pid}/maps")))
        return sorted(living)

    def wait(self):
        """Until launcher and ranks have ended; returns exit status and seconds. What outlives its patience is ended, with no status."""
        start = time.monotonic()
        while time.monotonic() < start + PATIENCE and (self.launcher.poll() is None or any(map(alive, self.ranks))):
            self.look()
            time.sleep(0.02)
        seconds, hung = time.monotonic() - start, self.launcher.poll() is None or any(map(alive, self.ranks))
        kill([pid for pid in self.ranks if alive(pid)] + [self.launcher.pid] * (self.launcher.poll() is None))
        status = self.launcher.wait()
        for path in filter(os.path.exists, self.segments):
            os.remove(path)
        return (None if hung else status), seconds

    def text(self):
        self.log.seek(0)
        return self.log.read()


def read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def parent(pid):
    fields = read(f"/proc/{pid}/stat").rpartition(") ")[2].split()
    return int(fields[1]) if fields else 0


def alive(pid):
    return read(f"/proc/{pid}/stat").rpartition(") ")[2][:1] not in ("", "Z")


def kill(victims):
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def checkpoints(home):
    return sorted(glob.glob(os.path.join(home, "checkpoints", "step-*")))


def reported(home):
    """Steps of the checkpoints that the run said to be committed."""
    path = os.path.join(home, "metrics.jsonl")
    if not os.path.exists(path):
        return []
    with open(path) as file:
        lines = [line for line in file if line.endswith("}\n")]
    return [line["step"] for line in map(json.loads, lines) if line.get("event") == "checkpoint"]


def step_of(checkpoint):
    return int(checkpoint.rpartition("-")[2])


def same(home, straight):
    mine, theirs = Metrics(home), Metrics(straight)
    shards = [sorted(glob.glob(os.path.join(m.checkpoint(STEPS), "shard-*"))) for m in (mine, theirs)]
    bytes_of = lambda paths: [open(path, "rb").read() for path in paths]
    return all(mine.curve(key) == theirs.curve(key) for key in ("loss", "grad_norm")) and shards[0] and bytes_of(shards[0]) == bytes_of(shards[1])


class Torture:
    def __init__(self, folder, state_path, seconds):
        self.folder, self.state_path, self.seconds = folder, state_path, seconds
        self.state = {"kills": 0, "saves": 0, "runs": 0, "lost": 0, "invalid": 0, "different": 0, "hung": 0, "slowest_end_s": 0.0}
        if state_path and os.path.exists(state_path):
            with open(state_path) as file:
                self.state = json.load(file)
        self.random = random.Random(self.state["kills"] + 1)  # another one after each stop

    def remember(self):
        if self.state_path:
            with open(self.state_path + ".new", "w") as file:
                json.dump(self.state, file)
            os.replace(self.state_path + ".new", self.state_path)

    def interrupt(self, home):
        """One start that is killed: by a fault point inside it, or from outside at a random time. True if the kill came in time."""
        aimed = self.random.random() < 0.5
        run = Run(home, f"{self.random.choice(STAGES)}:kill:{self.random.randint(1, 4)}" if aimed else None)
        try:
            if not aimed:
                time.sleep(self.random.uniform(0, self.seconds))
                ranks = run.look()
                victims = self.random.choice([ranks[:1], ranks[-1:], ranks, [run.launcher.pid]])
                kill(victims or [run.launcher.pid])
        finally:
            status, seconds = run.wait()
        self.state["hung"] += status is None
        self.state["slowest_end_s"] = max(self.state["slowest_end_s"], seconds if not aimed else 0)
        if status in (2, 3):
            print(run.text())
            sys.exit(f"a start ended with exit status {status}")
        return status != 0

    def judge(self, home):
        """What a kill left: every reported checkpoint but those that retention removed, and nothing that is not whole."""
        visible = checkpoints(home)
        newest = max(map(step_of, visible), default=0)
        self.state["lost"] += max(reported(home), default=0) > newest
        self.state["invalid"] += sum(launch(1, ["inspect", c, "--verify"], PATIENCE).returncode != 0 for c in visible)

    def one_run(self, straight, most):
        """Kills one run up to `most` times, then lets it finish."""
        home = os.path.join(self.folder, "run")
        for _ in range(min(most, self.random.randint(1, 8))):
            killed = self.interrupt(home)
            self.judge(home)
            self.state["kills"] += killed
            self.remember()
            if not killed:
                break
        run = Run(home)
        status, _ = run.wait()
        if status != 0:
            print(run.text())
        self.state["runs"] += 1
        self.state["different"] += status != 0 or not same(home, straight)
        self.state["saves"] += len(reported(home))
        self.remember()
        shutil.rmtree(home)
        os.remove(home + ".log")


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    state = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else None
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = os.path.join(folder, "tmp")
        os.mkdir(os.environ["TMPDIR"])
        straight, start = os.path.join(folder, "straight"), time.monotonic()
        first = Run(straight)
        if first.wait()[0] != 0:
            sys.exit(first.text())
        torture = Torture(folder, state, time.monotonic() - start)
        while torture.state["kills"] < kills:
            torture.one_run(straight, kills - torture.state["kills"])
        found = torture.state
    print(json.dumps(found))
    checks.that(found["lost"] == 0, f"{found['kills']} kills, {found['saves']} checkpoints reported: none lost")
    checks.that(found["invalid"] == 0, "nothing visible is invalid")
    checks.that(found["different"] == 0, f"{found['runs']} runs: each bitwise the one that nobody killed")
    checks.that(found["hung"] == 0, f"every job ended; after a kill from outside within {found['slowest_end_s']:.1f} s")
    checks.finish()


main()
