"""Isolated documents and sliding windows: a sample of several documents trains as if each document were alone.

  alone    the loss of packed documents is the mean of the losses of the documents, by targets; each is measured by a
           run of one rank whose sequence is the document (relative 1e-6)
  train    packed documents of one length train as sequences of that length do: every loss and gradient norm of four
           steps (relative 1e-5)

Both in a table of layouts, for Llama and GPT-2, with and without a sliding window. Documents have 1 to 15 tokens.
"""
import os

from support.layouts import ALL_GATHER, ALL_TO_ALL, FULL, GPT2, RING, SELECTIVE
from support.runs import Checks, DECK, difference, scratch, train

END = 10  # the byte that ends a document
LENGTHS = (7, 1, 11, 5, 3, 1, 1, 15, 4, 1)  # two samples of 24 tokens, and the last target
SEQUENCE = 24
COMMON = ["precision.compute=fp32", "data.shuffle=false", "lr.warmup_steps=0"]
LAYOUTS = (
    ("one rank", 1, []),
    ("pp 2", 2, ["parallel.pp=2"]),
    ("dp 2", 2, ["parallel.dp_shard=2"]),
    ("tp 2", 2, ["parallel.tp=2"]),
    ("cp 2, ring", 2, ["parallel.cp=2", RING]),
    ("cp 2, all_gather", 2, ["parallel.cp=2", ALL_GATHER]),
    ("cp 2, all_to_all", 2, ["parallel.cp=2", ALL_TO_ALL]),
    ("cp 4, ring", 4, ["parallel.cp=4", RING]),
    ("cp 3, all_gather", 3, ["parallel.cp=3", ALL_GATHER]),
    ("cp 2 tp 2, all_gather, full recompute", 4, ["parallel.cp=2", "parallel.tp=2", ALL_GATHER, FULL]),
    ("pp 2 cp 2, all_to_all, selective recompute", 4, ["parallel.pp=2", "parallel.cp=2", ALL_TO_ALL, SELECTIVE]),
    ("pp 2 cp 2 tp 2, ring", 8, ["parallel.pp=2", "parallel.cp=2", "parallel.tp=2", RING]),
    ("pp 2 tp 2, strips, zbv", 4,
     ["parallel.pp=2", "parallel.tp=2", "overlap.tensor_strips=2", "pipeline.schedule=zbv", "pipeline.chunks=2"]),
    ("one rank, micro 2", 1, ["batch.micro=2"]),
)
MODELS = [(family, deck, model) for family, deck in (("llama", DECK), ("gpt2", GPT2))
          for model in ([], ["model.sliding_window=5", "model.full_attention_layers=1"])]


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(bytes(data))
    return path


def paths(*files):
    return "data.paths=[" + ",".join(f"'{f}'" for f in files) + "]"


def documents():
    """Bytes of each document, all different; each ends with END."""
    letters = iter(range(32, 256))
    return [[next(letters) for _ in range(n - 1)] + [END] for n in LENGTHS]


def alone(folder, deck, model):
    """The mean loss of the documents, each from a run of its own. The last of them has only its first token."""
    loss = targets = 0
    for i, document in enumerate(documents()[:-1]):
        if len(document) == 1:
            continue
        data = write(folder, f"document{i}", document)
        run = train(os.path.join(folder, f"alone{i}"), 1,
                    [*COMMON, *model, "run.steps=1", "batch.global=1", f"model.seq_len={len(document) - 1}",
                     paths(data)], deck=deck)
        loss += run.curve("loss")[0] * (len(document) - 1)
        targets += len(document) - 1
    return loss / targets


def is_alone(checks, folder):
    data = write(folder, "packed", sum(documents(), []))
    for family, deck, model in MODELS:
        what = f"{family} {' '.join(model)}".strip()
        with scratch() as own:
            expected = alone(own, deck, model)
        keys = [*COMMON, *model, "run.steps=1", "batch.global=2", f"data.end_token={END}", paths(data)]
        mixed = train(os.path.join(folder, f"mixed {what}"), 1, keys, deck=deck)
        checks.that(difference(mixed.curve("loss"), [expected]) > 1e-4, f"{what}: documents that mix have another loss")
        for layout, ranks, parallel in LAYOUTS:
            run = train(os.path.join(folder, f"{what} {layout}"), ranks,
                        [*keys, "data.isolate_documents=true", *parallel], deck=deck)
            worst = difference(run.curve("loss"), [expected])
            checks.that(worst <= 1e-6, f"{what}, {layout}: the loss differs from that of the documents by {worst:.1e}")


def trains(checks, folder):
    """Files that begin with a zero byte, and the zero byte between files: the last token of a document is the first of
    the next, so the same documents are the samples of one file."""
    length, steps, batch = 12, 4, 4
    texts = [bytes([0, *((37 * i + 11 * j * j) % 255 + 1 for j in range(length - 2))])
             for i in range(steps * batch * SEQUENCE // length + 1)]
    files = [write(folder, f"text{i:03}", text) for i, text in enumerate(texts)]
    joined = write(folder, "joined", b"".join(texts) + b"\0")
    keys = [*COMMON, f"run.steps={steps}"]
    for family, deck, model in MODELS:
        what = f"{family} {' '.join(model)}".strip()
        apart = train(os.path.join(folder, f"apart {what}"), 1,
                      [*keys, *model, f"model.seq_len={length - 1}", f"batch.global={batch * SEQUENCE // length}",
                       paths(joined)], deck=deck)
        for layout, ranks, parallel in LAYOUTS[::2]:
            run = train(os.path.join(folder, f"together {what} {layout}"), ranks,
                        [*keys, *model, f"batch.global={batch}", "data.isolate_documents=true", paths(*files),
                         *parallel], deck=deck)
            worst = max(difference(run.curve(c), apart.curve(c)) for c in ("loss", "grad_norm"))
            checks.that(worst <= 1e-5, f"{what}, {layout}: training differs from that of the documents by {worst:.1e}")


def main():
    checks = Checks()
    for part in (is_alone, trains):
        with scratch() as folder:
            part(checks, folder)
    checks.finish()


main()
