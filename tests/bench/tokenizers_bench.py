"""MB of text per second: `espalier tokenize` beside Hugging Face's tokenizers, both with two threads, on the documents
and sources of this repository as lines of JSON, the same text several times over:

    ESPALIER=build/espalier tests/bench/tokenizers_bench.py [TOKENIZER_JSON]

Needs the Python package tokenizers (ESPALIER_REFERENCE_PYTHON, or fetched). Both read, parse and tokenize; Espalier
also writes its file."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from support.reference import reference_python

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMES, THREADS, ROUNDS = 8, 2, 3
REFERENCE = """
import json, sys, time
from tokenizers import Tokenizer
tokenizer = Tokenizer.from_file(sys.argv[1])
begin = time.monotonic()
with open(sys.argv[2], encoding="utf-8") as file:
    texts = [json.loads(line)["text"] for line in file]
count = 0
for k in range(0, len(texts), 1000):
    count += sum(len(e.ids) for e in tokenizer.encode_batch(texts[k:k + 1000], add_special_tokens=False))
print(time.monotonic() - begin, count)
"""


def make_text(path):
    """Returns the bytes of text."""
    files = sorted([*ROOT.glob("doc/**/*.md"), *ROOT.glob("src/**/*.?pp"), *ROOT.glob("tests/**/*.py")])
    texts = [file.read_text(encoding="utf-8") for file in files]
    with open(path, "w", encoding="utf-8") as out:
        for k in range(TIMES):
            for text in texts:
                out.write(json.dumps({"text": f"{k}\n{text}"}, ensure_ascii=False) + "\n")
    return TIMES * sum(len(text.encode()) + 2 for text in texts)


def main():
    tokenizer = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "tests/data/tokenizer.json")
    python = reference_python("formats")
    with tempfile.TemporaryDirectory() as folder:
        lines, out = os.path.join(folder, "t.jsonl"), os.path.join(folder, "t.tokens")
        megabytes = make_text(lines) / 1e6
        environment = {**os.environ, "RAYON_NUM_THREADS": str(THREADS), "TOKENIZERS_PARALLELISM": "true"}
        for _ in range(ROUNDS):
            begin = time.monotonic()
            subprocess.run([os.environ["ESPALIER"], "tokenize", tokenizer, lines, "-o", out, "--threads", str(THREADS),
                            "--end-token", "none"], check=True, stdout=subprocess.DEVNULL)
            ours, count = time.monotonic() - begin, (os.path.getsize(out) - 32) // 2
            os.remove(out)
            theirs, others = subprocess.run([python, "-c", REFERENCE, tokenizer, lines], check=True, env=environment,
                                            stdout=subprocess.PIPE, text=True).stdout.split()
            print(f"espalier {megabytes / ours:.1f} MB/s, tokenizers {megabytes / float(theirs):.1f} MB/s; "
                  f"{megabytes:.1f} MB, {count} and {others} tokens", flush=True)


main()
