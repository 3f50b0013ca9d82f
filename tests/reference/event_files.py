"""report.tensorboard: TensorBoard's own reader finds every number and every event of metrics.jsonl, at its step and
time, over a restart and a rollback too. Needs the packages of tests/oracle/requirements_tensorboard.txt; exits 77
without them.
"""
import importlib.util
import json
import os
import re
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__)))))
from support.reference import reference_python  # noqa: E402

if importlib.util.find_spec("tensorboard") is None:
    os.execv(python := reference_python("tensorboard"), [python, os.path.realpath(__file__), *sys.argv[1:]])

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

from support.runs import ROOT, Checks, launch, scratch, train  # noqa: E402

RUN = ["run.steps=6", "report.tensorboard=true", "checkpoint.every_steps=2", "checkpoint.keep=9", "loss.z_loss=1e-4",
       f"data.validation=['{ROOT}/tests/oracle/data/text.txt']", "data.validate_every_steps=3",
       "data.validate_sequences=16", "run.peak_tflops=0.5"]


def fp32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def numbers(line):
    """(tag, number) of a line's fields."""
    for name, value in line.items():
        if name in ("step", "time") or value is None or isinstance(value, str):
            continue
        members = value.items() if isinstance(value, dict) else [(None, value)]
        yield from ((name if member is None else f"{name}/{member}", fp32(number)) for member, number in members)


def expected(run):
    """{tag: {step: (number, time)}} of the lines that count, and [(event, step, line)]."""
    scalars, texts, last = {}, [], 0
    with open(os.path.join(run, "metrics.jsonl")) as file:
        for line in map(json.loads, file):
            last = line.get("step", line["first_step"] if line.get("event") == "start" else last)
            if "event" in line:
                texts.append((line["event"], last, line))
            else:
                for tag, number in numbers(line):
                    scalars.setdefault(tag, {})[line["step"]] = (number, line["time"])
    return scalars, texts


def read(run):
    events = EventAccumulator(os.path.join(run, "tensorboard"),
                              size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=True)
    events.Reload()
    return events


def check(checks, run, what):
    truth, texts = expected(run)
    events = read(run)
    tags = events.Tags()
    found = {tag: {e.step: (e.value, e.wall_time) for e in events.Scalars(tag)} for tag in tags["scalars"]}
    same = found.keys() == truth.keys() and all(
        found[tag].keys() == steps.keys() and all(
            found[tag][k][0] == number and abs(found[tag][k][1] - time) < 1e-3 for k, (number, time) in steps.items())
        for tag, steps in truth.items())
    count = sum(map(len, truth.values()))
    checks.that(same and count > 60, f"{what}: {count} numbers of {len(truth)} names, as in metrics.jsonl")
    checks.that(all(tag in found for tag in ("loss", "grad_norm", "z_loss", "lr", "tokens_per_s", "mfu", "peak_bytes",
                                             "exposed_ms/tp", "val_loss")), f"{what}: the names that people look for")
    shown = {tag: {e.step: e.tensor_proto.string_val[0].decode() for e in events.Tensors(tag)}
             for tag in tags["tensors"]}
    said = [(event, step) for event, step, line in texts
            if all(str(line[key]) in shown.get(event, {}).get(step, "") for key in line
                   if isinstance(line[key], str) and key not in ("event", "note"))]
    missing = [pair[:2] for pair in texts if pair[:2] not in said]
    return missing


def ascii_of(text):
    """Without bytes that are no text, which an event file has as another character."""
    return re.sub(r"[^\n -~]", "", text)


def sample(checks, run, home):
    """Texts stand at the step of their checkpoint, as they were printed, and the run's own file is read as before."""
    before = read(run).Tags()
    asked = ["sample", run, "--tokens", "9", "--temperature", "1", "--prompt", "A <b>*lattice*</b>", "--prompt", "The ",
             "--tensorboard"]
    done = launch(1, asked)
    first = ascii_of(done.stdout.split("The ")[0]).split("\n")
    again = launch(1, [*asked, os.path.join(home, "elsewhere")])
    for folder in (os.path.join(run, "tensorboard", "samples"), os.path.join(home, "elsewhere")):
        events = EventAccumulator(folder, size_guidance={"tensors": 0})
        events.Reload()
        found = {tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)]
                 for tag in events.Tags()["tensors"]}
        texts = found.get("sample 1", [(None, "")])
        checks.that(done.returncode == again.returncode == 0 and sorted(found) == ["sample 1", "sample 2"]
                    and [step for step, _ in texts] == [6] and "temperature 1," in texts[0][1]
                    and all("    " + line in ascii_of(texts[0][1]) for line in first if line.strip()),
                    f"texts at the step of their checkpoint: {found}")
    checks.that(read(run).Tags() == before, "the run's own events are read as before")


def main():
    checks = Checks()
    with scratch() as home:
        run = os.path.join(home, "run")
        train(run, 1, RUN)
        missing = check(checks, run, "one start")
        checks.that(not missing, f"every event is a text: {missing}")
        sample(checks, run, home)
        # Back to step 3's checkpoint, of which steps 3 to 6 are done again, with another learning rate.
        train(run, 2, [*RUN, "parallel.tp=2", "optimizer.lr=1e-3", "run.steps=7"],
              flags=["-r", os.path.join(run, "checkpoints", "step-00000002")])
        missing = check(checks, run, "two starts, the second from step 2")
        checks.that(all(step > 2 for _, step in missing), f"events of superseded steps alone are gone: {missing}")
        none = os.path.join(home, "none")
        train(none, 1, ["run.steps=1"])
        checks.that(not os.path.exists(os.path.join(none, "tensorboard")), "nothing is written unless it is wanted")
        said = launch(1, ["run", os.path.join(run, "deck.toml"), "-d", os.path.join(home, "ro"), "run.steps=1",
                          "report.tensorboard=maybe"]).stdout
        checks.that("report.tensorboard" in said and "true" in said, "another value is refused")
    checks.finish()


main()
