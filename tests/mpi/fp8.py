"""Matmuls in fp8. Every layout trains as one rank does, up to the effect of other last bits of bf16 on the rounding to
fp8, and uses the planned memory. Bit-neutral settings stay bit-neutral, and a run continues from its checkpoint bit by
bit. Matmuls that do not suit fp8 stay in bf16 and are named. Validation and texts have the same forward. Tests of equal
bits have sizes drawn at random."""
import json, os

from support.checkpoints import same_bits, tensors
from support.layouts import GPT2
from support.runs import Checks, DECK, difference, launch, planned_peaks, scratch, train
from support.sizes import Sizes

NUMBERS = ["precision.compute=bf16", "precision.matmul=fp8"]
BF16 = ["model.dim=64", "model.ffn_dim=128", "model.seq_len=32", "precision.compute=bf16"]
FP8 = [*BF16, "precision.matmul=fp8"]
TENSOR, ROW, MX = (f"precision.fp8_scaling={scaling}" for scaling in ("tensor", "row", "mx"))
# Blocks of 32 on every rank; at the rate of the deck roundings grow too fast in so wide a model.
WIDE = ["model.dim=128", "model.ffn_dim=256", "model.seq_len=64", "optimizer.lr=1e-3"]
SCALINGS = {TENSOR: [], ROW: [], MX: WIDE}
SELECTIVE, FULL = "recompute.mode=selective", "recompute.mode=full"
ZERO1, ZERO3 = "parallel.zero=1", "parallel.zero=3"
RING, GATHER, ALL_TO_ALL = (f"parallel.context={c}" for c in ("ring", "all_gather", "all_to_all"))
EACH, STEP = "parallel.reduce=microbatch", "parallel.reduce=step"
TWO_STRIPS, THREE_STRIPS = "overlap.tensor_strips=2", "overlap.tensor_strips=3"
EXPERTS = ["experts.count=8", "experts.per_token=3", "experts.ffn_dim=32", "experts.balance_loss=0.01"]
BIASED = ["experts.mlp_bias=true", "experts.router_bias=true", "experts.swiglu_limit=0.05", "model.sinks=true"]
EP2, EP4 = "parallel.ep=2", "parallel.ep=4"
SMALL_POOL = "experts.buffer=0.5"  # several passes
LOSS_RTOL, NORM_RTOL = 5e-3, 5e-2

# pp, dp_shard, cp, tp; deck; further keys. Compared with one rank.
LAYOUTS = [
    ((2, 1, 1, 1), DECK, []),
    ((1, 2, 1, 1), DECK, [ZERO3, EACH]),
    ((1, 1, 1, 2), DECK, []),
    ((1, 1, 1, 4), DECK, []),  # kv heads are shared: their gradients are partial sums and stay in bf16
    ((1, 1, 2, 1), DECK, [RING]),
    ((1, 1, 2, 2), DECK, [GATHER, FULL]),
    ((2, 2, 1, 2), DECK, ["pipeline.schedule=zbv", ZERO3]),
    ((2, 1, 1, 2), DECK, ["pipeline.schedule=dualpipev", TWO_STRIPS]),
    ((1, 2, 1, 2), GPT2, [SELECTIVE]),
    ((2, 1, 2, 1), GPT2, [ALL_TO_ALL, "pipeline.schedule=zb-h1"]),
]

# The same with experts.
LAYOUTS_OF_EXPERTS = [
    ((2, 1, 1, 1), ["pipeline.schedule=zb-h1"]),
    ((1, 2, 1, 1), [ZERO3, EACH]),
    ((1, 2, 1, 1), [EP2]),
    ((1, 4, 1, 1), [EP2, ZERO3, SELECTIVE]),
    ((1, 1, 1, 2), [EP2, SMALL_POOL]),
    ((1, 1, 1, 2), []),
    ((1, 1, 2, 1), [RING, EP2, SMALL_POOL, SELECTIVE]),
    ((1, 2, 1, 2), [EP4, FULL]),
    ((2, 2, 1, 1), [EP2, "pipeline.schedule=dualpipev", "overlap.interleave=true"]),
]

# pp, dp_shard, cp, tp and keys of the first run; additional keys of the others. Equal bit by bit.
SAME = [
    ((1, 1, 1, 1), [], [[SELECTIVE], [FULL]]),
    ((1, 2, 1, 1), [STEP], [[ZERO1], [ZERO3, FULL], ["recompute.regather=always", "overlap.prefetch=2"],
                            ["recompute.regather=never"], ["overlap.gradients=false"]]),
    ((1, 1, 1, 2), [], [["overlap.tensor=false"], [FULL], [TWO_STRIPS], [THREE_STRIPS, SELECTIVE]]),
    ((2, 1, 1, 1), [], [["pipeline.schedule=zb-h1"], ["pipeline.schedule=zbv"], ["pipeline.schedule=interleaved"],
                        ["pipeline.schedule=dualpipev", "overlap.interleave=true"]]),
    ((1, 1, 2, 1), [GATHER], [["overlap.context=false"], [FULL]]),
    ((1, 1, 1, 1), EXPERTS, [[SELECTIVE], [FULL], ["experts.buffer=4.0"]]),
    ((1, 2, 1, 1), [*EXPERTS, *BIASED, EP2, SMALL_POOL, STEP], [[ZERO1], [ZERO3, SELECTIVE], [FULL]]),
    ((1, 2, 1, 1), [*EXPERTS, EP2, STEP], [[ZERO1], [ZERO3, SELECTIVE], ["overlap.tensor=false"]]),
    ((2, 1, 1, 1), EXPERTS, [["pipeline.schedule=zb-h1"], ["pipeline.schedule=dualpipev", "overlap.interleave=true"]]),
]


def degrees_of(axes):
    return [f"parallel.{axis}={n}" for axis, n in zip(("pp", "dp_shard", "cp", "tp"), axes)]


def ranks_of(axes):
    ranks = 1
    for n in axes:
        ranks *= n
    return ranks


class Runner:
    def __init__(self, folder, checks):
        self.folder, self.checks, self.count = folder, checks, 0

    def train(self, axes, keys, deck=DECK, steps=4):
        self.count += 1
        overrides = [*degrees_of(axes), f"run.steps={steps}", *keys]
        run = train(os.path.join(self.folder, str(self.count)), ranks_of(axes), overrides, deck=deck)
        planned = planned_peaks(self.folder, ranks_of(axes), overrides, deck)
        self.checks.that(run.end["rank_peak_bytes"] == planned, f"{axes} {keys}: planned peak is what was used")
        return run


def compare_layouts(checks, runner):
    worst = {"loss": 0, "grad_norm": 0}
    for scaling, sizes in SCALINGS.items():
        one = {deck: runner.train((1, 1, 1, 1), [*FP8, scaling, *sizes], deck, 5) for deck in (DECK, GPT2)}
        for axes, deck, keys in LAYOUTS:
            run = runner.train(axes, [*FP8, scaling, *sizes, *keys], deck, 5)
            far = {curve: difference(run.curve(curve), one[deck].curve(curve)) for curve in worst}
            checks.that(far["loss"] <= LOSS_RTOL and far["grad_norm"] <= NORM_RTOL,
                        f"{axes} {scaling} {keys}: loss {far['loss']:.1e}, norm {far['grad_norm']:.1e}")
            worst = {curve: max(worst[curve], far[curve]) for curve in worst}
            if axes == (2, 1, 1, 1):
                checks.that(not any(far.values()), f"{scaling}: two stages as one, bitwise")
    print(f"largest differences: loss {worst['loss']:.1e}, norm {worst['grad_norm']:.1e}")


def compare_experts(checks, runner):
    worst = {"loss": 0, "grad_norm": 0}
    for scaling in SCALINGS:
        one = runner.train((1, 1, 1, 1), [*FP8, *EXPERTS, scaling], steps=5)
        for axes, keys in LAYOUTS_OF_EXPERTS:
            run = runner.train(axes, [*FP8, *EXPERTS, scaling, *keys], steps=5)
            far = {curve: difference(run.curve(curve), one.curve(curve)) for curve in worst}
            checks.that(far["loss"] <= LOSS_RTOL and far["grad_norm"] <= NORM_RTOL,
                        f"experts {axes} {scaling} {keys}: loss {far['loss']:.1e}, norm {far['grad_norm']:.1e}")
            worst = {curve: max(worst[curve], far[curve]) for curve in worst}
    print(f"largest differences with experts: loss {worst['loss']:.1e}, norm {worst['grad_norm']:.1e}")


def rounds_experts(checks, runner):
    """Matmuls of experts are in fp8, unless precision.bf16_matmuls names them; a plan says what is not."""
    losses = [runner.train((1, 1, 1, 1), [*FP8, *EXPERTS, *keys]).curve("loss")
              for keys in ([], [ROW], ["precision.bf16_matmuls=['*.experts.*','lm_head.weight']"])]
    # Rows of experts always have scales of their own, and what is left may round alike by tensor and by row.
    checks.that(losses[2] not in losses[:2], "experts in fp8 and in bf16 train differently")
    path = os.path.join(runner.folder, "experts.json")
    done = launch(1, ["plan", DECK, "--ranks", "1", "--json", path, *FP8, *EXPERTS, "experts.buffer=1.5"])
    with open(path) as file:
        fp8 = json.load(file)["fp8"]
    # In each of 4 layers: 3 matmuls of each of q, k, v and o, and 2 of each of 3 weights of experts.
    counted = (fp8["matmuls"], fp8["matmuls_in_bf16"], fp8["expert_gradients_in_bf16"]) == (4 * (12 + 6), 0, 4 * 3)
    checks.that(done.returncode == 0 and counted, f"plan counts: {fp8}")
    checks.that("12 gradients of weights of experts stay in bf16" in " ".join(done.stdout.split()), "plan says so")
    run = launch(1, ["run", DECK, "-d", os.path.join(runner.folder, "experts"), "run.steps=1", *FP8, *EXPERTS])
    checks.that("gradients of weights of experts stay in bf16" in " ".join(run.stdout.split()),
                "so does the start of a run")


def compare_bits(checks, runner):
    sizes = Sizes()
    for scaling in SCALINGS:
        for axes, given, rows in SAME:
            common = [*NUMBERS, scaling, *given]
            common += sizes.draw([*degrees_of(axes), *common], micro=(1, 2))
            first = runner.train(axes, common)
            for row in rows:
                run = runner.train(axes, [*common, *row])
                name = f"{axes} {common + row}"
                checks.that(all(run.curve(c) == first.curve(c) for c in ("loss", "grad_norm")),
                            f"{name}: losses and norms, bitwise")
                checks.that(same_bits(tensors(run.checkpoint(4)), tensors(first.checkpoint(4))),
                            f"{name}: weights and moments, bitwise")


def rounds_and_scales(checks, runner):
    """The switches have an effect: fp8 differs from bf16, and each scaling from the others."""
    losses = [runner.train((1, 1, 1, 1), keys).curve("loss")
              for keys in (BF16, *([*FP8, scaling] for scaling in SCALINGS))]
    checks.that(len({tuple(curve) for curve in losses}) == 4, "bf16 and the three scalings train differently")
    checks.that(all(difference(curve, losses[0]) < 0.01 for curve in losses[1:]), "but nearly as bf16")
    left = runner.train((1, 1, 1, 1), [*FP8, "precision.bf16_matmuls=['*']"])
    checks.that(left.curve("loss") == losses[0], "with all matmuls left in bf16 no bit differs from bf16")


def continues(checks, runner):
    for scaling in SCALINGS:
        keys = [*FP8, scaling, "checkpoint.every_steps=3", "checkpoint.keep=9", *degrees_of((1, 2, 1, 1))]
        whole = train(os.path.join(runner.folder, "whole" + scaling), 2, [*keys, "run.steps=6"])
        home = os.path.join(runner.folder, "parts" + scaling)
        train(home, 2, [*keys, "run.steps=3", "lr.decay_steps=2"])
        parts = train(home, 2, [*keys, "run.steps=6", "checkpoint.restart=required"])
        checks.that(parts.starts[-1]["first_step"] == 4, f"{scaling}: continues at step 4")
        checks.that(same_bits(tensors(parts.checkpoint(6)), tensors(whole.checkpoint(6))),
                    f"{scaling}: a run that continues has the same bits")


def names_what_does_not_suit(checks, runner):
    path = os.path.join(runner.folder, "plan.json")
    keys = ["precision.compute=bf16", "precision.matmul=fp8", "model.ffn_dim=88"]
    done = launch(1, ["plan", DECK, "--ranks", "1", "--json", path, *keys])
    with open(path) as file:
        fp8 = json.load(file)["fp8"]
    # 24 tokens, 24 features of k and v, and 88 of the MLP are no multiples of 16: in each layer q and o have their
    # forward and their input gradients in fp8.
    counted = done.returncode == 0 and (fp8["matmuls"], fp8["matmuls_in_bf16"]) == (4 * 4, 4 * 17)
    checks.that(counted, f"plan counts: {fp8}")
    checks.that("model.layers.3.mlp.up_proj.weight" in fp8["weights_in_bf16"], "plan names them")
    text = " ".join(done.stdout.split())
    checks.that("stay in bf16" in text and "model.layers.*.mlp.up_proj.weight" in text, "plan says so")
    run = launch(1, ["run", DECK, "-d", os.path.join(runner.folder, "misfits"), "run.steps=1", *keys])
    checks.that("stay in bf16" in " ".join(run.stdout.split()), "so does the start of a run")
    done = launch(1, ["plan", DECK, "--ranks", "1", *FP8, MX, "model.ffn_dim=112"])
    # In each layer forward of up and gate contracts 64 features, and gradients of weights contract tokens.
    text = " ".join(done.stdout.split())
    checks.that("no multiples of 16 (contracted ones of 32)" in text and "mlp.up_proj.weight" in text,
                f"mx: plan names what is in bf16: {done.stdout[:600]}")


def validates_and_samples(checks, runner):
    keys = [*FP8, f'data.validation=["{os.path.join(os.path.dirname(DECK), "..", "oracle", "data", "text.txt")}"]',
            "data.validate_every_steps=2", "data.validate_sequences=16"]
    one = runner.train((1, 1, 1, 1), keys)
    two = runner.train((2, 1, 1, 2), keys)
    checks.that(sorted(one.validation) == [2, 4], "validation runs")
    far = difference(list(two.validation.values()), list(one.validation.values()))
    checks.that(far <= LOSS_RTOL, f"validation losses of two layouts differ by {far:.1e}")
    text = launch(1, ["sample", one.checkpoint(4), "--prompt", "ab", "--tokens", "9"])
    checks.that(text.returncode == 0 and text.stdout.startswith("ab"), f"sample: {text.stdout[-200:]}")


def main():
    checks = Checks()
    with scratch() as folder:
        checks.each([rounds_and_scales, rounds_experts, compare_layouts, compare_experts, compare_bits, continues,
                     names_what_does_not_suit, validates_and_samples], Runner(folder, checks))
    checks.finish()


main()
