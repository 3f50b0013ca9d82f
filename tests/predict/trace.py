"""report.trace: a run on four CPU ranks writes the traces and pictures of the steps that it is asked for. Every
instruction of the plan is there once, in program order on its lane; no message arrives before it leaves; the parts of a
step add up to it; and the run is bitwise the one without. A restart in the middle goes on tracing."""
import collections, json, os, re, tempfile, xml.etree.ElementTree

from support.checkpoints import same_bits, tensors
from support.runs import Checks, program, train

RANKS = 4
DECK = ["parallel.pp=2", "parallel.tp=2", "batch.global=4"]
INSTRUCTION = re.compile(r" *(\d+) (\S+) ")
NANOSECOND = 1e-3  # in the microseconds of a trace; begin and length are rounded to it


def planned(rank):
    """lane -> the indices of its instructions, in program order."""
    lanes = collections.defaultdict(list)
    for match in map(INSTRUCTION.match, program(RANKS, rank, DECK)):
        if match:
            lanes[match[2]].append(int(match[1]))
    return dict(lanes)


def read(folder, step):
    with open(os.path.join(folder, "trace", f"step-{step:08d}.json")) as file:
        return json.load(file)["traceEvents"]


def lane_names(events, rank):
    return {event["tid"]: event["args"]["name"] for event in events
            if event["ph"] == "M" and event["name"] == "thread_name" and event["pid"] == rank}


def check_lanes(checks, name, events):
    """One event per instruction, in program order, one after the other on its lane."""
    for rank in range(RANKS):
        names, lanes, ends = lane_names(events, rank), collections.defaultdict(list), collections.defaultdict(float)
        overlaps = 0
        for event in events:
            if event["ph"] != "X" or event["pid"] != rank:
                continue
            lane = names[event["tid"]]
            overlaps += event["ts"] < ends[lane] - NANOSECOND
            ends[lane] = event["ts"] + event["dur"]
            if event["cat"] != "wait":
                lanes[lane].append(event["args"]["instruction"])
        count = sum(map(len, lanes.values()))
        checks.that(lanes == planned(rank) and overlaps == 0,
                    f"{name}, rank {rank}: {count} instructions on {len(lanes)} lanes, as planned")


def check_messages(checks, name, events):
    ends = {phase: {event["id"]: event for event in events if event["ph"] == phase} for phase in "sf"}
    sends = sum(event["ph"] == "X" and event["args"].get("op") == "send" for event in events)
    checks.that(0 < sends == len(ends["s"]) and set(ends["s"]) == set(ends["f"]),
                f"{name}: an arrow for each of {sends} messages")
    early = [i for i in ends["s"] if ends["f"][i]["ts"] < ends["s"][i]["ts"] - NANOSECOND]
    checks.that(not early, f"{name}: no message arrives before it leaves")
    checks.that(all(abs(ends["s"][i]["pid"] - ends["f"][i]["pid"]) == RANKS // 2 for i in ends["s"]),
                f"{name}: messages go to the same place of the other stage")


def check_picture(checks, name, path):
    text = "{http://www.w3.org/2000/svg}text"
    words = [element.text for element in xml.etree.ElementTree.parse(path).iter(text)]
    rows = [f"stage {rank // 2}, rank {rank}" for rank in range(RANKS)]
    checks.that([word for word in words if word in rows] == rows and f"small, {name}, measured on 4 ranks" in words,
                f"{name}: the picture has a title and a row for every rank")


def reported(folder):
    """step -> its "trace" event, the last of each."""
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        return {line["step"]: line for line in map(json.loads, file) if line.get("event") == "trace"}


def check_shares(checks, name, event):
    parts = event["compute_ms"] + event["idle_ms"] + sum(event["exposed_ms"].values())
    checks.that(event["ranks"] == RANKS and abs(parts - event["step_ms"]) < 0.01 and event["compute_ms"] > 0,
                f"{name}: compute, exposed and idle add up to {event['step_ms']} ms")
    moves = {axis: event["exposed_ms"][axis] + event["hidden_ms"][axis] for axis in ("tp", "cp", "ep", "dp", "pp")}
    checks.that(moves["tp"] > 0 and moves["pp"] > 0 and moves["cp"] == 0, f"{name}: its axes transfer: {moves}")


def check_every_step(checks, folder):
    """Every line has its communication by axis, from the clock of rank 0."""
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        lines = [line for line in map(json.loads, file) if "step_ms" in line and "event" not in line]
    for line in lines:
        name, exposed = f"step {line['step']}", sum(line["exposed_ms"].values())
        checks.that(abs(exposed - line["exposed_comm_ms"]) < 0.01, f"{name}: exposed by axis, {exposed:.3f} ms in all")
        parts = line["compute_ms"] + exposed + line["idle_ms"]
        checks.that(line["compute_ms"] < parts <= line["step_ms"] + 0.01,
                    f"{name}: its parts are {parts:.3f} of {line['step_ms']} ms")
        checks.that(all(line["exposed_ms"][axis] + line["hidden_ms"][axis] > 0 for axis in ("tp", "pp")) and
                    line["exposed_ms"]["cp"] == line["hidden_ms"]["cp"] == 0 and
                    all(0 <= ms <= line["step_ms"] for ms in line["hidden_ms"].values()),
                    f"{name}: tp and pp transfer, hidden {line['hidden_ms']}")


def check_step(checks, folder, step):
    name, events = f"step {step}", read(folder, step)
    check_lanes(checks, name, events)
    check_messages(checks, name, events)
    check_picture(checks, name, os.path.join(folder, "trace", f"step-{step:08d}.svg"))
    check_shares(checks, name, reported(folder)[step])


def traced(folder):
    return sorted(os.listdir(os.path.join(folder, "trace")))


def files(*steps):
    return sorted(f"step-{step:08d}.{kind}" for step in steps for kind in ("json", "svg"))


def main():
    checks = Checks()
    with tempfile.TemporaryDirectory() as home:
        plain, folder = os.path.join(home, "plain"), os.path.join(home, "traced")
        without = train(plain, RANKS, [*DECK, "run.steps=6"])
        checks.that(not os.path.exists(os.path.join(plain, "trace")), "without report.trace there is no folder trace")

        trace = [*DECK, "report.trace=3:5", "checkpoint.restart=auto"]
        train(folder, RANKS, [*trace, "run.steps=4"])
        checks.that(traced(folder) == files(3, 4), "up to step 4: steps 3 and 4")
        with open(os.path.join(folder, "trace", "step-00000005.json"), "w") as file:
            file.write("of a run before")
        run = train(folder, RANKS, [*trace, "run.steps=6"])
        checks.that(traced(folder) == files(3, 4, 5), "after the restart: step 5 too")
        for step in (3, 4, 5):
            check_step(checks, folder, step)
        check_every_step(checks, folder)
        checks.that(all(run.curve(key) == without.curve(key) for key in ("loss", "grad_norm")) and
                    same_bits(tensors(run.checkpoint(6)), tensors(without.checkpoint(6))),
                    "bitwise the run without")
    checks.finish()


if __name__ == "__main__":
    main()
