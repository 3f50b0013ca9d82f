"""Copies of the state in memory (checkpoint.memory_steps): all ranks are killed between two copies and at every stage
of one, and the same command continues bitwise from the newest complete copy. Nodes are mount namespaces with a
directory each in place of checkpoint.memory_dir, which takes root: a lost node's part comes from its partner."""
import glob, os, shutil, subprocess, sys

from support.disturbed import events, same_run
from support.jobs import Job, kill
from support.runs import Checks, Metrics, difference, scratch, train

STEPS = 8
BASE = [f"run.steps={STEPS}", "checkpoint.restart=auto", "checkpoint.memory_steps=2", "checkpoint.every_steps=0",
        "model.layers=2", "batch.global=6", "lr.decay_steps=10", "checkpoint.asynchronous=false"]
SHARDED, REPLICATED, TENSOR = ["parallel.dp_shard=2"], ["parallel.dp_replicate=2"], ["parallel.tp=2"]
# Where all ranks are killed in the second copy, and the step to continue from: a copy counts once every node has
# renamed it, and here there is one node.
STAGES = {"memory-begin": 2, "memory-data": 2, "memory-send": 2, "memory-manifest": 2, "memory-rename": 2,
          "memory-committed": 4}


def mounted(mount):
    """Shell words that begin a rank's program behind a mount that only it sees."""
    return f"exec unshare -m bash -c '{mount} && exec \"$@\"' bash \"$@\""


class Places:
    """A folder in memory for the copies of one run, and the runs in it. With nodes, each rank sees a folder of its own
    there."""

    def __init__(self, folder, name, ranks, layout, nodes=1, extra=()):
        self.home, self.memory, self.ranks, self.nodes = (os.path.join(folder, name), os.path.join(
            folder, name + "-memory"), ranks, nodes)
        self.keys = [*BASE, *layout, f"checkpoint.memory_dir={self.memory}", *extra]
        self.layout, self.folder = layout, folder
        os.makedirs(self.memory)
        for node in range(nodes if nodes > 1 else 0):
            os.makedirs(self.of_node(node))

    def of_node(self, node):
        return f"{self.memory}-{node}" if self.nodes > 1 else self.memory

    def before(self):
        """Shell words that give a rank the memory of its node."""
        if self.nodes == 1:
            return ""
        return mounted(f"mount --bind {self.memory}-$OMPI_COMM_WORLD_RANK {self.memory}")

    def start(self, fault=None, rank=None, more=()):
        return Job(self.home, self.ranks, [*self.keys, *more], fault, rank, before=self.before())

    def finish(self, more=()):
        """Runs undisturbed; returns exit status and text."""
        with self.start(more=more) as job:
            status, _, _ = job.wait()
            return status, job.text()

    def generations(self, node=0):
        """Steps in memory, and the files of each."""
        found = {}
        for path in sorted(glob.glob(os.path.join(self.of_node(node), "espalier-*", "step-*"))):
            found[int(path[-8:])] = sorted(os.listdir(path))
        return found

    def files(self, name, node=0):
        return glob.glob(os.path.join(self.of_node(node), "espalier-*", "step-*", name))

    def kill_all(self, fault, rank=0, more=()):
        """Holds a rank at a stage, and kills all ranks."""
        with self.start(fault, rank, more) as job:
            job.must_be_held()
            kill(job.processes().values())
            job.wait()

    def straight(self, done={}):
        """The same run undisturbed, without copies."""
        key = (self.ranks, *self.layout)
        if key not in done:
            home = f"{self.folder}/straight-{len(done)}"
            done[key] = train(home, self.ranks, [k for k in self.keys if "memory" not in k])
        return done[key]

    def is_clean(self):
        return not any(glob.glob(os.path.join(self.of_node(node), "*")) for node in range(self.nodes))


def continues(checks, places, what, step, more=()):
    """The same command continues from the copy of `step`, ends like the undisturbed run, and leaves no copy."""
    status, text = places.finish(more)
    said = f"continues from the copy in memory of step {step}:" in text
    checks.that(status == 0 and said, f"{what}: continues from the copy of step {step} ({status})")
    checks.that(same_run(places.home, places.straight(), STEPS) and places.is_clean(),
                f"{what}: bitwise the undisturbed run, and nothing is left in memory")
    if status or not said:
        print(text)
    return text


def killed_between_copies(checks, folder):
    for name, layout in (("sharded", SHARDED), ("replicated", REPLICATED), ("tensor", TENSOR)):
        places = Places(folder, "between-" + name, 2, layout)
        places.kill_all("step:hold:6")
        checks.that(list(places.generations()) == [4], f"{name}: one generation stays ({places.generations()})")
        text = continues(checks, places, f"{name}, killed between two copies", 4)
        checks.that("there is one node, so no second copy" in text, f"{name}: the lack of a second copy is said")
    copies = [event["step"] for event in events(places.home, "memory_copy")]
    checks.that(copies == [2, 4, 6], f"metrics.jsonl has every copy ({copies})")


def killed_while_copies_are_written(checks, folder):
    """Copies that are written while training goes on: one that is due while another is in flight waits for its end."""
    for stage in ("step", "memory-send"):
        places = Places(folder, "asynchronous-" + stage, 2, SHARDED, extra=["checkpoint.asynchronous=true"])
        places.kill_all("step:hold:7" if stage == "step" else "memory-send:hold:2", 1)
        steps = list(places.generations())
        # On a busy machine the first copy may still be in flight.
        checks.that(steps == [] or (len(steps) == 1 and steps[0] in range(2, 7)), f"one generation stays ({steps})")
        if steps:
            continues(checks, places, f"killed at {stage} while training goes on", steps[0])


def killed_in_a_copy(checks, folder):
    for stage, step in STAGES.items():
        visit = 2 if stage != "memory-data" else 2 * visits_of_data(folder) - 1
        places = Places(folder, "in-" + stage, 2, SHARDED)
        places.kill_all(f"{stage}:hold:{visit}", 0 if stage == "memory-rename" else 1)  # rank 0 renames
        continues(checks, places, f"killed at {stage}", step)


def visits_of_data(folder, found=[]):
    """Boxes that rank 1 writes in one copy."""
    if not found:
        straight = Places(folder, "boxes", 2, SHARDED).straight()
        manifest = open(os.path.join(straight.checkpoint(STEPS), "MANIFEST")).read()
        found.append(manifest.count("piece shard-00001.h5"))
    return found[0]


def checkpoints_beside_copies(checks, folder):
    """The newer of both is taken; shards on disk are not read when it is the copy."""
    places = Places(folder, "beside", 2, SHARDED, extra=["checkpoint.every_steps=3"])
    places.kill_all("step:hold:6")
    for shard in glob.glob(os.path.join(places.home, "checkpoints", "step-*", "shard-*")):
        os.truncate(shard, 0)
    text = continues(checks, places, "a copy newer than the checkpoint, whose shards are gone", 4)
    checks.that("the newest checkpoint is of step 3" in text, "what is older is named")
    places = Places(folder, "newer", 2, SHARDED, extra=["checkpoint.every_steps=5"])
    places.kill_all("step:hold:6")
    status, text = places.finish()
    checks.that(status == 0 and "step 4 in memory is older than the checkpoint of step 5" in text and
                same_run(places.home, places.straight(), STEPS), f"a newer checkpoint is taken ({status})")


def damaged_and_foreign_copies(checks, folder):
    places = Places(folder, "damaged", 2, SHARDED, extra=["checkpoint.every_steps=3"])
    places.kill_all("step:hold:6")
    with open(places.files("shard-00001.h5")[0], "r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    status, text = places.finish()
    checks.that(status == 0 and "shard-00001.h5: its checksum differs" in text and
                "does not continue from memory: no complete copy is there" in text and
                same_run(places.home, places.straight(), STEPS) and places.is_clean(),
                f"a damaged copy without a second one: the checkpoint is taken ({status})")
    places = Places(folder, "foreign", 2, SHARDED)
    places.kill_all("step:hold:6")
    shutil.rmtree(places.home)
    status, text = places.finish()
    anew = status == 0 and "copy in memory of step" not in text
    checks.that(anew and same_run(places.home, places.straight(), STEPS),
                f"the run directory was removed: the run begins anew ({status})")
    places = Places(folder, "never", 2, SHARDED)
    places.kill_all("step:hold:6")
    status, text = places.finish(["checkpoint.restart=never"])
    checks.that(status == 0 and "from the copy in memory" not in text, "checkpoint.restart=never takes no copy")


def another_layout(checks, folder):
    """One rank takes the copy of two."""
    places = Places(folder, "layout", 2, SHARDED)
    theirs = places.straight().curve("loss", 5)
    places.kill_all("step:hold:6")
    places.ranks, places.keys = 1, [k for k in places.keys if not k.startswith("parallel")]
    status, text = places.finish()
    near = status == 0 and difference(Metrics(places.home).curve("loss", 5), theirs) < 1e-5
    checks.that(near and "continues from the copy in memory of step 4" in text,
                f"one rank continues from the copy of two ({status})")


def full_memory(checks, folder):
    """Copies fail, which costs nothing else."""
    places = Places(folder, "full", 2, SHARDED)
    places.before = lambda: mounted(f"mount -t tmpfs -o size=128k none {places.memory}")
    status, text = places.finish()
    failed = events(places.home, "memory_copy_failed")
    checks.that(status == 0 and [event["step"] for event in failed] == [2, 4, 6] and
                text.count("copy in memory failed") > 0 and "bytes are needed for the copies in memory" in text,
                f"a full memory: three copies fail, the run ends in order ({status})")
    checks.that(text.count("bytes are needed") == 1, "it is said once")
    checks.that(same_run(places.home, places.straight(), STEPS), "bitwise the undisturbed run")


def lost_nodes(checks, folder):
    for name, layout, ranks in (("sharded", SHARDED, 2), ("replicated", REPLICATED, 2),
                                ("three", ["parallel.dp_shard=3"], 3)):
        for lost in range(ranks):
            places = Places(folder, f"lost-{name}-{lost}", ranks, layout, nodes=ranks)
            places.kill_all("step:hold:6")
            shutil.rmtree(places.of_node(lost))
            os.makedirs(places.of_node(lost))
            text = continues(checks, places, f"{name}, node {lost} is lost", 4)
            checks.that("there is one node" not in text, f"{name}: there are several nodes")


def kept_files(checks, folder):
    """Each node has its own shard and its partner's; a damaged one is replaced by the other; two lost partners are
    too many."""
    places = Places(folder, "kept", 3, ["parallel.dp_shard=3"], nodes=3)
    places.kill_all("step:hold:6")
    for node in range(3):
        kept = [name for name in places.generations(node)[4] if name.startswith("shard")]
        checks.that(kept == sorted([f"shard-0000{node}.h5", f"shard-0000{(node + 2) % 3}.h5"]),
                    f"node {node} keeps its shard and that of the node before ({kept})")
    os.truncate(places.files("shard-00001.h5", 1)[0], 100)
    continues(checks, places, "a damaged shard, and its second copy", 4)
    places = Places(folder, "partners", 3, ["parallel.dp_shard=3"], nodes=3)
    places.kill_all("step:hold:6")
    for node in (0, 1):
        shutil.rmtree(places.of_node(node))
        os.makedirs(places.of_node(node))
    status, text = places.finish()
    checks.that(status == 0 and "step 4 in memory lacks shard-00000.h5" in text,
                f"two partners are lost: it begins anew, and says why ({status})")
    checks.that(same_run(places.home, places.straight(), STEPS), "... bitwise the undisturbed run")


def may_mount():
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


def main():
    checks = Checks()
    cases = [killed_between_copies, killed_while_copies_are_written, killed_in_a_copy, checkpoints_beside_copies,
             damaged_and_foreign_copies, another_layout]
    if may_mount():
        cases += [full_memory, lost_nodes, kept_files]
    else:
        print("without several nodes and without a full memory: they take root, for mount namespaces")
    if sys.argv[1:]:
        cases = [case for case in cases if case.__name__ in sys.argv[1:]]
    with scratch() as folder:
        checks.each(cases, folder)
    checks.finish()


main()
