"""Every figure that a run prints at its start and at its end, compared with `plan --json`, the data files,
metrics.jsonl and the checkpoints: one rank and several, a restart in another layout, a batch ramp and a blend."""
import json, os, re, sys

from support.runs import Checks, DECK, launch, scratch

SEQ_LEN, VOCAB, DIM, HEADS, FFN = 24, 260, 48, 4, 88  # of tests/decks/small.toml
PEAK_TFLOPS = 0.1  # of each rank


def digits(x):
    """Three significant digits, as doc/metrics.md says of the console."""
    return f"{x:.{2 if x < 9.995 else 1 if x < 99.95 else 0}f}"


def scaled(x, base, units):
    unit = 0
    while unit + 1 < len(units) and x >= base - 0.5:
        x, unit = x / base, unit + 1
    return digits(x) + units[unit]


def human_bytes(count):
    return f"{count} B" if count < 1024 else scaled(count / 1024, 1024, [" KiB", " MiB", " GiB"])


def human_count(count):
    return f"{count:.0f}" if count < 999.5 else scaled(count / 1000, 1000, ["k", "M", "G"])


def counted(count, thing):
    more = "" if count == 1 else "es" if thing.endswith("ch") else "s"
    return f"{count if count < 1000000 else human_count(count)} {thing}{more}"


class Run:
    """The printed lines of a run, by label, and the files that it wrote."""

    def __init__(self, folder, ranks, overrides):
        self.folder, self.ranks, self.overrides = folder, ranks, ["run.device=cpu", *overrides]
        done = launch(ranks, ["run", DECK, "-d", folder, *self.overrides])
        if done.returncode != 0:
            sys.exit(f"{overrides}: exit status {done.returncode}\n{done.stdout}")
        self.text, self.lines = done.stdout, {}
        for line in done.stdout.splitlines():
            if match := re.match(r"^([a-z]+) +(?! )(.*)$", line):
                self.lines.setdefault(match[1], []).append(match[2])
        events = [json.loads(line) for line in open(os.path.join(folder, "metrics.jsonl"))]
        first = max(i for i, event in enumerate(events) if event.get("event") == "start")
        self.start, self.events = events[first], events[first:]
        self.steps = [line for line in self.events if "loss" in line]
        self.end = events[-1]
        self.plan = self.planned()

    def planned(self):
        path = self.folder + ".json"
        done = launch(1, ["plan", DECK, "--ranks", str(self.ranks), "--json", path, *self.overrides])
        if done.returncode != 0:
            sys.exit(done.stdout)
        with open(path) as file:
            return json.load(file)

    def only(self, label):
        lines = self.lines.get(label, [])
        return lines[0] if len(lines) == 1 else f"{len(lines)} lines: {lines}"

    def of(self, event):
        return [line for line in self.events if line.get("event") == event]


def inspected(path):
    """The whole tensors of a checkpoint, as (name, shape), from its MANIFEST."""
    with open(os.path.join(path, "MANIFEST"), encoding="ascii") as file:
        found = re.findall(r"^tensor (\S+) \S+ \[([0-9,]*)\]$", file.read(), re.M)
    return [(name, [int(extent) for extent in shape.split(",") if extent]) for name, shape in found]


def elements(tensors):
    total = 0
    for _, shape in tensors:
        product = 1
        for extent in shape:
            product *= extent
        total += product
    return total


def equals(checks, name, said, expected):
    checks.that(said == expected, f"{name}: {said!r}" + ("" if said == expected else f", expected {expected!r}"))


def check_model(checks, name, run, family, layers):
    saved = inspected(run.of("checkpoint")[-1]["dir"])
    count = elements([tensor for tensor in saved if tensor[0].startswith("parameters/")])
    checks.that(count == run.plan["parameters"] == run.start["parameters"], f"{name}: {count} parameters everywhere")
    heads = f"{HEADS} heads (2 kv)" if family == "llama" else f"{HEADS} heads"
    equals(checks, f"{name}: model", run.only("model"),
           f"{family}, {count} ({count / 1e6:.4g} M) parameters: {layers} layers of {DIM}, {heads}, "
           f"feed-forward {FFN}, vocabulary {VOCAB}")
    every, kept = run.only("saves").split(", "), human_bytes(4 * elements(saved))
    checks.that(every[-2] == f"{kept} of tensors each", f"{name}: a checkpoint holds {kept} of state: {every}")


def check_ranks(checks, name, run, micro):
    plan, mesh = run.plan, run.plan["mesh"]
    checks.that(mesh == run.start["mesh"] and plan["ranks"] == run.start["ranks"] == run.ranks,
                f"{name}: mesh of the plan")
    degrees = " x ".join(f"{axis} {degree}" for axis, degree in mesh.items() if degree > 1) or "no parallelism"
    schedule = ", 1f1b" if mesh["pp"] > 1 else ""
    microbatches = plan["tokens_per_step"] // (SEQ_LEN * micro * mesh["dp_replicate"] * mesh["dp_shard"])
    equals(checks, f"{name}: ranks", run.only("ranks"),
           f"{run.ranks} on 1 host, cpu, 1 thread each ({counted(run.ranks, 'thread')} on "
           f"{counted(len(os.sched_getaffinity(0)), 'core')}); {degrees}{schedule}, "
           f"{counted(microbatches, 'microbatch')} of {micro}")


def check_memory(checks, name, run):
    start, end = run.lines["memory"]
    peaks, used = run.plan["rank_peak_bytes"], run.end["rank_peak_bytes"]
    checks.that(peaks == used, f"{name}: every rank used the bytes of its plan: {used}")
    at_most = f" at most (rank {peaks.index(max(peaks))})" if run.ranks > 1 else ""
    planned = f"{human_bytes(max(peaks))} a rank{at_most} + {human_bytes(run.plan['staging_bytes'])} to stage saves; "
    checks.that(start.startswith(planned), f"{name}: memory {start!r}, expected {planned!r}")
    equals(checks, f"{name}: memory at the end", end,
           f"{human_bytes(max(used))} on rank {used.index(max(used))}, which used most; at most "
           f"{human_bytes(run.end['outside_bytes'])} of a rank besides")
    resident = [line["host_bytes"] for line in run.steps]
    checks.that(all(max(peaks) / 4 < bytes < 1 << 33 for bytes in resident), f"{name}: host_bytes {resident[-1]}")


def check_summary(checks, name, run):
    ms, of_batch = [line["step_ms"] for line in run.steps], run.start["tokens_per_step"]
    tokens = [line["sequences"] * SEQ_LEN if "sequences" in line else of_batch for line in run.steps]
    rates = (tokens[1:], ms[1:]) if len(ms) > 1 else (tokens, ms)
    rate, seconds = 1e3 * sum(rates[0]) / sum(rates[1]), sum(ms) / 1e3
    mfu = 100 * run.start["flops_per_token"] * rate / (PEAK_TFLOPS * 1e12 * run.ranks)
    said = re.fullmatch(r"steps (\d+) to (\d+): (\d+) tokens in (\S+), (\S+) tokens/s, mfu (\S+) %", run.only("done"))
    if not said:
        return checks.that(False, f"{name}: done {run.only('done')!r}")
    first, last = run.steps[0]["step"], run.steps[-1]["step"]
    before = run.steps[0]["tokens"] - tokens[0]
    checks.that([int(x) for x in said.groups()[:3]] == [first, last, run.steps[-1]["tokens"] - before] and
                run.steps[-1]["tokens"] - before == sum(tokens),
                f"{name}: done {said[0]!r}")
    if seconds < 9:
        checks.that(abs(float(said[4][:-1]) - seconds) < 0.011, f"{name}: {said[4]} for {seconds:.3f} s")
    checks.that(human_count(rate * 0.999) == said[5] or human_count(rate * 1.001) == said[5] or
                human_count(rate) == said[5], f"{name}: {said[5]} tokens/s, {rate:.1f} by metrics.jsonl")
    checks.that(abs(float(said[6]) / mfu - 1) < 0.01, f"{name}: mfu {said[6]} %, {mfu:.4f} by metrics.jsonl")
    lowest = min(run.steps, key=lambda line: (line["loss"], line["step"]))
    equals(checks, f"{name}: loss", run.only("loss"),
           f"{run.steps[-1]['loss']:.5f} (step {last}), lowest {lowest['loss']:.5f} (step {lowest['step']})")


def check_saves(checks, name, run):
    saves = run.of("checkpoint")
    equals(checks, f"{name}: saved", run.only("saved"),
           f"{counted(len(saves), 'checkpoint')}, {human_bytes(sum(save['bytes'] for save in saves))}")
    for save in saves:
        if os.path.isdir(save["dir"]):
            on_disk = sum(os.path.getsize(os.path.join(save["dir"], file)) for file in os.listdir(save["dir"]))
            checks.that(on_disk == save["bytes"], f"{name}: {save['dir']}: {on_disk} bytes on the disk")
            row = f"{save['step']}  checkpoint {save['dir']} ({human_bytes(on_disk)}, "
            checks.that(row in run.text, f"{name}: and the console says so")
    latest = saves[-1]["dir"]
    equals(checks, f"{name}: results", run.only("results"), f"{run.folder}/metrics.jsonl, {latest}")
    equals(checks, f"{name}: metrics", run.only("metrics"), f"{run.folder}/metrics.jsonl")
    shown = launch(1, ["inspect", run.folder]).stdout
    checks.that(f"step        {saves[-1]['step']}\n" in shown and f"({saves[-1]['bytes']} bytes)" in shown and
                f"parameters  {run.start['parameters']} (" in shown, f"{name}: inspect agrees")


def check_all(checks, name, run, layers=4, family="llama", micro=1):
    check_model(checks, name, run, family, layers)
    check_ranks(checks, name, run, micro)
    check_memory(checks, name, run)
    check_summary(checks, name, run)
    check_saves(checks, name, run)


def check_data(checks, name, run, file, steps, sequences):
    """For one file without a ramp: bytes are tokens, and a sample has one token more than it predicts."""
    tokens = os.path.getsize(file)
    samples = (tokens - 1) // SEQ_LEN
    epochs = steps * sequences / samples
    checks.that([run.start[key] for key in ("data_files", "data_tokens", "data_samples")] == [1, tokens, samples] and
                abs(run.start["epochs"] / epochs - 1) < 1e-3, f"{name}: metrics.jsonl has the data")
    equals(checks, f"{name}: data", run.only("data"),
           f"1 file, {tokens} tokens, {samples} samples; {steps} steps x {sequences} = {epochs:.3g} epochs")
    first = run.start["first_step"]
    equals(checks, f"{name}: steps", run.only("steps"),
           f"{first} to {steps}; sequences of {SEQ_LEN} tokens: {sequences} sequences a step, "
           f"{run.plan['tokens_per_step']} tokens")


def one_rank_then_others(checks, home, file):
    """Llama on one rank, continued by two with another layout, which is changed and said."""
    base = [f"data.paths=['{file}']", "batch.global=6", "checkpoint.restart=auto", f"run.peak_tflops={PEAK_TFLOPS}"]
    alone = Run(home("llama"), 1, [*base, "run.steps=7", "checkpoint.every_steps=3"])
    check_all(checks, "one rank", alone)
    check_data(checks, "one rank", alone, file, 7, 6)
    equals(checks, "one rank: weights", alone.only("weights"), "initial, of run.seed = 7")
    checks.that(len(alone.of("checkpoint")) == 3, "one rank: saves after steps 3, 6 and 7")
    more = Run(home("llama"), 2, [*base, "run.steps=11", "parallel.dp_shard=2", "batch.micro=3"])
    check_all(checks, "restart", more, micro=3)
    check_data(checks, "restart", more, file, 11, 6)
    last = alone.of("checkpoint")[-1]
    equals(checks, "restart: from", more.only("restart"), f"from {last['dir']} (step 7)")
    changed = [f"{line['key']} = {line['new']} ({line['origin']}), {line['old']} in the checkpoint"
               for line in more.of("changed")]
    equals(checks, "restart: changed", more.lines["changed"], changed)
    checks.that({"run.steps", "parallel.dp_shard", "batch.micro", "checkpoint.every_steps"} <=
                {line["key"] for line in more.of("changed")}, "restart: every key that differs")


def four_ranks(checks, home, file):
    """GPT-2, pp 2 x tp 2."""
    layout = ["model.family=gpt2", "model.kv_heads=4", "parallel.pp=2", "parallel.tp=2", "batch.global=10",
              "batch.micro=2", "run.steps=3", f"data.paths=['{file}']", f"run.peak_tflops={PEAK_TFLOPS}"]
    run = Run(home("gpt2"), 4, layout)
    check_all(checks, "four ranks", run, family="gpt2", micro=2)
    check_data(checks, "four ranks", run, file, 3, 10)
    sums = {axis: sum(line[kind][axis] for line in run.steps[1:] for kind in ("exposed_ms", "hidden_ms")) / 2
            for axis in ("tp", "pp")}
    for axis, ms in sums.items():
        said = re.search(rf"\b{axis} ([0-9.]+) ms", run.only("messages"))
        checks.that(said and abs(float(said[1]) - ms) <= 0.006 * ms + 0.006, f"four ranks: {axis} {ms:.3f} ms a step")


def ramp_and_blend(checks, home, file):
    """Batches of 2, 4 and 6 sequences, of two sources with weights."""
    other = home("other.txt")
    with open(other, "wb") as text:
        text.write(bytes(range(32, 122)) * 37)
    ramp = ["batch.global=6", "batch.ramp_start=2", "batch.ramp_step=2", "batch.ramp_steps=3", "run.steps=8"]
    run = Run(home("ramp"), 1, [*ramp, f"data.paths=['{file}', '{other}']", "data.weights=[3, 1]",
                                f"run.peak_tflops={PEAK_TFLOPS}"])
    check_all(checks, "ramp", run)
    sequences = [line["sequences"] for line in run.steps]
    equals(checks, "ramp: sequences", sequences, [2, 2, 2, 4, 4, 4, 6, 6])
    equals(checks, "ramp: steps", run.only("steps"),
           f"1 to 8; sequences of {SEQ_LEN} tokens: 2 sequences a step, 2 more every 3 steps, 6 from step 7 on")
    sizes = [os.path.getsize(path) for path in (file, other)]
    samples = [(size - 1) // SEQ_LEN for size in sizes]
    total, *sources = run.lines["data"]
    equals(checks, "ramp: data", total, f"2 files, {sum(sizes)} tokens, {sum(samples)} samples; 8 steps of 2 to 6 = "
           f"{sum(sequences)} samples of 2 sources")
    for path, share, count, source, line in zip((file, other), (75, 25), samples, run.start["data_sources"], sources):
        epochs = share / 100 * sum(sequences) / count
        checks.that(source["samples"] == count and abs(source["epochs"] / epochs - 1) < 1e-3, f"ramp: {source}")
        equals(checks, "ramp: a source", line, f"{share} % from {path}: {count} samples = {epochs:.3g} epochs")


def main():
    checks = Checks()
    with scratch() as folder:
        file = os.path.join(folder, "text.txt")
        with open(file, "wb") as text:
            text.write(bytes(32 + (i * i // 7 + i) % 90 for i in range(7001)))
        checks.each((one_rank_then_others, four_ranks, ramp_and_blend), lambda name: os.path.join(folder, name), file)
    checks.finish()


if __name__ == "__main__":
    main()
