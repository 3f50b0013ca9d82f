"""bf16 moments (precision.moments): random bits are the documented ones, a restart continues bitwise, a restart with
another type converts and reports it, 50 steps train as with fp32, files are correct, and plan knows the bytes. With the
argument "files": only the files that other programs read (needs h5py)."""
import array, json, os, re, subprocess, sys

from support.checkpoints import same_bits, tensors, types
from support.philox import philox, stream_key
from support.reference import reference_python
from support.runs import Checks, DECK, ROOT, launch, layout, scratch, train

GPT2 = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml")
BF16, FP32 = "precision.moments=bf16", "precision.moments=fp32"
MUON = "optimizer.name=muon"
RESTARTED = ["checkpoint.restart=auto", "checkpoint.every_steps=4", "run.steps=8", "lr.decay_steps=4"]


def moments(state):
    return {name: values for name, values in state.items() if name.startswith("optimizer/")}


def nearest(values):
    """fp32 rounded to bf16, ties to even."""
    bits = array.array("I", values.tobytes())
    return array.array("f", array.array("I", ((b + 0x7fff + (b >> 16 & 1)) & 0xffff0000 for b in bits)).tobytes())


def check_restart(checks, folder):
    """Eight steps equal four plus four more."""
    for word, more, deck in (("adamw", [], DECK), ("muon", [MUON], DECK), ("gpt2", [], GPT2)):
        degrees, ranks = layout("222")
        keys = [*degrees, *more, BF16, *RESTARTED]
        whole = train(os.path.join(folder, f"{word}-whole"), ranks, keys, deck=deck)
        home = os.path.join(folder, f"{word}-halves")
        train(home, ranks, [*keys, "run.steps=4"], deck=deck)
        halves = train(home, ranks, keys, deck=deck)
        checks.that(halves.curve("loss") == whole.curve("loss") and sorted(halves.steps) == list(range(1, 9)),
                    f"{word}: four steps and four are eight, losses bitwise")
        checks.that(same_bits(tensors(halves.checkpoint(8)), tensors(whole.checkpoint(8))),
                    f"{word}: four steps and four are eight, weights and moments bitwise")
        found = types(whole.checkpoint(8))
        checks.that(all(found[n] == ("bf16" if n.startswith("optimizer/") else "f32") for n in found),
                    f"{word}: weights are stored as f32, moments as bf16")
        moved = sum(any(v != 0 for v in values) for values in moments(tensors(whole.checkpoint(8))).values())
        checks.that(moved == len(moments(found)), f"{word}: all of {moved} moments have moved")


def rounding_bits(seed, parameter, row, column, t):
    """The bits as defined in doc/numerics.md."""
    word = philox([column // 4, row, t, 0], stream_key(seed, "optimizer/" + parameter))[column % 4]
    return word & 0xFFFF, word >> 16


def rounded(values, columns, part_of, moment, t):
    """An fp32 tensor, rounded as in doc/numerics.md; `part_of(column)`: the parameter, and the column in it."""
    bits = array.array("I", values.tobytes())
    for i, b in enumerate(bits):
        parameter, column = part_of(i % columns)
        bits[i] = (b + rounding_bits(7, parameter, i // columns, column, t)[moment]) & 0xffff0000
    return array.array("f", bits.tobytes())


def check_documented(checks, folder):
    """After one step the moments are the fp32 moments, rounded by the documented bits."""
    third = lambda name: lambda column: (f"{name}[{'qkv'[column // 48]}]", column % 48)
    whole = lambda name: lambda column: (name, column)
    cases = [(DECK, [], "model.layers.2.mlp.down_proj.weight", 88, whole), (DECK, [], "model.norm.weight", 48, whole),
             (GPT2, [], "transformer.h.1.attn.c_attn.weight", 144, third),
             (GPT2, [], "transformer.h.0.attn.c_attn.bias", 144, third),
             (DECK, [MUON], "model.layers.1.mlp.up_proj.weight", 48, whole)]
    for i, (deck, more, name, columns, part) in enumerate(cases):
        state = {
            kind: tensors(train(os.path.join(folder, f"documented{i}-{kind[18:]}"), 1, [*more, kind, "run.steps=1"],
                                deck=deck).checkpoint(1))
            for kind in (FP32, BF16)
        }
        for moment, word in enumerate(("momentum_buffer",) if more else ("exp_avg", "exp_avg_sq")):
            tensor = f"optimizer/{word}/{name}"
            expected = rounded(state[FP32][tensor], columns, part(name), moment, 1)
            same = sum(a == b for a, b in zip(state[BF16][tensor], expected)) / len(expected)
            checks.that(same > 0.995, f"{tensor}: {100 * same:.2f} % are rounded as documented")


def check_seed(checks, folder):
    """Another seed rounds differently, apart from its own weights and samples: both start from one checkpoint."""
    saved = train(os.path.join(folder, "seed"), 1, [BF16, "run.steps=1"]).checkpoint(1)
    states = []
    for seed in (7, 7, 8):
        home = os.path.join(folder, f"seed-{len(states)}")
        keys = [BF16, "run.steps=2", "checkpoint.restart=auto", f"run.seed={seed}", "data.shuffle=false"]
        states.append(moments(tensors(train(home, 1, keys, flags=["-r", saved]).checkpoint(2))))
    checks.that(same_bits(states[0], states[1]), "equal seeds: moments bitwise")
    checks.that(not same_bits(states[0], states[2]), "another seed rounds the moments otherwise")


def check_conversion(checks, folder):
    """Converts from one type to the other, in the same and in another layout."""
    for before, after, said in ((FP32, BF16, "from fp32 to bf16, by rounding to nearest"),
                                (BF16, FP32, "from bf16 to fp32, exactly")):
        way = f"{before[18:]}-{after[18:]}"
        degrees, ranks = layout("121")
        source = train(os.path.join(folder, way), ranks, [*degrees, before, "run.steps=3"])
        saved = tensors(source.checkpoint(3))
        expected = {n: nearest(v) if after == BF16 and n.startswith("optimizer/") else v for n, v in saved.items()}
        for digits in ("121", "212"):
            degrees, ranks = layout(digits)
            home = os.path.join(folder, f"{way}-{digits}")
            done = launch(ranks, ["run", DECK, "-d", home, "-r", source.checkpoint(3), *degrees, after, "run.steps=4",
                                  "checkpoint.restart=auto", "checkpoint.at_start=true"])
            checks.that(done.returncode == 0, f"{way} {digits}: exit status {done.returncode}")
            checks.that(done.stdout.count(f"the optimizer's moments were converted {said} (precision.moments)") == 1,
                        f"{way} {digits}: the run says once that it converts")
            loaded = os.path.join(home, "checkpoints", "step-00000003")
            checks.that(same_bits(tensors(loaded), expected), f"{way} {digits}: loaded tensors bitwise")
            kinds = {t for n, t in types(loaded).items() if n.startswith("optimizer/")}
            checks.that(kinds == {{"bf16": "bf16", "fp32": "f32"}[after[18:]]}, f"{way} {digits}: saved as {kinds}")
            inspected = launch(1, ["inspect", loaded, "--verify"])
            checks.that(inspected.returncode == 0, f"{way} {digits}: inspect --verify")


def check_training(checks, folder):
    """50 steps: losses stay close to those with fp32 moments, closer than the loss falls."""
    for optimizer in ("adamw", "muon"):
        keys = [f"optimizer.name={optimizer}", "run.steps=50", "optimizer.beta2=0.999"]
        loss = {
            kind: train(os.path.join(folder, f"{optimizer}-{kind[18:]}"), 1, [*keys, kind]).curve("loss")
            for kind in (FP32, BF16)
        }
        far = max(abs(a - b) / b for a, b in zip(loss[BF16], loss[FP32]))
        fallen = loss[FP32][0] - loss[FP32][-1]
        checks.that(0 < far <= 2e-3 and fallen > 0.3,
                    f"{optimizer}: 50 losses of fp32's to {far:.1e}, while they fall by {fallen:.2f}")


def check_plan(checks, folder):
    """bf16 moments take half the bytes."""
    optimizer = {}
    for kind in (FP32, BF16):
        for name, ranks, keys in (("one", 1, []), ("sharded", 4, ["parallel.dp_shard=4"]), ("muon", 1, [MUON])):
            done = launch(1, ["plan", DECK, "--ranks", str(ranks), "model.dim=64", "model.ffn_dim=128", *keys, kind])
            row = re.search(r"^ +0 0-\d+ +(.*)$", done.stdout, re.M)
            optimizer[kind, name] = float(row[1].split()[3])
    for name in ("one", "sharded", "muon"):
        half, whole = optimizer[BF16, name], optimizer[FP32, name]
        checks.that(half > 0 and abs(half - whole / 2) <= 0.011, f"plan, {name}: {half} MiB instead of {whole}")


READ = """
import h5py, sys, json
file = h5py.File(sys.argv[1])
print(json.dumps({name: [str(file[name].dtype), file[name][:].astype("float32").ravel().tobytes().hex()]
                  for name in sys.argv[2:]}))
"""


def check_files(checks, folder):
    """h5py widens a bf16 to float32, in master.h5 and in a shard."""
    python = reference_python("formats")
    degrees, ranks = layout("212")
    run = train(os.path.join(folder, "files"), ranks, [*degrees, BF16, "run.steps=2"])
    state = tensors(run.checkpoint(2))
    names = sorted(state)
    done = subprocess.run([python, "-c", READ, os.path.join(run.checkpoint(2), "master.h5"), *names],
                          capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    checks.that(all(found[n][1] == state[n].tobytes().hex() for n in names),
                f"h5py reads every one of {len(names)} tensors, bitwise")
    checks.that({found[n][0] for n in names} == {"float32"}, f"h5py's types: { {found[n][0] for n in names} }")


def main():
    checks = Checks()
    with scratch() as folder:
        if sys.argv[1:] == ["files"]:
            check_files(checks, folder)
        else:
            for check in (check_restart, check_documented, check_seed, check_conversion, check_training, check_plan):
                check(checks, folder)
    checks.finish()


main()
