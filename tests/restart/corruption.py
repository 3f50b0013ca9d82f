"""A bit flips in one copy of the state: every committed checkpoint loads, the rank is named, and the run rolls back to
its last checkpoint, or stops. The bit is flipped in the memory of a rank that a fault point holds.

    corruption.py [BIT ...]     with bits, by hand: each in weights, moments and norms of two and three replicas"""
import contextlib, os, re, shutil, subprocess, sys

from support.checkpoints import PIECE, TENSOR, reseal
from support.disturbed import events, same_files, same_run, visible
from support.jobs import Job
from support.runs import DECK, Checks, Metrics, launch, scratch, train

STEPS, EVERY = 8, 2
BASE = [f"run.steps={STEPS}", f"checkpoint.every_steps={EVERY}", "checkpoint.restart=auto", "model.layers=2",
        "batch.global=6", "lr.decay_steps=10", "checkpoint.asynchronous=false", "checkpoint.keep=4"]
TWO, THREE = ["parallel.dp_replicate=2"], ["parallel.dp_replicate=3"]
TENSOR_PARALLEL = ["parallel.tp=2", "parallel.zero=1"]
WEIGHT = "parameters/model.layers.1.mlp.up_proj.weight"
MOMENT = "optimizer/exp_avg_sq/model.layers.0.self_attn.v_proj.weight"
NORM = "parameters/model.layers.0.input_layernorm.weight"


def first_bytes(checkpoint, tensor, count=40):
    """The rank that wrote the first box of a tensor, and the first bytes of the box."""
    name = None
    with open(os.path.join(checkpoint, "MANIFEST")) as file:
        for line in file:
            if match := TENSOR.match(line):
                name = match[1]
            elif (match := PIECE.match(line)) and name == tensor:
                with open(os.path.join(checkpoint, match[1]), "rb") as shard:
                    shard.seek(int(match[3]))
                    return int(match[1][6:11]), shard.read(count)
    sys.exit(f"{checkpoint} has no {tensor}")


def flip(pid, pattern, bit):
    """Flips a bit of the fp32 at each occurrence of `pattern` in the memory of a process; returns the number of
    occurrences."""
    count = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            area = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if not area or "[v" in line:
                continue
            begin, end = (int(number, 16) for number in area.groups())
            with contextlib.suppress(OSError):
                memory.seek(begin)
                data = memory.read(end - begin)
                at = data.find(pattern)
                while at >= 0:
                    word = bytearray(data[at:at + 4])
                    word[bit // 8] ^= 1 << bit % 8
                    memory.seek(begin + at)
                    memory.write(word)
                    count += 1
                    at = data.find(pattern, at + 1)
    return count


def may_write_memory():
    """Whether memory of processes that this one has started may be written, which some systems allow only to root."""
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with open(f"/proc/{child.pid}/mem", "r+b"):
                return True
        except OSError:
            return False
        finally:
            child.kill()


class Case:
    """Flips one bit of `tensor` on `rank` in the state of `step`, while `fault` holds the rank."""

    def __init__(self, name, ranks, layout, tensor, rank, bit=24, fault="step:hold:5", step=4, extra=()):
        self.name, self.ranks, self.tensor, self.rank, self.bit = name, ranks, tensor, rank, bit
        self.fault, self.step, self.keys = fault, step, [*BASE, *layout, *extra]
        self.straight_keys = [*BASE, *layout]  # of a run with the same numbers, whose checkpoints show them

    def run(self, home):
        """Exit status and text of the disturbed run; a flip that hits nothing ends the test."""
        _, pattern = first_bytes(straight_run(home, self).checkpoint(self.step), self.tensor)
        with Job(home, self.ranks, self.keys, self.fault, self.rank) as job:
            job.must_be_held()
            hits = flip(job.processes()[self.rank], pattern, self.bit)
            job.release()
            status, _, _ = job.wait()
            if hits == 0:
                sys.exit(f"{self.name}: {self.tensor} is not in the memory of rank {self.rank}\n{job.text()}")
            return status, job.text()


def loads(home, case):
    """Every checkpoint since the flip continues by itself."""
    for checkpoint in visible(home)[case.step // EVERY:]:
        step = int(checkpoint[-8:])
        done = launch(case.ranks, ["run", DECK, "-d", home + "-load", *case.keys, f"run.steps={step + 1}", "-r",
                                   checkpoint, "checkpoint.fallback=0", "checkpoint.every_steps=0"])
        shutil.rmtree(home + "-load", ignore_errors=True)
        if done.returncode != 0:
            print(done.stdout)
            return False
    return True


def straight_run(home, case, done={}):
    """The same run undisturbed."""
    key = (case.ranks, *case.straight_keys)
    if key not in done:
        done[key] = train(f"{home}-straight-{len(done)}", case.ranks, case.straight_keys)
    return done[key]


def check_rollback(checks, home, case, named):
    """The default: the run rolls back, repeats its steps and ends like the undisturbed one."""
    status, text = case.run(home)
    corrupt = events(home, "corruption")
    checks.that(status == 0 and len(corrupt) == 1 and corrupt[0]["ranks"] == named,
                f"{case.name}: exit status {status}, corruption on {[e['ranks'] for e in corrupt]}, expected {named}")
    checks.that([e["to"] for e in events(home, "rollback")] == [4] and case.tensor in text,
                f"{case.name}: back to step 4, and the tensor is named")
    checks.that(same_run(home, straight_run(home, case), STEPS), f"{case.name}: bitwise the undisturbed run")
    if status:
        print(text)


def check_stop(checks, home, case, said):
    """guard.on_corruption = "stop": the run ends, and the same command continues from the last good checkpoint."""
    status, text = case.run(home)
    checks.that(status == 1 and re.search(said, text) is not None and "the same command goes on from it" in text,
                f"{case.name}: exit status {status}, with the rank and what to do")
    checks.that([os.path.basename(c) for c in visible(home)] == ["step-00000002", "step-00000004"],
                f"{case.name}: no other checkpoint is committed or removed")
    again = train(home, case.ranks, case.keys)
    checks.that(same_run(again.dir, straight_run(home, case), STEPS), f"{case.name}: ... and then it goes on, bitwise")


def check_any_bit(checks, home, case):
    """Whatever the flip does, every committed checkpoint loads, and a finding names the rank."""
    status, text = case.run(home)
    ranks = {tuple(event["ranks"]) for event in events(home, "corruption")}
    expected = {(case.rank,)} if case.ranks > 2 else {(0, 1)}
    checks.that(status in (0, 1) and ranks <= expected and (ranks or "not both finite" in text or status == 0),
                f"{case.name}, bit {case.bit}: exit status {status}, corruption on {sorted(ranks)}")
    checks.that(loads(home, case), f"{case.name}, bit {case.bit}: every checkpoint loads")


def check_changed_data(checks, home, case):
    """Data that change after the proof has begun are not committed, even if no other rank holds a copy of them."""
    status, text = case.run(home)
    failed = events(home, "checkpoint_failed")
    checks.that(status == 0 and len(failed) == 1 and "memory changed in between" in text,
                f"{case.name}: the save fails ({len(failed)}), the run goes on ({status})")
    checks.that(loads(home, case), f"{case.name}: every checkpoint loads")


def check_hash(checks, home, case, expected_rank, back_to, said="copies differ: "):
    """guard.hash_steps or guard.recompute_steps finds a flip after the next step, with no save in between, and the run
    ends as if nothing had happened."""
    status, text = case.run(home)
    corrupt, back = events(home, "corruption"), [event["to"] for event in events(home, "rollback")]
    found = [(event["step"], event["ranks"]) for event in corrupt]
    checks.that(status == 0 and found == [(5, expected_rank)] and said in text,
                f"{case.name}: found after step 5, rank {expected_rank} ({status}, {found})")
    checks.that(back == [back_to], f"{case.name}: back to step {back_to} ({back})")
    mine, theirs = Metrics(home), straight_run(home, case)
    same = mine.curve("loss") == theirs.curve("loss")
    checks.that(same and same_files(mine.checkpoint(STEPS), theirs.checkpoint(STEPS)),
                f"{case.name}: bitwise the undisturbed run")
    if status:
        print(text)


class Computation:
    """A layout for guard.recompute_steps, a rank whose instruction makes a NaN in the comparison after step 4, and who
    is named. Steps 1 to 4 and the comparisons after 2 and 4 visit the instruction, and saves with such long proofs."""

    def __init__(self, name, ranks, layout, rank, named, instruction=40, visit=6):
        self.name, self.ranks, self.straight_keys, self.rank, self.named = name, ranks, [*BASE, *layout], rank, named
        self.keys = [*self.straight_keys, "guard.recompute_steps=2"]
        self.fault = f"instruction-{instruction}:nan:{visit}"


ZERO = ["parallel.dp_shard=3", "parallel.zero=3"]
COMPUTATIONS = [
    Computation("two replicas", 2, TWO, 1, [1]),
    Computation("dropout, three replicas", 3, [*THREE, "dropout.attention=0.1"], 1, [1]),
    Computation("zero 3", 3, ZERO, 2, [2]),
    Computation("zero 3 in bf16", 3, [*ZERO, "precision.compute=bf16"], 0, [0]),
    Computation("tp 2 x dp 2", 4, ["parallel.tp=2", "parallel.dp_shard=2"], 3, [2, 3], 10, 7),
    Computation("pp 2 x dp 3", 6, ["parallel.pp=2", "parallel.dp_shard=3"], 4, [1, 4], 10, 7),
    Computation("pp 2 x dp 3, a weight gradient", 6, ["parallel.pp=2", "parallel.dp_shard=3"], 4, [4]),
]


def check_computation(checks, home, case):
    """Comparing what ranks compute changes no bit. A rank that computes wrongly is named, and the run goes back to the
    state after the last comparison without a difference."""
    straight = straight_run(home, case)
    clean = train(home + "-clean", case.ranks, case.keys)
    checks.that(same_run(clean.dir, straight, STEPS) and not events(clean.dir, "corruption"),
                f"{case.name}: comparing changes no bit and names nobody")
    with Job(home, case.ranks, case.keys, case.fault, case.rank) as job:
        status, _, _ = job.wait()
        text = job.text()
    found = [(event["step"], event["ranks"]) for event in events(home, "corruption")]
    back = [event["to"] for event in events(home, "rollback")]
    checks.that(status == 0 and found == [(4, case.named)] and back == [2] and "computed differently: " in text,
                f"{case.name}: ranks {case.named} after step 4, back to step 2 ({status}, {found}, {back})")
    checks.that(same_run(home, straight, STEPS), f"{case.name}: then bitwise the undisturbed run")
    if status:
        print(text)


def check_nothing_to_compare(checks, home):
    done = launch(1, ["check", DECK, "guard.recompute_steps=2"])
    checks.that("guard.recompute_steps = 2 has no effect: no two ranks compute with the same weights" in done.stdout,
                "with one replica guard.recompute_steps has no effect, and check says so")


def check_fallback(checks, home):
    """Checkpoints whose proof fails are skipped along the lineage, like damaged ones."""
    straight = train(home, 1, BASE)
    for step in (6, 8):
        reseal(straight.checkpoint(step), lambda text: re.sub(r"proof (\d)\.(\d)", r"proof \1\1.\2", text))
    refused = launch(1, ["run", DECK, "-d", home, *BASE, f"run.steps={STEPS + 1}"])
    checks.that(refused.returncode == 3 and refused.stdout.count("when these weights were saved") >= 2,
                f"two proofs fail, one step back is allowed: exit status 3 ({refused.returncode}), both named")
    back = launch(1, ["run", DECK, "-d", home, *BASE, f"run.steps={STEPS + 1}", "checkpoint.fallback=2"])
    said = back.stdout.count("not restarted from") == 2 and "step-00000004" in back.stdout
    checks.that(back.returncode == 0 and said,
                f"two steps back are allowed: it goes on from step 4, and says so ({back.returncode})")


def check_bit(checks, home, bit):
    cases = [Case(f"{ranks} replicas, rank {rank}, {tensor}", ranks, layout, tensor, rank, bit)
             for ranks, layout, rank in ((2, TWO, 0), (2, TWO, 1), (3, THREE, 1), (3, THREE, 2))
             for tensor in (WEIGHT, MOMENT, NORM)]
    for case in [*cases, Case(f"tp 2, rank 1, {NORM}", 2, TENSOR_PARALLEL, NORM, 1, bit)]:
        check_any_bit(checks, home(f"{case.name}-{bit}"), case)


def main():
    checks = Checks()
    if not may_write_memory():
        print("skipped: this system does not let a process write the memory of another one")
        sys.exit(77)
    with scratch() as folder:
        home = lambda name: os.path.join(folder, re.sub(r"\W+", "-", name))
        if sys.argv[1:]:
            for bit in map(int, sys.argv[1:]):
                check_bit(checks, home, bit)
            checks.finish()
            return
        stop = ["guard.on_corruption=stop"]
        check_rollback(checks, home("weight"), Case("a weight of three replicas", 3, THREE, WEIGHT, 2), [2])
        check_rollback(checks, home("moment"), Case("a moment of three replicas", 3, THREE, MOMENT, 0, 27), [0])
        check_rollback(checks, home("norm"), Case("a norm of two tp ranks", 2, TENSOR_PARALLEL, NORM, 1, 21), [0, 1])
        check_stop(checks, home("stop"), Case("a weight of two replicas", 2, TWO, WEIGHT, 1, extra=stop),
                   r"ranks 0 and 1 \(host \S+\) hold different values of .*up_proj.weight .*without a majority")
        hashed = ["guard.hash_steps=1", "checkpoint.every_steps=8"]
        begins = hashed + ["checkpoint.at_start=true"]
        check_hash(checks, home("hash"), Case("hashes, a weight of three replicas", 3, THREE, WEIGHT, 2, extra=begins),
                   [2], 0)
        os.makedirs(home("hash-memory-copies"))
        copied = hashed + ["checkpoint.memory_steps=2", f"checkpoint.memory_dir={home('hash-memory-copies')}"]
        check_hash(checks, home("hash-memory"), Case("hashes and copies in memory, a norm of two tp ranks", 2,
                                                     TENSOR_PARALLEL, NORM, 1, 21, extra=copied), [0, 1], 4)
        computed = ["guard.recompute_steps=1", "checkpoint.every_steps=8", "checkpoint.at_start=true"]
        check_hash(checks, home("computed"), Case("computation with a weight of three replicas", 3, THREE, WEIGHT, 2,
                                                  extra=computed), [2], 0, "computed differently: ")
        check_hash(checks, home("computed-two"), Case("computation with a weight of two replicas", 2, TWO, WEIGHT, 1,
                                                      extra=computed), [0, 1], 0, "computed differently: ")
        for case in COMPUTATIONS:
            check_computation(checks, home(case.name), case)
        check_nothing_to_compare(checks, home("nothing"))
        copy = Case("a copy, during the proof", 3, THREE, WEIGHT, 0, fault="compare:hold:3", step=6)
        writer, _ = first_bytes(straight_run(home("copy"), copy).checkpoint(STEPS), WEIGHT)
        copy.rank = (writer + 1) % 3
        check_rollback(checks, home("copy"), copy, [copy.rank])
        check_changed_data(checks, home("data"),
                           Case("the only copy, during the proof", 1, [], WEIGHT, 0, fault="compare:hold:3", step=6))
        check_fallback(checks, home("fallback"))
    checks.finish()


main()
