"""No input may overflow a size, compile endlessly, or take unbounded memory. Every command runs with limits of
processor time and memory. Standard library only."""
import os, re, resource, shutil, subprocess, tempfile

from support.checkpoints import crc32c
from support.recorded import recorded
from support.runs import DECK, ENVIRONMENT, Checks, executable, train

MEMORY = 4 << 30   # bytes of address space of one command
PROCESSOR = 20     # seconds of one command, on a busy machine; a refusal takes hundredths


def ask(*arguments, seconds=PROCESSOR):
    """Exit status (negative: signal) and text of a command within its limits."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    done = recorded(subprocess.run([executable(), *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
                                   stdin=subprocess.DEVNULL, preexec_fn=limit, timeout=600))
    return done.returncode, done.stdout


def h3_sizes_that_wrap(checks, folder):
    """model.dim = 2^30 crashed PlanWaits; other sizes overflowed to a plausible arena."""
    cases = [["model.dim=1073741824"], ["model.dim=536870912"], ["model.vocab=2147483647", "model.seq_len=2147483647"],
             ["model.dim=16777216", "model.seq_len=2147483647", "batch.micro=8"],
             ["model.dim=1073741824", "model.ffn_dim=1073741824"], ["model.dim=2147483644", "model.seq_len=2147483647"],
             ["model.seq_len=2147483647", "batch.global=2147483647", "run.device=cuda"]]
    for case in cases:
        for command in ("plan", "check", "run"):
            status, text = ask(command, DECK, *case, "run.dir=" + os.path.join(folder, "none"))
            checks.that(status == 2 and "the limit is 2^58" in text and "(lower " in text,
                        f"H3: {command} {' '.join(case)}: {status}")
    checks.that(not os.path.exists(os.path.join(folder, "none")), "H3: a refused run makes no folder")


def a7_layers_and_batches_without_end(checks):
    cases = {"model.layers=999999999": "allowed: 1 to 4096", "model.layers=100000": "allowed: 1 to 4096",
             "batch.global=2147483647": "the limit is 262144", "batch.global=1000000": "the limit is 262144"}
    for key, words in cases.items():
        for command in ("check", "plan"):
            status, text = ask(command, DECK, key, "batch.micro=1", seconds=5)
            checks.that(status == 2 and words in text, f"A7: {command} {key}: {status}")


def a7_many_layers_and_ranks(checks):
    """The largest allowed values end, too; layers were planned in quadratic time."""
    status, text = ask("plan", DECK, "model.layers=1000", seconds=60)
    checks.that(status == 0 and "1 for 1 ranks" in text, f"A7: plan model.layers=1000: {status}")
    status, text = ask("plan", DECK, "parallel.dp_shard=-1", "--ranks", "16384", "batch.global=16384", seconds=60)
    checks.that(status == 0 and "dp_shard 16384" in text, f"A7: plan on 16,384 ranks: {status}")
    status, text = ask("plan", DECK, "parallel.dp_shard=-1", "--ranks", "1048576", "batch.global=1048576",
                       "model.layers=8")
    checks.that(status == 2 and "the limit is 4194304" in text, f"A7: plan of 8 layers on 1,048,576 ranks: {status}")
    status, text = ask("plan", DECK, "--ranks", "16777216")
    checks.that(status == 2 and "1048576" in text, f"A7: plan --ranks 16777216: {status}")


def with_deck(checkpoint, changes):
    """Changes lines of a checkpoint's deck.toml, and corrects the checksums."""
    path, manifest = (os.path.join(checkpoint, name) for name in ("deck.toml", "MANIFEST"))
    with open(path) as file:
        deck = file.read()
    for key, value in changes.items():
        deck, count = re.subn(rf"^{key}( *)= .*$", rf"{key}\1= {value}", deck, count=1, flags=re.M)
        assert count == 1, key
    with open(path, "w") as file:
        file.write(deck)
    with open(manifest) as file:
        text = file.read()
    line = re.search(r"^.*\bdeck\.toml\b.*$", text, re.M)[0]
    fields = line.split()
    fields[-2:] = [str(len(deck.encode())), f"{crc32c(deck.encode()):08x}"]
    text = text.replace(line, " ".join(fields))
    body = text[:text.rindex("end ")]
    with open(manifest, "w") as file:
        file.write(body + f"end {crc32c(body.encode()):08x}\n")


def m10_strangers_checkpoints(checks, folder):
    """A checkpoint whose deck needs more than its MANIFEST holds is refused before compilation or allocation."""
    own = train(os.path.join(folder, "own"), 1, ["run.steps=1", "model.layers=2", "batch.global=4"]).checkpoint(1)
    checks.that(ask("sample", own, "--tokens", "1")[0] == 0, "M10: the checkpoint itself is sampled from")
    cases = {"H3 dim, vocab, seq_len": {"dim": 1073741824, "vocab": 2147483647, "seq_len": 2147483647},
             "H3 dim, seq_len": {"dim": 2147483644, "seq_len": 2147483647},
             "M10 2,000,000,000 layers": {"layers": 2000000000}, "M10 20,000 layers": {"layers": 20000},
             "M10 4,096 layers": {"layers": 4096},
             "M10 large and allowed": {"dim": 4194304, "ffn_dim": 4194304, "layers": 64}}
    for name, changes in cases.items():
        strange = os.path.join(folder, "strange")
        shutil.copytree(own, strange)
        with_deck(strange, changes)
        status, text = ask("sample", strange, "--tokens", "1")
        checks.that(status == 3 and strange in text, f"{name}: sample: {status} {text.splitlines()[-1:]}")
        checks.that(ask("inspect", strange)[0] == 0, f"{name}: inspect prints it")
        shutil.rmtree(strange)


def l_texts(checks, folder):
    """Other inputs that made the program wait, or were accepted as something else."""
    fifo = os.path.join(folder, "fifo.toml")
    os.mkfifo(fifo)
    outer = os.path.join(folder, "outer.toml")
    with open(outer, "w") as file:
        file.write('include = ["fifo.toml"]\n')
    status, text = ask("check", outer)
    checks.that(status == 2 and "is not a file" in text, f"L: a deck includes a FIFO: {status}")
    status, text = ask("run", DECK, "-d", "")
    checks.that(status == 2 and 'run.dir = "": must name a folder' in text, f"C7: -d '': {status}")
    status, text = ask("run", DECK, "-d", "a", "run.dir=b")
    checks.that(status == 2 and 'run.dir is given twice, as run.dir=b and as -d "a"' in text,
                f"C7: -d a run.dir=b: {status}")
    status, text = ask("check", DECK, "run.steps=2", "run.steps=3", "guard.max_skips=4")
    checks.that(status == 0 and "# command line: run.steps=2 has no effect: run.steps=3 comes later" in text,
                "C7: the last of two values counts, and is said")
    checks.that('guard.max_skips = 4 has no effect: guard.on_nonfinite is not "skip"' in text,
                "C9: a setting without effect is said")
    status, text = ask("run", DECK, "-d", os.path.join(folder, "plans"), "run.device=cpu", "run.gemm_plans=/none")
    checks.that(status == 2 and 'run.gemm_plans = "/none": no such file' in text,
                f"rule 8: GEMM plans that are not there: {status}")


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        h3_sizes_that_wrap(checks, folder)
        a7_layers_and_batches_without_end(checks)
        a7_many_layers_and_ranks(checks)
        m10_strangers_checkpoints(checks, folder)
        l_texts(checks, folder)
    checks.finish()


main()
