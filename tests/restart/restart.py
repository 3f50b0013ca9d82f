"""Restarts: the same layout continues bitwise; any other layout starts from bitwise equal tensors and agrees to rtol
1e-5. With the argument "one" only the first restart, and one in another layout."""
import os, re, subprocess, sys, tempfile

from support.runs import Checks, DECK, ROOT, difference, launch, layout, train

MODEL = ["model.heads=8", "model.kv_heads=4", "checkpoint.restart=auto", "optimizer.clip_norm=1.0"]
RTOL = 1e-5


def datasets(checkpoint):
    """Names of all whole tensors, by h5dump through the master file."""
    listing = subprocess.run(["h5dump", "-n", os.path.join(checkpoint, "master.h5")], check=True, capture_output=True,
                             text=True).stdout
    return [
        name for name in re.findall(r"^\s*dataset\s+(\S+)", listing, re.M)
        if name.startswith(("/parameters/", "/optimizer/"))
    ]


def tensor(checkpoint, name, folder):
    """Bytes of a whole tensor, read through the master file as a user would."""
    path = os.path.join(folder, "tensor.bin")
    subprocess.run(["h5dump", "-d", name, "-b", "LE", "-o", path,
                    os.path.join(checkpoint, "master.h5")], check=True, capture_output=True)
    with open(path, "rb") as file:
        return file.read()


def same_tensors(a, b, folder):
    names = datasets(a)
    return len(names) > 0 and names == datasets(b) and all(tensor(a, n, folder) == tensor(b, n, folder) for n in names)


def gpt2(checks, folder):
    """c_attn is stored whole and sharded in three parts by heads: any layout loads it from any other."""
    deck, steps = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml"), ["run.steps=6", "checkpoint.every_steps=3"]
    degrees, ranks = layout("222")
    straight = train(os.path.join(folder, "gpt2"), ranks, degrees + steps, deck=deck)
    for digits in ("114", "411", "141", "111"):
        degrees, ranks = layout(digits)
        other = train(os.path.join(folder, f"gpt2_{digits}"), ranks, degrees + steps + ["checkpoint.at_start=true"],
                      deck=deck, flags=["-r", straight.checkpoint(3)])
        checks.that(same_tensors(straight.checkpoint(3), other.checkpoint(3), folder),
                    f"gpt2 222 -> {digits}: loaded tensors bitwise")
        worst = difference(other.curve("loss"), straight.curve("loss", 4))
        checks.that(worst <= RTOL and len(other.steps) == 3, f"gpt2 222 -> {digits}: losses differ by {worst:.1e}")
    sample = launch(1, ["sample", straight.checkpoint(6), "--prompt", "The ", "--tokens", "24"])
    checks.that(sample.returncode == 0 and sample.stdout.startswith("The ") and len(sample.stdout) >= 28,
                "gpt2: a text of 24 tokens is sampled")


def same_layout(checks, home, folder):
    """Ten steps and ten more equal twenty; returns both runs."""
    degrees, ranks = layout("222")
    straight = train(home("straight"), ranks, degrees + MODEL + ["checkpoint.every_steps=10"])
    first = train(home("halves"), ranks, degrees + MODEL + ["run.steps=10", "lr.decay_steps=16"])
    checks.that(first.curve("loss") == straight.curve("loss")[:10], "222: ten steps are the first ten of twenty")
    halves = train(home("halves"), ranks, degrees + MODEL)
    checks.that(sorted(halves.steps) == list(range(1, 21)), "222: every step once")
    for key in ("loss", "grad_norm", "lr"):
        checks.that(halves.curve(key) == straight.curve(key), f"222: ten and ten is twenty, {key} bitwise")
    checks.that(same_tensors(straight.checkpoint(20), halves.checkpoint(20), folder),
                "222: tensors after twenty steps bitwise")
    return straight, halves


def other_layout(checks, home, folder, straight, digits):
    degrees, ranks = layout(digits)
    other = train(home(digits), ranks, degrees + MODEL + ["checkpoint.at_start=true"],
                  flags=["-r", straight.checkpoint(10)])
    checks.that(same_tensors(straight.checkpoint(10), other.checkpoint(10), folder),
                f"222 -> {digits}: loaded tensors bitwise")
    worst = difference(other.curve("loss"), straight.curve("loss", 11))
    checks.that(worst <= RTOL and len(other.steps) == 10, f"222 -> {digits}: losses differ by {worst:.1e}")


def samples(checks, straight, halves):
    sample = lambda run, *flags: launch(1, ["sample", run.checkpoint(20), "--prompt", "The ", "--tokens", "24", *flags])
    greedy = sample(straight)
    checks.that(greedy.returncode == 0 and greedy.stdout.startswith("The ") and len(greedy.stdout) >= 28,
                "a text of 24 tokens is sampled")
    checks.that(sample(halves).stdout == greedy.stdout, "equal weights, equal text")
    warm = [sample(straight, "--temperature", "1.5", "--seed", seed).stdout for seed in ("1", "1", "2")]
    checks.that(warm[0] == warm[1] != warm[2], "a seed draws the same text again, another seed another")


def refusals(checks, home, folder, straight):
    refused = launch(1, ["run", os.path.join(folder, "none.toml")])
    checks.that(refused.returncode == 2, "a missing deck is exit 2")
    wrong = launch(2, ["run", DECK, "-d", home("wrong"), "-r", straight.checkpoint(10), "model.ffn_dim=96",
                       *layout("121")[0]])
    checks.that(wrong.returncode == 3 and "96" in wrong.stdout and "88" in wrong.stdout,
                f"a checkpoint of another model is refused with both values: {wrong.returncode}\n{wrong.stdout[-800:]}")
    missing = launch(1, ["run", DECK, "-d", home("missing"), "-r", "latest"])
    checks.that(missing.returncode == 3, "restart from nothing is exit 3")


def main():
    checks = Checks()
    one = sys.argv[1:] == ["one"]
    with tempfile.TemporaryDirectory() as folder:
        home = lambda name: os.path.join(folder, name)
        straight, halves = same_layout(checks, home, folder)
        for digits in ("141",) if one else ("411", "141", "114", "111", "222"):
            other_layout(checks, home, folder, straight, digits)
        if not one:
            samples(checks, straight, halves)
            refusals(checks, home, folder, straight)
            gpt2(checks, folder)
    checks.finish()


main()
