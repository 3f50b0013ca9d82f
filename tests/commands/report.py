"""espalier report: the page about runs that were killed and continued, failed to save, were traced and validated says
what metrics.jsonl says, in one file that needs nothing else; and what it refuses. Standard library only."""
import json, os, shutil, xml.etree.ElementTree

from support.pages import Page
from support.runs import ENVIRONMENT, Checks, ROOT, launch, scratch, train
from support.sleeping import sleep

STEPS, EVERY, KILLED, TRACED = 30, 5, 13, 7
LONG = 100_000  # steps of a synthetic run
MOST_BYTES = 2_000_000
RUN = ["run.steps=30", f"checkpoint.every_steps={EVERY}", "checkpoint.restart=auto", "checkpoint.keep=2",
       "parallel.pp=2", "batch.global=6", f"report.trace={TRACED}:{TRACED}",
       f"data.validation=['{ROOT}/tests/oracle/data/text.txt']", "data.validate_every_steps=4",
       "data.validate_sequences=6"]
UNITS = {"ms": 1, "s": 1e3}


def faulty(fault, *arguments, **options):
    """train, with a fault on purpose."""
    ENVIRONMENT["ESPALIER_FAULT"] = fault
    try:
        return train(*arguments, **options)
    finally:
        del ENVIRONMENT["ESPALIER_FAULT"]


def page_of(runs, *options):
    """The page about these runs, read back."""
    output = os.path.join(os.path.dirname(runs[0]), "page.html")
    done = launch(1, ["report", *runs, "-o", output, *options])
    assert done.returncode == 0, done.stdout
    with open(output, encoding="utf-8") as file:
        return Page(file.read())


def milliseconds(text):
    number, unit = text.split()
    return float(number) * UNITS[unit]


def close(text, ms):
    """True if a time was rounded to three digits."""
    return abs(milliseconds(text) - ms) <= 0.006 * ms + 0.005


def check_form(checks, page, what):
    checks.that(not page.faults, f"{what}: well-formed, ids are unique, pictures have labels {page.faults[:3]}")
    checks.that(not page.external(), f"{what}: refers to nothing outside {page.external()[:3]}")
    checks.that(page.text.startswith("<!DOCTYPE html>"), f"{what}: is HTML5")


def given_up(run):
    """Steps with a line that no longer counts."""
    with open(os.path.join(run.dir, "metrics.jsonl")) as file:
        return sum("loss" in line for line in map(json.loads, file)) - len(run.steps)


def check_summary(checks, page, run):
    last = run.steps[STEPS]
    lowest = min(run.steps, key=lambda step: run.steps[step]["loss"])
    checks.that(page.row("summary", "loss, last") == [f"{last['loss']:.9g} at step {STEPS}"], "the last loss")
    checks.that(page.row("summary", "loss, lowest") == [f"{run.steps[lowest]['loss']:.9g} at step {lowest}"],
                "the lowest loss")
    checks.that(page.row("summary", "mesh") == ["pp 2"] and page.row("summary", "ranks") == ["2"], "the layout")
    checks.that(page.row("summary", "starts") == ["2 starts"] and
                page.row("summary", "steps given up")[0].startswith(f"{given_up(run)} steps, "),
                f"starts, and {given_up(run)} steps that were given up")
    checks.that(page.says("summary", "done") and page.says("summary", f"{STEPS} of {STEPS}"), "the state")


def check_curves(checks, page, run):
    drawn = page.pictures["loss"]
    wanted = {float(step): float(f"{line['loss']:.6g}") for step, line in run.steps.items()}
    checks.that(drawn["loss"] == wanted, f"the curve has the loss of all {len(wanted)} steps")
    checks.that(drawn["validation"] == {float(s): float(f"{v:.6g}") for s, v in run.validation.items()},
                "and all validations")
    checks.that(page.text.count("class=\"restart c0\"") == 7, "every chart marks the restart")
    table = page.tables["curves"][0]
    rows = [dict(zip(table[0], row)) for row in table[1:]]
    fields = ("loss", "grad_norm", "lr", "step_ms", "tokens", "peak_bytes")
    wrong = [row["step"] for row in rows for name in fields
             if abs(float(row[name]) - run.steps[int(row["step"])][name]) > 1e-8 * abs(float(row[name]))]
    checks.that(len(rows) == 25 and not wrong, f"the table has the figures of metrics.jsonl {wrong}")


def check_time(checks, page, run):
    steps = list(run.steps.values())
    wanted = {"compute": sum(s["compute_ms"] for s in steps), "exposed pp": sum(s["exposed_ms"]["pp"] for s in steps),
              "waiting for saves": sum(s["checkpoint_ms"] for s in steps),
              "waiting for data": sum(s["data_ms"] for s in steps)}
    wanted["rest of the steps"] = sum(max(0, s["step_ms"] - s["compute_ms"] - s["exposed_comm_ms"] - s["idle_ms"]
                                          - s["data_ms"]) for s in steps)
    for part, ms in wanted.items():
        row = page.row("time", part)
        checks.that(bool(row) and close(row[0], ms), f"time in {part}: {row[:1]}, {ms:.3f} ms")
    shares = [float(row[2].split()[0]) for row in page.tables["time"][0][1:]]
    checks.that(abs(sum(shares) - 100) < 0.1 * len(shares), "all parts are the whole time")


def check_step(checks, page, folder):
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        event = [line for line in map(json.loads, file) if line.get("event") == "trace"][-1]
    row = next(row for row in page.tables["step"][0] if row[0] == f"small, step {TRACED}, measured on 2 ranks")
    shares = [float(cell.split()[0]) for cell in row[2:8]]
    wanted = [event["compute_ms"], event["idle_ms"], *event["exposed_ms"].values()]
    rounding = 0.051 + 100 * 0.002 / event["step_ms"]  # of shares to tenths of a percent, and of times to microseconds
    checks.that(all(abs(share - 100 * ms / event["step_ms"]) < rounding for share, ms in zip(shares, wanted)),
                f"shares of the traced step: {shares}")
    checks.that(page.says("step", "--cluster FILE"), "says how a simulated step comes beside it")


def check_memory(checks, page, run):
    peak = max(run.end["rank_peak_bytes"])
    checks.that(page.says("memory", f"({peak} bytes)") and page.says("memory", "2 ranks used exactly what is planned"),
                "used memory is what is planned")
    layers = page.pictures["memory-1"]
    highest = max(sum(layer[x] for layer in layers.values()) for x in layers["activations"])
    rounding = 1  # of a column to a millionth of a MiB
    checks.that(0.7 * peak < highest * 2**20 <= peak + rounding,
                f"the highest column has {highest} MiB of {peak} bytes")
    checks.that([row[:2] for row in page.tables["memory"][0][1:]] == [["0", "0"], ["1", "1"]], "a row for each stage")


def check_checkpoints(checks, page, folder):
    committed, failed = page.tables["checkpoints"]
    there = {row[0]: row[1] for row in committed[1:]}
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        events = [line for line in map(json.loads, file) if line.get("event") == "checkpoint"]
    checks.that(there == {e["dir"]: "yes" if os.path.exists(e["dir"]) else "no" for e in events} and
                set(there.values()) == {"yes", "no"}, "checkpoints, and which are still there")
    checks.that(len(failed) == 2 and "Input/output error" in failed[1][0], f"the failed save and its reason: {failed}")


def check_events(checks, page):
    table = page.tables["events"][0]
    kinds = [row[0] for row in table[1:]]
    checks.that(kinds.count("start") == 2 and "changed" in kinds and "save failed" in kinds, f"the events: {kinds}")
    checks.that(page.says("events", "fault on purpose") and page.says("events", "optimizer.lr is 0.002 now"),
                "faults on purpose and changed keys")


def check_pictures(checks, folder, page):
    names = {name[:-4] for name in os.listdir(folder)}
    checks.that(names == set(page.pictures) and "loss" in names, f"files: {sorted(names)}")
    for name in sorted(names):
        root = xml.etree.ElementTree.parse(os.path.join(folder, name + ".svg")).getroot()
        title = root.find("{http://www.w3.org/2000/svg}title")
        checks.that(root.tag.endswith("svg") and bool(title.text), f"{name}.svg is a picture with a title")


def check_bad_runs(checks, folder, run):
    broken = os.path.join(folder, "broken")
    shutil.copytree(run, broken)
    with open(os.path.join(broken, "metrics.jsonl")) as file:
        lines = file.readlines()
    lines[9] = lines[9][:30] + "\n"
    lines.append('{"event":"warning","text":"<script>a warning</script>"}\n{"step":31,"lo')
    with open(os.path.join(broken, "metrics.jsonl"), "w") as file:
        file.writelines(lines)
    with open(os.path.join(broken, "deck.toml"), "a") as file:
        file.write("[later]\nkey = 1\n")
    page = page_of([broken])
    check_form(checks, page, "a damaged run")
    checks.that(page.says("events", "2 lines of metrics.jsonl cannot be read") and
                page.says("events", "line 10 is no JSON"), "names lines that cannot be read")
    checks.that(page.says("events", "<script>a warning</script>") and "<script>a" not in page.text, "escapes text")
    checks.that(page.says("memory", "its deck cannot be read") and page.says("step", "its deck cannot be read") and
                "loss" in page.pictures,
                "a deck that cannot be read costs only what follows from it")


def check_refusals(checks, folder, run):
    empty = os.path.join(folder, "empty")
    os.mkdir(empty)
    file = os.path.join(folder, "file")
    open(file, "w").close()
    refusals = [([os.path.join(folder, "nothing")], 3, "give the folder of a run"), ([empty], 3, "metrics.jsonl"),
                ([run, "-o", os.path.join(folder, "no", "page.html")], 2, "--output"),
                ([run, "-o", folder], 2, "is a folder"), ([run, "--svg", file], 2, "--svg"),
                ([run, "--cluster", file + ".toml"], 2, "file.toml"), ([], 2, "RUN")]
    open(os.path.join(empty, "metrics.jsonl"), "w").close()
    refusals.append(([empty], 3, "is empty"))
    for arguments, status, words in refusals:
        done = launch(1, ["report", *arguments])
        checks.that(done.returncode == status and words in done.stdout,
                    f"exit status {done.returncode} for {len(arguments)} arguments: {done.stdout.strip()[:120]}")


def check_long(checks, folder):
    """One value of every step is a spike of its own size; none of the highest may be lost."""
    run = os.path.join(folder, "long")
    os.mkdir(run)
    with open(os.path.join(run, "metrics.jsonl"), "w") as file:
        for step in range(1, LONG + 1):
            loss = 90 if step == LONG // 3 else 2 + step * 7919 % 1000 * 1e-3
            file.write(json.dumps({"step": step, "loss": loss, "grad_norm": 1 + step * 104729 % 997 * 1e-3,
                                   "lr": 1e-3 / step, "tokens": step * 24, "step_ms": 20 + step % 37,
                                   "tokens_per_s": 1e4 + step % 91, "mfu": 0.4 + step % 13 * 1e-3,
                                   "peak_bytes": 10**9, "compute_ms": 15 + step % 11, "data_ms": 1}) + "\n")
    page = page_of([run])
    checks.that(len(page.text) < MOST_BYTES, f"{LONG} steps: {len(page.text)} bytes")
    checks.that(page.pictures["loss"]["every step"][LONG // 3] == 90, "a spike of one step is there")
    page = page_of([run] * 6)
    checks.that(len(page.text) < MOST_BYTES, f"six such runs: {len(page.text)} bytes")
    check_form(checks, page, "six runs")


def check_two(checks, folder, run):
    other = os.path.join(folder, "other")
    train(other, 1, ["run.steps=4", "optimizer.lr=0.004", "batch.global=6"])
    page = page_of([run, other])
    check_form(checks, page, "two runs")
    rows = {row[0]: row[1:] for row in page.tables["decks"][0][1:]}
    checks.that(rows["run.steps"] == ["30", "4"] and rows["optimizer.lr"] == ["0.002", "0.004"] and
                "model.dim" not in rows, f"keys that differ: {sorted(rows)}")
    checks.that(set(page.pictures["grad_norm"]) == {run, other}, "a curve for each run")


def check_waiting(checks, folder):
    """A run that waits has no losses, and its step is simulated on the cluster that it waited for."""
    run = os.path.join(folder, "waits")
    sleep(run, 2, ["parallel.pp=2", "run.steps=4", "report.trace=3:3", "run.dilation=1"])
    page = page_of([run])
    check_form(checks, page, "a run that waits")
    titles = [row[0] for row in page.tables["step"][0][1:]]
    checks.that(len(titles) == 2 and "measured" in titles[0] and "simulated" in titles[1], f"two steps: {titles}")
    checks.that(page.says("memory", "planned for the rank"), "its memory is planned")


def main():
    checks = Checks()
    with scratch() as folder:
        run = os.path.join(folder, "run")
        faulty(f"step:kill:{KILLED}", run, 2, RUN, expect=137)
        metrics = faulty("shard-fsync:eio:1", run, 2, [*RUN, "optimizer.lr=2e-3"])
        done = launch(1, ["report", run])
        checks.that(done.returncode == 0 and os.path.exists(os.path.join(run, "report.html")), done.stdout.strip())
        page = page_of([run], "--svg", os.path.join(folder, "pictures"))
        check_form(checks, page, "one run")
        checks.each([lambda c: check_summary(c, page, metrics), lambda c: check_curves(c, page, metrics),
                     lambda c: check_time(c, page, metrics), lambda c: check_step(c, page, run),
                     lambda c: check_memory(c, page, metrics), lambda c: check_checkpoints(c, page, run),
                     lambda c: check_events(c, page),
                     lambda c: check_pictures(c, os.path.join(folder, "pictures"), page),
                     lambda c: check_bad_runs(c, folder, run), lambda c: check_refusals(c, folder, run),
                     lambda c: check_two(c, folder, run), lambda c: check_long(c, folder),
                     lambda c: check_waiting(c, folder)])
    checks.finish()


main()
