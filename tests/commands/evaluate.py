"""`espalier evaluate`: the loss of every document equals Hugging Face's in fp64 (tests/oracle/evaluate.py, whose
numbers are committed), the losses of `sample --logits`, and the validation loss of a run; on any number of ranks bit
for bit, and with parts of the model on each rank within rounding. What it refuses, and how."""
import array
import json
import math
import os
import pathlib
import subprocess
import sys

from support.conversations import TEMPLATE, conversation, tokens
from support.recorded import recorded
from support.runs import Checks, DECK, ROOT, executable, launch, scratch, train

sys.path.insert(0, os.path.join(ROOT, "tests", "oracle"))
import evaluated_models as models  # noqa: E402

TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
TOLERANCE = 1e-6  # fp32 against fp64
WINDOW = 24  # of tests/decks/small.toml
FP32 = "precision.compute=fp32"


def evaluate(folder, *arguments, ranks=1, expect=0):
    """The JSON of an evaluation; its text if it is to fail."""
    path = pathlib.Path(folder, "scores.json")
    path.unlink(missing_ok=True)
    done = launch(ranks, ["evaluate", *map(str, arguments), "--json", str(path)])
    if done.returncode != expect:
        sys.exit(f"{ranks} ranks, {arguments}: exit status {done.returncode}, expected {expect}\n{done.stdout}")
    return path.read_text() if expect == 0 else done.stdout


def quietly(*arguments):
    done = launch(1, list(map(str, arguments)))
    if done.returncode != 0:
        sys.exit(done.stdout)


def sums(scores):
    """[targets, summed loss] of every document of the first file."""
    return [[d["targets"], (d["loss"] or 0) * d["targets"]] for d in json.loads(scores)["files"][0]["documents"]]


def far(mine, theirs):
    """Largest relative difference of the losses of documents; infinite if the targets differ."""
    if [t for t, _ in mine] != [t for t, _ in theirs]:
        return math.inf
    return max((abs(a - b) / max(abs(b), 1e-30) for (t, a), (_, b) in zip(mine, theirs) if t > 0), default=math.inf)


def equals_hugging_face(checks, folder):
    with open(os.path.join(ROOT, "tests", "oracle", "data", "evaluate_losses.json")) as file:
        losses = json.load(file)
    text = folder / "texts.jsonl"
    models.write_texts(text)
    for name in models.CONFIGS:
        models.write_folder(name, folder / name)
        quietly("import", folder / name, folder / f"{name}-run")
        for stride in models.STRIDES:
            scores = evaluate(folder, folder / f"{name}-run", text, "--stride", stride, FP32)
            error = far(sums(scores), losses[f"{name} stride {stride}"])
            checks.that(error < TOLERANCE, f"{name}, stride {stride}: Hugging Face's loss in fp64 ({error:.1e})")
    total = json.loads(scores)["total"]
    targets, loss = (sum(column) for column in zip(*losses[f"{name} stride {stride}"]))
    checks.that(total["targets"] == targets and abs(total["loss"] * targets / loss - 1) < TOLERANCE and abs(
        total["perplexity"] / math.exp(loss / targets) - 1) < 1e-5, "the total is weighted by targets")
    # Zeros end the documents, and are no bytes.
    bytes_ = sum(max(len(t) - 1, 0) for t in models.TEXTS)
    checks.that(total["bytes"] == bytes_ and
                abs(total["bits_per_byte"] / (loss / math.log(2) / bytes_) - 1) < TOLERANCE, "bits per byte")


def ranks_do_not_matter(checks, folder):
    run, text = folder / "mistral-run", folder / "texts.jsonl"
    alone = evaluate(folder, run, text, "--stride", 5)
    for ranks in (2, 3):
        same = evaluate(folder, run, text, "--stride", 5, ranks=ranks) == alone
        checks.that(same, f"{ranks} ranks write the same file as one")
    parts = {"tensor": ["parallel.tp=2"], "pipeline": ["parallel.pp=2"], "context": ["parallel.cp=2"],
             "sharded": ["parallel.dp_shard=2"], "chunked": ["loss.chunks=3"], "batched": ["batch.micro=3"]}
    for word, keys in parts.items():
        ranks = 1 if word in ("chunked", "batched") else 2
        error = far(sums(evaluate(folder, run, text, "--stride", 5, FP32, *keys, ranks=ranks)),
                    sums(evaluate(folder, run, text, "--stride", 5, FP32)))
        checks.that(error < 1e-5, f"{word}: {' '.join(keys)} ({error:.1e})")


def read_logits(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    begin, end = header["prompt.0.logits"]["data_offsets"]
    vocab = header["prompt.0.logits"]["shape"][1]
    logits = array.array("f", data[start + begin:start + end])
    return [logits[i:i + vocab] for i in range(0, len(logits), vocab)]


def equals_sample_and_validation(checks, folder):
    """For a run on bytes: the logits of another program, and the loss that training reports on whole windows."""
    text = folder / "text.txt"
    text.write_bytes(pathlib.Path(ROOT, "tests", "oracle", "data", "text.txt").read_bytes()[:8 * WINDOW + 1])
    metrics = train(str(folder / "run"), 1, [f"data.paths=['{text}']", f"data.validation=['{text}']", "run.steps=3",
                                             "data.validate_every_steps=3", "data.validate_sequences=8",
                                             "batch.global=8", FP32,
                                             "data.format=text", "optimizer.lr=0.01"])
    loss = json.loads(evaluate(folder, folder / "run", text))["total"]["loss"]
    checks.that(abs(loss / metrics.validation[3] - 1) < TOLERANCE, f"the validation loss of the run: {loss}")
    ids = b"one window"
    (folder / "short.txt").write_bytes(ids)
    expected = loss_of_bytes(folder, "run", ids, range(1, len(ids)))
    error = far(sums(evaluate(folder, folder / "run", folder / "short.txt")), [[len(ids) - 1, expected]])
    checks.that(error < TOLERANCE, f"the logits of sample ({error:.1e})")


def loss_of_bytes(folder, run, text, targets):
    """The summed loss of the bytes of a text at the positions `targets`, from the logits of `sample`."""
    quietly("sample", folder / run, "--ids", " ".join(map(str, text)), "--tokens", 1, "--logits", folder / "logits")
    rows = read_logits(folder / "logits")
    return sum(math.log(sum(math.exp(x) for x in rows[p - 1])) - rows[p - 1][text[p]] for p in targets)


def conversations(checks, folder):
    """Only what the assistant says counts: each conversation against the logits of its rendered text."""
    some = [conversation("why", "so it is"), conversation("a", "b", "c", ""), conversation("no answer")]
    template, data = folder / "chat.jinja", folder / "chat.jsonl"
    template.write_text(TEMPLATE)
    data.write_text("".join(json.dumps(c) + "\n" for c in some))
    keys = ["data.format=chat", f"data.chat_template={template}"]
    train(str(folder / "chat"), 1, [*keys, "data.isolate_documents=true", f"data.paths=['{data}']", "run.steps=3",
                                    "batch.global=1", FP32, "optimizer.lr=0.01", "lr.warmup_steps=0"])
    expected = []
    for c in some:
        targets, at = [], 0
        for message in c["messages"]:
            begin, at = at + len("u:"), at + len(tokens({"messages": [message]}))
            targets += range(begin, at) if message["role"] == "assistant" else ()
        loss = loss_of_bytes(folder, "chat", tokens(c).encode(), targets) if targets else 0
        expected.append([len(targets), loss])
    found = evaluate(folder, folder / "chat", data, *keys, FP32)
    checks.that(far(sums(found), expected) < TOLERANCE, f"conversations: {sums(found)}, expected {expected}")
    total = json.loads(found)["total"]
    checks.that(total["targets"] == sum(t for t, _ in expected), "the total counts the assistant's tokens")
    same = evaluate(folder, folder / "chat", data, *keys, FP32, ranks=2) == found
    checks.that(same, "two ranks write the same file as one")


def formats_and_tokenizers(checks, folder):
    """Words of a tokenizer: a text, and the same as token ids; masks and end tokens."""
    text, tokens = folder / "words.txt", folder / "words.tokens"
    text.write_text("The mesh of ranks.\nA second line of the text.\n", encoding="utf-8")
    quietly("tokenize", TOKENIZER, text, "-o", tokens)
    train(str(folder / "words"), 1, ["model.vocab=640", "data.format=tokens", f"data.paths=['{tokens}']",
                                     f"data.tokenizer={TOKENIZER}", "run.steps=1", "model.seq_len=8"])
    before = sorted(p.name for p in folder.iterdir())
    found = json.loads(evaluate(folder, folder / "words", text, tokens))
    checks.that(sorted(p.name for p in folder.iterdir()) == sorted({*before, "scores.json"}),
                "no index is left beside the text")
    a, b = found["files"]
    checks.that((a["targets"], a["loss"], a["bytes"]) == (b["targets"], b["loss"], b["bytes"]),
                "a text and its tokens have one loss, and one number of bytes")
    ids = json.loads(recorded(subprocess.run([executable(), "tokenize", TOKENIZER, str(text), "--show"],
                                             stdout=subprocess.PIPE)).stdout)["ids"]
    checks.that(a["targets"] == len(ids) - 1, "all tokens but the first are targets")
    bos = launch(1, ["evaluate", str(folder / "words"), str(text), "--bos"])
    if "no token that begins a text" in bos.stdout:
        checks.that(bos.returncode == 2, "a tokenizer without bos is refused")
    else:
        checks.that(str(len(ids)) in bos.stdout, "with --bos the first token is a target too")
    end = ids[3]
    split = json.loads(evaluate(folder, folder / "words", tokens, f"data.end_token={end}"))["files"][0]["documents"]
    checks.that(len(split) == ids.count(end) + (ids[-1] != end) and split[0]["tokens"] == ids.index(end) + 1,
                "data.end_token ends documents of ids")
    flat = folder / "flat.u16"
    flat.write_bytes(array.array("H", ids).tobytes())
    checks.that(json.loads(evaluate(folder, folder / "words", flat))["total"]["loss"] == a["loss"], "flat ids")


def console(checks, folder):
    done = launch(1, ["evaluate", str(folder / "llama-run"), str(folder / "texts.jsonl"), "--documents"])
    checks.that(done.returncode == 0 and "document 5" in done.stdout and "1 document without a target" in done.stdout,
                f"every document, and what was left out:\n{done.stdout}")


def refusals(checks, folder):
    run, words, text = folder / "run", folder / "words", folder / "texts.jsonl"
    empty, binary, single = folder / "empty.txt", folder / "image.txt", folder / "single.txt"
    empty.write_bytes(b"")
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    single.write_bytes(b"a")
    (folder / "unknown.png").write_bytes(b"\x89PNG")
    (folder / "large.u16").write_bytes(array.array("H", [7, 60000]).tobytes())
    cases = [
        (3, "no checkpoint, no directory of checkpoints", [folder / "nowhere", text]),
        (3, "nosuch.txt", [run, folder / "nosuch.txt"]),
        (3, "empty.txt: has no tokens", [run, empty, text]),
        (3, "not UTF-8", [words, binary]),
        (3, "set data.format, or rename it", [run, folder / "unknown.png"]),
        (3, "no document has a target", [run, single]),
        (3, "token 1 (byte 2) is 60000", [run, folder / "large.u16"]),
        (3, "it is another model's", [run, text, "--tokenizer", TOKENIZER]),
        (2, "--stride 25: leaves tokens out (allowed: 1 to 24", [run, text, "--stride", 25]),
        (2, "--stride", [run, text, "--stride", 0]),
        (2, "--bos: there is no tokenizer", [run, text, "--bos"]),
        (2, "FILES are missing", [run, "model.seq_len=8"]),
        (2, "unknown key (did you mean precision.compute?)", [run, text, "precision.computes=fp32"]),
    ]
    for status, words_, arguments in cases:
        said = evaluate(folder, *arguments, expect=status)
        checks.that(words_ in said, f"exit status {status}: {said.strip()}")
    said = evaluate(folder, run, empty, ranks=2, expect=3)
    checks.that(said.count("has no tokens") == 1, f"two ranks say it once: {said.strip()}")
    # A model of token ids whose checkpoint has no tokenizer cannot read a text.
    train(str(folder / "ids"), 1, ["model.vocab=640", "data.format=tokens", f"data.paths=['{folder}/words.tokens']",
                                   "run.steps=1", "model.seq_len=8"])
    said = evaluate(folder, folder / "ids", text, expect=2)
    checks.that("give --tokenizer FILE" in said, f"bytes mean nothing to it: {said.strip()}")
    checks.that(json.loads(evaluate(folder, folder / "ids", folder / "words.tokens"))["total"]["bytes"] is None,
                "bytes of ids without a tokenizer are not known")


def main():
    checks = Checks()
    with scratch() as name:
        folder = pathlib.Path(name)
        checks.each([equals_hugging_face, ranks_do_not_matter, equals_sample_and_validation, conversations,
                     formats_and_tokenizers, console, refusals], folder)
    checks.finish()


if __name__ == "__main__":
    main()
