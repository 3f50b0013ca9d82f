"""States on the host ([offload]): a run goes on from a checkpoint of one without, and the reverse, bitwise and in
another layout; saves read states where they are; what does not fit, or is no value, is refused; plan, run and simulate
agree."""
import json, os

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, launch, layout, planned, scratch, train

BF16 = "precision.compute=bf16"
NONE, ALL, PART = ([f"offload.optimizer={share}", "offload.chunk_bytes=2048"] for share in ("none", "all", "0.4"))
WEIGHTS, SUMS = ["offload.parameters=all"], ["offload.gradients=all"]
EVERYTHING = [*ALL, *WEIGHTS, *SUMS, "offload.activations=all"]
RESTARTED = ["checkpoint.restart=auto", "run.steps=6", "lr.decay_steps=4", BF16]


def check_restart(checks, folder):
    """Six steps without offload are three with one share and three with another, bitwise in one layout."""
    wholes = {}
    for digits, before, after in (("111", ALL, NONE), ("111", NONE, ALL), ("222", ALL, NONE), ("122", PART, ALL),
                                  ("221", NONE, PART), ("111", WEIGHTS, NONE), ("212", NONE, EVERYTHING),
                                  ("221", EVERYTHING, WEIGHTS)):
        degrees, ranks = layout(digits)
        keys = [*degrees, *RESTARTED]
        if digits not in wholes:
            wholes[digits] = train(os.path.join(folder, f"whole-{digits}"), ranks, keys)
        whole = wholes[digits]
        for asynchronous in ("true", "false"):
            name = f"{digits}, {' '.join(before)}, then {' '.join(after)}, checkpoint.asynchronous={asynchronous}"
            home = os.path.join(folder, name.replace(" ", ""))
            saves = [*keys, f"checkpoint.asynchronous={asynchronous}"]
            train(home, ranks, [*saves, *before, "run.steps=3"])
            halves = train(home, ranks, [*saves, *after])
            checks.that(halves.curve("loss") == whole.curve("loss") and sorted(halves.steps) == list(range(1, 7)),
                        f"{name}: losses bitwise")
            checks.that(same_bits(tensors(halves.checkpoint(6)), tensors(whole.checkpoint(6))),
                        f"{name}: weights and moments bitwise")
            done = launch(1, ["inspect", "--verify", halves.checkpoint(6)])
            checks.that(done.returncode == 0, f"{name}: its checksums hold")


def check_layouts(checks, folder):
    """A checkpoint of states on the host loads into another layout without offload, and its proof holds."""
    degrees, ranks = layout("212")
    home = os.path.join(folder, "layouts")
    train(home, ranks, [*degrees, *RESTARTED, *ALL, "run.steps=3"])
    degrees, ranks = layout("121")
    done = launch(ranks, ["run", DECK, "-d", home, *degrees, *RESTARTED])
    checks.that(done.returncode == 0 and "step-00000003" in done.stdout, f"other layout: exit {done.returncode}")
    checks.that("no proof" not in done.stdout, "other layout: the loss of a microbatch proves the load")


def check_memory(checks, folder):
    """Both arenas are planned to the byte; the device's is smaller by what left it, but for three chunks."""
    for digits, more in (("111", []), ("212", ["parallel.zero=3"]), ("122", ["optimizer.name=muon"])):
        degrees, ranks = layout(digits)
        keys = [*degrees, *more, BF16, "run.steps=1"]
        here, away = (planned(folder, ranks, [*keys, *share]) for share in (NONE, ALL))
        run = train(os.path.join(folder, f"memory-{digits}"), ranks, [*keys, *ALL])
        name = f"{digits} {' '.join(more)}"
        checks.that(run.end["rank_peak_bytes"] == away["rank_peak_bytes"] and
                    run.end["rank_host_bytes"] == away["rank_host_bytes"], f"{name}: used as planned, in both arenas")
        checks.that("host_bytes" not in here and "rank_host_bytes" not in here, f"{name}: nothing on the host without")
        most = max(away["rank_host_bytes"])
        copied = [stage["copied_bytes"] for stage in away["stages"]]
        checks.that(all(c["in"] == c["out"] > 0 for c in copied), f"{name}: all that comes in goes out: {copied}")
        checks.that(max(c["in"] for c in copied) <= most <= max(c["in"] for c in copied) + 64 * 1000,
                    f"{name}: each step moves what is there, {most}, but for alignment")
        saved = max(here["rank_peak_bytes"]) - max(away["rank_peak_bytes"])
        checks.that(0 < saved <= most, f"{name}: {saved} bytes less on the device, {most} on the host")


def check_weights(checks, folder):
    """Weights come in for each forward and backward, and leave once per step: the device has those of two layers, or of
    three with prefetched gathers."""
    for digits, more in (("111", []), ("211", ["parallel.zero=3"]), ("122", [])):
        degrees, ranks = layout(digits)
        keys = [*degrees, *more, BF16, "model.layers=12", "run.steps=1"]
        here, away = (planned(folder, ranks, [*keys, *share]) for share in ([], WEIGHTS))
        run = train(os.path.join(folder, f"weights-{digits}"), ranks, [*keys, *WEIGHTS])
        name = f"weights, {digits} {' '.join(more)}"
        checks.that(run.end["rank_peak_bytes"] == away["rank_peak_bytes"] and
                    run.end["rank_host_bytes"] == away["rank_host_bytes"], f"{name}: used as planned, in both arenas")
        for stage, before in zip(away["stages"], here["stages"]):
            copied, weights = stage["copied_bytes"], stage["host_bytes"]
            checks.that(weights - 64 * 1000 <= copied["out"] <= weights < copied["in"],
                        f"{name}: {weights} bytes of weights, {copied}")
            checks.that(stage["peak_bytes"] < before["peak_bytes"], f"{name}: the device needs less")


def check_refusals(checks, folder):
    """Values, and memory."""
    for value, said in (("2", "out of range (allowed: 0 to 1, \"none\" = 0, \"all\" = 1, \"auto\" = -1)"),
                        ("some", "must be a number (allowed: 0 to 1, \"none\" = 0, \"all\" = 1, \"auto\" = -1)"),
                        ("-0.5", "out of range")):
        done = launch(1, ["check", DECK, f"offload.optimizer={value}"])
        checks.that(done.returncode == 2 and f"offload.optimizer={value}: " in done.stdout and said in done.stdout,
                    f"offload.optimizer = {value}: exit {done.returncode}, {done.stdout.strip()[:200]}")
    done = launch(1, ["check", DECK, "offload.chunk_bytes=4096"])
    checks.that("offload.chunk_bytes = 4096 has no effect: offload.optimizer, "
                "offload.parameters and offload.gradients are 0" in done.stdout,
                "chunks of nothing: said to have no effect")
    keys = [BF16, "run.steps=1"]
    here, away = (planned(folder, 1, [*keys, *share])["peak_bytes"] for share in (NONE, ALL))
    limit = f"offload.device_bytes={(here + away) // 2}"
    done = launch(1, ["run", DECK, "-d", os.path.join(folder, "small"), *keys, limit])
    checks.that(done.returncode == 4 and "offload.device_bytes" in done.stdout and
                "offload.optimizer = \"all\"" in done.stdout,
                f"a smaller device: exit {done.returncode}, {done.stdout.strip()[-300:]}")
    done = launch(1, ["plan", DECK, *keys, limit])
    checks.that("no, " in done.stdout and " short" in done.stdout, "a smaller device: plan says that it does not fit")
    train(os.path.join(folder, "fits"), 1, [*keys, limit, *ALL])
    checks.that(True, "the same device, with the states on the host: it runs")


AUTO = ["recompute.mode=auto", *(f"offload.{key}=auto" for key in ("optimizer", "activations", "parameters",
                                                                   "gradients"))]


def check_auto(checks, folder):
    """The choice of "auto" fits the budget on every rank, is the plan's, and changes no bit."""
    for digits, more in (("111", []), ("211", ["parallel.zero=3"]), ("122", []), ("212", ["recompute.mode=selective"])):
        degrees, ranks = layout(digits)
        keys = [*degrees, BF16, "model.layers=6", "batch.micro=1", "run.steps=2", "offload.chunk_bytes=4096"]
        auto = [*AUTO, *more] if more[:1] == ["parallel.zero=3"] or not more else [*AUTO[1:], *more]
        fixed = [key for key in more if key.startswith("parallel.")]
        without = train(os.path.join(folder, f"auto-{digits}-without"), ranks, [*keys, *fixed])
        most = max(without.end["rank_peak_bytes"])
        least = planned(folder, ranks, [*keys, *fixed, *ALL, *WEIGHTS, *SUMS, "offload.activations=all",
                                        "recompute.mode=full"])["peak_bytes"]
        for share in (0.15, 0.6):
            budget = int(least + share * (most - least))
            limits = [f"recompute.budget={budget}"] if share < 0.5 else [f"offload.device_bytes={budget}",
                                                                         "recompute.budget=1000000000"]
            name = f"auto, {digits} {' '.join(more)}, {limits[0]}"
            plan = planned(folder, ranks, [*keys, *auto, *limits])
            run = train(os.path.join(folder, name.replace(" ", "")), ranks, [*keys, *auto, *limits])
            checks.that(run.end["rank_peak_bytes"] == plan["rank_peak_bytes"] and
                        run.end["rank_host_bytes"] == plan["rank_host_bytes"], f"{name}: used as planned, both arenas")
            checks.that(max(run.end["rank_peak_bytes"]) <= budget < most, f"{name}: {run.end['rank_peak_bytes']} fit")
            checks.that(run.curve("loss") == without.curve("loss") and
                        same_bits(tensors(run.checkpoint(2)), tensors(without.checkpoint(2))), f"{name}: same bits")


def check_layers(checks, folder):
    """Layers by name wait on the host; the copies are theirs alone."""
    keys = [BF16, "model.layers=6", "run.steps=2"]
    without = train(os.path.join(folder, "layers-without"), 1, keys)
    out = {}
    for layers in ("0", "0, 3", "every 2", "first 5"):
        named = [*keys, f'offload.layers="{layers}"']
        plan = planned(folder, 1, named)
        run = train(os.path.join(folder, f"layers-{layers}".replace(" ", "")), 1, named)
        out[layers] = plan["stages"][0]["copied_bytes"]["out"]
        checks.that(run.end["rank_peak_bytes"] == plan["rank_peak_bytes"] and
                    run.end["rank_host_bytes"] == plan["rank_host_bytes"], f"layers {layers}: used as planned")
        checks.that(run.curve("loss") == without.curve("loss") and
                    same_bits(tensors(run.checkpoint(2)), tensors(without.checkpoint(2))),
                    f"layers {layers}: same bits")
    one = out["0"]
    checks.that(out["0, 3"] == 2 * one and out["every 2"] == 3 * one and out["first 5"] == 5 * one,
                f"equal layers copy equally much: {out}")
    for keys, said in ((["offload.layers=6"], "there is no layer 6 (allowed: 0 to 5)"),
                       (["offload.layers=x"], "\"x\" is no layer and no range of layers"),
                       (["offload.layers=0", "offload.activations=all"], "in place of the share offload.activations")):
        done = launch(1, ["check", DECK, "model.layers=6", *keys])
        checks.that(done.returncode == 2 and said in done.stdout, f"{keys}: {done.stdout.strip()[:200]}")


def check_words(checks, folder):
    """Words are numbers; the effective deck reads back."""
    done = launch(1, ["check", DECK, "offload.optimizer=all"])
    checks.that(done.returncode == 0 and "optimizer    = 1.0" in done.stdout, "all is 1.0 in the effective deck")


def check_simulation(checks, folder):
    """The simulator knows the copies by the rates of the cluster file; without rates it says what is missing."""
    cluster = os.path.join(os.path.dirname(DECK), "..", "..", "inputs", "clusters", "h100-8x400g.toml")
    path = os.path.join(folder, "simulated.json")
    for keys, has in ((ALL, True), (NONE, False)):
        done = launch(1, ["simulate", DECK, "--ranks", "2", "--cluster", cluster, "--json", path, BF16,
                          "parallel.dp_shard=2", "run.device=cuda", *keys])
        with open(path) as file:
            slowest = json.dumps(json.load(file))
        checks.that(done.returncode == 0 and ("host" in done.stdout.split("slowest rank")[1]) == has,
                    f"{keys[0]}: copies are {'listed' if has else 'not listed'}: {done.returncode}")
        checks.that(('"host":' in slowest) == has, f"{keys[0]}: in the JSON file, too")


def main():
    checks = Checks()
    with scratch() as folder:
        checks.each([check_restart, check_layouts, check_memory, check_weights, check_auto, check_layers,
                     check_refusals, check_words, check_simulation], folder)
    checks.finish()


main()
