"""`espalier simulate` on small decks: peaks of the layout matrix, figures that agree with each other and with
the plan, files, errors, and that equal inputs give equal bytes.

    simulate.py            everything
    simulate.py TEXT       the checks whose name holds TEXT
"""
import json, os, re, sys, tempfile

from support.layouts import table
from support.runs import Checks, DECK, ROOT, launch

CPU = os.path.join(ROOT, "tests", "predict", "cpu.toml")
H100 = os.path.join(ROOT, "inputs", "clusters", "h100-8x400g.toml")
AXES = ("tp", "cp", "ep", "dp", "pp")
# pp 2 x dp 2 x cp 2 x tp 2: messages on every axis.
ALL_AXES = ["parallel.pp=2", "parallel.dp_shard=2", "parallel.cp=2", "parallel.tp=2", "parallel.ep=8",
            "experts.count=8", "experts.per_token=2", "experts.ffn_dim=16"]
CLOSE = 1e-9


def simulate(keys, ranks, *flags, deck=DECK, cluster=CPU, expect=0):
    """JSON and text of a simulation."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, ["simulate", deck, "--ranks", str(ranks), "--cluster", cluster, "--json", out.name, *flags,
                          *keys])
        assert done.returncode == expect, (done.returncode, done.stdout)
        return json.load(out), done.stdout


def plan(keys, ranks, *flags, deck=DECK, device="cpu"):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        arguments = ["plan", deck, "--ranks", str(ranks), "--json", out.name, *flags, f"run.device={device}", *keys]
        done = launch(1, arguments)
        assert done.returncode == 0, done.stdout
        return json.load(out)


def refused(*arguments, status=2):
    """The last line of the errors."""
    done = launch(1, ["simulate", *arguments])
    assert done.returncode == status, (done.returncode, done.stdout)
    return done.stdout.splitlines()[-1]


def close(a, b):
    return abs(a - b) <= CLOSE * max(abs(a), abs(b), 1e-6)


def parts(shares):
    return shares["compute_ms"] + sum(shares["exposed_ms"].values()) + shares["idle_ms"]


def without(figures, *keys):
    return {key: value for key, value in figures.items() if key not in keys}


def peaks_of_every_layout(checks):
    """Simulated = planned; tests/mpi/matrix.py runs the same layouts and asserts planned = used."""
    for row in table():
        keys = [*row.model, *row.keys]
        planned = plan(keys, row.ranks, deck=row.deck)
        simulated, _ = simulate(keys, row.ranks, deck=row.deck)
        peaks = [rank["peak_bytes"] for rank in simulated["by_rank"]]
        checks.that(peaks == planned["rank_peak_bytes"] and simulated["peak_bytes"] == planned["peak_bytes"],
                    f"{row.name}: simulated peak is the planned one")
        whole = all(close(parts(rank), simulated["step_ms"]) for rank in simulated["by_rank"])
        checks.that(whole and close(parts(simulated), simulated["step_ms"]), f"{row.name}: the parts make the step")


def folded_is_unfolded(checks):
    for row in table()[::6]:
        keys = [*row.model, *row.keys]
        folded, _ = simulate(keys, row.ranks, deck=row.deck)
        unfolded, _ = simulate(keys, row.ranks, "--unfolded", deck=row.deck)
        checks.that(without(folded, "classes") == without(unfolded, "classes"), f"{row.name}: folded is unfolded")
        checks.that(folded["classes"] <= unfolded["classes"] == row.ranks, f"{row.name}: {folded['classes']} classes")


def fields(checks):
    figures, _ = simulate(ALL_AXES, 16)
    for key in ("step_ms", "tokens_per_s", "mfu", "mfu_full", "compute_ms", "idle_ms", "peak_bytes", "days",
                "node_hours", "tokens_per_s_per_rank", "exposed_comm_ms"):
        checks.that(isinstance(figures[key], (int, float)) and figures[key] > 0, f"{key} is {figures[key]}")
    for key in ("hidden_ms", "exposed_ms"):
        checks.that(tuple(figures[key]) == AXES and all(value >= 0 for value in figures[key].values()),
                    f"{key} has {figures[key]}")
    for axis in AXES:
        checks.that(figures["hidden_ms"][axis] + figures["exposed_ms"][axis] > 0, f"{axis} has messages")
    checks.that([rank["rank"] for rank in figures["by_rank"]] == list(range(16)), "by_rank has every rank")
    slowest = figures["by_rank"][figures["slowest_rank"]]
    checks.that(slowest["end_ms"] == figures["step_ms"] == max(r["end_ms"] for r in figures["by_rank"]),
                "the slowest rank ends the step")
    shared = ("compute_ms", "idle_ms", "exposed_ms", "hidden_ms")
    checks.that(all(slowest[key] == figures[key] for key in shared), "the parts are those of the slowest rank")
    checks.that((figures["device"], figures["ranks"], figures["nodes"]) == ("cpu", 16, 4), "device, ranks and nodes")
    checks.that(figures["cluster"] == {"name": "test CPUs", "path": CPU, "device": "one core"}, "the cluster is named")
    checks.that(figures["mesh"] == {"pp": 2, "dp_replicate": 1, "dp_shard": 2, "cp": 2, "tp": 2}, "mesh")
    checks.that(close(sum(figures["sources"].values()), 1) and figures["sources"]["formula"] == 1,
                f"without measured rows all times are by formula: {figures['sources']}")


def links_may_join_nodes(checks):
    """Nodes of four that near links join to eight take the times of nodes of eight, and are two nodes still."""
    figures = {}
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(f"include = [\"{H100}\"]\n[cluster]\nranks_per_node = 4\nranks_per_domain = 8\n")
        file.flush()
        for cluster in (H100, file.name):
            figures[cluster], _ = simulate(ALL_AXES, 16, cluster=cluster)
        joined, whole = figures[file.name], figures[H100]
        checks.that((joined["nodes"], whole["nodes"]) == (4, 2) and joined["by_rank"] == whole["by_rank"],
                    f"domains: {joined['step_ms']} and {whole['step_ms']} ms")


def figures_follow_from_the_step(checks):
    keys = [*ALL_AXES, "run.steps=100", "checkpoint.every_steps=30"]
    figures, _ = simulate(keys, 16)
    planned = plan(keys, 16)
    step_s = figures["step_ms"] / 1e3
    checks.that(close(figures["tokens_per_s"], planned["tokens_per_step"] / step_s), "tokens per second")
    for name, kind in (("mfu", "causal"), ("mfu_full", "full")):
        flops = planned["flops_per_token"][kind] * planned["tokens_per_step"]
        checks.that(close(figures[name], flops / step_s / (16 * 0.04e12)), f"{name} is {figures[name]:.4f}")
    saves = figures["checkpoint"]
    checks.that((saves["count"], saves["every_steps"]) == (4, 30), "100 steps have saves after 30, 60, 90 and 100")
    checks.that(close(saves["copy_ms"], saves["rank_bytes"] / 4000 / 1e3), "a copy runs at the rate of the host")
    writes = max(saves["node_bytes"] / 100, saves["bytes"] / 150) / 1e3
    checks.that(close(saves["write_ms"], writes), "storage has a rate per node and one in all")
    checks.that(close(saves["blocked_ms"], saves["copy_ms"]), "an asynchronous save blocks for its copy")
    checks.that(12 * planned["parameters"] <= saves["bytes"] < 12.5 * planned["parameters"],
                "a save has twelve bytes per parameter, and padding")
    run_s = 100 * step_s + 4 * saves["blocked_ms"] / 1e3
    checks.that(close(figures["days"], run_s / 86400) and close(figures["node_hours"], 4 * run_s / 3600),
                "days and node-hours have the steps and the waits for saves")
    often, _ = simulate([*ALL_AXES, "run.steps=100", "checkpoint.every_steps=1"], 16)
    late = often["checkpoint"]
    wait = late["copy_ms"] + max(0, late["write_ms"] - often["step_ms"])
    checks.that(close(late["blocked_ms"], wait) and wait > late["copy_ms"],
                "a save that takes longer than the interval holds up the next one")
    plain, _ = simulate([*ALL_AXES, "run.steps=100", "checkpoint.asynchronous=false"], 16)
    checks.that(close(plain["checkpoint"]["blocked_ms"], plain["checkpoint"]["write_ms"]) and
                plain["checkpoint"]["count"] == 1, "a synchronous save blocks until it is written")
    by_clock, _ = simulate([*ALL_AXES, "run.steps=100", f"checkpoint.every_s={10.5 * step_s}"], 16)
    checks.that(by_clock["checkpoint"]["every_steps"] == 11 and by_clock["checkpoint"]["count"] == 10,
                "an interval by the clock ends with the step in which it is over")


def a_ramp_counts_each_step_with_its_own_time(checks):
    keys = [*ALL_AXES, "checkpoint.every_steps=0", "batch.ramp_start=8", "batch.ramp_step=8", "batch.ramp_steps=3"]
    figures, text = simulate([*keys, "run.steps=8", "batch.global=24"], 16)
    sizes = figures["batch_sizes"]
    checks.that([(size["first_step"], size["sequences"]) for size in sizes] == [(1, 8), (4, 16), (7, 24)],
                f"the sizes of a ramp {sizes}")
    for size in sizes:
        alone, _ = simulate([*ALL_AXES, f"batch.global={size['sequences']}"], 16)
        checks.that(alone["step_ms"] == size["step_ms"], f"{size['sequences']} sequences take {size['step_ms']:.3f} ms")
    checks.that(figures["step_ms"] == sizes[2]["step_ms"], "the step is that of batch.global")
    run_s = sum(n * size["step_ms"] for n, size in zip((3, 3, 2), sizes)) / 1e3
    run_s += figures["checkpoint"]["count"] * figures["checkpoint"]["blocked_ms"] / 1e3
    checks.that(close(figures["days"], run_s / 86400), "the run counts each step with its own time")
    checks.that("8 sequences a step, 8 more every 3 steps, 24 from step 7 on" in text, "the text says how it grows")
    short, _ = simulate([*keys, "run.steps=4", "batch.global=24"], 16)
    checks.that([size["sequences"] for size in short["batch_sizes"]] == [8, 16], "a short run has fewer sizes")


def memory_and_fit(checks):
    figures, text = simulate(ALL_AXES, 16)
    free = 1_000_000_000 - 100_000_000 - figures["peak_bytes"] - figures["staging_bytes"]
    checks.that(figures["fits"] and figures["free_bytes"] == free, f"{free} bytes are free on a CPU, staging counted")
    checks.that(re.search(r"^fits +1\.00 GB: yes, \d+ MB free", text, re.M), "the text says what is free")
    large = [*ALL_AXES, "model.dim=1536", "model.ffn_dim=6144", "model.vocab=70000"]
    figures, text = simulate(large, 16, expect=4)
    rank = figures["by_rank"][figures["peak_rank"]]
    checks.that(not figures["fits"] and figures["free_bytes"] < 0 and rank["peak_bytes"] == figures["peak_bytes"],
                "what does not fit is still simulated and written")
    checks.that(re.search(r"^step +\d", text, re.M) and f"rank {figures['peak_rank']} needs" in text and
                re.search(r"parameters [\d.]+ MB.*one core has 1\.00 GB.* short", text), "and refused with all figures")


def trace_has_the_communication(checks):
    """For each rank and axis: hidden + exposed is the time in which a lane of the axis transfers."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        figures, _ = simulate(ALL_AXES, 16, "--trace", path, "--unfolded")
        with open(path) as file:
            trace = json.load(file)
        events = trace["traceEvents"]
    checks.that("16 x one core" in trace["otherData"]["title"] and trace["otherData"]["origin"] == "predicted",
                f"the trace is called {trace['otherData']['title']}")
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    spans = {}
    for event in events:
        if event["ph"] == "X" and event["cat"] != "wait":
            lane = lanes[event["pid"], event["tid"]]
            axis = {"pp-send": "pp", "pp-recv": "pp", "copy": "dp"}.get(lane, lane)
            spans.setdefault((event["pid"], axis), []).append((event["ts"], event["ts"] + event["dur"]))
    checks.that(set(spans) == {(rank, axis) for rank in range(16) for axis in (*AXES, "compute")},
                "every rank computes and has messages on each axis")
    for rank in figures["by_rank"]:
        for axis in AXES:
            busy = union(spans[rank["rank"], axis])
            told = 1e3 * (rank["hidden_ms"][axis] + rank["exposed_ms"][axis])
            if abs(busy - told) > 1e-3 * len(spans[rank["rank"], axis]):  # a trace has whole nanoseconds
                checks.that(False, f"rank {rank['rank']} {axis}: {busy} us transfer, {told} us are hidden or exposed")
                return
    checks.that(True, "hidden + exposed is the time of the messages")


def union(spans):
    total, reach = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reach))
        reach = max(reach, end)
    return total


def equal_inputs_give_equal_bytes(checks):
    with tempfile.TemporaryDirectory() as folder:
        texts = []
        for i in range(2):
            files = {kind: os.path.join(folder, f"{kind}{i}") for kind in ("json", "trace", "svg")}
            done = launch(1, ["simulate", DECK, "--ranks", "16", "--cluster", CPU, *ALL_AXES, "--jitter", "0.1"] +
                          [word for kind, path in files.items() for word in (f"--{kind}", path)])
            assert done.returncode == 0, done.stdout
            texts.append([open(path, "rb").read() for path in files.values()])
        checks.that(texts[0] == texts[1] and all(texts[0]), "two runs write the same files")
        checks.that(texts[0][2].lstrip().startswith(b"<svg") or b"<svg" in texts[0][2][:300], "the picture is an SVG")


def disturbances(checks):
    base, _ = simulate(ALL_AXES, 16)
    for rank in range(0, 16, 3):
        slow, text = simulate(ALL_AXES, 16, "--slow-rank", f"{rank}=1.5")
        checks.that(slow["step_ms"] > base["step_ms"], f"a step with a slow rank {rank} takes longer")
        checks.that(f"kernels of rank {rank} take 1.5 times as long" in text, "and the text says so")
    for flag, value in (("--slow-link", "5=3"), ("--slow-node", "1=2")):
        slow, _ = simulate(ALL_AXES, 16, flag, value)
        checks.that(slow["step_ms"] > base["step_ms"], f"{flag} {value}: longer")
    same, _ = simulate(ALL_AXES, 16, "--slow-rank", "3=1")
    checks.that(without(same, "classes") == without(base, "classes"), "a factor of 1 changes nothing")
    one, _ = simulate(ALL_AXES, 16, "--jitter", "0.2", "--seed", "5")
    two, _ = simulate(ALL_AXES, 16, "--jitter", "0.2", "--seed", "5")
    other, _ = simulate(ALL_AXES, 16, "--jitter", "0.2", "--seed", "6")
    checks.that(one == two and one["step_ms"] != other["step_ms"] and one["step_ms"] > base["step_ms"],
                "jitter depends on its seed, and slows the step down")
    still, _ = simulate(ALL_AXES, 16, "--jitter", "0")
    checks.that(still == base, "no jitter is the default")


def routings(checks):
    """Experts that are not equally popular: ranks wait for the fullest one."""
    keys = ["parallel.dp_shard=4", "parallel.ep=4", "experts.count=8", "experts.per_token=2", "experts.ffn_dim=256"]
    base, text = simulate(keys, 4)
    checks.that("routing     balanced: every rank" in text and base["routing"]["fullest_rank"] == 1, "balanced is said")
    last = base["step_ms"]
    for skew in ("0.3", "0.8"):
        figures, text = simulate(keys, 4, "--routing", f"skew={skew}")
        load = figures["routing"]["fullest_rank"]
        checks.that(figures["step_ms"] > last and 1 < load <= figures["routing"]["fullest_rank_most"] <= 4,
                    f"skew={skew}: {load:.2f} times the rows, {figures['step_ms'] / base['step_ms']:.3f} of the step")
        checks.that(f"has {load:.2f} times the rows of balanced routing" in text, "and the text says so")
        checks.that(figures["peak_bytes"] == base["peak_bytes"], "memory does not depend on it")
        last = figures["step_ms"]
    even, _ = simulate(keys, 4, "--routing", "skew=0")
    checks.that(even["step_ms"] == base["step_ms"], "skew=0 is balanced")
    other, _ = simulate(keys, 4, "--routing", "skew=0.8", "--seed", "7")
    checks.that(other["step_ms"] != last, "the seed says which experts are popular")
    _, text = simulate([*keys, "parallel.ep=1"], 4, "--routing", "skew=0.8")
    checks.that("every rank has as many rows, since parallel.ep = 1" in text, "without ep ranks are equal: it is said")
    layers = 4  # of the deck
    with tempfile.TemporaryDirectory() as run:
        path = os.path.join(run, "metrics.jsonl")

        def record(*loads):
            with open(path, "w") as file:
                for step, of_step in enumerate(loads, 1):
                    file.write(json.dumps({"step": step, "loss": 1.0, "experts_loads": of_step}) + "\n")
                file.write(json.dumps({"step": len(loads) + 1, "loss": 1.0}) + "\n")

        record([[1] * 8] * layers, [[3, 3, 1, 1, 1, 1, 1, 1]] * layers)
        figures, text = simulate(keys, 4, "--routing", run)
        checks.that(close(figures["routing"]["fullest_rank"], 2) and f"step 2 of {run}" in text,
                    "the last loads of a run")
        more = f"loads of {layers + 1} layers with experts, the deck has {layers}"
        for loads, why in (([[1] * 8] * (layers + 1), more),
                           ([[1] * 6] * layers, "loads of 6 experts, experts.count is 8"),
                           ([[0] * 8] * layers, "a layer whose experts served no token")):
            record(loads)
            line = refused(DECK, "--cluster", CPU, "--ranks", "4", *keys, "--routing", run, status=3)
            checks.that(line.startswith(f"--routing {run}: step 1 has ") and why in line, line)
        record()
        line = refused(DECK, "--cluster", CPU, "--ranks", "4", *keys, "--routing", run, status=3)
        checks.that("no step has experts_loads" in line, line)
    for value in ("skew=", "skew=x", "skew=-1", "skew=11"):
        line = refused(DECK, "--cluster", CPU, *keys, "--routing", value)
        checks.that(line == f"command line: --routing {value}: no exponent (allowed: 0, where all experts are equally "
                    "popular, to 10)", line)
    line = refused(DECK, "--cluster", CPU, "--routing", "skew=1")
    checks.that("has no experts (leave it out)" in line, line)


def sleeping_decks(checks):
    keys = [*ALL_AXES, "run.device=sleep", f"run.cluster={CPU}"]
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        done = launch(1, ["simulate", DECK, "--ranks", "16", "--json", out.name, *keys])
        checks.that(done.returncode == 0, "a deck that sleeps names its cluster")
        sleeps = json.load(out)
    base, _ = simulate(ALL_AXES, 16)
    checks.that(sleeps["step_ms"] < base["step_ms"] and sleeps["device"] == "cpu",
                "its kernels and transfers do not slow each other down")
    checks.that("do not slow each other down" in done.stdout, "and the text says so")


def plan_on_a_cluster(checks):
    simulated, _ = simulate(ALL_AXES, 16)
    planned = plan(ALL_AXES, 16, "--cluster", CPU)
    for key in ("step_ms", "idle_ms", "exposed_comm_ms", "peak_bytes", "stages"):
        checks.that(planned[key] == simulated[key], f"plan --cluster: {key} is the simulated one")
    checks.that(close(simulated["exposed_comm_ms"], sum(simulated["exposed_ms"].values())), "exposed in all")


def gpus(checks):
    figures, text = simulate([], 64, deck=os.path.join(ROOT, "inputs", "llama", "8b.toml"), cluster=H100)
    checks.that(figures["device"] == "cuda" and figures["nodes"] == 8, "the cluster's device is planned for")
    checks.that(re.search(r"^planned for cuda \(", text, re.M) and "tokens/s per GPU" in text, "the text says so")
    checks.that(0.2 < figures["mfu"] < figures["mfu_full"] < 0.8, f"mfu {figures['mfu']:.3f}")
    checks.that("plain_attention" not in figures and "\nattention " not in text, "cuDNN computes its attention")
    alone, text = simulate(["data.isolate_documents=true", "data.end_token=2"], 64, cluster=H100,
                           deck=os.path.join(ROOT, "inputs", "llama", "8b.toml"))
    checks.that(len(alone["plain_attention"]) == 1 and
                f"attention   not by cuDNN ({alone['plain_attention'][0]}): our own kernels" in text,
                "isolated documents: the text says that attention takes longer than the step assumes")
    checks.that("\nvocabulary " not in text, "the vocabulary is whole")
    _, text = simulate(["model.vocab=128257", "parallel.tp=2"], 64, cluster=H100,
                       deck=os.path.join(ROOT, "inputs", "llama", "8b.toml"))
    checks.that("vocabulary  128257 over tp 2: parts of no whole 16 bytes" in text and
                "not with model.vocab = 128272" in re.sub(r"\s+", " ", text), f"the loss by a vocabulary\n{text}")
    large, _ = simulate(["parallel.tp=8"], 2048, deck=os.path.join(ROOT, "inputs", "llama", "8b.toml"), cluster=H100)
    classes = [rank["ranks"] for rank in large["by_rank"]]
    checks.that(sum(classes) == 2048 and len(classes) == large["classes"] < 2048,
                f"above 1,024 ranks by_rank has classes: {classes}")


def hidden_share(figures):
    """The sum for dp, over all ranks that the figures name."""
    hidden, exposed = (sum(rank[key]["dp"] for rank in figures["by_rank"]) for key in ("hidden_ms", "exposed_ms"))
    return hidden / (hidden + exposed)


def gradients_are_reduced_under_backward(checks):
    """overlap.gradients hides more of dp, and the step is no longer: layouts of Llama 8B, the share that must be
    reached with it, and the share that is not exceeded without."""
    schedule = lambda name, chunks=1: ["parallel.pp=4", "parallel.tp=8", "parallel.reduce=step",
                                       f"pipeline.schedule={name}", f"pipeline.chunks={chunks}"]
    for name, keys, reached, without_it in (
        ("1f1b", schedule("1f1b"), 0.5, 0.35), ("zbv", schedule("zbv", 2), 0.35, 0.25),
        ("interleaved", schedule("interleaved", 2), 0.5, 0.25),
        ("FSDP, reduced once", ["parallel.reduce=step"], 0.95, 0.92),
        ("FSDP, sharded gradients", ["parallel.reduce=auto"], 0.95, 0.97)):
        on, off = (simulate([*keys, f"overlap.gradients={value}"], 64, cluster=H100,
                            deck=os.path.join(ROOT, "inputs", "llama", "8b.toml"))[0] for value in ("true", "false"))
        checks.that(hidden_share(off) <= without_it and hidden_share(on) >= reached,
                    f"{name}: of dp {hidden_share(off):.3f} is hidden, with overlap.gradients {hidden_share(on):.3f}")
        checks.that(on["step_ms"] <= off["step_ms"],
                    f"{name}: the step takes {on['step_ms']:.1f} instead of {off['step_ms']:.1f} ms")


def errors(checks):
    line = refused(DECK)
    checks.that("--cluster FILE is missing" in line, line)
    line = refused(DECK, "--cluster", "none.toml")
    checks.that("none.toml" in line, line)
    line = refused(DECK, "--cluster", H100, "run.device=cpu")
    checks.that('run.device = "cpu": the cluster file' in line and "describes GPUs (leave it out" in line, line)
    line = refused(DECK, "--cluster", CPU, "run.device=cuda")
    checks.that("describes CPUs" in line and "run.device=cpu" in line, line)
    line = refused(DECK, "--cluster", CPU, "run.transport=nccl")
    checks.that("nccl is for GPUs" in line, line)
    for option, value, why in (("--slow-rank", "4=2", "rank 4 is not below the number of ranks, 4"),
                               ("--slow-rank", "x", "must be the number of a rank and a factor, such as 3=1.5"),
                               ("--slow-link", "1=0.5", "the factor must be from 1 to 1000000"),
                               ("--slow-rank", "0=1e308", "the factor must be from 1 to 1000000"),
                               ("--slow-node", "1=2", "node 1 is not below the number of nodes, 1")):
        line = refused(DECK, "--cluster", CPU, "--ranks", "4", "parallel.pp=4", option, value)
        checks.that(line == f"command line: {option} {value}: {why}", line)
    for option in ("--json", "--trace", "--svg"):
        line = refused(DECK, "--cluster", CPU, option, "/none/at/all")
        checks.that(line == f"command line: {option} /none/at/all: the folder /none/at does not exist", line)


def numbers_at_the_ends_of_their_ranges(checks):
    """tests/unit/costs/ranges_test.cpp tries all keys; here is what is printed of the slowest machines."""
    with open(CPU) as file:
        text = file.read()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "odd.toml")

        def odd(key, value):
            lines, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, count=1, flags=re.M)
            assert count == 1, key
            with open(path, "w") as file:
                file.write(lines)

        for key, value in (("kernel_us", "1e9"), ("fp32_tflops", "1e-6"), ("memory_bytes_per_us", "1e12"),
                           ("pair_bytes_per_us", "0.001"), ("node_slowdown", "0.999"), ("memory_bytes", 10**18)):
            odd(key, value)
            figures, said = simulate(ALL_AXES, 16, "--slow-rank", "3=1000000", cluster=path)
            words = re.findall(r"nan|inf\b|-\d{6}", json.dumps(figures).lower() + said)
            checks.that(figures["step_ms"] > 0 and not words, f"{key} = {value}: a step of {figures['step_ms']:.3g} ms")
        odd("kernel_us", "1e308")
        line = refused(DECK, "--ranks", "1", "--cluster", path)
        why = r"odd.toml:\d+: device.kernel_us = 1e\+308: out of range \(allowed: 0 to 1000000000\)$"
        checks.that(re.search(why, line), line)


def main():
    checks = Checks()
    findings = [
        fields, links_may_join_nodes, figures_follow_from_the_step, a_ramp_counts_each_step_with_its_own_time,
        memory_and_fit, trace_has_the_communication, equal_inputs_give_equal_bytes, disturbances, routings,
        sleeping_decks, plan_on_a_cluster, gpus, gradients_are_reduced_under_backward, errors,
        numbers_at_the_ends_of_their_ranges, folded_is_unfolded, peaks_of_every_layout
    ]
    text = sys.argv[1] if len(sys.argv) > 1 else ""
    checks.each([finding for finding in findings if text in finding.__name__])
    checks.finish()


main()
