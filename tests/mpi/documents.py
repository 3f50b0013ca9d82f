"""Isolated documents and sliding windows: a sample of several documents trains as if each document were alone.

  alone    the loss of packed documents is the mean of the losses of the documents, by targets; each is measured by a
           run of one rank whose sequence is the document (relative 1e-6)
  train    packed documents of one length train as sequences of that length do: every loss and gradient norm of four
           steps (relative 1e-5)

  poison   what is in the neighbours of a document does not change a bit of its losses, gradient norms and weights: not
           other tokens, and not tokens whose embeddings are huge. (NaN would: matmuls of whole blocks have terms of
           zero times NaN, also in other frameworks.)

All in a table of layouts, for Llama and GPT-2, with and without a sliding window. Documents have 1 to 15 tokens.
"""
import itertools
import json
import operator
import os
import struct

from support.layouts import ALL_GATHER, ALL_TO_ALL, FULL, GPT2, RING, SELECTIVE
from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, difference, launch, scratch, train
from support.share import share

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


def shared(table):
    """(model, [(model, layout), ...]) of each model in this share of a table of (model, layouts)."""
    rows = share((model, layout) for model, layouts in table for layout in layouts)
    return itertools.groupby(rows, operator.itemgetter(0))


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
    """The mean loss of the documents, each from a separate run. The last of them has only its first token."""
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
    for (family, deck, model), rows in shared((model, LAYOUTS) for model in MODELS):
        what = f"{family} {' '.join(model)}".strip()
        with scratch() as own:
            expected = alone(own, deck, model)
        keys = [*COMMON, *model, "run.steps=1", "batch.global=2", f"data.end_token={END}", paths(data)]
        mixed = train(os.path.join(folder, f"mixed {what}"), 1, keys, deck=deck)
        checks.that(difference(mixed.curve("loss"), [expected]) > 1e-4, f"{what}: documents that mix have another loss")
        for _, (layout, ranks, parallel) in rows:
            run = train(os.path.join(folder, f"{what} {layout}"), ranks,
                        [*keys, "data.isolate_documents=true", *parallel], deck=deck)
            worst = difference(run.curve("loss"), [expected])
            checks.that(worst <= 1e-6, f"{what}, {layout}: the loss differs from that of the documents by {worst:.1e}")


def trains(checks, folder):
    """Files that begin with a zero byte, and the zero byte between files: the last token of a document is also the
    first of the next, so the documents form the same samples as one file."""
    length, steps, batch = 12, 4, 4
    texts = [bytes([0, *((37 * i + 11 * j * j) % 255 + 1 for j in range(length - 2))])
             for i in range(steps * batch * SEQUENCE // length + 1)]
    files = [write(folder, f"text{i:03}", text) for i, text in enumerate(texts)]
    joined = write(folder, "joined", b"".join(texts) + b"\0")
    keys = [*COMMON, f"run.steps={steps}"]
    for (family, deck, model), rows in shared((model, LAYOUTS[::2]) for model in MODELS):
        what = f"{family} {' '.join(model)}".strip()
        apart = train(os.path.join(folder, f"apart {what}"), 1,
                      [*keys, *model, f"model.seq_len={length - 1}", f"batch.global={batch * SEQUENCE // length}",
                       paths(joined)], deck=deck)
        for _, (layout, ranks, parallel) in rows:
            run = train(os.path.join(folder, f"together {what} {layout}"), ranks,
                        [*keys, *model, f"batch.global={batch}", "data.isolate_documents=true", paths(*files),
                         *parallel], deck=deck)
            worst = max(difference(run.curve(c), apart.curve(c)) for c in ("loss", "grad_norm"))
            checks.that(worst <= 1e-5, f"{what}, {layout}: training differs from that of the documents by {worst:.1e}")


def masked(folder, name, neighbours):
    """A file of the documents in which only the targets of two documents count; `neighbours` are the tokens, in turn,
    of all others, whose end bytes stay; empty: their own tokens."""
    counted, ids, bits = (2, 7), [], []
    for i, document in enumerate(documents()):
        if neighbours and i not in counted:
            document = [neighbours[(len(ids) + k) % len(neighbours)] for k in range(len(document) - 1)] + [END]
        ids += document
        bits += [i in counted] * len(document)
    header = struct.pack("<8s5i", b"BIN.TOK\n", 2, 4, len(ids), 256, 1).ljust(1024, b"\0")
    masks = bytes(sum(bit << k for k, bit in enumerate(bits[at:at + 8])) for at in range(0, len(bits), 8))
    return write(folder, name, header + struct.pack(f"<{len(ids)}i", *ids) + masks)


def with_embeddings(folder, exported, name, rows):
    """A copy of a Hugging Face folder in which the embeddings of some tokens have one value."""
    to = os.path.join(folder, name)
    os.makedirs(to)
    for file in os.listdir(exported):
        with open(os.path.join(exported, file), "rb") as source:
            write(to, file, source.read())
    with open(os.path.join(to, "model.safetensors"), "r+b") as file:
        size, = struct.unpack("<Q", file.read(8))
        tensor = json.loads(file.read(size))["model.embed_tokens.weight"]
        width = tensor["shape"][1]
        for token, value in rows.items():
            file.seek(8 + size + tensor["data_offsets"][0] + 4 * width * token)
            file.write(struct.pack("<f", value) * width)
    return to


def is_not_poisoned(checks, folder):
    huge = {250: 1e15, 251: -3e15}
    plain = masked(folder, "plain", [])
    other, large = masked(folder, "other", [200, 201, 202]), masked(folder, "large", list(huge))
    train(os.path.join(folder, "start"), 1, ["run.steps=1", "batch.global=2"])
    exported = os.path.join(folder, "exported")
    done = launch(1, ["export", os.path.join(folder, "start"), exported])
    assert done.returncode == 0, done.stdout
    start = f"run.init_from={with_embeddings(folder, exported, 'poisoned', huge)}"
    for (family, deck, model), rows in shared(zip(MODELS, (LAYOUTS, LAYOUTS, LAYOUTS[::4], LAYOUTS[1::4]))):
        for _, (layout, ranks, parallel) in rows:
            what = " ".join([family, *model]) + f", {layout}"
            def run(name, data, *more):
                return train(os.path.join(folder, f"{what} {name}"), ranks,
                             [*COMMON, *model, "batch.global=2", "data.format=llmq", f"data.end_token={END}",
                              "data.isolate_documents=true", paths(data), *parallel, *more], deck=deck)
            # GPT-2's embeddings are its output weights, too: only its tokens change.
            more = ["run.steps=3", *[start] * (family == "llama")]
            clean = run("clean", plain, *more)
            weights = tensors(clean.checkpoint(3))
            for poison, data in (("other tokens", other), ("huge embeddings", large))[:1 + (family == "llama")]:
                poisoned = run(poison, data, *more)
                same = all(poisoned.curve(key) == clean.curve(key) for key in ("loss", "grad_norm"))
                checks.that(same and same_bits(tensors(poisoned.checkpoint(3)), weights),
                            f"{what}: neighbours of {poison} do not change a bit")
            mixed = run("mixed", other, *more, "run.steps=1", "data.isolate_documents=false")
            checks.that(mixed.curve("loss") != clean.curve("loss")[:1], f"{what}: without isolation they do")


def main():
    checks = Checks()
    for part in (is_alone, trains, is_not_poisoned):
        with scratch() as folder:
            part(checks, folder)
    checks.finish()


main()
