"""`espalier tokenize`: the same tokens for any number of threads and size of parts, after kills at any moment, in one
file or in shards; long texts that are cut; errors with file and line."""
import array
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import time

from support.recorded import recorded
from support.runs import Checks, ROOT, executable, scratch

TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
PATIENCE, END, SEED = 120, 0, 5


def call(*arguments, tokenizer=TOKENIZER):
    return recorded(subprocess.run([executable(), "tokenize", str(tokenizer), *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE))


def read_tokens(path):
    """Vocabulary and ids of a token file."""
    data = pathlib.Path(path).read_bytes()
    magic, version, width, vocab, count = struct.unpack("<8sIIQQ", data[:32])
    assert magic == b"ESPTOK\0\1" and version == 1 and len(data) == 32 + width * count, path
    return vocab, array.array({2: "H", 4: "I"}[width], data[32:]).tolist()


def shown(*arguments):
    """The ids of each document."""
    done = call(*arguments, "--show")
    assert done.returncode == 0, done.stdout
    return [json.loads(line)["ids"] for line in done.stdout.splitlines()]


def make_texts(folder):
    """Two files of lines, two texts, one of them long and one empty."""
    r = random.Random(SEED)
    words = pathlib.Path(ROOT, "doc", "numerics.md").read_text(encoding="utf-8").split(" ")
    words += ["é\n", "中文。", "👍", "\n\n", "1234"]
    for k in range(2):
        with open(folder / f"{k}.jsonl", "w", encoding="utf-8") as file:
            for line in range(700 + 50 * k):
                text = " ".join(r.choices(words, k=r.randrange(60)))
                row = json.dumps({"id": line, "text": text}, ensure_ascii=bool(line % 2))
                file.write(row + "\n" * (1 + line % 3 // 2))  # some lines are empty
    (folder / "long.txt").write_text(" ".join(r.choices(words, k=40000)), encoding="utf-8")
    (folder / "empty.txt").write_text("")


def same_for_any_division(checks, folder):
    texts, out = folder / "texts", folder / "a.tokens"
    done = call(texts, "-o", out)
    checks.that(done.returncode == 0 and "end of document 0 (<|endoftext|>)" in done.stdout, "the end token is said")
    vocab, ids = read_tokens(out)
    documents = shown(texts)
    checks.that(vocab == 600 and ids == sum(documents, []), "the file has the ids of all documents, in order")
    checks.that(len(documents) == 1452 and all(ids[-1] == END and END not in ids[:-1] for ids in documents),
                f"{len(documents)} documents, each ends with the end token")
    checks.that("4 files, 1452 documents" in done.stdout, "the summary counts files and documents")
    for k, (threads, part) in enumerate([(1, 300), (2, 4097), (3, 50000)]):
        other = folder / f"other{k}.tokens"
        done = call(texts, "-o", other, "--threads", threads, "--part-bytes", part)
        checks.that(done.returncode == 0 and other.read_bytes() == out.read_bytes(),
                    f"{threads} threads, parts of {part} bytes: the same file {done.stdout if done.returncode else ''}")
        checks.that(not os.path.exists(f"{other}.parts"), "nothing else is left")
    done = call(texts, "-o", out)
    checks.that(done.returncode == 2 and "a.tokens exists" in done.stdout, "an output that exists is kept")


def shards(checks, folder):
    whole = read_tokens(folder / "a.tokens")[1]
    done = call(folder / "texts", "-o", folder / "s.tokens", "--shard-tokens", 9973, "--part-bytes", 5000)
    paths = sorted(folder.glob("s-*.tokens"))
    parts = [read_tokens(path)[1] for path in paths]
    checks.that(done.returncode == 0 and sum(parts, []) == whole, f"{len(paths)} shards make the whole")
    checks.that(all(len(part) == 9973 for part in parts[:-1]) and paths[0].name == "s-00000.tokens",
                "each but the last is full")


def kills(checks, folder):
    """Killed at random moments until it ends by itself."""
    r, out, killed, before = random.Random(SEED), folder / "k.tokens", 0, 0
    line = [executable(), "tokenize", TOKENIZER, str(folder / "texts"), "-o", str(out), "--part-bytes", "1500",
            "--threads", "2"]
    for attempt in range(200):
        with open(folder / "log", "w+", encoding="utf-8") as log:
            process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT)
            try:
                process.wait(timeout=r.uniform(0.02, 0.15) if attempt < 60 else PATIENCE)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
                if out.exists():  # all was done but the end of the process
                    break
    log = (folder / "log").read_text()
    ended = process.returncode in (0, -signal.SIGKILL)
    checks.that(ended and killed > 0 and out.read_bytes() == (folder / "a.tokens").read_bytes(),
                f"after {killed} kills the file is the same {'' if ended else log}")
    checks.that(process.returncode != 0 or "parts were done before" in log, "and parts were not done again")


def another_job(checks, folder):
    """Parts of one job are not taken for another."""
    out = folder / "j.tokens"
    line = [executable(), "tokenize", TOKENIZER, str(folder / "texts"), "-o", str(out), "--part-bytes", "300"]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE
    while not list(folder.glob("j.tokens.parts/0*")) and time.monotonic() < deadline:
        time.sleep(0.002)
    second = call(folder / "texts", "-o", out, "--part-bytes", 300)
    process.kill()
    process.wait()
    checks.that(second.returncode == 3 and "another process is at work" in second.stdout, "one process at a time")
    done = call(folder / "texts", "-o", out, "--part-bytes", 300, "--end-token", "none")
    checks.that(done.returncode == 3 and 'it has "end token 0", this one "end token none"' in done.stdout,
                "other options are refused, with what differs")


def bad_input(checks, folder):
    lines = folder / "bad.jsonl"
    lines.write_bytes(b'{"text": "a"}\n{"text": 1}\n\n{"text": "b\xff"}\n{"t": "c"}\nno\n{"text": "d"}')
    done = call(lines, "-o", folder / "bad.tokens", "--part-bytes", 256)
    checks.that(done.returncode == 3 and f"{lines}:2: is no object with a string \"text\"" in done.stdout,
                "a bad line is named")
    done = call(lines, "-o", folder / "bad2.tokens", "--skip-bad")
    checks.that(done.returncode == 0 and "skipped 4 lines" in done.stdout and "2 documents" in done.stdout,
                "or skipped and counted")
    done = call(lines, "-o", folder / "t.tokens", "--skip-bad", "--field", "t")
    checks.that(done.returncode == 0 and "1 document," in done.stdout, "--field names another member")
    text = folder / "bad.txt"
    text.write_bytes(b"a\nb " + b"x y\n" * 500 + b"\xc3\x28\nz")
    done = call(text, "-o", folder / "u.tokens", "--part-bytes", 256)
    checks.that(done.returncode == 3 and f"{text}:502: is not UTF-8: byte 2004 of the file is 0xc3" in done.stdout,
                f"bytes that are no UTF-8 are named by line: {done.stdout}")
    done = call(text, lines, "-o", folder / "v.tokens", "--skip-bad")
    checks.that(done.returncode == 0 and f"skipped {text}" in done.stdout, "or the file is skipped and named")


def refused(checks, folder):
    for arguments, status, message in [
            (["nosuch.txt", "-o", "x"], 3, "nosuch.txt: cannot read"),
            ([TOKENIZER, "-o", "x", "--end-token", "<|no|>"], 2, "--end-token: <|no|> is no token of this tokenizer"),
            ([TOKENIZER, "-o", "x", "--bos"], 2, "--bos: this tokenizer has no token that begins a text"),
            ([TOKENIZER], 2, "-o is missing")]:
        done = call(*arguments)
        checks.that(done.returncode == status and message in done.stdout,
                    f"{message} ({done.returncode}: {done.stdout})")
    for name, message in [("gpt2", "gpt2: no such file; name a file tokenizer.json or tokenizer.model, or a"),
                          (folder / "texts", "has neither tokenizer.json nor tokenizer.model")]:
        done = call(TOKENIZER, "-o", "x", tokenizer=name)
        checks.that(done.returncode == 3 and message in done.stdout, f"{message} ({done.returncode}: {done.stdout})")
    done = call(TOKENIZER, "--show", tokenizer=os.path.dirname(TOKENIZER))
    checks.that(done.returncode == 0 and done.stdout == call(TOKENIZER, "--show").stdout, "a folder with a tokenizer")
    ids = shown(folder / "texts" / "empty.txt", "--end-token", "299")
    checks.that(ids == [[299]], "--end-token takes an id")


def main():
    checks = Checks()
    with scratch() as home:
        folder = pathlib.Path(home)
        (folder / "texts").mkdir()
        make_texts(folder / "texts")
        checks.each([same_for_any_division, shards, kills, another_job, bad_input, refused], folder)
    checks.finish()


main()
