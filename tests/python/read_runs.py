"""The Python package in python/, installed by pip, reads runs of the executable: every tensor of a checkpoint of
pp 2 x dp 2 x tp 2 and of GPT-2 bitwise as `espalier export`, h5py and safetensors show it, and as one rank loads it;
slices without the other files; bf16 and fp16; metrics with restarts; pictures; comparisons; the command; the examples
of doc/python.md. Needs the packages of tests/oracle/requirements_plots.txt; exits 77 without them."""
import ast
import glob
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import struct
import subprocess
import sys

from support.checkpoints import crc32c, reseal
from support.pages import Page
from support.python_package import PACKAGE, begin_installed, noting_calls, wandb_calls
from support.runs import Checks, Metrics, ROOT, launch, layout, scratch, train

GPT2 = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml")
TOKENIZER = os.path.join(ROOT, "tests", "data", "tokenizer.json")
TEXT = os.path.join(ROOT, "tests", "oracle", "data", "text.txt")
SMALL = ["model.layers=2", "model.ffn_dim=94", "parallel.zero=3", "checkpoint.every_steps=2", "checkpoint.keep=9",
         f"data.validation=['{TEXT}']", "data.validate_every_steps=3", "data.validate_sequences=16"]
PAGE = "doc/python.md"


def main():
    """Installs the package and begins again in the Python that has it."""
    begin_installed(__file__)
    checks = Checks()
    with scratch() as where:
        os.chdir(where)
        checks.each([whole_package, runs, tensors, one_rank, gpt2, slices, missing_files, bf16_moments, exports,
                     half_and_broken_exports, latest, broken_checkpoints, metrics, metrics_by_hand, broken_metrics,
                     pictures, comparisons, command, examples])
    checks.finish()


def quietly(*arguments):
    done = launch(1, list(arguments))
    if done.returncode != 0:
        sys.exit(done.stdout)


def raises(checks, call, kind, *words):
    """The call raises this kind of error with these words in its text."""
    try:
        call()
    except kind as error:
        text = str(error)
        checks.that(all(word in text for word in words), f"{kind.__name__}: {text}")
    else:
        checks.that(False, f"no {kind.__name__} with {words}")


def same(mine, theirs):
    """Equal types, shapes and bits."""
    mine, theirs = np.asarray(mine), np.asarray(theirs)
    return mine.dtype == theirs.dtype and mine.shape == theirs.shape and mine.tobytes() == theirs.tobytes()


# --- the package and the runs


def whole_package(checks):
    with open(os.path.join(ROOT, "meson.build")) as file:
        version = re.search(r"version: '([^']+)'", file.read())[1]
    checks.that(importlib.metadata.version("espalier") == espalier.__version__ == version, f"its version is {version}")
    imported = set()
    for path in glob.glob(os.path.join(PACKAGE, "espalier", "*.py")):
        with open(path) as file:
            tree = ast.parse(file.read(), feature_version=(3, 9))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    declared = {re.match(r"[\w-]+", line)[0] for line in importlib.metadata.requires("espalier")}
    places = {name: importlib.util.find_spec(name) for name in imported - {"tomllib"}}
    needed = {name for name, place in places.items() if place is None or "site-packages" in (place.origin or "")}
    checks.that(needed == declared, f"it declares what it imports: {sorted(needed)}, {sorted(declared)}")
    undocumented = [name for name in espalier.__all__ if not getattr(espalier, name).__doc__]
    checks.that(not undocumented, f"everything public has a docstring {undocumented}")


def runs(checks):
    """runs/tiny: 8 ranks to step 6, kept as runs/eight; then one rank from step 4 to 7. runs/other: another lr."""
    degrees, ranks = layout("222")
    train("runs/tiny", ranks, [*SMALL, *degrees, "run.steps=6"])
    shutil.copytree("runs/tiny", "runs/eight")
    quietly("export", "runs/eight", "hf/exact", "--dtype", "fp32", "--shard-size", "100KB")
    train("runs/tiny", 1, [*SMALL, "run.steps=7", "checkpoint.restart=auto"],
          flags=["-r", "runs/tiny/checkpoints/step-00000004"])
    quietly("export", "runs/tiny", "hf/tiny", "--dtype", "bf16")
    train("runs/base", 1, [*SMALL, "run.steps=5"])
    train("runs/other", 1, [*SMALL, "run.steps=6", "optimizer.lr=1e-3", "lr.decay_steps=1"])
    checks.that(len(os.listdir("hf/exact")) > 4, "an export of several files")


# --- checkpoints


def tensors(checks):
    checkpoint = espalier.open_checkpoint("runs/eight")
    checks.that((checkpoint.step, checkpoint.samples, checkpoint.ranks) == (6, 96, 8), "step, samples, ranks")
    checks.that(checkpoint.layout == {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 1, "tp": 2}, "layout")
    checks.that(checkpoint.deck["model"]["ffn_dim"] == 94 and "ffn_dim" in checkpoint.deck_text, "deck, also as text")
    checks.that(checkpoint.tokenizer is None and len(checkpoint.id) == 32 != checkpoint.parent, "identity")
    losses = Metrics("runs/eight").curve("loss")
    checks.that(np.array_equal(np.float32(checkpoint.losses), np.float32(losses)), "losses of the last steps")
    with h5py.File(os.path.join(checkpoint.path, "master.h5")) as master:
        equal = [same(checkpoint[name], master[name][...]) for name in checkpoint.names]
        theirs = []
        master.visititems(lambda name, item: theirs.append(name) if hasattr(item, "shape") and item.shape else None)
    checks.that(all(equal) and set(theirs) == set(checkpoint), f"{len(equal)} tensors are those of h5py, bitwise")
    checks.that(sum(len(t._pieces) > 1 for t in checkpoint.values()) > 40, "most of them are in several files")
    exported = {name: array for path in sorted(glob.glob("hf/exact/*.safetensors"))
                for name, array in safetensors.numpy.load_file(path).items()}
    mine = checkpoint.parameters
    checks.that(set(mine) == set(exported) and all(same(mine[name], exported[name]) for name in mine),
                f"{len(mine)} parameters are those of the export, bitwise")
    moments = checkpoint.group("optimizer/exp_avg")
    checks.that(set(moments) == set(mine) and all(t.shape == mine[n].shape for n, t in moments.items()), "moments")
    checks.that(sum(t.size for t in mine.values()) == 6912 * 2 + sum(
        t.size for n, t in mine.items() if ".layers." not in n) + 2 * (3 * 48 * 94 + 96), "sizes")


def one_rank(checks):
    """One rank that loads the weights saves the same ones, as step 0."""
    train("runs/one", 1, [*SMALL, "run.steps=1", "run.init_from=runs/eight", "checkpoint.at_start=true"])
    mine, theirs = espalier.open_checkpoint("runs/one", step=0), espalier.open_checkpoint("runs/eight")
    checks.that(mine.ranks == 1 and mine.step == 0 and set(mine.layout.values()) == {1}, "a checkpoint of one rank")
    checks.that(list(mine.parameters) == list(theirs.parameters) and
                all(same(mine.parameters[name], t) for name, t in theirs.parameters.items()), "... of the same weights")
    checks.that(not any(np.any(t) for t in mine.group("optimizer/exp_avg").values()), "... with moments of zero")
    moved = espalier.open_checkpoint("runs/one", step=1).parameters
    checks.that(not any(same(moved[name], t) for name, t in mine.parameters.items()), "... and a step changes each")


def gpt2(checks):
    """q, k and v in one tensor, of which each rank has several boxes; an odd vocabulary; a tokenizer."""
    shutil.copy(TEXT, "text.txt")  # an index of its tokens is written beside it
    train("runs/gpt2", 2, ["run.steps=2", "model.layers=1", "parallel.tp=2", "model.vocab=601",
                           f"data.tokenizer={TOKENIZER}", "data.paths=['text.txt']"], deck=GPT2)
    quietly("export", "runs/gpt2", "hf/gpt2")
    checkpoint, export = espalier.open_checkpoint("runs/gpt2/checkpoints/latest"), espalier.open_export("hf/gpt2")
    name = next(name for name in checkpoint.parameters if "c_attn.weight" in name)
    checks.that(len(checkpoint.parameters[name]._pieces) > 2, f"{name} has several boxes in a file")
    theirs = safetensors.numpy.load_file("hf/gpt2/model.safetensors")
    checks.that(list(export) == list(checkpoint.parameters) and set(export) == set(theirs) and all(
        same(t, theirs[n]) and same(export[n], theirs[n]) for n, t in checkpoint.parameters.items()),
        "GPT-2: the tensors of checkpoint, export and safetensors are equal, bitwise")
    kept = [open(path, "rb").read() for path in (checkpoint.tokenizer, export.tokenizer, TOKENIZER)]
    checks.that(kept[0] == kept[1] == kept[2], "... each with the tokenizer")


def slices(checks):
    tensor = espalier.open_checkpoint("runs/eight")["parameters/model.embed_tokens.weight"]
    whole = tensor[...]
    checks.that(whole.shape == tensor.shape == (260, 48) and whole.flags.writeable, "an array of its own")
    mask = whole[:, 0] > 0
    indices = [np.s_[:], np.s_[0:10], np.s_[-3], np.s_[5:200:7, ::-2], np.s_[..., 3], np.s_[259, 47], np.s_[10:3],
               np.s_[-1:-40:-13], np.s_[:, 13:14], np.s_[[1, 200, 65]], np.s_[mask], np.s_[None, 2], np.s_[()],
               np.s_[np.int64(64):np.int64(131), np.int32(-1)], np.s_[[3, 4], [5, 6]], np.s_[2, ...],
               np.s_[2, 3, ...], np.s_[100:, 40:]]
    wrong = [index for index in indices if not same(tensor[index], whole[index])]
    checks.that(not wrong, f"{len(indices)} kinds of indices select what they select from an array {wrong}")
    raises(checks, lambda: tensor[260], IndexError, "index 260", "260")
    raises(checks, lambda: tensor[0, 0, 0], IndexError, "3 indices for 2 dims")
    checks.that(same(tensor - whole, whole - whole) and same(2 * tensor, 2 * whole) and
                np.linalg.norm(tensor) == np.linalg.norm(whole), "arithmetic and functions take it as an array")
    checks.that(len(tensor) == 260 and same(list(tensor)[77], whole[77]) and tensor.nbytes == whole.nbytes, "len, iter")
    raises(checks, lambda: np.array(tensor, copy=False), ValueError, "without a copy")


def missing_files(checks):
    """The files that are left can be read."""
    shutil.copytree(espalier.open_checkpoint("runs/eight").path, "partial")
    whole = espalier.open_checkpoint("runs/eight")["parameters/model.embed_tokens.weight"][...]
    tensor = espalier.open_checkpoint("partial")["parameters/model.embed_tokens.weight"]
    first = next(piece for piece in tensor._pieces if piece.box[0][0] == 0)
    for path in glob.glob("partial/shard-*.h5"):
        if os.path.basename(path) != os.path.basename(first.path):
            os.remove(path)
    end = first.box[0][1]
    checks.that(same(tensor[:end], whole[:end]) and end < 260, f"rows below {end} are read from one file")
    raises(checks, lambda: tensor[:end + 1], espalier.DataError, "shard-", "missing")
    os.truncate(first.path, first.offset + 100)
    raises(checks, lambda: tensor[:end], espalier.DataError, first.path, "embed_tokens")


def write_checkpoint(folder, entries, files, form=4, end=""):
    """A checkpoint by hand: lines of tensors and pieces; bytes of shards."""
    os.makedirs(folder)
    for name, content in {"deck.toml": b"[run]\nsteps = 9\n", **files}.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(content)
    head = [f"espalier-checkpoint {form}", "id " + "a" * 32, "parent none", "branch none", "step 9", "samples 18",
            "ranks 2", "mesh pp 1 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 1", "version 0.4", "git 0", "losses 2.5 2",
            *(f"file {name} {len(content)} 00000000" for name, content in files.items()), *entries]
    body = "".join(line + "\n" for line in head)
    with open(os.path.join(folder, "MANIFEST"), "w") as file:
        file.write(end or f"{body}end {crc32c(body.encode()):08x}\n")


def bf16_moments(checks):
    """Boxes of bf16 in two files, with bytes before them."""
    values = np.float32([[1, -2.5, 3e38, 0, 1e-40], [-0.0, np.inf, 0.15625, 7, -9], [2, 4, 8, 16, -32]])
    bits = (values.view(np.uint32) >> 16).astype("<u2")
    piece = "piece shard-0000{}.h5 [{}] {} 00000000".format
    write_checkpoint("bf16/step-00000009", [
        "tensor parameters/w f32 [2]", piece(0, "0:2", 2), "tensor optimizer/exp_avg/m bf16 [3,5]",
        piece(0, "0:2,0:5", 10), piece(1, "2:3,0:5", 6)], {
            "shard-00000.h5": b"ab" + np.float32([4, 5]).tobytes() + bits[:2].tobytes(),
            "shard-00001.h5": b"abcdef" + bits[2:].tobytes()})
    checkpoint = espalier.open_checkpoint("bf16", step=9)
    moment, expected = checkpoint["optimizer/exp_avg/m"], (bits.astype(np.uint32) << 16).view(np.float32)
    checks.that(moment.stored == "bf16" and same(moment, expected), "bf16 is read as float32, exactly")
    checks.that(same(moment[::-2, 1:4], expected[::-2, 1:4]) and same(checkpoint["parameters/w"], np.float32([4, 5])),
                "... in slices, too, beside float32")
    checks.that(checkpoint.parent is None and checkpoint.deck == {"run": {"steps": 9}}, "format 4")


def latest(checks):
    shutil.copytree("runs/eight/checkpoints", "many")
    for path in ("many", "many/latest", "runs/eight", "runs/eight/checkpoints/step-00000006/"):
        checks.that(espalier.open_checkpoint(path).step == 6, f"the latest of {path}")
    checks.that([espalier.open_checkpoint("many", step=k).step for k in (2, 4)] == [2, 4], "a checkpoint by its step")
    raises(checks, lambda: espalier.open_checkpoint("many", step=3), espalier.UsageError, "2, 4, 6")
    raises(checks, lambda: espalier.open_checkpoint("many/step-00000002", 2), espalier.UsageError, "one checkpoint")
    with open("many/latest", "w") as file:
        file.write("step-00000002\n")
    checks.that(espalier.open_checkpoint("many").step == 2, "what `latest` names")
    with open("many/latest-" + espalier.open_checkpoint("many", step=4).id, "w") as file:
        file.write("step-00000004\n")
    with open("many/latest-" + "0" * 32, "w") as file:
        file.write("step-00000006\n")
    checks.that(espalier.open_checkpoint("many").step == 4, "a commit that `latest` does not name yet, by its id")
    for path in glob.glob("many/latest*"):
        os.remove(path)
    raises(checks, lambda: espalier.open_checkpoint("many"), espalier.DataError, "step=", "2, 4, 6")


def broken_checkpoints(checks):
    opened = espalier.open_checkpoint("runs/eight")
    raises(checks, lambda: opened["model.norm.weight"], KeyError, "did you mean parameters/model.norm.weight?")
    raises(checks, lambda: opened.group("optimizer/exp_av"), espalier.UnknownName, "did you mean optimizer/exp_avg?")
    checks.that("model.norm.weight" not in opened and opened.get("x") is None, "in, get")
    os.makedirs("empty")
    for path, words in {"nothing": "no such directory", "empty": "no MANIFEST"}.items():
        raises(checks, lambda: espalier.open_checkpoint(path), espalier.DataError, path, words)

    def damaged(change, *words):
        shutil.rmtree("damaged", ignore_errors=True)
        shutil.copytree(opened.path, "damaged")
        change("damaged")
        raises(checks, lambda: espalier.open_checkpoint("damaged"), espalier.DataError, "damaged", *words)

    def text(change):
        def rewrite(folder):
            with open(os.path.join(folder, "MANIFEST")) as file:
                content = file.read()
            with open(os.path.join(folder, "MANIFEST"), "w") as file:
                file.write(change(content))
        return rewrite

    sealed = lambda change: lambda folder: reseal(folder, change)
    damaged(text(lambda t: t.replace("samples 96", "samples 97")), "its checksum is")
    damaged(text(lambda t: t[:-20]), "incomplete")
    damaged(text(lambda t: "hello"), "not the MANIFEST")
    damaged(text(lambda t: t.replace("espalier-checkpoint 2", "espalier-checkpoint 9")), "format '9'", "1, 2, 3, 4")
    damaged(sealed(lambda t: re.sub(r"piece .*\n", "", t, count=1)), "do not fill [260, 48]")
    damaged(sealed(lambda t: t.replace("piece shard-00000.h5 [", "piece ../shard-0.h5 [")), "not a line of a MANIFEST")
    damaged(sealed(lambda t: t.replace("[260,48]", "[259,48]", 1)), "do not fill")
    damaged(sealed(lambda t: t.replace(" f32 [", " f33 [", 1)), "not a line of a MANIFEST")
    damaged(sealed(lambda t: re.sub(r"step .*\n", "", t)), "a line is missing", "step")
    damaged(lambda folder: os.remove(os.path.join(folder, "deck.toml")), "deck.toml is missing")
    os.makedirs("begun/checkpoints/step-00000002")
    raises(checks, lambda: espalier.open_checkpoint("begun/checkpoints/step-00000002"), espalier.DataError, "MANIFEST")


# --- exports


def exports(checks):
    """One file of bf16, which is what rounding to nearest gives; several files of fp32."""
    checkpoint, half = espalier.open_checkpoint("runs/tiny"), espalier.open_export("hf/tiny")
    checks.that(list(half) == list(checkpoint.parameters) and half.parameters is half, "the names of the parameters")
    equal = []
    for name, tensor in half.items():
        bits = checkpoint.parameters[name][...].view(np.uint32)
        rounded = ((bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)).view(np.float32)
        equal.append(tensor.stored == "BF16" and same(tensor, rounded) and same(tensor[-1:], rounded[-1:]))
    checks.that(all(equal), f"{len(equal)} tensors of bf16, rounded to nearest")
    exact, eight = espalier.open_export("hf/exact"), espalier.open_checkpoint("runs/eight").parameters
    checks.that(list(exact) == list(eight) and all(same(t, eight[n]) for n, t in exact.items()), "several files")
    checks.that(exact.config["intermediate_size"] == 94 and exact.tokenizer is None, "config.json")
    raises(checks, lambda: half["model.norm.wieght"], espalier.UnknownName, "did you mean model.norm.weight?")


def half_and_broken_exports(checks):
    os.makedirs("hf/types")
    arrays = {"h": np.float16([[1.5, -2], [65504, 6e-8]]), "d": np.float64([np.pi]), "i": np.int64([[-3], [2**60]]),
              "b": np.array([True, False]), "empty": np.zeros((0, 3), np.float32), "scalar": np.array(7, np.float32)}
    safetensors.numpy.save_file(arrays, "hf/types/model.safetensors", {"format": "np"})
    types = espalier.open_export("hf/types")
    checks.that(set(types) == set(arrays) and all(same(types[n], a) for n, a in arrays.items()), f"{list(arrays)}")
    checks.that(types.config == {} and types["scalar"][()] == 7, "no config.json")
    raises(checks, lambda: espalier.open_export("runs/eight"), espalier.DataError, "model.safetensors")

    def broken(change, *words):
        with open("hf/types/model.safetensors", "rb") as file:
            content = file.read()
        os.makedirs("hf/broken", exist_ok=True)
        with open("hf/broken/model.safetensors", "wb") as file:
            file.write(change(content))
        raises(checks, lambda: espalier.open_export("hf/broken"), espalier.DataError, "hf/broken", *words)

    broken(lambda c: c[:-8], "bytes")
    broken(lambda c: struct.pack("<Q", 1 << 62) + c[8:], "header")
    broken(lambda c: c[:60], "not safetensors")
    broken(lambda c: c.replace(b'"I64"', b'"I99"'), "element type I99")
    broken(lambda c: c.replace(b'"shape":[2,2]', b'"shape":[2,3]'), "needs 12 bytes")
    broken(lambda c: b"", "not safetensors")
    os.makedirs("hf/index")
    with open("hf/index/model.safetensors.index.json", "w") as file:
        json.dump({"weight_map": {"x": "../types/model.safetensors"}}, file)
    raises(checks, lambda: espalier.open_export("hf/index"), espalier.DataError, "weight_map")


# --- metrics


def metrics(checks):
    mine, theirs = espalier.read_metrics("runs/tiny"), Metrics("runs/tiny")
    checks.that(list(mine.steps) == [1, 2, 3, 4, 5, 6, 7] and mine["step"].dtype == np.int64, "one row per step")
    for key in ("loss", "grad_norm", "lr", "tokens", "step_ms", "mfu"):
        checks.that(list(mine[key]) == theirs.curve(key), f"{key} of the steps that count")
    checks.that(list(mine["exposed_ms.pp"]) == [theirs.steps[k]["exposed_ms"]["pp"] for k in mine.steps] and
                "exposed_ms" not in mine, "members of objects have dotted names")
    validated = [k for k in mine.steps if np.isfinite(mine["val_loss"][k - 1])]
    checks.that(validated == [3, 6, 7] and all(theirs.validation[k] == mine["val_loss"][k - 1] for k in validated),
                f"val_loss at steps {validated}, NaN elsewhere")
    eight = espalier.read_metrics("runs/eight/metrics.jsonl")
    checks.that(list(mine.history["step"]) == [5, 6] and same(mine.history["loss"], eight["loss"][4:]) and
                not len(eight.history["step"]), "what was done again is in the history")
    checks.that(list(mine.restarts) == [5] and len(mine.starts) == 2 and mine.starts[0]["ranks"] == 8, "starts")
    saved = [event["step"] for event in mine.events if event["event"] == "checkpoint"]
    checks.that(saved == [2, 4, 6, 6, 7] and mine.events[-1]["event"] == "end", f"events: checkpoints {saved}")
    checks.that(np.isclose(mine.time_s[-1], sum(theirs.curve("step_ms")) / 1e3), "training time in seconds")
    raises(checks, lambda: mine["los"], espalier.UnknownName, "did you mean loss?")
    raises(checks, lambda: mine["loss"].__setitem__(0, 1.0), ValueError, "read-only")


LINES = """{"event":"start","first_step":1,"steps":9}
{"step":1,"loss":5.5,"grad_norm":null,"note":"grad_norm is inf","step_ms":2000,"exposed_ms":null}
{"step":2,"loss":5.0,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":1.5,"cp":0.000}}
{"step":2,"val_loss":4.75}
{"step":3,"loss":4.5,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"event":"rollback","step":4,"to":2,"reason":"loss is nan"}
{"step":3,"loss":4.4,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"step":4,"loss":4.2,"grad_norm":2,"step_ms":1000,"exposed_ms":{"tp":2.5,"cp":0.000}}
{"step":4,"val_loss":4.1}
{"event":"start","first_step":3,"steps":9}
{"step":2,"val_loss":4.75}
{"step":3,"loss":4.3,"grad_norm":3,"step_ms":null,"exposed_ms":{"tp":3.5,"cp":0.000}}
"""


def by_hand(folder, text):
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "metrics.jsonl"), "w") as file:
        file.write(text)
    return folder


def metrics_by_hand(checks):
    nan = np.nan
    mine = espalier.read_metrics(by_hand("hand", LINES + '{"step":4,"loss":4.1,"grad_'))
    checks.that(list(mine.steps) == [1, 2, 3] and list(mine["loss"]) == [5.5, 5.0, 4.3], "a torn last line is left out")
    expected = {"grad_norm": [nan, 2, 3], "val_loss": [nan, 4.75, nan], "exposed_ms.tp": [nan, 1.5, 3.5],
                "step_ms": [2000, 1000, nan]}
    checks.that(all(np.array_equal(mine[key], values, equal_nan=True) for key, values in expected.items()) and
                not {"exposed_ms", "note"} & set(mine), "null and what is not there are NaN")
    checks.that(list(mine.history["loss"]) == [4.5, 4.4, 4.2] and list(mine.history["step"]) == [3, 3, 4] and
                mine.history["val_loss"][-1] == 4.1, "a rollback and a start give steps up")
    checks.that(list(mine.time_s) == [2, 3, 3] and list(mine.restarts) == [3], "time and restarts")
    quietly("report", "hand", "-o", "hand.html")
    with open("hand.html", encoding="utf-8") as file:
        page = Page(file.read())
    shown = {row[0]: float(row[1]) for row in page.tables["curves"][0][1:]}
    checks.that(shown == {str(step): loss for step, loss in zip(mine.steps, mine["loss"])} and
                page.row("summary", "steps given up")[0].startswith(f"{len(mine.history['step'])} steps"),
                "the page of espalier report counts the same steps")
    nothing = espalier.read_metrics(by_hand("nothing_yet", ""))
    checks.that(len(nothing.steps) == 0 and nothing.starts == [] and len(nothing.time_s) == 0, "an empty file")


def broken_metrics(checks):
    raises(checks, lambda: espalier.read_metrics("empty"), espalier.DataError, "empty/metrics.jsonl", "no such file")
    lines = LINES.split("\n")
    for line in ("{", "7", '{"loss":1}', '{"event":"start"}'):
        by_hand("bad", "\n".join([*lines[:2], line, *lines[2:]]))
        raises(checks, lambda: espalier.read_metrics("bad"), espalier.DataError, "metrics.jsonl:3:")


# --- pictures, comparisons, the command


def pixels(path):
    """Width and height by the header of a PNG, and its pixels as colours from 0 to 255."""
    with open(path, "rb") as file:
        header = file.read(24)
    if header[:8] != b"\x89PNG\r\n\x1a\n" or header[12:16] != b"IHDR":
        raise ValueError(f"{path} is no PNG")
    return struct.unpack(">II", header[16:]), np.rint(255 * matplotlib.image.imread(path)[..., :3]).astype(int)


def has_color(image, name):
    color = np.rint(255 * np.array(matplotlib.colors.to_rgb(name)))
    return int((np.abs(image - color).max(axis=-1) < 8).sum())


def pictures(checks):
    tiny, other = espalier.read_metrics("runs/tiny"), espalier.read_metrics("runs/other")
    figure = espalier.plot(["runs/tiny", other], ["loss", "val_loss"], out="two.png")
    size, image = pixels("two.png")
    checks.that(size == (1200, 990) and image.shape[:2] == (990, 1200), f"a PNG of {size[0]} x {size[1]} pixels")
    checks.that(has_color(image, "C0") > 500 and has_color(image, "C1") > 500, "with two curves")
    white = (image == 255).all(axis=-1).mean()
    checks.that(0.5 < white < 0.99, f"white: {100 * white:.0f} %")
    panels = figure.axes
    curves = [[line for line in panel.get_lines() if line.get_linestyle() == "-"] for panel in panels]
    checks.that(same(curves[0][0].get_ydata(), tiny["loss"]) and same(curves[0][1].get_ydata(), other["loss"]) and
                list(curves[0][0].get_xdata()) == list(tiny.steps), "the curves are the metrics")
    checks.that(list(curves[1][0].get_xdata()) == [3, 6, 7], "steps without a value are left out")
    dotted = [line.get_xdata()[0] for line in panels[0].get_lines() if line.get_linestyle() == ":"]
    checks.that(dotted == [4], "a dotted line at the restart after step 4")
    checks.that([panel.get_ylabel() for panel in panels] == ["loss", "val_loss"], "labels")
    smooth = espalier.plot("runs/tiny", "loss", smooth=0.75, logy=True, x="tokens").axes[0]
    weights = 0.75 ** np.arange(7)[::-1]
    raw, mean = smooth.get_lines()[:2]
    checks.that(np.isclose(mean.get_ydata()[-1], np.average(tiny["loss"], weights=weights)) and
                same(raw.get_ydata(), tiny["loss"]) and list(mean.get_xdata()) == list(tiny["tokens"]) and
                smooth.get_yscale() == "log", "a moving average over the values, log axis, tokens")
    time = espalier.plot(tiny, ["mfu"], x="time").axes[0]
    seconds = {"s": 1, "min": 60, "h": 3600}[time.get_xlabel().split(", ")[1]]
    checks.that(np.allclose(time.get_lines()[0].get_xdata() * seconds, tiny.time_s), "training time")
    one = espalier.plot([tiny, "hand"], ["mfu"]).axes[0].get_legend().get_texts()
    checks.that("hand: has no mfu" in [text.get_text() for text in one], "a run without the metric is named")
    espalier.plot(tiny, out="curve.svg")
    checks.that("<svg" in open("curve.svg").read(), "SVG")
    begun = espalier.plot([tiny, "nothing_yet", *[other] * 10], ["lr", "loss"], x="tokens").axes[1].get_lines()
    checks.that(len({line.get_color() for line in begun}) == 12 and len(begun[2].get_xdata()) == 0,
                "twelve runs in as many colours, one without a step")
    raises(checks, lambda: espalier.plot(["runs/tiny", "hand"], x="tokens"), espalier.UsageError, "hand", "tokens")
    for arguments, words in [({"keys": ["los"]}, "did you mean loss?"), ({"x": "epoch"}, "step, tokens, time"),
                             ({"smooth": 1}, "smooth = 1"), ({"out": "x.doc"}, "png"), ({"keys": []}, "one key"),
                             ({"out": "no/folder.png"}, "no such folder")]:
        raises(checks, lambda: espalier.plot("runs/tiny", **arguments), espalier.UsageError, words)


def comparisons(checks):
    found = espalier.compare("runs/base", "runs/other")
    expected = [("run.steps", 5, 6), ("optimizer.lr", 0.003, 0.001)]
    checks.that([row for row in found.deck if row[0] != "lr.decay_steps"] == expected, f"keys: {found.deck}")
    mine, theirs = Metrics("runs/base").curve("loss"), Metrics("runs/other").curve("loss")
    checks.that(found.first_different_step == 2 and found.losses == (mine[1], theirs[1]) and mine[0] == theirs[0],
                "another learning rate changes the loss of step 2")
    relative = [abs(a - b) / max(a, b) for a, b in zip(mine, theirs)]
    loss = found.metrics["loss"]
    checks.that(np.isclose(loss.relative, max(relative)) and relative[loss.step - 1] == max(relative) and
                (loss.a, loss.b) == (mine[loss.step - 1], theirs[loss.step - 1]), f"largest difference {loss}")
    checks.that((found.steps, found.only_a, found.only_b) == (5, 0, 1) and found.metrics["tokens"].relative == 0,
                "steps in common")
    text = str(found)
    checks.that(re.search(r"optimizer\.lr +a 0\.003   b 0\.001\n", text) and "first differs at step 2:" in text and
                re.search(r"loss +\S+ +at step \d: a ", text) and re.search(r"tokens +equal", text),
                f"printed:\n{text}")
    again = espalier.compare("runs/tiny", espalier.read_metrics("runs/tiny"))
    checks.that(again.deck == [] and again.first_different_step is None and "equal at 7 steps, all" in str(again),
                "a run equals itself")
    hand = espalier.compare("hand", "runs/base")
    checks.that(hand.deck is None and "no deck.toml" in str(hand) and hand.first_different_step == 1 and
                hand.metrics["grad_norm"].only_one == 1 and hand.metrics["grad_norm"].steps == 2,
                "missing values and decks are said")
    checks.that("only one run has a value at 1 step)" in str(hand) and "b  runs/base: 5 steps" in str(hand), "in words")
    nothing = espalier.compare("nothing_yet", "runs/base")
    checks.that(nothing.steps == 0 and "no step in common" in str(nothing), "no step in common")


def command(checks):
    def called(status, *arguments):
        done = subprocess.run(["espalier-runs", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        checks.that(done.returncode == status and "Traceback" not in done.stdout,
                    f"espalier-runs {' '.join(arguments)}: {done.returncode}\n{done.stdout}")
        return done.stdout

    text = called(0, "show", "runs/tiny")
    loss = Metrics("runs/tiny").steps[7]["loss"]
    checks.that(all(words in text for words in ("7 of 7", f"{loss:.9g} at step 7", "at steps 1, 5; 2 steps",
                                                "step-00000007", "exit status 0", "1 rank, cpu")),
                "... says what was done")
    text = called(0, "show", "hand")
    checks.that("rollback" in text and "back to step 2" in text and "killed" in text, "... and what went wrong")
    called(0, "show", "nothing_yet")
    called(0, "plot", "runs/tiny", "runs/other", "-o", "command.png", "--keys", "loss,grad_norm,lr", "--logy")
    checks.that(pixels("command.png")[0] == (1200, 1440), "... a picture of three panels")
    text = called(0, "compare", "runs/base", "runs/other")
    checks.that(text == str(espalier.compare("runs/base", "runs/other")) + "\n", "... prints the comparison")
    checks.that(espalier.__version__ in called(0, "--version"), "... its version")
    checks.that("no such file" in called(3, "show", "nowhere"), "... no run")
    called(3, "compare", "runs/base", "bad")
    checks.that("did you mean loss?" in called(2, "plot", "runs/tiny", "--keys", "lss", "-o", "x.png"), "... no key")
    for wrong in ([], ["plot", "runs/tiny"], ["compare", "runs/tiny"], ["plot", "runs/tiny", "-o", "a.png", "--x=t"]):
        called(2, *wrong)
    os.makedirs("folder.png")
    checks.that("folder.png" in called(1, "plot", "runs/tiny", "-o", "folder.png"), "... what cannot be written")


def examples(checks):
    """The page's examples, in one session, as they stand there."""
    with open(os.path.join(ROOT, PAGE)) as file:
        blocks = re.findall(r"```(python|sh)\n(.*?)```", file.read(), re.DOTALL)
    script = "".join(text for language, text in blocks if language == "python")
    done = subprocess.run([sys.executable, "-W", "error::RuntimeWarning", "-c", script], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    checks.that(done.returncode == 0 and "first differs" in done.stdout, f"{PAGE}: Python\n{done.stdout[-3000:]}")
    shell = "set -e\n" + "".join(text for language, text in blocks if language == "sh")
    done = subprocess.run(["bash", "-c", shell], env=noting_calls("examples.log"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    checks.that(done.returncode == 0 and "curves.png" in done.stdout and os.path.getsize("curves.png") > 9000 and
                len(wandb_calls("examples.log", "init")) == 1, f"{PAGE}: shell\n{done.stdout}")


if sys.argv[1:] == ["installed"]:  # only that Python has these
    import espalier
    import h5py
    import matplotlib
    import matplotlib.image
    import numpy as np
    import safetensors.numpy

main()
