"""Planned memory against the published formulas of Korthikanti et al. 2022 (arXiv 2205.05198), section 4, for its four
models: bytes of parameters with optimizer, and of activations without recomputation and with selective recomputation
under sequence parallelism. Each row within 2 %.

The formulas count transformer layers alone. So a row is the difference between two plans that differ in the number of
layers only, 1x and 3x: embedding, head, loss and whatever else does not grow with depth cancels. The first stage is
compared, which holds the most microbatches.

With sequence s, microbatch b, width h, heads a and tensor degree t, a layer of Megatron-LM keeps
  sbh (10 + 24 / t + 5 a s / (h t))    without recomputation and sequence parallelism,
  sbh 34 / t                           with selective recomputation and sequence parallelism,
for L microbatch-layers in flight, or L (1 + (p - 1) / (p v)) where p stages of v chunks interleave. These programs
differ from Megatron-LM in what DIFFERENCES says, term by term, and the comparison is with the formula plus these terms.
"""
import json, os, tempfile

from support.runs import Checks, ROOT, launch

DECK = os.path.join(ROOT, "tests", "decks", "formulas.toml")
GIB = 2.0**30
WITHIN = 0.02
SEQUENCE = 2048
BYTES_PER_PARAMETER = 18  # bf16 copy 2, fp32 master 4, gradient 4, two moments 4 each


class Model:
    """A row of table 3, and GiB per GPU as published: parameters with optimizer, activations, activations selective."""

    def __init__(self, name, layers, width, heads, stages, chunks, micro, published):
        self.name, self.layers, self.width, self.heads, self.tensor = name, layers, width, heads, 8
        self.stages, self.chunks, self.micro, self.published = stages, chunks, micro, published

    def in_flight(self):
        """Microbatches times layers whose activations the first stage keeps."""
        more = 1 + (self.stages - 1) / (self.stages * self.chunks) if self.chunks > 1 else 1
        return self.layers * more


MODELS = [
    Model("22B", 48, 6144, 64, 1, 1, 4, (45.56, 59.25, 9.56)),
    Model("175B", 96, 12288, 96, 8, 3, 1, (45.56, 66.84, 12.35)),
    Model("530B", 105, 20480, 128, 35, 3, 1, (31.64, 114.02, 23.08)),
    Model("1T", 128, 25600, 160, 64, 1, 1, (32.96, 131.25, 26.56)),
]


def terms(m):
    """Bytes of activations per microbatch and layer: the formula's, then each difference of these programs."""
    sbh = SEQUENCE * m.micro * m.width
    sb, sba = SEQUENCE * m.micro, SEQUENCE * m.micro * m.heads
    t = m.tensor
    plain = {
        "formula": sbh * (10 + 24 / t + 5 * m.heads * SEQUENCE / (m.width * t)),
        "no dropout, so no masks": -2 * sbh,
        "fused attention keeps no scores": -5 * sba * SEQUENCE / t,
        "but their log-sum-exp": 4 * sba / t,
        "mean and rstd of the norms": 16 * sb,
    }
    selective = {
        "formula": 34 * sbh / t,
        "no dropout, so no masks": -2 * sbh / t,
        "log-sum-exp of attention": 4 * sba / t,
        "mean and rstd of the norms": 16 * sb / t,
        "results of the norms are recomputed": -4 * sbh / t,
        "q, k and v are recomputed": -6 * sbh / t,
        "results of GELU are recomputed": -8 * sbh / t,
    }
    return plain, selective


def first_stage(m, times, keys):
    """Bytes by class at the peak of the first stage, with so many times the layers."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        chunks = m.stages * m.chunks
        schedule = ["pipeline.schedule=interleaved", f"pipeline.chunks={m.chunks}"] if m.chunks > 1 else []
        # The work in flight does not depend on the number of microbatches, once there are as many as stages.
        microbatches = 2 * m.stages if m.stages > 1 else 1
        done = launch(1, [
            "plan", DECK, "--ranks", str(m.tensor * m.stages), "--json", out.name, f"model.layers={times * m.layers}",
            f"model.dim={m.width}", f"model.heads={m.heads}", f"model.ffn_dim={4 * m.width}",
            f"parallel.tp={m.tensor}", f"parallel.pp={m.stages}", f"batch.micro={m.micro}",
            f"batch.global={microbatches * m.micro}", f"pipeline.split={[times * m.layers // chunks] * chunks}",
            *schedule, *keys
        ])
        assert done.returncode == 0, done.stdout
        return json.load(out)["stages"][0]["bytes"]


def of_layers(m, keys):
    """Bytes by class that m.layers layers add to the first stage."""
    few, many = (first_stage(m, times, keys) for times in (1, 3))
    return {kind: (many[kind] - few[kind]) / 2 for kind in few}


def row(checks, name, published, formula, differences, planned):
    """All in bytes, but `published`, which is in GiB."""
    checks.that(abs(formula / GIB - published) < 0.006, f"{name}: the formula gives the published {published} GiB")
    expected = formula + sum(differences.values())
    for what, size in differences.items():
        print(f"      {size / GIB:+9.2f} GiB  {what}")
    off = planned / expected - 1
    checks.that(
        abs(off) <= WITHIN, f"{name}: formula {formula / GIB:.2f}, with the differences {expected / GIB:.2f}, "
        f"planned {planned / GIB:.2f} GiB: {100 * off:+.2f} %")


def check(checks, m):
    states_gib, *activations_gib = m.published
    plain, selective = (of_layers(m, keys) for keys in ([
        "parallel.sequence_parallel=false"
    ], ["parallel.sequence_parallel=true", "recompute.mode=selective"]))
    parameters = 12 * m.layers * m.width**2 / (m.tensor * m.stages)
    row(checks, f"{m.name} parameters and optimizer", states_gib, BYTES_PER_PARAMETER * parameters, {},
        sum(plain[kind] for kind in ("parameters", "gradients", "optimizer")))
    for name, published, parts, planned in zip(("activations", "activations, selective recomputation"),
                                               activations_gib, terms(m), (plain, selective)):
        scaled = {what: size * m.in_flight() for what, size in parts.items()}
        row(checks, f"{m.name} {name}", published, scaled.pop("formula"), scaled, planned["activations"])


def main():
    checks = Checks()
    for model in MODELS:
        check(checks, model)
    checks.finish()


main()
