"""`espalier tokenize` against Hugging Face's tokenizers and SentencePiece: tokenizers like those of GPT-2, Llama 2 and
3, Qwen, OLMo 2, GPT-NeoX, SmolLM and others give the same ids and decode to the same text, for ten thousand difficult
texts. Unigram models may differ where two ways to cut a text are equally probable."""
import json
import math
import os
import pathlib
import subprocess

from support.reference import reference_python
from support.runs import Checks, executable, scratch

HERE = pathlib.Path(__file__).resolve().parent
COUNT, SEED, PATIENCE = 10000, 7, 300


def lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file.read().split("\n") if line]


def shown(tokenizer, texts):
    done = subprocess.run([executable(), "tokenize", tokenizer, texts, "--show", "--end-token", "none"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def is_tie(ours, theirs, scores):
    """Another way to cut the same text that is as probable."""
    if scores is None or ours["text"] != theirs["text"]:
        return False
    sums = [math.fsum(scores[i] for i in row["ids"]) for row in (ours, theirs)]
    return math.isclose(*sums, rel_tol=1e-5, abs_tol=1e-3)


def compare(checks, tokenizer, samples, texts):
    ours, theirs = shown(str(tokenizer), samples), lines(f"{tokenizer}.expected")
    scores = pathlib.Path(f"{tokenizer}.scores")
    scores = json.loads(scores.read_text()) if scores.exists() else None
    unlike = [k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b and not is_tie(a, b, scores)]
    what = f"{tokenizer.name}: ids and decoded text of {len(texts)} texts"
    if unlike:
        k = unlike[0]
        what += f"; {len(unlike)} differ, first {texts[k]!r}: {ours[k]} is not {theirs[k]}"
    checks.that(len(ours) == len(theirs) == COUNT and not unlike, what)


def main():
    python, checks = reference_python("formats"), Checks()
    with scratch() as folder:
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
        subprocess.run([python, HERE / "train_tokenizers.py", folder, str(COUNT), str(SEED)], check=True,
                       env=environment, timeout=PATIENCE)
        samples = pathlib.Path(folder, "texts.jsonl")
        texts = [row["text"] for row in lines(samples)]
        found = sorted(p for p in pathlib.Path(folder).iterdir() if p.suffix in (".json", ".model"))
        checks.that(len(found) == 16, f"{len(found)} tokenizers")
        for tokenizer in found:
            compare(checks, tokenizer, str(samples), texts)
    checks.finish()


main()
