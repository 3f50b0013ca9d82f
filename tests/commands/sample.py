"""`espalier sample` and data.tokenizer: checkpoints keep the tokenizer, and texts go through it."""
import json
import os
import pathlib
import subprocess

from support.runs import Checks, DECK, ROOT, executable, launch, scratch, train

TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
PROMPT, SECOND = "The checkpoint of a run", "Tokens é中"


def call(*arguments, **options):
    return subprocess.run([executable(), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=120, **options)


def make_run(folder):
    """A run of two steps on token ids; returns its folder."""
    tokens = folder / "train.tokens"
    made = call("tokenize", TOKENIZER, os.path.join(ROOT, "doc", "numerics.md"), "-o", tokens)
    assert made.returncode == 0, made.stderr
    train(str(folder / "run"), 1, settings(tokens))
    return folder / "run"


def settings(tokens, *more):
    return ["model.vocab=640", "data.format=tokens", f"data.paths=['{tokens}']", f"data.tokenizer={TOKENIZER}",
            "run.steps=2", *more]


def ids_of(folder, text):
    file = folder / "prompt.txt"
    file.write_text(text, encoding="utf-8")
    return json.loads(call("tokenize", TOKENIZER, file, "--show", "--end-token", "none").stdout)["ids"]


def text_is_that_of_the_ids(checks, folder, run):
    ids = ids_of(folder, PROMPT)
    line = ["sample", run, "--tokens", 12, "--temperature", 1]
    drawn = call(*line, "--ids", " ".join(map(str, ids))).stdout.split()
    text = call(*line, "--prompt", PROMPT).stdout.decode(errors="replace")
    checks.that(len(drawn) == len(ids) + 12 and [int(i) for i in drawn[:len(ids)]] == ids, "ids in, ids out")
    checks.that(text.startswith(PROMPT) and text.endswith("\n"), f"a text continues its prompt: {text!r}")
    greedy = [call("sample", run, "--tokens", 6, *more).stdout for more in (
        ["--prompt", PROMPT], ["--prompt", PROMPT, "--temperature", 1, "--top-k", 1],
        ["--prompt", PROMPT, "--tokenizer", TOKENIZER], ["--prompt", PROMPT, "--temperature", 1, "--top-p", 1e-6])]
    checks.that(len(set(greedy)) == 1, "top-k 1, a tiny top-p and no temperature choose the likeliest")


def several_prompts(checks, folder, run):
    line = ["sample", run, "--tokens", 5]
    alone = [call(*line, "--prompt", prompt).stdout for prompt in (PROMPT, SECOND)]
    both = call(*line, "--prompt", PROMPT, "--prompt", SECOND)
    checks.that(both.stdout == alone[0] + alone[1], "several prompts, one after the other")
    piped = call(*line, "--prompt", "-", input=f"{PROMPT}\n{SECOND}\n".encode())
    checks.that(piped.stdout == both.stdout, "or a line each of stdin")


def the_checkpoint_keeps_it(checks, folder, run):
    checkpoint = run / "checkpoints" / "step-00000002"
    kept = checkpoint / "tokenizer.json"
    checks.that(kept.read_bytes() == pathlib.Path(TOKENIZER).read_bytes(), "the file is beside the MANIFEST")
    shown = call("inspect", checkpoint, "--verify", "--tensors").stdout.decode()
    checks.that("tokenizer   tokenizer.json" in shown and shown.count("tokenizer.json") == 2,
                "inspect shows and verifies it")
    kept.write_bytes(kept.read_bytes()[:-2] + b" }")
    verify, sample = call("inspect", checkpoint, "--verify"), call("sample", checkpoint, "--prompt", "a")
    checks.that(verify.returncode == 3 and b"tokenizer.json: checksum" in verify.stderr, "damage is found")
    checks.that(sample.returncode == 3 and b"the MANIFEST says" in sample.stderr, "and a damaged one is not used")


def vocabularies(checks, folder, run):
    tokens = folder / "train.tokens"
    small = launch(1, ["run", DECK, "-d", str(folder / "small"), *settings(tokens, "model.vocab=599")])
    checks.that(small.returncode == 3 and "has 600 tokens, more than model.vocab = 599" in small.stdout,
                f"a model with fewer tokens is refused: {small.stdout}")
    missing = launch(1, ["run", DECK, "-d", str(folder / "small"), *settings(tokens, "data.tokenizer=nosuch.json")])
    checks.that(missing.returncode == 3 and "data.tokenizer" in missing.stdout and "nosuch.json" in missing.stdout,
                f"a missing file too: {missing.stdout}")


def stops(checks, folder, run):
    """Greedy text of a model that has learned nothing else than the end token."""
    tokens = folder / "end.tokens"
    paths = [folder / f"empty{k}.txt" for k in range(400)]
    for path in paths:
        path.write_text("")
    made = call("tokenize", TOKENIZER, *paths, "-o", tokens)
    assert made.returncode == 0, made.stderr
    train(str(folder / "ends"), 1, settings(tokens, "run.steps=30", "optimizer.lr=0.02"))
    with_names = call("sample", folder / "ends", "--prompt", "a", "--tokens", 3).stdout
    stopped = call("sample", folder / "ends", "--prompt", "a", "--tokens", 3, "--stop").stdout
    checks.that(with_names == b"a<|endoftext|><|endoftext|><|endoftext|>\n" and stopped == b"a\n",
                f"--stop ends at the end of a text: {with_names} {stopped}")


def main():
    checks = Checks()
    with scratch() as home:
        folder = pathlib.Path(home)
        run = make_run(folder)
        findings = [text_is_that_of_the_ids, several_prompts, vocabularies, stops, the_checkpoint_keeps_it]
        checks.each(findings, folder, run)
    checks.finish()


main()
