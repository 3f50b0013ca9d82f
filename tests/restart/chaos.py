"""Disturbs runs at random in every known way; an oracle judges each draw.
  chaos.py [--full] [--seed S] [--way NAME] [DRAWS [STATE]]
      STATE: a file that records finished work, so that a stopped campaign continues
A draw takes a random deck (family, sizes, layout, schedule, precision, data), disturbs a run of it in one of the ways
below, and then lets the run finish. The oracle: every exit status is one that the documents allow for the disturbance,
no process is alive after the limit, and the finished run equals the undisturbed one (bitwise in the same layout, to
rtol 1e-5 in another one), or the console and metrics.jsonl named what differed. --full draws from more decks and adds
the slow ways. Needs ESPALIER."""
import argparse, os, random, resource, shutil, signal, subprocess, sys, tempfile, time

from support.campaign import State
from support.disturbed import events, same_run, verified, visible
from support.hosts import KEEPALIVE, Hosts
from support.jobs import Job, kill, read
from support.random_decks import RandomDeck
from support.runs import Metrics, executable, launch
from support.waiting import wait_until

WATCHDOG_S = 4
LIMIT_S = 90  # seconds without a step after which everything must have ended, on a machine that may be busy
COMMAND_LIMIT_S = 20  # the same for a command without ranks
DONE, FAULT, DECK, DATA, MEMORY, STOPPED = 0, 1, 2, 3, 4, 75
STOPS = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGXCPU]


class Finding(Exception):
    """A state that the oracle does not accept."""


def require(holds, what, job=None):
    if not holds:
        raise Finding(what + (f"\n{job.text()}" if job else ""))


class Draw:
    """One run in its own folder. `start` begins it, `ended` judges how a start ended."""

    def __init__(self, chaos, deck):
        self.chaos, self.random, self.deck = chaos, chaos.random, deck
        self.home = os.path.join(chaos.folder, "run")
        self.theirs = {}  # the user's files in it: text by path

    def start(self, *overrides, before="", deck=None, stdout=None):
        deck = deck or self.deck
        return Job(self.home, deck.ranks, [f"run.watchdog_s={WATCHDOG_S}", *overrides], deck=deck.path, before=before,
                   stdout=stdout, patience=LIMIT_S)

    def ended(self, job, allowed, what):
        """Waits; the exit status must be one of `allowed` (None: any but a hang). Returns it."""
        done, status = 0, job.wait()[0]
        while status is None and done < (done := len(read(os.path.join(self.home, "metrics.jsonl")))):
            status = job.wait()[0]  # slow, but it makes progress
        require(status is not None, f"{what}: processes alive after {LIMIT_S} s without a step", job)
        text = job.text()
        for word in ("terminate called", "Sanitizer", "std::bad_alloc", "internal error"):
            require(word not in text or allowed is None, f"{what}: prints '{word}'", job)
        require(allowed is None or status in allowed, f"{what}: exit status {status}, allowed {sorted(allowed or ())}",
                job)
        for path in visible(self.home):
            foreign = any(name.startswith(path + "/") for name in self.theirs)
            require(foreign or verified(path), f"{what}: {path} is visible and not whole", job)
        return status

    def finish(self, *overrides, what):
        """Starts the run undisturbed: it must finish."""
        with self.start(*overrides) as job:
            self.ended(job, {DONE}, f"{what}; the last start")
            return job.text()

    def duration(self):
        return self.chaos.reference(self.deck)[1]

    def sleep_some(self, job):
        """A random part of the time that the undisturbed run takes; ends early if the job does."""
        job.until(lambda: False, self.random.uniform(0.1, 1.1) * self.duration())

    def must_equal_reference(self, what):
        straight = self.chaos.reference(self.deck)[0]
        require(same_run(self.home, straight, self.deck.steps),
                f"{what}: differs from the undisturbed run\n{self.deck.text}")


# Ways to disturb a run: each is a function of a draw that raises Finding. The report prints its docstring.

def stop_signals(draw):
    """TERM, INT, USR1, USR2, HUP or XCPU to a rank, several times in sequence"""
    for _ in range(draw.random.randint(1, 3)):
        number = draw.random.choice(STOPS)
        with draw.start() as job:
            require(job.until(lambda: len(job.in_main()) == job.size), "not every rank came to main", job)
            draw.sleep_some(job)
            ranks = list(job.in_main().values())
            kill(draw.random.sample(ranks, min(1, len(ranks))), number)
            if draw.ended(job, {DONE, STOPPED}, f"{number.name} to a rank") == DONE:
                break
    draw.finish(what="stop signals")
    draw.must_equal_reference("stop signals")


def kills(draw):
    """KILL to a rank, several, all, or the launcher"""
    for _ in range(draw.random.randint(1, 3)):
        with draw.start() as job:
            draw.sleep_some(job)
            ranks = job.look() or [job.launcher.pid]
            one = draw.random.sample(ranks, min(1, len(ranks)))
            kill(draw.random.choice([one, ranks, ranks[1:], [job.launcher.pid]]))
            draw.ended(job, None, "kill")
    draw.finish(what="kills")
    draw.must_equal_reference("kills")


def suspended(draw):
    """STOP to a rank, for less or more than the watchdog allows"""
    long = draw.random.random() < 0.3
    with draw.start() as job:
        draw.sleep_some(job)
        victims = draw.random.sample(job.look() or [job.launcher.pid], 1)
        kill(victims, signal.SIGSTOP)
        if not long:
            time.sleep(draw.random.uniform(0, 1))
            kill(victims, signal.SIGCONT)
        # Before the watchdog starts, and alone on a node, a stopped process stays stopped until it is continued from
        # outside.
        elif not job.until(lambda: job.launcher.poll() is not None, 4 * WATCHDOG_S + 10):
            kill(victims, signal.SIGCONT)
        draw.ended(job, {DONE, FAULT, 128 + signal.SIGKILL} if long and victims else {DONE},
                   f"a rank stopped {'for ever' if long else 'for a while'}")
    draw.finish(what="suspended")
    draw.must_equal_reference("suspended")


def closed_pipe(draw):
    """the reader of the output exits"""
    reader, writer = os.pipe()
    with draw.start(stdout=writer) as job:
        os.close(writer)
        if draw.random.random() < 0.7:
            os.read(reader, draw.random.randint(1, 400))
        os.close(reader)
        draw.ended(job, {DONE} if draw.deck.ranks == 1 else None, "closed pipe")
    draw.finish(what="closed pipe")
    draw.must_equal_reference("closed pipe")


def limits(draw):
    """limits on file size, address space, descriptors or stack, on one rank or on all"""
    kind, low, high = draw.random.choice([("f", 8, 2000), ("v", 150_000, 900_000), ("n", 8, 200), ("s", 64, 4096)])
    number = draw.random.randint(low, high)
    one = draw.deck.ranks > 1 and draw.random.random() < 0.5
    rank = draw.random.randrange(draw.deck.ranks)
    where = f'[ "$OMPI_COMM_WORLD_RANK" = {rank} ] && ' if one else ""
    with draw.start(before=f"{where}ulimit -{kind} {number}") as job:
        # A process without memory while MPI or the C++ runtime starts may end by itself.
        draw.ended(job, None if kind in "vn" else {DONE, FAULT, DATA, MEMORY},
                   f"ulimit -{kind} {number}{f' on rank {rank}' if one else ''}")
    draw.finish(what="limits")
    draw.must_equal_reference("limits")


def full_disk(draw):
    """a file system that fills, and is enlarged afterwards"""
    os.makedirs(draw.home)
    size = draw.random.randint(16, 1500)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", draw.home],
                      stderr=subprocess.DEVNULL).returncode != 0:
        os.rmdir(draw.home)
        return "skipped: no right to mount"
    try:
        with draw.start() as job:
            draw.ended(job, {DONE, FAULT}, f"a disk of {size} KiB")
        subprocess.run(["mount", "-o", "remount,size=64m", draw.home], check=True)
        draw.finish(what="full disk")
        draw.must_equal_reference("full disk")
    finally:
        subprocess.run(["umount", "-l", draw.home], check=True)


def time_limits(draw):
    """a time limit that ends the run again and again"""
    for _ in range(draw.random.randint(1, 3)):
        with draw.start("run.time_limit=00:00:01", "run.stop_margin_s=0.2") as job:
            if draw.ended(job, {DONE, STOPPED}, "a time limit of 1 s") == DONE:
                break
    draw.finish(what="time limits")
    draw.must_equal_reference("time limits")


def other_steps(draw):
    """fewer steps, then more, then fewer than already done"""
    steps = draw.deck.steps
    part = draw.random.randint(1, steps - 1)
    with draw.start(f"run.steps={part}", f"lr.decay_steps={steps}") as job:
        draw.ended(job, {DONE}, f"{part} steps")
    with draw.start(f"run.steps={draw.random.randint(1, part)}", f"lr.decay_steps={steps}") as job:
        draw.ended(job, {DONE}, "fewer steps than were done")
    before = sorted(os.listdir(os.path.join(draw.home, "checkpoints")))
    draw.finish(what="other steps")
    require(before and visible(draw.home), "checkpoints are gone")
    straight = draw.chaos.reference(draw.deck)[0]
    mine = Metrics(draw.home)
    # Keys that the deck leaves out are derived again: from `part` on the learning rate is the undisturbed run's.
    require(mine.curve("lr", part + 1) == straight.curve("lr", part + 1), "the learning rate is not derived again")


def other_keys(draw):
    """a restart with other values: each is reported, and earlier steps are unchanged"""
    part = draw.random.randint(1, draw.deck.steps - 1)
    with draw.start(f"run.steps={part}") as job:
        draw.ended(job, {DONE}, f"{part} steps")
    before = Metrics(draw.home)
    changes = dict(
        draw.random.sample([("optimizer.lr", "0.00071"), ("run.seed", "99"), ("optimizer.beta1", "0.8"),
                            ("optimizer.clip_norm", "0.5"), ("optimizer.weight_decay", "0.03"),
                            ("data.shuffle", "false"), ("checkpoint.keep", "9"), ("lr.min_ratio", "0.25"),
                            ("report.every_steps", "7"),
                            ("lr.decay", "linear" if draw.deck.decay != "linear" else "cosine")],
                           draw.random.randint(1, 4)))
    with draw.start(*(f"{key}={value}" for key, value in changes.items())) as job:
        draw.ended(job, {DONE}, f"a restart with {changes}")
        text = job.text()
    after = Metrics(draw.home)
    for key in changes:
        require(key in text, f"{key} changed and the console does not say so", job)
        require(key in read(os.path.join(draw.home, "metrics.jsonl")),
                f"{key} changed and metrics.jsonl does not say so", job)
    require(after.curve("loss")[:part] == before.curve("loss"), "steps before the restart changed")
    require(len(after.curve("loss")) == draw.deck.steps, "steps are missing")


def other_layout(draw):
    """stopped, and continued on another number of ranks, in another layout and schedule"""
    if draw.deck.numbers != "fp32":
        return "skipped: tests/mpi/agreement.py compares these"
    with draw.start() as job:
        require(job.until(lambda: len(job.in_main()) == job.size), "not every rank came to main", job)
        draw.sleep_some(job)
        kill(list(job.in_main().values())[:1], signal.SIGTERM)
        draw.ended(job, {DONE, STOPPED}, "stopped")
    other = draw.deck.in_another_layout(draw.random, draw.chaos.folder)
    with draw.start(deck=other) as job:
        draw.ended(job, {DONE}, f"continued as {other.layout}")
    mine, straight = Metrics(draw.home), draw.chaos.reference(draw.deck)[0]
    first = mine.starts[-1]["first_step"]  # first step in the other layout
    for key in ("loss", "grad_norm"):
        pairs = list(zip(mine.curve(key), straight.curve(key)))
        require(
            len(pairs) == draw.deck.steps and all(a == b for a, b in pairs[:first - 1]),
            f"{key} of the steps before {first} differs")
        # Rounding grows with every step: 1e-5 is promised for 20 of them. Norms of models as small as these, at rates
        # as high, amplify it more.
        for steps, bound in ((pairs[first - 1:first + 19], 1e-5 if key == "loss" else 1e-4), (pairs[first + 19:],
                                                                                              2e-2)):
            apart = max((abs(a - b) / abs(b) for a, b in steps), default=0)
            require(
                apart <= bound,
                f"{key} differs by {apart:.1e} after {draw.deck.layout} -> {other.layout} at step {first}\n"
                f"{draw.deck.text}\n{other.text}")


def model_keys(draw):
    """a restart with a model that does not fit the checkpoint"""
    with draw.start(f"run.steps={draw.random.randint(1, draw.deck.steps - 1)}",
                    f"lr.decay_steps={draw.deck.decay_steps}") as job:
        draw.ended(job, {DONE}, "the first start")
    key, value = draw.random.choice([("model.layers", draw.deck.layers + draw.deck.chunks),
                                     ("model.vocab", draw.deck.vocab + 3), ("model.ffn_dim", draw.deck.ffn_dim + 5)])
    newest = visible(draw.home)
    with draw.start(f"{key}={value}", "pipeline.split=[]") as job:
        draw.ended(job, {DATA}, f"{key} = {value}")
        require(key in job.text() and "q_proj" not in job.text(), f"{key} is not named", job)
    require(visible(draw.home) == newest, "a refused start changed the checkpoints")
    draw.finish(what="model keys")
    draw.must_equal_reference("model keys")


def changed_data(draw):
    """other data under the same name between two starts"""
    deck = draw.deck.with_own_data(draw.chaos.folder)
    part = draw.random.randint(1, deck.steps - 1)
    with draw.start(f"run.steps={part}", deck=deck) as job:
        draw.ended(job, {DONE}, "the first start")
    kind = draw.random.choice(["grown", "cut", "other contents", "gone"])
    deck.change_data(kind)
    with draw.start(deck=deck) as job:
        draw.ended(job, {DATA} if kind == "gone" else {DONE}, f"data {kind}")
        require("data" in job.text(), f"data {kind}, and the console does not say so", job)
        require(kind == "gone" or "data" in read(os.path.join(draw.home, "metrics.jsonl")),
                "metrics.jsonl does not say so", job)


def data_lost_in_mid_run(draw):
    """the data file is truncated while the run reads it"""
    deck = draw.deck.with_own_data(draw.chaos.folder)
    with draw.start(deck=deck) as job:
        job.until(lambda: events(draw.home, "start"))  # data cut before that are other data
        draw.sleep_some(job)
        whole = open(deck.data, "rb").read()
        os.truncate(deck.data, draw.random.randint(0, len(whole) // 3))
        status = draw.ended(job, {DONE, DATA}, "data cut in mid-run")
        trained = os.path.exists(os.path.join(draw.home, "metrics.jsonl")) and len(Metrics(draw.home).steps) > 0
    open(deck.data, "wb").write(whole)
    with draw.start(deck=deck) as job:
        draw.ended(job, {DONE}, "data cut in mid-run; the last start")
        require(status == DONE or not trained or "\nrestart " in job.text(), "the steps before were not saved", job)
    draw.must_equal_reference("data cut in mid-run")


def damaged_checkpoint(draw):
    """a byte of the newest checkpoint is flipped, or one of its files is missing"""
    part = draw.random.randint(1, draw.deck.steps - 1)
    with draw.start(f"run.steps={part}", f"lr.decay_steps={draw.deck.decay_steps}") as job:
        draw.ended(job, {DONE}, "the first start")
    newest = visible(draw.home)[-1]
    path = os.path.join(newest, draw.random.choice([n for n in os.listdir(newest) if n != "master.h5"]))
    with open(path, "r+b") as file:
        at = draw.random.randrange(os.path.getsize(path))
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << draw.random.randrange(8))]))
    with draw.start() as job:
        lone = len(visible(draw.home)) == 1
        status = job.wait()[0]
        require(status in ({DATA} if lone else {DONE}), f"{path} damaged at byte {at}: exit status {status}", job)
    if not lone:
        draw.must_equal_reference("damaged checkpoint")


def foreign_files(draw):
    """the user's files in the run directory and among the checkpoints survive"""
    theirs, folder = draw.theirs, os.path.join(draw.home, "checkpoints")
    for name in draw.random.sample([
            "tmp-notes.txt", "latest-best/weights.bin", "del-later.txt", "step-00000001/results/eval.csv",
            "step-000000004/x", "../heartbeat/pulse.csv", "../notes.md", "tmp-00000002-abc/y", "../checkpoint_now.md"
    ], draw.random.randint(1, 5)):
        path = os.path.normpath(os.path.join(folder, name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        theirs[path] = name * 3
        with open(path, "w") as file:
            file.write(theirs[path])
    with draw.start() as job:
        draw.ended(job, {DONE}, f"a run beside {sorted(theirs)}")
    for path, text in theirs.items():
        require(read(path) == text, f"{path} is gone or changed", job)
    straight = draw.chaos.reference(draw.deck)[0]
    require(Metrics(draw.home).curve("loss") == straight.curve("loss"), "losses differ beside a user's files")


def bad_input(draw):
    """random keys and values on the command line of check, plan and run: a documented status, without delay"""
    keys = draw.chaos.all_keys()
    values = [
        "-1", "0", "1", "2", "7", "1e30", "1e-50", "2147483647", "9223372036854775807", "1e999", "nan", "true", "[]",
        "[1,2]", "''", "'x'", "\"a\\u001b[31m\"", "1073741824", "'../../..'", "/dev/zero", "auto", "ring", "cuda", "'é'"
    ]
    for _ in range(10):
        overrides = [
            f"{draw.random.choice(keys)}={draw.random.choice(values)}" for _ in range(draw.random.randint(1, 3))
        ]
        command = draw.random.choice(["check", "plan", "check", "plan", "run"])
        home = ["-d", draw.home, "run.steps=1"] if command == "run" else []
        begin = time.monotonic()
        try:
            done = subprocess.run(
                [executable(), command, draw.deck.path, *home, *(o for o in overrides if not o.startswith("run.dir"))],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                timeout=COMMAND_LIMIT_S * (3 if command == "run" else 1), encoding="utf-8", errors="replace",
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30)))
        except subprocess.TimeoutExpired:
            raise Finding(
                f"{command} {overrides}: not ended after {time.monotonic() - begin:.0f} s\n{draw.deck.text}") from None
        allowed = {DONE, DECK, DATA, MEMORY} | ({FAULT, STOPPED} if command == "run" else set())
        require(done.returncode in allowed,
                f"{command} {overrides}: exit status {done.returncode}\n{done.stdout}\n{draw.deck.text}")
        require("\x1b[31m" not in done.stdout and "bad_alloc" not in done.stdout,
                f"{command} {overrides}: prints\n{done.stdout}")
        shutil.rmtree(draw.home, ignore_errors=True)


def unplugged(draw):
    """the cable of one of two hosts is pulled, permanently or briefly"""
    hosts = Hosts("c")
    while draw.deck.ranks % 2:  # as many ranks on each host
        draw.deck = draw.chaos.deck()
    if hosts.why_not():
        return "skipped: no right to make hosts"
    for_good = draw.random.random() < 0.5
    draw.duration()
    with hosts:
        with open(draw.home + ".log", "w+") as log:
            watchdog = f"run.watchdog_s={WATCHDOG_S if for_good else 5 * WATCHDOG_S}"
            run = hosts.start(draw.deck.ranks // 2, ["run", draw.deck.path, "-d", draw.home, watchdog], log, KEEPALIVE)
            time.sleep(draw.random.uniform(0.5, 1.5 + draw.duration()))
            hosts.pull("host2")
            if not for_good:
                time.sleep(draw.random.uniform(0, 1))
                hosts.plug("host2")
            try:
                status = run.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                status = "none"
            text = read(draw.home + ".log")
        gone = wait_until(lambda: not hosts.left(), LIMIT_S, tick=0.1)
        require(status != "none" and gone,
                f"a cable pulled: exit status {status}, processes left: {hosts.left()}\n{text}")
        require(for_good or status == DONE, f"a cable pulled for a moment: exit status {status}\n{text}")
    draw.finish(what="unplugged")
    draw.must_equal_reference("unplugged")


FAST = [
    stop_signals, kills, suspended, closed_pipe, limits, full_disk, time_limits, other_steps, other_keys, other_layout,
    model_keys, changed_data, data_lost_in_mid_run, damaged_checkpoint, foreign_files, bad_input
]
SLOW = [unplugged]


class Chaos:
    """The campaign: draws decks and ways, counts, and keeps every finding."""

    def __init__(self, folder, state_path, decks, seed):
        self.folder, self.decks = folder, decks
        self.state = State(state_path, draws=0, skipped=0, by_way={}, findings=[])
        self.random = random.Random(f"{seed} {self.state['draws']}")  # a new sequence after each stop
        self.pool, self.references, self.round = [], {}, []

    def deck(self):
        if len(self.pool) < self.decks and self.random.random() < 0.5 or not self.pool:
            self.pool.append(RandomDeck(self.random, self.folder, len(self.pool)))
        return self.random.choice(self.pool)

    def reference(self, deck):
        """Metrics and seconds of the undisturbed run."""
        if deck.number not in self.references:
            home, begin = os.path.join(self.folder, f"reference{deck.number}"), time.monotonic()
            done = launch(deck.ranks, ["run", deck.path, "-d", home], 10 * LIMIT_S)
            if done.returncode != 0:
                raise Finding(f"the undisturbed run ends with {done.returncode}\n{done.stdout}\n{deck.text}")
            self.references[deck.number] = Metrics(home), time.monotonic() - begin
        return self.references[deck.number]

    def all_keys(self):
        """Every key of the deck, from the effective deck that `check` prints."""
        section, keys = "", []
        for line in launch(1, ["check", self.pool[0].path]).stdout.splitlines():
            if line.startswith("["):
                section = line.strip("[] ")
            elif " = " in line:
                keys.append(f"{section}.{line.split(' = ')[0].strip()}")
        return keys

    def one(self, ways):
        # Every way occurs once per round, in random order.
        count = self.state["draws"]
        if count % len(ways) == 0 or not self.round:
            self.round = self.random.sample(ways, len(ways))
        way, deck = self.round[count % len(ways)], self.deck()
        draw = Draw(self, deck)
        counts = self.state["by_way"].setdefault(way.__name__, {"draws": 0, "skipped": 0, "findings": 0})
        try:
            skipped = way(draw)
        except Finding as finding:
            self.state["findings"].append(f"draw {self.state['draws']}, {way.__name__}: {finding}")
            counts["findings"] += 1
            print(f"FINDING in draw {self.state['draws']}, {way.__name__}: {finding}\n", flush=True)
            skipped = None
        self.state["draws"] += 1
        counts["draws"] += 1
        counts["skipped"] += bool(skipped)
        self.state.remember()
        shutil.rmtree(draw.home, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("draws", nargs="?", type=int, default=16)
    parser.add_argument("state", nargs="?")
    parser.add_argument("--full", action="store_true", help="more decks, and the slow ways")
    parser.add_argument("--seed", default="1", help="another campaign")
    parser.add_argument("--way", action="append", help="only this way (may be given more than once)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    ways = [way for way in FAST + SLOW * options.full if not options.way or way.__name__ in options.way]
    with tempfile.TemporaryDirectory() as folder:
        chaos = Chaos(folder, options.state, 40 if options.full else 5, options.seed)
        while chaos.state["draws"] < options.draws:
            chaos.one(ways)
    for name, counts in sorted(chaos.state["by_way"].items()):
        print(f"{name:24} {counts['draws']:5} draws {counts['skipped']:4} skipped {counts['findings']:4} findings")
    print(f"{chaos.state['draws']} draws, {len(chaos.state['findings'])} findings")
    found = len(chaos.state["findings"])
    print(f"{chaos.state['draws'] - found} passed, {found} failed")
    sys.exit(1 if found or not chaos.state["draws"] else 0)


if __name__ == "__main__":
    main()
