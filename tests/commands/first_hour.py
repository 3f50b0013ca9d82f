"""Commands of a newcomer's first hour, as newcomers type them. Each command succeeds, or its error names a remedy that
succeeds when it is typed literally.

    first_hour.py          everything
    first_hour.py TEXT     the journeys whose name holds TEXT
"""
import os, pathlib, re, subprocess, sys

from support.recorded import recorded
from support.runs import Checks, ENVIRONMENT, ROOT, executable, launcher, scratch

LLAMA, TINY = f"{ROOT}/inputs/llama/8b.toml", f"{ROOT}/inputs/llama/tiny.toml"
SHORT = ["run.steps=2", "checkpoint.every_steps=2"]
TOKENIZER = f"{ROOT}/tests/data/tokenizer.json"
MEANT = re.compile(r"^command line: (.+?): .*\(did you mean (.+?)\?\)", re.M)


class Terminal:
    """A shell in a folder of a user."""

    def __init__(self, checks, folder):
        self.checks, self.folder = checks, folder

    def type(self, words, ranks=1):
        """(exit status, text) of `espalier WORDS` under as many ranks."""
        done = recorded(subprocess.run([*launcher(ranks), executable(), *words], cwd=self.folder, timeout=300,
                                       env=ENVIRONMENT | {"HOME": self.folder}, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, encoding="utf-8", stdin=subprocess.DEVNULL))
        return done.returncode, done.stdout

    def must(self, words, ranks=1, holds=""):
        status, text = self.type(words, ranks)
        good = status == 0 and holds in text
        self.checks.that(good, f"{ranks} ranks: espalier {' '.join(words)}" + ("" if good else f"\n{text}"))
        return text

    def fails(self, words, ranks=1, status=2):
        is_status, text = self.type(words, ranks)
        self.checks.that(is_status == status, f"{ranks} ranks: espalier {' '.join(words)}: exit status {is_status}")
        return text

    def write(self, name, text):
        pathlib.Path(self.folder, name).write_text(text, encoding="utf-8")
        return name


def replaced(words, text):
    """The words with everything that an error asks "did you mean" of replaced by what it suggests."""
    line = "\n".join(words)
    for written, meant in MEANT.findall(text):
        value = written.partition("=")[2]
        new = f"{meant}={value}" if value and "=" not in meant and not meant.startswith("-") else meant
        line = line.replace("\n".join(written.split(" ")), "\n".join(new.split(" ")))
    return line.split("\n")


def any_number_of_ranks(terminal):
    """The tiny deck runs on the ranks that it is given, or on the batch that the error names."""
    words = [TINY, *SHORT]
    for ranks in (1, 2, 3, 5, 6):
        more = []
        if 16 % (2 * ranks):
            more = [re.search(r"; set (batch\.global=\d+)\)", terminal.fails(words, ranks))[1]]
        terminal.must([*words, f"run.dir=on{ranks}", *more], ranks, "all 2 steps are done")


def one_rank_of_eight(terminal):
    """The deck of eight ranks, on one and on three."""
    words = [f"{ROOT}/inputs/llama/tiny-8.toml", *SHORT]
    for ranks in (1, 3):
        keys = re.search(r"or set (.*)\)", terminal.fails(words, ranks))[1].split()
        terminal.must([*words, f"run.dir=eight{ranks}", *keys], ranks)


def a_text(terminal):
    """A text in place of a deck, or as data, with and without quotes and a tilde."""
    text = terminal.write("my.txt", "It was a dark and stormy night.\n" * 100)
    said = terminal.fails([text])
    terminal.must([*re.search(r"such as espalier (.*)", said)[1].split(), *SHORT])
    for number, paths in enumerate(("my.txt", '["my.txt"]', "~/my.txt")):
        terminal.must([TINY, *SHORT, f"run.dir=text{number}", f"data.paths={paths}"], holds="data       1 file, ")
    said = terminal.fails([f"{ROOT}/README.md"])
    terminal.must(["check", *re.search(r"such as espalier (.*)", said)[1].split()])


def words_of_other_programs(terminal):
    """Options and keys of others, all judged at once, and what each is called here."""
    for words in (["check", LLAMA, "model.hidden_size=4096", "train.steps=3", "--lr", "3e-4", "--nproc", "4"],
                  ["check", LLAMA, "optimizer.learning_rate=1e-3", "parallel.tensor_parallel_degree=2"],
                  ["sample", "none", "--temp", "1"]):
        said = terminal.fails(words)
        meant = len(MEANT.findall(said))
        terminal.checks.that(meant == sum(word[0] == "-" or "=" in word for word in words), f"all at once\n{said}")
        status, text = terminal.type(replaced(words, said))
        terminal.checks.that(status != 2, f"espalier {' '.join(replaced(words, said))}: {status}\n{text[:500]}")
    for words in (["tran", TINY, *SHORT], ["tiny", *SHORT], ["check", TINY, "lr=3e-4"], ["help", "learning_rate"]):
        said = terminal.fails(words)
        meant = re.search(r"did you mean (.+?)\?", said)[1]
        old = next(word for word in reversed(words) if word.partition("=")[0] in said)
        new = f"{meant}={old.partition('=')[2]}" if "=" in old else meant
        terminal.must([new if word == old else word for word in words])
    said = terminal.fails(["train"])
    terminal.must(["train", re.search(r"such as (\S+)", said)[1], *SHORT, "run.dir=train"])


def a_model_of_hugging_face(terminal):
    """Tokens by its tokenizer, and its import with the user's documents."""
    terminal.write("mine.jsonl", '{"text": "A tree grows along a lattice."}\n' * 200)
    os.mkdir(os.path.join(terminal.folder, "gpt2"))
    terminal.must([TINY, *SHORT, "model.vocab=600", f"data.tokenizer={TOKENIZER}", "data.format=jsonl",
                   "data.paths=mine.jsonl", "run.dir=given"])
    terminal.must(["export", "given", "hf"])
    terminal.must(["tokenize", "hf", "mine.jsonl", "-o", "mine.tokens"], holds="1 file, 200 documents, ")
    said = terminal.fails(["tokenize", "gpt-2", "mine.jsonl", "-o", "other.tokens"], status=3)
    terminal.checks.that("no such file; name a file tokenizer.json" in said, f"names of the hub are no files\n{said}")
    said = terminal.must(["import", "hf", "runs/hf", "data.paths=mine.jsonl", "run.steps=2"])
    command = re.search(r"espalier (\S*deck\.toml.*)", said)
    terminal.checks.that(command is not None, f"import ends with the command that trains\n{said}")
    terminal.must([*(command[1].split() if command else ["runs/hf/deck.toml"]), "batch.global=2"])


def a_run_that_is_done(terminal):
    words = [TINY, "run.steps=1", "run.dir=done"]
    first = terminal.must(words)
    again = terminal.must(words, holds="steps      none left of 1")
    for wrong in ("1 files", "1 steps", "all 1 ", "warmup_steps"):
        terminal.checks.that(not re.search(rf"\b{wrong}", first + again), f"no '{wrong}'")
    key = re.search(r"the same command and (run\.steps=)N above 1", again)[1]
    terminal.must([*words, f"{key}2"], holds="done       step")


def clusters(terminal):
    """Several decks, ranks of a check, and a layout that tune writes."""
    cluster = ["--ranks", "8", "--cluster", "clusters/h100-8x400g.toml"]
    small = ["model.layers=4", "batch.global=16", "--fix", "parallel.cp", "--fix", "parallel.dp_replicate"]
    terminal.must(["tune", "llama/8b.toml", *cluster, "-o", "best.toml", *small])
    terminal.must(["plan", "llama/8b.toml", "best.toml", "model.layers=4", "batch.global=16", *cluster])
    terminal.must(["check", "inputs/llama/8b.toml", "--ranks", "64"])


def main():
    checks = Checks()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for journey in (any_number_of_ranks, one_rank_of_eight, a_text, words_of_other_programs, a_model_of_hugging_face,
                    a_run_that_is_done, clusters):
        if wanted in journey.__name__:
            with scratch() as folder:
                journey(Terminal(checks, folder))
    checks.finish()


main()
