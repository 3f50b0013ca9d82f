"""Layers for further tokens in checkpoints and in files of Hugging Face: exports have them, with copies of what they
share, and imports read them; files and starts with fewer or more of them than the deck; what validation, sample and
evaluate leave out; a run does not continue with another number of them. Standard library only."""
import array, json, os, pathlib, re

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, launch, scratch, train

LAYERS = 4  # of tests/decks/small.toml
MODEL = ["experts.count=4", "experts.per_token=2", "experts.ffn_dim=23", "experts.first_layer=1",
         "experts.shared_ffn_dim=23", "experts.scores=sigmoid", "experts.bias=true", "data.validation=['held.txt']",
         "data.validate_every_steps=2"]
FURTHER = [*MODEL, "model.mtp_layers=2"]
COPIES = {"embed_tokens.weight": "model.embed_tokens.weight", "shared_head.head.weight": "lm_head.weight"}


def read_safetensors(path):
    """Shape and values of each tensor in fp32."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = entry["shape"], array.array("f", data[start + begin:start + end])
    return found


def write_safetensors(path, stored):
    header, at = {}, 0
    for name, (shape, values) in stored.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(values)]}
        at += 4 * len(values)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(v.tobytes() for _, v in stored.values()))


def said(*arguments, expect=0):
    done = launch(1, list(map(str, arguments)))
    assert done.returncode == expect, (arguments, done.returncode, done.stdout)
    return done.stdout


def parameters(checkpoint):
    return {name: values for name, values in tensors(checkpoint).items() if name.startswith("parameters/")}


def layer_of(name):
    match = re.search(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) if match else -1


def below(weights, depths):
    """The weights of a model with so many layers for further tokens."""
    return {name: values for name, values in weights.items() if layer_of(name) < LAYERS + depths}


def exports_have_them(checks, folder, trained):
    said("export", trained.dir, folder / "hf")
    config = json.loads((folder / "hf" / "config.json").read_text())
    checks.that(config["num_nextn_predict_layers"] == 2 and config["num_hidden_layers"] == LAYERS, "config.json")
    stored = read_safetensors(folder / "hf" / "model.safetensors")
    names = {name.split(".", 3)[3] for name in stored if layer_of(name) == LAYERS + 1 and ".experts." not in name}
    own = {"enorm.weight", "hnorm.weight", "eh_proj.weight", "shared_head.norm.weight", "input_layernorm.weight",
           "post_attention_layernorm.weight", "mlp.gate.weight", "mlp.gate.e_score_correction_bias"}
    checks.that(own | COPIES.keys() <= names, f"names of released files: {sorted(names)}")
    shape, values = stored[f"model.layers.{LAYERS}.eh_proj.weight"]
    whole = parameters(trained.checkpoint(4))[f"parameters/model.layers.{LAYERS}.eh_proj.weight"]
    checks.that(shape[1] == 2 * shape[0] and values == whole, "the projection is one tensor")
    checks.that(all(stored[f"model.layers.{layer}.{copy}"] == stored[of] for copy, of in COPIES.items()
                    for layer in (LAYERS, LAYERS + 1)), "copies of the embedding and of the head")


def imports_read_them(checks, folder, trained):
    text = said("import", folder / "hf", folder / "imported")
    checks.that("model.mtp_layers = 2; the files have 2 of 2 layers" in text and "other elements" not in text,
                f"import\n{text}")
    checks.that("mtp_layers = 2" in (folder / "imported" / "deck.toml").read_text(), "deck of the import")
    checks.that(same_bits(parameters(folder / "imported" / "checkpoints" / "step-00000000"),
                          parameters(trained.checkpoint(4))), "an export comes back, bitwise")
    text = said("import", folder / "hf", folder / "without", "model.mtp_layers=0")
    checks.that("model.layers.4, which predicts further tokens" in text and "model.mtp_layers = 0" in text,
                f"import without them\n{text}")


def files_may_lack_them(checks, folder, trained):
    """A copy may differ, and transformers saves a model without these layers, but with their number."""
    stored = read_safetensors(folder / "hf" / "model.safetensors")
    other = dict(stored)
    shape, values = stored[f"model.layers.{LAYERS}.embed_tokens.weight"]
    other[f"model.layers.{LAYERS}.embed_tokens.weight"] = shape, array.array("f", [*values[:-1], values[-1] + 1])
    one = {name: tensor for name, tensor in stored.items() if layer_of(name) <= LAYERS}
    none = {name: tensor for name, tensor in stored.items() if layer_of(name) < LAYERS}
    for name, tensors_of in (("other", other), ("one", one), ("none", none)):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text((folder / "hf" / "config.json").read_text())
        write_safetensors(folder / name / "model.safetensors", tensors_of)
    text = said("import", folder / "other", folder / "run_other")
    checks.that(f"model.layers.{LAYERS}.embed_tokens.weight: other elements than those of the model" in text,
                f"a copy that differs is said\n{text}")
    checks.that(same_bits(parameters(folder / "run_other" / "checkpoints" / "step-00000000"),
                          parameters(trained.checkpoint(4))), "and not used")
    for name, number in (("one", 1), ("none", 0)):
        text = said("import", folder / name, folder / f"run_{name}")
        checks.that(f"model.mtp_layers = {number}; the files have {number} of 2 layers" in text, f"{name}\n{text}")
    text = said("import", folder / "one", folder / "two", "model.mtp_layers=2", expect=3)
    checks.that(f"model.layers.{LAYERS + 1}.enorm.weight: missing" in text, f"more than the files have\n{text}")


def starts_keep_what_is_there(checks, folder, trained):
    """Layers that the start lacks are drawn as in a run from random weights."""
    first = ["run.steps=1", "checkpoint.at_start=true"]
    for number in (0, 1, 3):
        keys = [*MODEL, f"model.mtp_layers={number}", *first]
        fresh = parameters(train(str(folder / f"fresh{number}"), 1, keys).checkpoint(0))
        for name, start, ranks in (("run", trained.dir, 1), ("folder", folder / "hf", 1), ("folder", folder / "hf", 4)):
            home = folder / f"from_{name}{number}x{ranks}"
            layout = ["parallel.pp=2", "parallel.tp=2"] if ranks == 4 else []
            done = launch(ranks, ["run", DECK, "-d", str(home), *keys, *layout, f"run.init_from={start}"])
            weights = parameters(home / "checkpoints" / "step-00000000")
            drawn = {n: v for n, v in fresh.items() if layer_of(n) >= LAYERS + 2}
            expected = below(parameters(trained.checkpoint(4)), number) | drawn
            checks.that(done.returncode == 0 and same_bits(weights, expected),
                        f"{number} layers from a {name} with 2, on {ranks} ranks{done.stdout * bool(done.returncode)}")
            checks.that(("layers for further tokens; the others are drawn" in done.stdout) == (number == 3),
                        "what is drawn is said")


def others_leave_them_out(checks, folder, trained):
    plain = folder / "from_run0x1"
    losses = [said("evaluate", checkpoint, "held.txt").splitlines()[-1] for checkpoint in
              (trained.checkpoint(4), plain / "checkpoints" / "step-00000000")]
    checks.that(losses[0] == losses[1], f"evaluate is of the model alone: {losses}")
    without = train(str(folder / "plain"), 1, [*MODEL, "run.steps=4"])
    idle = train(str(folder / "idle"), 1, [*FURTHER, "run.steps=4", "loss.mtp_weight=0"])
    checks.that(without.curve("loss") == idle.curve("loss") and without.validation == idle.validation,
                "without weight they change neither loss nor validation")
    checks.that(all("mtp_loss" in line for line in idle.steps.values()) and
                not any("mtp_loss" in line for line in without.steps.values()), "mtp_loss is reported where it exists")
    texts = [said("sample", checkpoint, "--tokens", 8) for checkpoint in (trained.checkpoint(4),
                                                                          plain / "checkpoints" / "step-00000000")]
    checks.that(texts[0] == texts[1], f"sample is of the model alone\n{texts}")
    done = launch(1, ["run", DECK, "-d", trained.dir, *MODEL, "model.mtp_layers=1", "run.steps=6",
                      "checkpoint.restart=auto"])
    checks.that(done.returncode != 0 and "model.mtp_layers = 1" in done.stdout, f"no other number\n{done.stdout}")


def main():
    checks = Checks()
    with scratch() as home:
        folder = pathlib.Path(home)
        os.chdir(folder)
        (folder / "held.txt").write_bytes(bytes(32 + (k * k * 7 + k) % 90 for k in range(2000)))
        FURTHER[MODEL.index("data.validation=['held.txt']")] = f"data.validation=['{folder}/held.txt']"
        MODEL[MODEL.index("data.validation=['held.txt']")] = f"data.validation=['{folder}/held.txt']"
        trained = train(str(folder / "trained"), 2, [*FURTHER, "run.steps=4", "parallel.pp=2",
                                                     "checkpoint.every_steps=4"])
        checks.each([exports_have_them, imports_read_them, files_may_lack_them, starts_keep_what_is_there,
                     others_leave_them_out], folder, trained)
    checks.finish()


main()
