"""Schedules, chunks and the pipeline degree only reorder: every row must bitwise agree with 1f1b on one stage, in
losses, gradient norms, validation losses, and in all weights and moments after the last step, with any settings of the
communication switches, in sizes drawn at random. The planned peak of every rank is the used one."""
import os

from support.checkpoints import same_bits, tensors
from support.runs import (Checks, DECK, launch, layout, planned_peaks, scratch,
                          train)
from support.sizes import Sizes
from support.switches import Cover

STEPS = 4
BASE = [
    f"run.steps={STEPS}", "lr.warmup_steps=1", "model.layers=8", "batch.global=12",
    f"data.validation=['{os.path.join(os.path.dirname(DECK), '..', 'oracle', 'data', 'text.txt')}']",
    "data.validate_every_steps=4"
]
DROPS = ["model.family=gpt2", "dropout.embedding=0.1", "dropout.residual=0.3", "dropout.attention=0.2"]
TIED, UNEVEN = "model.tie_embeddings=true", "model.layers=9"
FURTHER = "model.mtp_layers=2"  # with 0 other layers at the end, on a chunk of their own
EACH, STEP = "parallel.reduce=microbatch", "parallel.reduce=step"
# pp dp tp, schedule, chunks, further overrides
ROWS = [
    ("211", "1f1b", 1, []),
    ("311", "1f1b", 1, []),
    ("411", "gpipe", 1, []),
    ("111", "interleaved", 2, []),
    ("211", "interleaved", 2, []),
    ("211", "interleaved", 4, []),
    ("311", "interleaved", 2, []),
    ("411", "interleaved", 2, []),
    ("411", "interleaved", 2, ["batch.global=9"]),
    ("211", "zb-h1", 1, []),
    ("311", "zb-h1", 1, []),
    ("411", "zb-h1", 1, ["batch.global=3"]),
    ("111", "zb-interleaved", 2, []),
    ("211", "zb-interleaved", 3, []),
    ("411", "zb-interleaved", 2, ["batch.global=9"]),
    ("111", "zbv", 2, []),
    ("211", "zbv", 2, []),
    ("311", "zbv", 2, []),
    ("411", "zbv", 2, []),
    ("411", "zbv", 2, ["batch.global=2"]),
    ("111", "dualpipev", 2, []),
    ("211", "dualpipev", 2, []),
    ("311", "dualpipev", 2, []),
    ("411", "dualpipev", 2, []),
    ("211", "interleaved", 2, [TIED]),
    ("411", "zb-h1", 1, [TIED]),
    ("211", "zb-interleaved", 2, [TIED]),
    ("211", "zbv", 2, [TIED]),
    ("211", "dualpipev", 2, [TIED]),
    ("211", "interleaved", 2, [UNEVEN, "pipeline.split=[3,1,4,1]"]),
    ("311", "zbv", 2, [UNEVEN]),
    ("211", "dualpipev", 2, [UNEVEN, "pipeline.split=[1,2,1,5]"]),
    ("311", "1f1b", 1, ["pipeline.split=[0,8,0]"]),
    ("211", "zbv", 2, [TIED, "pipeline.split=[0,4,4,0]"]),
    ("311", "1f1b", 1, [FURTHER, "pipeline.split=[4,4,0]"]),
    ("211", "zb-interleaved", 2, [FURTHER, "pipeline.split=[2,3,3,0]"]),
    ("211", "zbv", 2, [FURTHER, "pipeline.split=[0,4,4,0]"]),
    ("211", "dualpipev", 2, [FURTHER, "pipeline.split=[3,3,2,0]"]),
    ("221", "interleaved", 2, []),
    ("221", "zbv", 2, ["parallel.zero=3"]),
    ("222", "zb-interleaved", 2, [EACH, "parallel.zero=3"]),
    ("221", "zb-h1", 1, [EACH, "parallel.zero=3"]),
    ("221", "dualpipev", 2, [EACH, "parallel.zero=2"]),
    ("231", "zb-h1", 1, []),
    ("231", "dualpipev", 2, ["parallel.zero=3"]),
    ("211", "zb-h1", 1, DROPS),
    ("221", "dualpipev", 2, [EACH, *DROPS]),
    ("212", "interleaved", 2, []),
    ("212", "zb-h1", 1, []),
    ("212", "zbv", 2, []),
    ("212", "dualpipev", 2, [TIED]),
    ("211", "zb-h1", 1, ["parallel.cp=2"]),
    ("211", "dualpipev", 2, ["parallel.cp=2"]),
    ("211", "interleaved", 2, ["model.family=gpt2", TIED]),
    ("311", "dualpipev", 2, ["model.family=gpt2", TIED]),
    ("213", "zbv", 2, []),
    ("222", "dualpipev", 2, ["precision.compute=bf16", "parallel.reduce_dtype=bf16"]),
]
ROWS = [(*row, more if EACH in more else [*more, STEP]) for *row, more in ROWS]  # auto would depend on pp


def layout_of(digits, more):
    degrees, ranks = layout(digits)
    return degrees, ranks * (2 if "parallel.cp=2" in more else 1)


def keys_of(digits, schedule, chunks, more):
    return [*layout_of(digits, more)[0], f"pipeline.schedule={schedule}", f"pipeline.chunks={chunks}", *more]


def main():
    checks = Checks()
    cover = Cover([keys_of(*row) for row in ROWS])
    cover.check(checks, "settings")
    sizes = Sizes()
    with scratch() as folder:
        references = {}
        for number, (row, switches) in enumerate(zip(ROWS, cover.added)):
            digits, schedule, chunks, more = row
            model = tuple(o for o in more if not o.startswith(("pipeline.", "recompute.", "parallel.zero")))
            key = (digits[1:], model)
            degrees, of_one_stage = layout_of("1" + digits[1:], more)
            drawn = sizes.draw([*degrees, *model])
            ranks = layout_of(digits, more)[1]
            overrides = BASE + drawn + keys_of(*row) + switches
            if key not in references:
                print(f"{' '.join(degrees + list(model))} with {' '.join(drawn)}")
                references[key] = train(os.path.join(folder, f"reference{number}"), of_one_stage,
                                        BASE + drawn + degrees + list(model))
            run = train(os.path.join(folder, f"run{number}"), ranks, overrides)
            reference = references[key]
            name = f"{digits} {schedule} chunks {chunks} {' '.join(more + switches)}"
            for curve in ("loss", "grad_norm"):
                checks.that(run.curve(curve) == reference.curve(curve), f"{name}: {curve} bitwise")
            checks.that(
                len(run.validation) == 1 and run.validation == reference.validation, f"{name}: validation loss bitwise")
            checks.that(same_bits(tensors(run.checkpoint(STEPS)), tensors(reference.checkpoint(STEPS))),
                        f"{name}: weights and moments bitwise")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(folder, ranks, overrides),
                        f"{name}: planned peak is what was used")
            if schedule in ("interleaved", "zbv") and more == [STEP] and digits == "211":
                text = [
                    launch(1, ["sample", r.checkpoint(STEPS), "--prompt", "The ", "--tokens", "8"])
                    for r in (run, reference)
                ]
                checks.that(text[0].returncode == 0 and text[0].stdout == text[1].stdout,
                            f"{name}: samples the same text")
        # Two steps of one schedule, then two of another, on other stages.
        drawn = sizes.draw([*layout("111")[0], STEP])
        chunked = BASE + drawn + layout("211")[0] + [
            "pipeline.schedule=interleaved", "pipeline.chunks=2", "run.steps=2", "lr.decay_steps=3"
        ]
        home = os.path.join(folder, "halves")
        train(home, 2, chunked)
        halves = train(home, 3, BASE + drawn + layout("311")[0] + ["checkpoint.restart=auto"])
        straight = references["11", (STEP,)]
        checks.that(
            halves.curve("loss") == straight.curve("loss"),
            "interleaved on two stages, then 1f1b on three: losses bitwise")
        checks.that(same_bits(tensors(halves.checkpoint(STEPS)), tensors(straight.checkpoint(STEPS))),
                    "and the weights and moments")
    checks.finish()


main()
