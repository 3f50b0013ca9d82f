"""The formats of data as other tools write them (numpy, h5py, json): the same ids in each format train and validate to
the same bits. Blends: the same stream on 1, 2, 4 and 8 data-parallel ranks and after a restart."""
import json
import os
import re
import struct
import subprocess
import sys

SAMPLES, SEQ_LEN, STEPS = 60, 24, 4
TOKENS = SAMPLES * SEQ_LEN + 7  # some are left over, also without the last one
SMALL = [f"run.steps={STEPS}", "model.layers=1", "batch.global=8", "data.validate_every_steps=2",
         "data.validate_sequences=24"]
FORMATS = {  # name: data.format, pattern of its files, more of the deck
    "text": ("text", "text/*.txt", []),
    "jsonl": ("jsonl", "docs.jsonl", []),
    "jsonl with another field": ("jsonl", "body.jsonl", ["data.text_field=body"]),
    "flat16": ("flat16", "ids.u16", []),
    "flat32": ("flat32", "ids.u32", []),
    "llmc gpt2": ("llmc", "gpt2.bin", []),
    "llmc llama3": ("llmc", "llama3.bin", []),
    "llmq": ("llmq", "llmq.bin", []),
    "llmq with masks": ("llmq", "masked.bin", []),
    "megatron u16": ("megatron", "mega_u16", []),
    "megatron i32": ("megatron", "mega_i32.bin", []),
    "megatron i64": ("megatron", "mega_i64.idx", []),
    "hdf5": ("hdf5", "plain.h5", []),
    "hdf5 in compressed chunks": ("hdf5", "chunked.h5", ["data.hdf5_dataset=group/ids"]),
    "auto, several files": ("auto", "parts/*", []),
}


def documents(seed=1):
    """Texts of ASCII letters, of distinct samples; each is followed by a zero."""
    state, texts, left = seed, [], TOKENS
    while left > 0:
        state = (state * 1103515245 + 12345) % 2**31
        length = min(left - 1, state // 65536 % 90)
        letters = []
        for _ in range(length):
            state = (state * 1103515245 + 12345) % 2**31
            letters.append(chr(97 + state // 65536 % 26))
        texts.append("".join(letters))
        left -= length + 1
    return texts


def write(folder):
    """Runs in the Python with numpy and h5py."""
    import h5py
    import numpy as np
    texts = documents()
    ids = np.frombuffer("".join(text + "\0" for text in texts).encode(), dtype=np.uint8)
    assert len(ids) == TOKENS
    path = lambda *names: os.path.join(folder, *names)
    for name in ("text", "parts"):
        os.makedirs(path(name))
    for k, text in enumerate(texts):
        with open(path("text", f"{k:05}.txt"), "w", encoding="ascii") as file:
            file.write(text)
    for name, field in (("docs", "text"), ("body", "body")):
        with open(path(name + ".jsonl"), "w", encoding="utf-8") as file:
            for k, text in enumerate(texts):
                file.write(json.dumps({"id": k, field: text}) + "\n")
    def tokens(name, part):
        with open(path(name), "wb") as file:
            file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, 2, 260, len(part)))
            file.write(part.astype("<u2").tobytes())

    def llmc(name, part, magic, version, kind):
        header = np.zeros(256, dtype="<i4")
        header[:3] = magic, version, len(part)
        with open(path(name), "wb") as file:
            file.write(header.tobytes() + part.astype(kind).tobytes())

    def llmq(name, part, masks):
        header = bytearray(b"*" * 1023 + b"\n")
        header[:28] = b"BIN.TOK\n" + np.array([2, 4, len(part), 256, masks], dtype="<i4").tobytes()
        bits = np.packbits(np.ones(len(part), dtype=bool), bitorder="little").tobytes() if masks else b""
        with open(path(name), "wb") as file:
            file.write(bytes(header) + part.astype("<i4").tobytes() + bits)

    def megatron(name, code, kind):
        lengths = np.array([len(text) + 1 for text in texts], dtype=np.int32)
        places = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64)]) * np.dtype(kind).itemsize
        ids.astype(kind).tofile(path(name + ".bin"))
        with open(path(name + ".idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
            file.write(lengths.tobytes() + places.astype(np.int64).tobytes())
            file.write(np.arange(len(lengths) + 1, dtype=np.int64).tobytes())

    tokens("ids.tokens", ids)
    ids.astype("<u2").tofile(path("ids.u16"))
    ids.astype("<u4").tofile(path("ids.u32"))
    llmc("gpt2.bin", ids, 20240520, 1, "<u2")
    llmc("llama3.bin", ids, 20240801, 7, "<u4")
    llmq("llmq.bin", ids, 0)
    llmq("masked.bin", ids, 1)
    megatron("mega_u16", 8, np.uint16)
    megatron("mega_i32", 4, np.int32)
    megatron("mega_i64", 5, np.int64)
    with h5py.File(path("plain.h5"), "w") as file:
        file["tokens"] = ids.astype(np.int64)
    with h5py.File(path("chunked.h5"), "w") as file:
        file.create_dataset("group/ids", data=ids.astype(">u2"), chunks=(97,), compression="gzip")
    # The ids in several files of several formats, in the order of their names.
    cuts = [0, 100, 555, 1000, 1250, TOKENS]
    parts = [ids[begin:end] for begin, end in zip(cuts, cuts[1:])]
    tokens("parts/1", parts[0])
    llmc("parts/2.bin", parts[1], 20240801, 7, "<u4")
    llmq("parts/3.bin", parts[2], 1)
    with h5py.File(path("parts", "4.h5"), "w") as file:
        file["tokens"] = parts[3].astype(np.uint16)
    parts[4].astype("<u2").tofile(path("parts", "5.u16"))
    # One token in three is no target.
    masks = np.arange(TOKENS) % 3 != 0
    llmq("thirds.bin", ids, 1)
    with open(path("thirds.bin"), "r+b") as file:
        file.seek(1024 + 4 * TOKENS)
        file.write(np.packbits(masks, bitorder="little").tobytes())


def trained(where, data, name, more=(), ranks=1, words=()):
    from support.runs import train
    kind, pattern, own = data
    path = os.path.join(where, "data", pattern)
    return train(os.path.join(where, "runs", re.sub(r"\W+", "-", name)), ranks,
                 [*SMALL, f"data.format={kind}", f"data.paths=['{path}']", f"data.validation=['{path}']", *own, *more],
                 flags=words)


def formats(checks, where):
    expected = trained(where, ("tokens", "ids.tokens", []), "tokens")
    checks.that(len(set(expected.curve("loss"))) == STEPS and len(expected.validation) == 2, "tokens train")
    for name, data in FORMATS.items():
        run = trained(where, data, name)
        same = all(run.curve(curve) == expected.curve(curve) for curve in ("loss", "grad_norm"))
        checks.that(same and run.validation == expected.validation, f"{name}: the losses of tokens, bit for bit")
    again = trained(where, FORMATS["jsonl"], "jsonl again")
    checks.that(again.curve("loss") == expected.curve("loss"), "jsonl: with the index of the run before")
    thirds = trained(where, ("llmq", "thirds.bin", []), "thirds")
    checks.that(thirds.curve("loss") != expected.curve("loss"), "llmq: masked targets are not counted")


def blends(checks, where):
    sources = []
    for k in range(3):
        path = os.path.join(where, "data", f"source-{k}.txt")
        with open(path, "w", encoding="ascii") as file:
            file.write("\n".join(documents(seed=k + 2))[:TOKENS - 400 * k])
        sources.append(path)
    blend = ["run.steps=6", "model.layers=1", "batch.global=16", f"data.paths={sources}",
             "data.weights=[0.5, 0.3, 0.2]", f"data.validation={sources}", "data.validation_weights=[1, 2, 4]",
             "data.validate_every_steps=3", "data.validate_sequences=32", "checkpoint.restart=auto"]
    from support.runs import difference, train
    one = train(os.path.join(where, "runs", "dp1"), 1, blend)
    told = one.starts[0]["data_sources"]
    checks.that([source["share"] for source in told] == [0.5, 0.3, 0.2] and
                [round(source["epochs"] * source["samples"], 1) for source in told] == [48, 28.8, 19.2],
                f"the start says shares and epochs of the sources: {told}")
    for ranks in (2, 4, 8):
        run = train(os.path.join(where, "runs", f"dp{ranks}"), ranks,
                    [*blend, f"parallel.dp_shard={2 if ranks > 2 else ranks}",
                     f"parallel.dp_replicate={ranks // 2 if ranks > 2 else 1}"])
        checks.that(difference(run.curve("loss"), one.curve("loss")) < 1e-5, f"{ranks} dp ranks read the same blend")
        checks.that(all(abs(run.validation[step] - loss) < 1e-5 * loss for step, loss in one.validation.items()),
                    f"... and validate on the same ({ranks} dp ranks)")
    parts = os.path.join(where, "runs", "parts")
    train(parts, 1, [*blend, "run.steps=2"])
    whole = train(parts, 1, blend)
    checks.that(whole.curve("loss", 3) == one.curve("loss", 3), "a restart continues the blend, bit for bit")
    uneven = train(os.path.join(where, "runs", "uneven"), 1, [*blend, "data.weights=[0.2, 0.3, 0.5]"])
    checks.that(uneven.curve("loss") != one.curve("loss"), "other weights give another stream")


def main():
    if sys.argv[1:2] == ["write"]:
        return write(sys.argv[2])
    from support.reference import reference_python
    from support.runs import Checks, scratch
    python = reference_python("formats")
    checks = Checks()
    with scratch() as where:
        os.makedirs(os.path.join(where, "data"))
        subprocess.run([python, os.path.abspath(__file__), "write", os.path.join(where, "data")], check=True)
        formats(checks, where)
        blends(checks, where)
    checks.finish()
    return None


main()
