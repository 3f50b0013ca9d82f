"""A deck of the benchmark with as many layers and as large a batch as fit. Standard library only."""
import os, sys, tomllib

import sides
from sides import HERE
from tokens import write_random_tokens

# memory of a run outside its arena: CUDA's context and modules, cuBLAS, cuDNN
OUTSIDE_BYTES = 4 << 30
# Limit of the logits of a microbatch. Nobody trains with more.
MOST_LOGITS = 1 << 31
MICRO = sorted({n for k in range(12) for n in (2**k, 3 * 2**k)})


class Shape:
    """`o` are the options of bench.py. The search sets `layers` and `micro`; `values` is the effective deck, `plan` its
    plan."""

    def __init__(self, name, o):
        self.name, self.o = name, o
        deck, _, tokens = name.partition("@")
        self.deck = os.path.join(HERE, f"{deck}.toml")
        if not os.path.exists(self.deck):
            sys.exit(f"no shape is called {deck}; they are the decks of {HERE}")
        if tokens and not tokens.isdigit():
            sys.exit(f"{name}: after @ comes the number of tokens of a microbatch")
        self.small = bool(tokens)
        self.tokens_file, self.plans_file = (os.path.join(o.folder, f"{name}.{what}") for what in ("tokens", "plans"))
        model = self.effective([])["model"]
        self.layers, self.micro = model["layers"], 1
        self.choose(max(1, int(tokens or o.least_tokens) // model["seq_len"]),
                    MOST_LOGITS // (model["seq_len"] * model["vocab"]))
        write_random_tokens(self.tokens_file, 2 * self.micro * model["seq_len"] + 1, model["vocab"])
        self.values = self.effective(self.overrides())
        self.plan = self.planned(self.layers, self.micro)

    def overrides(self, layers=None, micro=None):
        layers, micro = layers or self.layers, micro or self.micro
        return [
            f"run.device={self.o.device}", f"model.layers={layers}", f"batch.micro={micro}", f"batch.global={micro}",
            f"run.threads={self.o.threads}", f"precision.compute={self.o.compute}", f'data.paths=["{self.tokens_file}"]'
        ]

    def effective(self, overrides):
        return tomllib.loads(sides.check(self.o.espalier, self.deck, overrides))

    def planned(self, layers, micro):
        return sides.plan(self.o.espalier, self.deck, self.overrides(layers, micro))

    def fits(self, layers, micro):
        return self.planned(layers, micro)["peak_bytes"] + OUTSIDE_BYTES <= self.o.memory

    def choose(self, least, most):
        """Chooses layers and microbatch; a small shape keeps the microbatch `least`."""
        layers = next((n for n in range(self.layers, 0, -1) if self.fits(n, least)), None)
        if layers is None:
            sys.exit(f"{self.name}: not one layer fits into {self.o.memory} bytes; --least-tokens below "
                     f"{self.o.least_tokens} asks for less")
        self.layers, self.micro = layers, least
        for micro in (m for m in MICRO if least < m <= most and not self.small):
            if not self.fits(layers, micro):
                break
            self.micro = micro

    def tokens(self):
        return self.plan["tokens_per_step"]

    def product_flops(self):
        """FLOPs of a step's GEMMs with weights: forward and both gradients."""
        m, e = self.values["model"], self.values["experts"]
        width = 3 * e["per_token"] * e["ffn_dim"] + e["count"] if e["count"] > 0 else 3 * m["ffn_dim"]
        if m["attention"] == "mla":
            q, nope = m["heads"] * m["head_dim"], m["head_dim"] - m["rope_dim"]
            attention = (m["q_rank"] * (m["dim"] + q) + m["dim"] * (m["kv_rank"] + m["rope_dim"]) +
                         m["heads"] * (m["kv_rank"] * (nope + m["v_dim"]) + m["v_dim"] * m["dim"]))
        else:
            attention = 2 * m["dim"] * (m["dim"] + self.kv_dim())
        weights = m["layers"] * (attention + m["dim"] * width) + m["vocab"] * m["dim"]
        return 6 * weights * self.tokens()

    def kv_dim(self):
        m = self.values["model"]
        return m["dim"] // m["heads"] * m["kv_heads"]

    def calibrate(self):
        arguments = ["calibrate", "--gemm-plans", self.plans_file, "--deck", self.deck, *self.overrides()]
        sides.command(self.o.espalier, arguments)

    def effective_deck(self):
        """A file with every value, for PyTorch's side."""
        path = os.path.join(self.o.folder, "effective.toml")
        with open(path, "w") as file:
            file.write(sides.check(self.o.espalier, self.deck, self.overrides()))
        return path
