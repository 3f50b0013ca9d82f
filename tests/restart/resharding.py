"""Any layout's checkpoint starts any other layout: every ordered pair of twelve layouts, with every setting of the
communication switches, and one round each with a tied GPT-2, with Muon, with experts, with both, with bf16 moments and
with layers for further tokens. The loaded state, saved again before the first step, bitwise equals the saved one; the
next step's loss agrees to rtol 1e-6."""
import os, shutil

from support.checkpoints import same_bits, tensors
from support.runs import Checks, DECK, ROOT, scratch, train
from support.share import share
from support.switches import Cover

GPT2 = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml")
DEFAULTS = {"pp": 1, "dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "ep": 1, "zero": 3, "reduce": "step",
            "context": "ring", "regather_group": 0, "schedule": "1f1b", "chunks": 1}
SECTION = {"schedule": "pipeline", "chunks": "pipeline"}
MODEL = ["model.heads=12", "model.kv_heads=6", "model.vocab=263", "batch.global=12"]
GPT2_MODEL = ["model.vocab=263", "batch.global=12"]
MUON_MODEL = ["optimizer.name=muon", "batch.global=12"]
EXPERT_MODEL = ["experts.count=12", "experts.per_token=3", "experts.ffn_dim=23", "experts.bias=true",
                "experts.bias_rate=0.01", "batch.global=12"]
SAVED, LAST = 3, 4
RTOL = 1e-6


def layout(**keys):
    return {**DEFAULTS, **keys}


LAYOUTS = [
    layout(),
    layout(pp=4, schedule="zb-h1"),
    layout(dp_replicate=2, dp_shard=2, zero=1),
    layout(dp_shard=4, regather_group=2),
    layout(cp=2),
    layout(tp=3),
    layout(pp=2, dp_shard=2, tp=2),
    layout(dp_replicate=2, cp=2, tp=2, context="all_gather"),
    layout(pp=2, schedule="interleaved", chunks=2),
    layout(pp=2, tp=2, schedule="zbv", chunks=2),
    layout(dp_shard=3, zero=2, reduce="microbatch"),
    layout(dp_shard=2, cp=3, context="all_to_all", zero=2),
]
GPT2_LAYOUTS = [layout(), layout(pp=4), layout(dp_shard=2, tp=2), layout(cp=2, tp=4, context="all_gather"),
                layout(pp=2, schedule="dualpipev", chunks=2)]
MUON_LAYOUTS = [layout(), layout(dp_shard=3, zero=1), layout(pp=2, tp=2)]
EXPERT_LAYOUTS = [layout(), layout(dp_shard=4, ep=2), layout(dp_shard=2, tp=2, ep=4), layout(tp=2),
                  layout(cp=2, dp_shard=3, ep=6, zero=1), layout(pp=2, dp_shard=2, ep=2, zero=2)]
MUON_EXPERT_MODEL = ["optimizer.name=muon", *EXPERT_MODEL]
MUON_EXPERT_LAYOUTS = [layout(), layout(dp_shard=4, ep=2), layout(dp_shard=2, tp=2, zero=2), layout(pp=2, cp=3, ep=3)]
MOMENTS = ["precision.moments=bf16"]
FURTHER_MODEL = ["model.mtp_layers=2", "model.vocab=263", "batch.global=12"]
FURTHER_LAYOUTS = [layout(), layout(pp=4), layout(dp_shard=3, zero=2), layout(pp=2, tp=2, schedule="zbv", chunks=2),
                   layout(cp=2, dp_replicate=2)]
RINGS = [(GPT2_MODEL, GPT2, GPT2_LAYOUTS), (MUON_MODEL, DECK, MUON_LAYOUTS), (EXPERT_MODEL, DECK, EXPERT_LAYOUTS),
         ([*GPT2_MODEL, *MOMENTS], GPT2, GPT2_LAYOUTS[1:]), ([*MUON_MODEL, *MOMENTS], DECK, MUON_LAYOUTS),
         (MUON_EXPERT_MODEL, DECK, MUON_EXPERT_LAYOUTS), (FURTHER_MODEL, DECK, FURTHER_LAYOUTS)]


def ranks(layout):
    return layout["pp"] * layout["dp_replicate"] * layout["dp_shard"] * layout["cp"] * layout["tp"]


def overrides(layout):
    plain = [f"{SECTION.get(key, 'parallel')}.{key}={layout[key]}" for key in DEFAULTS if layout[key] != DEFAULTS[key]]
    return plain + layout.get("switches", [])


def name(layout):
    return " ".join(override.split(".", 1)[1] for override in overrides(layout)) or "one rank"


class Source:
    """A run that saved at step 3 and continued to step 4."""

    def __init__(self, layout, home, model, deck):
        self.layout, self.model, self.deck = layout, model, deck
        run = train(home, ranks(layout),
                    [*model, *overrides(layout), f"run.steps={LAST}", f"checkpoint.every_steps={SAVED}"], deck=deck)
        self.checkpoint, self.loss = run.checkpoint(SAVED), run.steps[LAST]["loss"]
        self.state = tensors(self.checkpoint)


def check(source, target, folder, checks):
    """Loads the source's checkpoint into another layout, saves it at once and takes one step."""
    home = os.path.join(folder, "target")
    keys = [
        *source.model, *overrides(target), f"run.steps={LAST}", "checkpoint.at_start=true", "checkpoint.restart=auto"
    ]
    run = train(home, ranks(target), keys, deck=source.deck, flags=["-r", source.checkpoint])
    pair = f"{name(source.layout)} -> {name(target)}"
    checks.that(same_bits(source.state, tensors(run.checkpoint(SAVED))), f"{pair}: tensors bitwise")
    apart = abs(run.steps[LAST]["loss"] - source.loss) / source.loss
    checks.that(sorted(run.steps) == [LAST] and apart <= RTOL, f"{pair}: next loss differs by {apart:.1e}")
    shutil.rmtree(home)
    return apart


def main():
    checks, worst = Checks(), 0
    cover = Cover(map(overrides, LAYOUTS))
    cover.check(checks, "settings")
    for layout, switches in zip(LAYOUTS, cover.added):
        layout["switches"] = switches
    with scratch() as folder:
        sources = [Source(layout, os.path.join(folder, f"source{i}"), MODEL, DECK) for i, layout in enumerate(LAYOUTS)]
        for source, target in share((a, b) for a in sources for b in LAYOUTS if b is not a.layout):
            worst = max(worst, check(source, target, folder, checks))
        rings = [(model, deck, *pair) for model, deck, ring in RINGS for pair in zip(ring, ring[1:] + ring[:1])]
        for i, (model, deck, layout, target) in enumerate(share(rings)):
            source = Source(layout, os.path.join(folder, f"ring{i}"), model, deck)
            worst = max(worst, check(source, target, folder, checks))
    print(f"largest difference of a next loss: {worst:.1e}")
    checks.finish()


main()
