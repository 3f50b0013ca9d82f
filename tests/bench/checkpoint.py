"""The cost of checkpoints and of watching, each beside its bare twin in the same run: python3 tests/bench/checkpoint.py
BUILD [PAIRS [DIR [MEGABYTES]]].

A state of 1,000 MB on one rank and on two, in DIR (a temporary folder), PAIRS pairs (9) that follow one another
closely: a save and a load beside a write with fsync and a read of files of the same sizes, the time that an
asynchronous save keeps training from going on beside a memory copy; `inspect --verify`, by the clock and by processor
time; and steps of a small Llama on two ranks with the heartbeat and without it, the agreement between steps and the
proof of a save in percent of such a step. Prints medians; a ratio is the median of the pairs' ratios."""
import json, os, re, resource, statistics, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
MODEL = [
    "model.dim=256", "model.heads=8", "model.kv_heads=4", "model.ffn_dim=704", "model.seq_len=128", "parallel.tp=2",
    "batch.global=4", "run.steps=40", "checkpoint.every_steps=10"
]
WARM_UP = 5  # steps


def launch(ranks, *command):
    line = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"] if ranks > 1 else []
    return subprocess.run([*line, *command], env=ENVIRONMENT, check=True, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL).stdout


def median(rows, of):
    return statistics.median(of(row) for row in rows)


def against(rows, mine, bare, what, twin):
    """Rates of the state's bytes, and the median of the pairs' ratios."""
    rate = lambda key: median(rows, lambda row: row["bytes"] / row[key]) / 1e9
    ratio = median(rows, lambda row: row[bare] / row[mine])
    print(f"  {what} {rate(mine):.2f} GB/s, {twin} {rate(bare):.2f} GB/s; ratio {ratio:.2f}", flush=True)


def bench(build, ranks, folder, megabytes, pairs):
    text = launch(ranks, os.path.join(build, "tests", "checkpoint_bench"), folder, str(megabytes), str(pairs))
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    print(f"{ranks} rank{'s' * (ranks > 1)}, {rows[0]['bytes'] / 1e9:.2f} GB, {len(rows)} pairs")
    against(rows, "save", "write", "save", "write and fsync")
    against(rows, "load", "read", "load, not in the page cache,", "read")
    against(rows, "warm_load", "warm_read", "load from the page cache", "read")
    blocked, copy = (median(rows, lambda row: row[key]) * 1e3 for key in ("blocked", "copy"))
    ratio = median(rows, lambda row: row["blocked"] / row["copy"])
    print(f"  blocked {blocked:.0f} ms, memory copy {copy:.0f} ms; ratio {ratio:.2f}", flush=True)
    compare, ratio = median(rows, lambda row: row["compare"]), median(rows, lambda row: row["compare"] / row["copy"])
    print(f"  checksums and comparison of all copies {compare * 1e3:.0f} ms; ratio {ratio:.2f}", flush=True)
    return median(rows, lambda row: row["agree"])


def verify(build, checkpoint, pairs):
    rates = []
    for _ in range(pairs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        said = re.search(r"\((\d+) bytes\) in ([\d.]+) s",
                         launch(1, os.path.join(build, "espalier"), "inspect", checkpoint, "--verify"))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        rates.append((int(said[1]) / 1e9 / float(said[2]), int(said[1]) / 1e9 / processor))
    clock, core = (statistics.median(column) for column in zip(*rates))
    print(f"inspect --verify: {clock:.2f} GB/s by the clock, {core:.2f} GB per second of a core", flush=True)


def steps(build, folder, watchdog):
    launch(2, os.path.join(build, "espalier"), "run", os.path.join(ROOT, "tests", "decks", "small.toml"), "-d", folder,
           "-w", str(watchdog), *MODEL)
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        lines = [json.loads(line) for line in file]
    times = [line["step_ms"] for line in lines if "loss" in line][WARM_UP:]
    return statistics.median(times), statistics.median(line["proof_ms"] for line in lines
                                                       if line.get("event") == "checkpoint")


def watching(build, folder, pairs, agree):
    on, off = [], []
    for pair in range(pairs):
        for times, watchdog in ((on, 60), (off, 0)) if pair % 2 else ((off, 0), (on, 60)):
            times.append(steps(build, os.path.join(folder, f"steps-{watchdog}-{pair}"), watchdog))
    step, proof = (statistics.median(column) for column in zip(*on))
    heartbeat = statistics.median(a[0] / b[0] for a, b in zip(on, off))
    print(
        f"a step of {step:.1f} ms on two ranks, {pairs} pairs: heartbeat {100 * (heartbeat - 1):+.1f} %, "
        f"agreement {100 * agree * 1e3 / step:.2f} % ({agree * 1e6:.0f} us), "
        f"proof of a save {100 * proof / step:.0f} % of one step ({proof:.1f} ms)")


def main():
    build, pairs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 9
    megabytes = int(sys.argv[4]) if len(sys.argv) > 4 else 1000
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=sys.argv[3] if len(sys.argv) > 3 else None) as folder:
        agree = 0.0
        for ranks in (1, 2):
            home = os.path.join(folder, str(ranks))
            os.mkdir(home)
            agree = bench(build, ranks, home, megabytes, pairs)
            if ranks == 1:
                verify(build, os.path.join(home, "checkpoints"), pairs)
            subprocess.run(["rm", "-r", home], check=True)
        watching(build, folder, pairs, agree)
    print(f"load average {os.getloadavg()[0]:.1f}")


main()
