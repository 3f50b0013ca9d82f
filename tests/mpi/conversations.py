"""Conversations (data.format = "chat"): only the assistant's tokens are trained, in the same way in every layout.

  alone     the loss of packed conversations is the mean of the losses of the conversations, by targets; each is
            measured by a run of one rank whose sequence is the conversation (relative 1e-6)
  layouts   losses, gradient norms and validation losses of six steps are those of one rank (relative 1e-5), also with a
            batch ramp, chunks of the loss and microbatches without a target
  restart   a run that goes on in another layout has the losses of one that was never stopped (relative 1e-5), and in
            the same layout their bits
  nothing   a step without a target changes no weight, and says so; a validation without one ends the run
"""
import json
import os
import random

from support.checkpoints import same_bits, tensors
from support.conversations import TEMPLATE, conversation, tokens
from support.layouts import ALL_TO_ALL, GPT2, RING
from support.runs import Checks, DECK, difference, launch, scratch, train

SEQUENCE = 24
PLAIN = ("{%- for m in messages %}{{ m.role[0] + ':' + m.content + '|' }}{% endfor %}"
         "{% if add_generation_prompt %}a:{% endif %}")
KEYS = ["precision.compute=fp32", "lr.warmup_steps=0", "data.format=chat", "data.isolate_documents=true"]
LAYOUTS = (
    ("pp 2", 2, ["parallel.pp=2"]),
    ("dp 2", 2, ["parallel.dp_shard=2"]),
    ("dp_replicate 2, micro 2", 2, ["parallel.dp_replicate=2", "parallel.dp_shard=1", "batch.micro=2"]),
    ("tp 2", 2, ["parallel.tp=2"]),
    ("cp 2, ring", 2, ["parallel.cp=2", RING]),
    ("pp 2 dp 2 cp 2, all_to_all", 8, ["parallel.pp=2", "parallel.dp_shard=2", "parallel.cp=2", ALL_TO_ALL]),
    ("one rank, loss in three chunks", 1, ["loss.chunks=3"]),
    ("tp 2 dp 2, loss in two chunks", 4, ["parallel.tp=2", "parallel.dp_shard=2", "loss.chunks=2"]),
)


def write(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(text)
    return path


def conversations(count, seed=3):
    """Conversations of one or two turns, some longer than a sample, some without an answer."""
    draw = random.Random(seed)
    text = lambda most: "".join(chr(draw.randint(97, 122)) for _ in range(draw.randint(0, most)))
    turns = lambda: (text(draw.choice((3, 6, 14))) for _ in range(draw.choice((1, 2, 2, 2, 4))))
    return [conversation(*turns()) for _ in range(count)]


def lines(some):
    return "".join(json.dumps(c) + "\n" for c in some)


def targets(c):
    return sum(len(m["content"]) + 1 for m in c["messages"] if m["role"] == "assistant")


def paths(*files):
    return "data.paths=[" + ",".join(f"'{f}'" for f in files) + "]"


def is_alone(checks, folder):
    template = write(folder, "t.jinja", TEMPLATE)
    some = [c for c in conversations(60) if targets(c) > 0 and len(tokens(c)) <= SEQUENCE + 1][:12]
    data = write(folder, "all.jsonl", lines(some))
    for family, deck in (("llama", DECK), ("gpt2", GPT2)):
        keys = [*KEYS, "data.shuffle=false", f"data.chat_template={template}", "run.steps=1"]
        loss = count = 0
        for i, c in enumerate(some):
            alone = train(os.path.join(folder, f"{family}{i}"), 1,
                          [*keys, "batch.global=1", f"model.seq_len={len(tokens(c)) - 1}",
                           paths(write(folder, f"{family}{i}.jsonl", lines([c])))], deck=deck)
            loss += alone.curve("loss")[0] * targets(c)
            count += targets(c)
        first = train(os.path.join(folder, f"{family} first"), 1, [*keys, "batch.global=1", paths(data)], deck=deck)
        samples = first.starts[0]["data_samples"]
        checks.that(1 < samples < len(some), f"{family}: {len(some)} conversations are {samples} samples")
        for what, more in (("marked", []), ("found", [f"data.chat_template={write(folder, 'p.jinja', PLAIN)}"])):
            packed = train(os.path.join(folder, f"{family} {what}"), 1,
                           [*keys, f"batch.global={samples}", paths(data), *more], deck=deck)
            worst = difference(packed.curve("loss"), [loss / count])
            checks.that(worst <= 1e-6, f"{family}, {what}: the loss differs from that of each alone by {worst:.1e}")
        everything = train(os.path.join(folder, f"{family} everything"), 1,
                           [*keys, f"batch.global={samples}", "data.train_on=all", paths(data)], deck=deck)
        checks.that(difference(everything.curve("loss"), [loss / count]) > 1e-4,
                    f"{family}: the loss of all tokens is another one")


def is_the_same_in_layouts(checks, folder):
    template = write(folder, "t.jinja", TEMPLATE)
    data = write(folder, "data.jsonl", lines(conversations(300)))
    other = write(folder, "other.jsonl", lines(conversations(40, seed=9)))
    keys = [*KEYS, f"data.chat_template={template}", "run.steps=6", paths(data), f"data.validation=['{other}']",
            "data.validate_every_steps=3", "data.validate_sequences=16", "batch.global=16"]
    for what, more in (("", []), ("ramp, ", ["batch.ramp_start=8", "batch.ramp_step=4", "batch.ramp_steps=2"])):
        serial = train(os.path.join(folder, f"{what}serial"), 1, [*keys, *more])
        for layout, ranks, parallel in LAYOUTS:
            run = train(os.path.join(folder, f"{what}{layout}"), ranks, [*keys, *more, *parallel])
            worst = max(difference(run.curve(c), serial.curve(c)) for c in ("loss", "grad_norm"))
            worst = max(worst, difference(list(run.validation.values()), list(serial.validation.values())))
            checks.that(worst <= 1e-5, f"{what}{layout}: differs from one rank by {worst:.1e}")


def goes_on(checks, folder):
    template = write(folder, "t.jinja", TEMPLATE)
    data = write(folder, "data.jsonl", lines(conversations(120)))
    keys = [*KEYS, f"data.chat_template={template}", paths(data), "batch.global=8", "checkpoint.restart=auto",
            "lr.decay_steps=8"]
    whole = train(os.path.join(folder, "whole"), 1, [*keys, "run.steps=8"])
    for what, ranks, parallel, most in (("one rank", 1, [], 0),
                                        ("dp 2 tp 2", 4, ["parallel.dp_shard=2", "parallel.tp=2"], 1e-5)):
        cut = os.path.join(folder, what)
        train(cut, 1, [*keys, "run.steps=3"])
        worst = difference(train(cut, ranks, [*keys, "run.steps=8", *parallel]).curve("loss"), whole.curve("loss"))
        checks.that(worst <= most, f"after a restart on {what}: differs by {worst:.1e}")


def has_nothing_to_learn(checks, folder):
    template = write(folder, "t.jinja", TEMPLATE)
    keys = [*KEYS, f"data.chat_template={template}", "data.shuffle=false", "batch.global=2", "run.steps=2",
            "checkpoint.at_start=true", "checkpoint.every_steps=1"]
    mute = [conversation("q" * SEQUENCE)] * 4
    some = [conversation("a", "b" * 16)] * 4
    data = {name: paths(write(folder, f"{name}.jsonl", lines(what)))
            for name, what in (("mute", mute[:2] + some[:2]), ("half", [mute[0], some[0]]), ("one", some[:1]))}
    run = train(os.path.join(folder, "mute"), 1, [*keys, data["mute"]])
    checks.that(run.curve("loss")[0] == 0 and run.curve("loss")[1] > 0, "a step without a target has a loss of 0")
    checks.that(same_bits(tensors(run.checkpoint(0)), tensors(run.checkpoint(1))), "... and changes no bit")
    checks.that(not same_bits(tensors(run.checkpoint(1)), tensors(run.checkpoint(2))), "... and the next one does")
    with open(os.path.join(run.dir, "metrics.jsonl")) as file:
        skipped = [line for line in map(json.loads, file) if line.get("event") == "skipped"]
    checks.that([(s["step"], s["reason"]) for s in skipped] == [(1, "no token of its batch is a target")], f"{skipped}")
    half = train(os.path.join(folder, "half"), 1, [*keys, "run.steps=1", data["half"]])
    one = train(os.path.join(folder, "one"), 1, [*keys, "run.steps=1", "batch.global=1", data["one"]])
    checks.that(difference(half.curve("loss"), one.curve("loss")) <= 1e-6, "a microbatch without a target adds nothing")
    done = launch(1, ["run", DECK, "-d", os.path.join(folder, "never"), *keys, data["one"],
                      f"data.validation=['{write(folder, 'never.jsonl', lines(mute))}']", "data.validate_every_steps=1",
                      "data.validate_sequences=2"])
    checks.that(done.returncode == 3 and "none of the 2 sequences of a validation has a target" in done.stdout,
                f"a validation without a target ends the run: {done.returncode}, {done.stdout[-300:]}")
    said = " ".join(done.stdout.split())
    checks.that("1 conversation, 73.9 % of whose tokens are targets; 8 % of the samples is padding" in said,
                f"the start block tells of conversations: {said[:900]}")


def main():
    checks = Checks()
    for part in (is_alone, is_the_same_in_layouts, goes_on, has_nothing_to_learn):
        with scratch() as folder:
            part(checks, folder)
    checks.finish()


main()
