"""The output of `espalier plan --failures`: layouts that plan and simulate confirm, times and goodput by closed forms
that are written here again, and errors.

    failures.py            everything
    failures.py TEXT       the checks whose name holds TEXT
"""
import json, math, os, sys, tempfile

from support.runs import Checks, ROOT, launch

CPU = os.path.join(ROOT, "tests", "predict", "cpu.toml")  # four ranks per node
H100 = os.path.join(ROOT, "inputs", "clusters", "h100-8x400g.toml")
TINY = os.path.join(ROOT, "inputs", "llama", "tiny-8.toml")
# 12 ranks are three nodes; 8 of two nodes are the most that 16 sequences and 4 layers in powers of two suit.
KEYS = ["parallel.pp=3", "model.layers=6", "checkpoint.every_steps=40"]
CLOSE = 1e-9


def failures(*arguments, deck=TINY, ranks=12, cluster=CPU, expect=0):
    """JSON and text."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, ["plan", deck, "--ranks", str(ranks), "--cluster", cluster, "--json", out.name,
                          *arguments])
        assert done.returncode == expect, (done.returncode, done.stdout)
        return (json.load(out) if expect == 0 else None), done.stdout


def simulated(keys, ranks, cluster=CPU):
    with tempfile.TemporaryDirectory() as folder:
        out, over = os.path.join(folder, "s.json"), os.path.join(folder, "over.toml")
        with open(over, "w") as file:
            file.write(keys)
        done = launch(1, ["simulate", TINY, over, "--ranks", str(ranks), "--cluster", cluster, "--json", out,
                          *KEYS[1:]])
        assert done.returncode == 0, done.stdout
        with open(out) as file:
            return json.load(file)


def close(a, b):
    return abs(a - b) <= CLOSE * max(abs(a), abs(b), 1e-9)


def daly(save, mean):
    """Daly 2006, equation 37."""
    x = save / (2 * mean)
    return mean if x >= 1 else math.sqrt(2 * save * mean) * (1 + math.sqrt(x) / 3 + x / 9) - save


def goodput(interval, save, restart, mean):
    """Daly 2006, section 3: work over the time until it has passed."""
    return interval / (mean * math.exp(restart / mean) * (math.exp((interval + save) / mean) - 1))


def layouts_are_what_plan_and_simulate_say(checks):
    found, _ = failures("--failures", *KEYS)
    rows = found["situations"]
    checks.that([row["lost"] for row in rows] == [0, 1, 2], "the deck's own layout, then the loss of one and two nodes")
    for row in rows:
        keys = row["deck"] or "[parallel]\npp = 3\n"
        step = simulated(keys, row["ranks"])
        checks.that(close(step["step_ms"], row["step_ms"]) and step["peak_bytes"] == row["peak_bytes"] and
                    step["step_range_ms"] == row["step_range_ms"],
                    f"{row['lost']} lost: step and peak of {row['layout']} are those of simulate")
        checks.that(math.prod(row["mesh"].values()) == row["ranks"] == 4 * row["nodes"] <= 4 * row["left"],
                    f"{row['lost']} lost: {row['mesh']} has {row['ranks']} ranks of {row['left']} nodes")
        checks.that(close(row["speed"], rows[0]["step_ms"] / row["step_ms"]), "speed is relative to the deck's layout")


def times_follow_from_bytes_and_rates(checks):
    """By hand, from the rates in cpu.toml: 100 B/us a node and 150 in all to storage, 600 a rank between nodes, 4,000
    to the host."""
    found, text = failures("--failures", "2", "--node-mtbf", "0.5", *KEYS)
    checks.that((found["detect_s"], found["launch_s"]) == (5, 30), "5 s to detect and 30 s to launch are assumed")
    for row in found["situations"]:
        saves = simulated(row["deck"] or "[parallel]\npp = 3\n", row["ranks"])["checkpoint"]
        copy = saves["rank_bytes"] / 4000e6
        write = max(saves["node_bytes"] / 100e6, saves["bytes"] / 150e6)
        network = saves["node_bytes"] / (4 * 600e6)
        memory, files = row["state"]
        checks.that(close(memory["save_s"], copy) and close(memory["behind_s"], network) and
                    close(memory["load_s"], network + copy), f"{row['lost']} lost: from memory")
        checks.that(close(files["save_s"], copy) and close(files["behind_s"], write) and
                    close(files["load_s"], write + copy), f"{row['lost']} lost: from files")
        mean = 0.5 * 3600 / row["nodes"]
        checks.that(close(row["mtbf_s"], mean), f"{row['nodes']} nodes fail every {mean:.0f} s")
        for source in row["state"]:
            best, save = source["best"], source["save_s"]
            recover = 5 + 30 + source["load_s"]
            checks.that(close(source["recover_s"], recover), "recovery is detect, launch and load")
            checks.that(close(best["young_s"], math.sqrt(2 * save * mean)) and
                        close(best["daly_s"], daly(save, mean)),
                        f"{row['lost']} lost, {source['from']}: Young {best['young_s']:.3f} s, "
                        f"Daly {best['daly_s']:.3f}")
            interval = max(daly(save, mean), source["behind_s"], row["step_range_ms"][1] / 1e3)
            restart = recover + source["behind_s"]
            checks.that(close(best["interval_s"], interval), "an interval is at least a step, and until a save counts")
            checks.that(close(best["goodput"], goodput(interval, save, restart, mean)) and
                        close(best["goodput_range"][0], goodput(interval, save, restart, mean / 2)) and
                        close(best["goodput_range"][1], goodput(interval, save, restart, mean * 2)),
                        f"goodput {best['goodput']:.4f}")
        own = 40 * sum(row["step_range_ms"]) / 2e3
        checks.that(close(files["goodput_of_deck"],
                          goodput(own, files["save_s"], 5 + 30 + files["load_s"] + files["behind_s"], mean)),
                    "the deck's own interval")
    for word in ("a node fails every 0.5 hours (--node-mtbf)", "uncalibrated: 10 to 20 % more is usual", "a spare"):
        checks.that(word in text, f"the text says {word}")


def synchronous_saves_wait_for_their_write(checks):
    found, _ = failures("--failures", "1", "--node-mtbf", "100", "checkpoint.asynchronous=false", *KEYS)
    files = found["situations"][0]["state"][1]
    checks.that(files["behind_s"] == 0 and files["save_s"] > 10 * found["situations"][0]["state"][0]["save_s"],
                f"a synchronous save keeps training waiting for {files['save_s']:.3f} s")


def the_cluster_file_has_the_inputs(checks):
    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "own.toml")
        with open(own, "w") as file:
            file.write(f'include = ["{CPU}"]\n[failures]\nnode_mtbf_hours = 20\ndetect_s = 2\nlaunch_s = 0.5\n')
        found, text = failures("--failures", "1", *KEYS, cluster=own)
        checks.that((found["node_mtbf_hours"], found["detect_s"], found["launch_s"]) == (20, 2, 0.5),
                    "values of [failures]")
        checks.that("failures.node_mtbf_hours of" in text, "the text says where the time between failures is from")
        given, _ = failures("--failures", "1", "--node-mtbf", "30", *KEYS, cluster=own)
        checks.that(given["node_mtbf_hours"] == 30, "the option wins")
        with open(own, "a") as file:
            file.write("node_mtbf_days = 3\n")
        _, text = failures("--failures", *KEYS, cluster=own, expect=2)
        checks.that("failures.node_mtbf_days" in text, "an unknown key is refused")


def what_is_not_known_is_said(checks):
    found, text = failures("--failures", "1", *KEYS)
    checks.that(found["node_mtbf_hours"] is None and "best" not in found["situations"][0]["state"][0] and
                "give --node-mtbf HOURS" in text, "without a time between failures there is no goodput")
    found, text = failures("--failures=1", "batch.global=32", ranks=16, cluster=H100,
                           deck=os.path.join(ROOT, "inputs", "llama", "tiny.toml"))
    checks.that("not known: " + H100 + " has no storage.node_bytes_per_us" in text and
                "unknown" in found["situations"][0]["state"][1], "without a rate of storage, nor loads from files")


def errors_are_explained(checks):
    for arguments, ranks, why in (
        (("--failures", "3", *KEYS), 12, "12 ranks are 3 nodes of test CPUs (allowed: 1 to 2)"),
        (("--failures",), 4, "none is left when it fails (give --ranks above 4)"),
        (("--failures", "0"), 12, "--failures"),
        (("--failures", "--node-mtbf", "0"), 12, "--node-mtbf"),
        (("--node-mtbf", "9"), 12, "--node-mtbf requires --failures"),
        (("--failures", "--program", "1"), 12, "excludes"),
        (("--failures", "--search"), 12, "excludes"),
    ):
        keys = [] if ranks == 12 else ["parallel.pp=1", "parallel.tp=1", "parallel.dp_shard=-1"]
        _, text = failures(*arguments, *keys, ranks=ranks, expect=2)
        checks.that(why in text, f"{' '.join(arguments)} on {ranks} ranks: {text}")
    done = launch(1, ["plan", TINY, "--failures"])
    checks.that(done.returncode == 2 and "--cluster" in done.stdout, f"without a cluster: {done.stdout}")


def main():
    checks = Checks()
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    for check in (layouts_are_what_plan_and_simulate_say, times_follow_from_bytes_and_rates,
                  synchronous_saves_wait_for_their_write, the_cluster_file_has_the_inputs, what_is_not_known_is_said,
                  errors_are_explained):
        if wanted in check.__name__:
            check(checks)
    checks.finish()


main()
