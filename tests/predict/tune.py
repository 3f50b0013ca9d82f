"""`espalier tune` on small decks on 8 and 16 GPUs: a ranking that agrees with plan and simulate, a deck to
include, and errors. Every search is kept small by --fix.

    tune.py            everything
    tune.py TEXT       the checks whose name holds TEXT
"""
import json, os, sys, tempfile

from support.runs import Checks, ROOT, launch

A100 = os.path.join(ROOT, "inputs", "clusters", "a100-8x200g.toml")
LLAMA = os.path.join(ROOT, "inputs", "llama", "8b.toml")
# A model whose programs compile in milliseconds.
SMALL = ["model.layers=8", "model.dim=1024", "model.heads=16", "model.kv_heads=8", "model.ffn_dim=3584",
         "model.vocab=32000", "model.seq_len=2048", "batch.global=32", "parallel.reduce=step"]
FIX = ["--fix", "parallel.dp_replicate", "--fix", "parallel.reduce", "--fix", "parallel.cp"]


def tune(folder, ranks, *more, command=("tune",), expect=0):
    """JSON, the written deck's path, and text."""
    out, deck = os.path.join(folder, "tune.json"), os.path.join(folder, "best.toml")
    done = launch(1, [command[0], LLAMA, *command[1:], "--ranks", str(ranks), "--cluster", A100, "--json", out,
                      "-o", deck, *more, *SMALL])
    assert done.returncode == expect, (done.returncode, done.stdout)
    with open(out) as file:
        return json.load(file), deck, done.stdout


def refused(*arguments, status):
    done = launch(1, ["tune", LLAMA, "--cluster", A100, *arguments])
    assert done.returncode == status, (done.returncode, done.stdout)
    return done.stdout


def predicted(command, deck, ranks, *more):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, [command, deck, "--ranks", str(ranks), "--json", out.name, *more, *SMALL])
        assert done.returncode == 0, done.stdout
        return json.load(out)


def the_ranking_adds_up(checks, folder):
    found, _, text = tune(folder, 8, *FIX)
    steps = [row["step_ms"] for row in found["ranking"]]
    checks.that(steps == sorted(steps), "the fastest is first")
    counted = found["invalid"] + found["too_large"] + found["scored"]
    checks.that(found["considered"] == counted, "every layout is counted")
    checks.that(all(row["least_bytes"] <= row["peak_bytes"] <= found["memory_bytes"] for row in found["ranking"]),
                "bounds, peaks and memory are in order")
    for row in found["ranking"]:
        parts = row["compute_ms"] + row["idle_ms"] + sum(row["exposed_ms"].values())
        checks.that(abs(parts - row["step_ms"]) < 1e-6 * row["step_ms"], f"{row['layout']}: the parts are the step")
    for word in ("considered", "margin", "chosen", "why not"):
        checks.that(word in text, f"the text says {word}")
    again, _, _ = tune(folder, 8, *FIX)
    checks.that(again == found, "equal inputs give equal results")


def the_written_deck_is_the_choice(checks, folder):
    for ranks in (8, 16):
        found, best, _ = tune(folder, ranks, *FIX)
        choice = found["ranking"][found["choice"]]
        both = os.path.join(folder, "both.toml")
        with open(both, "w") as file:
            file.write(f'include = ["{LLAMA}", "{best}"]\n')
        done = launch(1, ["check", both, *SMALL])
        checks.that(done.returncode == 0, f"{ranks} ranks: the written deck passes check\n{done.stdout}")
        plan = predicted("plan", both, ranks, "run.device=cuda")
        mesh = {axis: degree for axis, degree in plan["mesh"].items()}
        checks.that(mesh == choice["mesh"], f"{ranks} ranks: {mesh} is planned, {choice['mesh']} was chosen")
        checks.that(plan["peak_bytes"] == choice["peak_bytes"], f"{ranks} ranks: the planned peak is the predicted one")
        step = predicted("simulate", both, ranks, "--cluster", A100)["step_ms"]
        checks.that(abs(step - choice["step_ms"]) <= 1e-9 * step,
                    f"{ranks} ranks: {step} ms are simulated, {choice['step_ms']} ms were predicted")


def the_best_conventional_layout_is_beside_it(checks, folder):
    found, _, text = tune(folder, 8, *FIX)
    conventional = [i for i, row in enumerate(found["ranking"])
                    if (row["mesh"]["pp"] == 1 or "1f1b" in row["layout"] or "interleaved" in row["layout"])
                    and "interleave " not in row["layout"] and row["mesh"]["cp"] == row["mesh"]["dp_replicate"] == 1]
    checks.that(found["baseline"] == conventional[0], f"{found['baseline']} is the baseline, {conventional} could be")
    best, choice = found["ranking"][found["baseline"]], found["ranking"][found["choice"]]
    line = next(line for line in text.splitlines() if line.startswith("baseline "))
    same = found["baseline"] == found["choice"]
    steps = [] if same else [f"{row['step_ms'] / 1e3:.4g} s" for row in (best, choice)]
    checks.that(all(step in line for step in steps), f"{steps} are in: {line}")
    checks.that(("is the best conventional one" in line) == same, line)


def joined_heads_are_an_advice(checks, folder):
    found, best, text = tune(folder, 8, *FIX)
    joined, choice = found["joined"], found["ranking"][found["choice"]]
    with open(best) as file:
        checks.that("join_matmuls" not in file.read(), "the written deck joins nothing")
    both = os.path.join(folder, "both.toml")
    with open(both, "w") as file:
        file.write(f'include = ["{LLAMA}", "{best}"]\n')
    join = f"fusion.join_matmuls={joined['join_matmuls']}"
    step = predicted("simulate", both, 8, "--cluster", A100, join)["step_ms"]
    checks.that(step < choice["step_ms"] and abs(step - joined["step_ms"]) <= 1e-9 * step,
                f"{step} ms are simulated, {joined['step_ms']} ms were predicted instead of {choice['step_ms']}")
    peak = predicted("plan", both, 8, "run.device=cuda", join)["peak_bytes"]
    checks.that(peak == joined["peak_bytes"], f"a peak of {peak} is planned, {joined['peak_bytes']} was predicted")
    words = (f"would take {joined['step_ms'] / 1e3:.4g} s instead of {choice['step_ms'] / 1e3:.4g} s, "
             f"peak {joined['peak_bytes'] / 1e9:.4g} GB; it changes rounding")
    checks.that(words in text, f"the text says {words}: {text}")
    found, _, text = tune(folder, 8, *FIX, join)
    checks.that(found["joined"] is None and "advice" not in text, "a deck that joins them needs no advice")


def plan_search_is_tune(checks, folder):
    found, best, _ = tune(folder, 8, *FIX)
    with open(best) as file:
        text = file.read()
    same, best, _ = tune(folder, 8, "--search", *FIX, command=("plan",))
    checks.that(same == found, "plan --search finds the same")
    with open(best) as file:
        checks.that(file.read() == text, "plan --search writes the same deck")


def fixed_keys_stay(checks, folder):
    keep = ["--fix", "parallel.tp", "--fix", "batch.micro"]
    found, best, _ = tune(folder, 8, *FIX, *keep, "parallel.tp=4", "batch.micro=2")
    checks.that({row["mesh"]["tp"] for row in found["ranking"]} == {4}, "tp stays 4")
    with open(best) as file:
        checks.that("micro = 2" in file.read(), "micro stays 2")


def reserve_stays_free(checks, folder):
    found, _, text = tune(folder, 8, *FIX)
    checks.that(found["reserve_bytes"] == int(0.02 * 85_899_345_920) and "1.72 GB stay free (--reserve)" in text,
                "2 % stay free by default, and the output says so")
    largest = max(row["peak_bytes"] for row in found["ranking"])
    reserve = (found["memory_bytes"] + found["reserve_bytes"] - largest) / 1e9 + 0.1
    less, _, text = tune(folder, 8, *FIX, "--reserve", f"{reserve:.3f}")
    checks.that(max(row["peak_bytes"] for row in less["ranking"]) < largest and
                less["memory_bytes"] < largest, f"with --reserve {reserve:.3f} no layout takes {largest / 1e9:.1f} GB")
    checks.that(f"{reserve:.3g} GB stay free (--reserve)" in text, "the reserve is printed")
    text = refused("--ranks", "8", "--reserve", "84", status=2)
    checks.that("allowed: less than the 83.9 GB that A100 SXM 80 GB has for them" in text,
                f"more than the device has is refused: {text}")
    text = refused("--ranks", "8", "--reserve", "-1", status=2)
    checks.that("--reserve" in text, f"less than nothing is refused: {text}")
    text = refused("--ranks", "4", "--reserve", "80", "--fix", "parallel.dp_replicate", "--fix", "parallel.cp",
                   "--fix", "offload.optimizer", status=4)
    checks.that("leave less free (--reserve 0)" in text, f"the remedy is named: {text}")


def errors_are_explained(checks, folder):
    text = refused("--ranks", "8", "--fix", "parallel.pt", status=2)
    checks.that("parallel.pt" in text and "did you mean" in text, "an unknown key is named, and the nearest one")
    text = refused("--ranks", "7", "batch.global=1", "model.layers=1", status=2)
    checks.that("batch.global" in text, "ranks for which no layout is valid")
    text = refused("--ranks", "1", "--fix", "offload.optimizer", status=4)
    checks.that("the smallest" in text and "GB" in text, "what does not fit names the smallest")
    text = refused("--ranks", "8", "-o", os.path.join(folder, "none", "x.toml"), status=2)
    checks.that("does not exist" in text, "a file that cannot be written is refused before the search")


def state_moves_if_nothing_fits(checks, folder):
    """8B on one and two GPUs: what moves is in the deck, and the fewest ranks are those."""
    keys = ["batch.global=8", "loss.chunks=0"]
    for ranks, flags, fewest in ((1, ["--fewest"], 1), (2, ["--fewest", "--fix", "parallel.cp"], 1)):
        out, deck = os.path.join(folder, "moved.json"), os.path.join(folder, "moved.toml")
        done = launch(1, ["tune", LLAMA, "--ranks", str(ranks), "--cluster", A100, "--json", out, "-o", deck, *flags,
                          *keys])
        checks.that(done.returncode == 0, f"{ranks} ranks: {done.stdout[-300:]}")
        with open(out) as file:
            found = json.load(file)
        moves = 'offload.optimizer = "all"' if ranks == 1 else ""
        checks.that(found["offload"] == moves and ("since nothing fits without" in done.stdout) == (ranks == 1),
                    f"{ranks} ranks: the state moves only where nothing fits without: {found['offload']}")
        checks.that(found["fewest"]["ranks"] == fewest and "\nfewest      1 x A100" in done.stdout,
                    f"{ranks} ranks: fits on {found['fewest']['ranks']}")
        both = launch(1, ["simulate", LLAMA, deck, "--ranks", str(ranks), "--cluster", A100, "--json", out, *keys])
        with open(out) as file:
            step = json.load(file)
        checks.that(both.returncode == 0 and step["step_ms"] == found["ranking"][found["choice"]]["step_ms"],
                    f"{ranks} ranks: the written deck has what moved, {step['step_ms']} ms")
    kept = launch(1, ["tune", LLAMA, "--ranks", "1", "--cluster", A100, *keys, "offload.optimizer=0.1"])
    checks.that(kept.returncode == 4, f"a share of the deck stays: exit {kept.returncode}")
    with open(os.path.join(folder, "host.toml"), "w") as file:
        file.write(f'include = ["{A100}"]\n[host]\nmemory_bytes = 50_000_000_000\n')
    host = launch(1, ["tune", LLAMA, "--ranks", "1", "--cluster", os.path.join(folder, "host.toml"), *keys])
    checks.that(host.returncode == 4 and "host.memory_bytes has 50 GB" in host.stdout,
                f"the host has no room: exit {host.returncode} {host.stdout[-300:]}")


def what_does_not_fit_has_neighbours(checks, folder):
    keys = ["batch.micro=16", "model.vocab=128256", "model.seq_len=8192", "model.layers=32"]
    done = launch(1, ["simulate", LLAMA, "--ranks", "8", "--cluster", A100, *SMALL, *keys, "batch.global=128"])
    checks.that(done.returncode == 4 and "nearest settings that fit" in done.stdout,
                f"simulate names settings that fit\n{done.stdout[-600:]}")


def main():
    checks = Checks()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for check in (the_ranking_adds_up, the_written_deck_is_the_choice, the_best_conventional_layout_is_beside_it,
                  joined_heads_are_an_advice, plan_search_is_tune, fixed_keys_stay, reserve_stays_free,
                  errors_are_explained, state_moves_if_nothing_fits, what_does_not_fit_has_neighbours):
        if wanted in check.__name__:
            with tempfile.TemporaryDirectory() as folder:
                check(checks, folder)
    checks.finish()


main()
