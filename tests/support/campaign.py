"""Campaigns: runs of several layouts that are disturbed again and again until they are left alone to finish, and must
then bitwise equal the undisturbed run. Findings are in a state file, so that a stopped campaign continues. Standard
library only."""
import json, os, random, shutil, signal, statistics, sys, tempfile, time

from .disturbed import same_run
from .jobs import Job
from .runs import Metrics

# Ranks and deck: sharded weights (zero 3), tensor parallel, a pipeline, and four ranks in two ways.
LAYOUTS = {"dp_shard 2": (2, ["parallel.dp_shard=2"]),
           "tp 2": (2, ["parallel.tp=2"]),
           "pp 3": (3, ["parallel.pp=3", "model.layers=3"]),
           "pp 2 x tp 2": (4, ["parallel.pp=2", "parallel.tp=2"]),
           "dp_replicate 2 x dp_shard 2": (4, ["parallel.dp_replicate=2", "parallel.dp_shard=2"])}
BASE = ["checkpoint.restart=auto", "checkpoint.keep=3", "model.layers=2", "batch.global=4"]
MOST_IN_A_ROW = 8  # disturbances of one run, at most


class State(dict):
    """Progress and findings of a campaign. `path`, unless it is None, is the file that stores them."""

    def __init__(self, path, **new):
        super().__init__(new)
        self.path = path and os.path.abspath(path)
        if path and os.path.exists(path):
            with open(path) as file:
                self.update(json.load(file))

    def remember(self):
        if self.path:
            with open(self.path + ".new", "w") as file:
                json.dump(self, file)
            os.replace(self.path + ".new", self.path)


class Campaign:
    """`counts` names the counters, which start at zero; the campaign ends when the counter `counted` reaches its
    goal."""

    def __init__(self, folder, state_path, counted, counts, steps, every):
        self.folder, self.counted, self.steps = folder, counted, steps
        self.deck = [f"run.steps={steps}", f"checkpoint.every_steps={every}", *BASE]
        zeros = {counted: 0, "runs": 0, "different": 0, "hung": 0, "launcher_stayed": 0}
        self.state = State(state_path, **zeros, **counts, ends=[])
        self.random = random.Random(self.state[counted] + 1)  # a new sequence after each stop
        self.straight = {}  # by layout: metrics, seconds

    def disturb(self, home, layout):
        """One disturbed start; adds to `counted` and returns True if the disturbance came in time."""
        raise NotImplementedError

    def start(self, home, layout, fault=None, rank=None):
        ranks, degrees = LAYOUTS[layout]
        return Job(home, ranks, [*self.deck, *degrees], fault, rank)

    def undisturbed(self, layout):
        """Metrics and seconds of the undisturbed run."""
        if layout not in self.straight:
            home, begin = os.path.join(self.folder, layout.replace(" ", "-")), time.monotonic()
            with self.start(home, layout) as job:
                if job.wait()[0] != 0:
                    sys.exit(job.text())
            self.straight[layout] = Metrics(home), time.monotonic() - begin
        return self.straight[layout]

    def ended(self, job, what):
        """Waits for the end of a disturbed job; records how long it took, and the load."""
        status, seconds, stayed = job.wait()
        if status is None or status in (2, 3):
            print(f"{what}: exit status {status}\n{job.text()}")
        if status in (2, 3):
            sys.exit("nothing but the disturbance may end a start")
        self.state["hung"] += status is None
        self.state["launcher_stayed"] += stayed
        if status != 0:
            self.state["ends"].append([round(seconds, 2), round(os.getloadavg()[0], 1), what])
        return status

    def one_run(self, most):
        layout = self.random.choice(list(LAYOUTS))
        straight, home = self.undisturbed(layout)[0], os.path.join(self.folder, "run")
        for _ in range(min(most, self.random.randint(1, MOST_IN_A_ROW))):
            again = self.disturb(home, layout)
            self.state.remember()
            if not again:
                break
        with self.start(home, layout) as job:
            status = job.wait()[0]
            same = status == 0 and same_run(home, straight, self.steps)
            if not same:
                print(f"{layout}: exit status {status}\n{job.text()}")
        self.state["runs"] += 1
        self.state["different"] += not same
        self.state.remember()
        shutil.rmtree(home)

    def until(self, most):
        while self.state[self.counted] < most:
            self.one_run(most - self.state[self.counted])
        return self.state


def run(make, default):
    """`make(folder, state_path)` makes the campaign; [COUNT [STATE]] are the arguments of the command. Returns its
    state."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # ends its job too
    most = int(sys.argv[1]) if len(sys.argv) > 1 else default
    state_path = sys.argv[2] if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        return make(folder, state_path).until(most)


def times(ends):
    """The histogram of (seconds, load, what) in words."""
    if not ends:
        return "none"
    ordered = sorted(seconds for seconds, _, _ in ends)
    slowest = max(ends)
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    return (
        f"median {statistics.median(ordered):.2f} s, p99 {p99:.2f} s, slowest {slowest[0]:.2f} s "
        f"({slowest[2]}, load {slowest[1]})")
