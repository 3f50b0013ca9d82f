"""The cost of copies in memory: python3 tests/bench/memory_copies.py EXECUTABLE [PAIRS [KEY=VALUE ...]].

Pairs of runs of two ranks that follow one another closely, without copies and with checkpoint.memory_steps = 10, on a
small Llama in two shares (parallel.dp_shard = 2); keys change the model or the layout. Prints, as medians of the
pairs: the processor time of a run with copies over that of one without, less the start, which is measured by runs of a
few steps; and the time that a copy blocks training, its proof, and its whole way, beside a step. On processors the
writer takes its time from the kernels, so the first figure is the cost. Standard library only."""
import json, os, resource, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
MODEL = ["model.dim=256", "model.heads=8", "model.kv_heads=4", "model.ffn_dim=704", "model.seq_len=256",
         "parallel.dp_shard=2", "batch.global=8", "run.threads=1", "run.deterministic=true"]
STEPS, SHORT = 64, 4  # 6 copies; none


def processor_seconds(executable, home, keys):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    deck = os.path.join(ROOT, "inputs", "llama", "tiny.toml")
    subprocess.run(["mpirun", "-n", "2", "--oversubscribe", "--bind-to", "none", executable, "run", deck, "-d", home,
                    *keys], env=ENVIRONMENT, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def lines(home):
    with open(os.path.join(home, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def pair(executable, folder, number, keys):
    copies = ["checkpoint.memory_steps=10"]
    runs = {"bare": [], "copies": copies, "bare start": [], "copies start": copies}
    seconds = {}
    for name, more in runs.items():
        steps = SHORT if name.endswith("start") else STEPS
        seconds[name] = processor_seconds(executable, os.path.join(folder, f"{name}-{number}"),
                                          [*MODEL, f"run.steps={steps}", *more, *keys])
    bare = seconds["bare"] - seconds["bare start"]
    return (seconds["copies"] - seconds["copies start"]) / bare, lines(os.path.join(folder, f"copies-{number}"))


def main():
    executable, pairs, keys = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 7, sys.argv[3:]
    ratios, events, steps = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(pairs):
            ratio, metrics = pair(executable, folder, number, keys)
            ratios.append(ratio)
            events += [line for line in metrics if line.get("event") == "memory_copy"]
            steps += [line["step_ms"] for line in metrics if "loss" in line and line["step"] > SHORT]
    median = lambda key: statistics.median(event[key] for event in events)
    step_ms = statistics.median(steps)
    megabytes = events[0]["bytes"] / 1e6
    print(f"{pairs} pairs of {STEPS} steps, {len(events)} copies of {megabytes:.1f} MB; {' '.join(keys)}")
    print(f"processor time with copies: {statistics.median(ratios):.4f} of that without"
          f" ({min(ratios):.4f} to {max(ratios):.4f})")
    print(f"a step {step_ms:.1f} ms; a copy blocks for {median('blocked_ms'):.2f} ms after a proof of "
          f"{median('proof_ms'):.1f} ms, and is complete after {median('committed_ms'):.1f} ms")


main()
