"""Random decks of tiny models that train in about a second, with their own data: all families, recipes, number formats,
layouts and switches. Standard library only."""
import array, copy, itertools, math, os, random, struct

from .runs import ROOT, launch

COSTS = os.path.join(ROOT, "tests", "predict", "cpu.toml")  # a cluster whose times put ops in order
SCHEDULES = {"1f1b": [1], "gpipe": [1], "interleaved": [2, 3], "zb-h1": [1], "zb-interleaved": [2, 3], "zbv": [2],
             "dualpipev": [2]}  # chunks
MICROBATCHES = {"interleaved": 1, "zb-interleaved": 1, "dualpipev": 2}  # at least this many, times stages
GROUPS = ("dp_replicate", "dp_shard", "cp", "tp")
# Kinds of numbers, the ones with the largest rounding first. Decks of one kind have comparable differences between
# layouts.
KINDS = ("fp8", "bf16", "fp32, gradients sent in bf16", "fp32, moments in bf16", "fp32, Muon", "fp32")
WORDS = ("hedge gate frost plum orchard vine ladder spur lattice wall pear quince stake tier leader blossom "
         "a the of under beside").split()


def write_text(path, seed, words):
    """Words in random order, so that all samples differ."""
    chooser = random.Random(seed)
    with open(path, "w") as file:
        for _ in range(words):
            file.write(chooser.choice(WORDS) + chooser.choice("  ,.\n"))


def write_tokens(path, seed, count, vocab):
    chooser = random.Random(seed)
    with open(path, "wb") as file:
        file.write(struct.pack("<8sIIQQ", b"ESPTOK\0\1", 1, 2, vocab, count))
        file.write(
            array.array("H", (min(vocab - 1, int(chooser.expovariate(8 / vocab))) for _ in range(count))).tobytes())


def divisors(number):
    return [d for d in range(1, number + 1) if number % d == 0]


class PlanFailed(Exception):
    """`plan` neither accepts nor refuses a deck."""


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else str(value)


class RandomDeck:
    """A deck that `plan` accepts, written to a file. Its keys by dotted name, except data and steps: `training`
    determines the training, `layout_keys` decide how sums are grouped, and `switches` must not change a bit. `refused`
    counts draws that `plan` did not accept."""

    def __init__(self, chooser, folder, number, ranks=(1, 1, 2, 2, 3, 4)):
        self.folder, self.number, self.files, self.refused = folder, number, itertools.count(), 0
        self.allowed_ranks = ranks
        self._until_accepted(lambda: self._draw(chooser))

    def in_another_layout(self, chooser, folder):
        """The same training in another layout."""
        other = self._copy(folder)
        other._until_accepted(lambda: other._draw_layout(chooser))
        return other

    def with_other_switches(self, chooser, folder):
        """The same training in the same layout, which must have the same bits."""
        other = self._copy(folder)
        other._until_accepted(lambda: other._draw_switches(chooser))
        return other

    def with_switches(self, switches, folder):
        """The same with these switches; None if they are incompatible."""
        other = self._copy(folder)
        other.switches = switches
        other._write()
        return other if other._accepted() else None

    def alone(self, micro, folder):
        """The same training on one rank, without switches."""
        other = self._copy(folder)
        other.groups, other.micro, other.layout_keys = dict.fromkeys(GROUPS, 1), micro, {}
        other.switches = {"parallel.pp": 1}
        other._until_accepted(lambda: None)
        return other

    def with_own_data(self, folder):
        """The same deck with a copy of the data, which may be changed."""
        other = self._copy(folder)
        other.data = os.path.join(folder, f"own{self.number}-{next(self.files)}{os.path.splitext(self.data)[1]}")
        with open(self.data, "rb") as source, open(other.data, "wb") as target:
            target.write(source.read())
        other._write()
        return other

    def change_data(self, kind):
        """`kind`: "made", "grown", "cut", "other contents" (of about the same size) or "gone"."""
        if kind == "gone":
            return os.remove(self.data)
        seed, factor = self.seed + (kind == "other contents"), {"grown": 1.3, "cut": 0.8}.get(kind, 1)
        self._write_data(self.data, seed, round(self.words * factor))

    @property
    def pp(self):
        return self.switches["parallel.pp"]

    @property
    def ranks(self):
        return self.pp * math.prod(self.groups.values())

    @property
    def chunks(self):
        return self.switches.get("pipeline.chunks", 1)

    @property
    def decay_steps(self):
        return max(1, self.steps - self.warmup)

    @property
    def numbers(self):
        """One of KINDS."""
        sends = self.groups["dp_replicate"] * self.shards > 1
        holds = ("precision.matmul" in self.training, self.compute == "bf16",
                 "parallel.reduce_dtype" in self.training and sends, "precision.moments" in self.training,
                 "optimizer.name" in self.training, True)
        return KINDS[holds.index(True)]

    @property
    def micros(self):
        """Microbatch sizes that are allowed on one rank."""
        return [m for m in divisors(self._smallest_batch) if m <= 4]

    @property
    def shards(self):
        return self.groups["dp_shard"] * self.groups["cp"]

    @property
    def layout(self):
        degrees = {"pp": self.pp, **self.groups}
        text = " x ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1)
        return f"{text} {self.switches.get('pipeline.schedule', '1f1b')}, micro {self.micro}"

    def _copy(self, folder):
        other = copy.copy(self)
        other.folder, other.refused = folder, 0
        return other

    def _draw(self, chooser):
        self._draw_model(chooser)
        self._draw_numbers(chooser)
        self._draw_variants(chooser)
        self._draw_data(chooser)
        self._draw_layout(chooser)

    def _draw_model(self, chooser):
        self.family = chooser.choice(["llama", "llama", "gpt2"])
        self.layers = chooser.randint(2, 8)
        self.heads = chooser.choice([2, 3, 4, 6])
        self.kv_heads = self.heads if self.family == "gpt2" else chooser.choice(divisors(self.heads))
        self.dim = self.heads * 2 * chooser.randint(3, 8)
        self.ffn_dim = chooser.randint(17, 90)
        self.seq_len = chooser.choice([8, 12, 16, 20, 24, 36])
        self.tied = chooser.random() < 0.3
        self.samples = chooser.choice([4, 6, 8, 12])  # batch.global
        self.ramp_start = chooser.choice([0, 0, *divisors(self.samples)[:-1]])  # 0: the batch does not grow
        self.ramp_steps = chooser.randint(1, 9)
        self.steps = chooser.randint(20, 60)
        self.warmup = chooser.randint(0, 5)
        self.decay = chooser.choice(["cosine", "cosine", "linear", "constant"])
        self.lr = chooser.choice([1e-3, 2.3e-3, 4e-3])
        self.every = chooser.randint(3, 17)
        self.keep = chooser.randint(1, 4)
        self.asynchronous = chooser.random() < 0.7
        self.seed = chooser.randrange(10**6)
        self.validates = chooser.random() < 0.3

    def _draw_numbers(self, chooser):
        """Draws number formats, and how matmuls and the loss group their sums."""
        some = lambda share: chooser.random() < share
        kind = chooser.choice(["fp32", "fp32", "fp32", "bf16", "fp8"])
        self.compute = "fp32" if kind == "fp32" else "bf16"
        self.training = {"precision.compute": self.compute}
        if kind == "fp8":
            scaling = chooser.choice(["tensor", "row", "mx"])
            self.training |= {"precision.matmul": "fp8", "precision.fp8_scaling": scaling}
            if some(0.3):
                self.training["precision.bf16_matmuls"] = chooser.choice([[], ["*mlp*", "*.1.*"]])
            if some(0.7):  # fp8 only has matmuls whose dims are multiples of 16
                self.heads = self.kv_heads = chooser.choice([2, 4])
                self.dim, self.seq_len = 16 * self.heads * chooser.randint(1, 2), chooser.choice([16, 32])
                self.ffn_dim = 16 * chooser.randint(2, 6)
        if some(0.2):
            self.training["precision.moments"] = "bf16"
        if some(0.2):
            self.training["parallel.reduce_dtype"] = "bf16"
        if some(0.3):
            self.training["fusion.join_matmuls"] = chooser.choice(["qkv", "always"])
        self.loss_chunks = chooser.choice([1, 1, 0, 2, 3])
        self.training["loss.chunks"] = self.loss_chunks

    def _draw_variants(self, chooser):
        """Keys of later models and recipes: each in some of the decks that allow it."""
        some = lambda share: chooser.random() < share
        set_some = lambda share, key, values: self.training.update({key: chooser.choice(values)} if some(share) else {})
        if self.family == "llama":
            for part in ("qkv", "o", "mlp"):
                set_some(0.2, f"model.{part}_bias", [True])
            if self.training.get("precision.matmul") != "fp8":
                set_some(0.3, "model.head_dim", range(4, 17, 2))
            set_some(0.3, "model.qk_norm", ["head", "full"])
            set_some(0.2, "model.rope_dim", [2])
            set_some(0.2, "model.norm_placement", ["post"])
            set_some(0.2, "model.v_dim", range(3, 14))
            set_some(0.2, "model.rope_adjacent", [True])
            if some(0.25) and "model.qk_norm" not in self.training and "model.qkv_bias" not in self.training:
                self.kv_heads = self.heads
                self.training |= {"model.attention": "mla", "model.head_dim": 8, "model.rope_dim": 2,
                                  "model.kv_rank": chooser.choice([5, 8]), "model.q_rank": chooser.choice([0, 7]),
                                  "model.score_factor": 1.25}
            set_some(0.2, "model.sinks", [True])
            if some(0.3) and "model.mlp_bias" not in self.training:
                self._draw_experts(chooser, set_some)
            if some(0.25):
                self.training |= {"model.mtp_layers": chooser.choice([1, 2]), "loss.mtp_weight": 0.5}
            if some(0.4):
                scaling = chooser.choice(["linear", "llama3", "yarn"])
                self.training |= {"model.rope_scaling": scaling, "model.rope_factor": chooser.choice([1.5, 2.0, 4.0])}
                if scaling != "linear":
                    self.training["model.rope_original_seq_len"] = self.seq_len // 2
                if scaling == "yarn":
                    set_some(0.5, "model.rope_truncate", [False])
        for place in ("attention", *(("embedding", "residual") if self.family == "gpt2" else ())):
            set_some(0.25, f"dropout.{place}", [0.1, 0.3])
        if some(0.4):
            self.training |= {"model.sliding_window": chooser.randint(1, self.seq_len),
                              "model.full_attention_layers": chooser.randint(0, self.layers - 1)}
            set_some(0.3, "model.full_attention_every", [2, 3])
        if some(0.25):
            self.training |= {"optimizer.name": "muon", "optimizer.muon_lr": 0.004}
            set_some(0.3, "optimizer.muon_nesterov", [False])
            set_some(0.3, "optimizer.muon_scale", ["spectral"])
        embedding, norm = ("embed", "norm") if self.family == "llama" else ("wte", "ln_")
        groups = [f"*{embedding}* lr=0.5", f"*{norm}* decay=0.02", f"*.{self.layers - 1}.* lr=1.5 decay=0"]
        set_some(0.25, "optimizer.groups", [groups])
        set_some(0.3, "loss.z_loss", [1e-4, 1e-2])
        if some(0.3):
            self.training |= {"guard.spike_z": chooser.choice([3.0, 6.0]),
                              "guard.spike_window": chooser.randint(4, 20),
                              "guard.on_spike": chooser.choice(["skip", "warn"])}

    def _draw_experts(self, chooser, set_some):
        count = chooser.randint(1, 9)
        suits_fp8 = "precision.matmul" in self.training and chooser.random() < 0.7
        self.training |= {"experts.count": count, "experts.per_token": chooser.randint(1, min(count, 4)),
                          "experts.ffn_dim": 16 * chooser.randint(1, 3) if suits_fp8 else chooser.randint(5, 40)}
        set_some(0.2, "experts.mlp_bias", [True])
        set_some(0.2, "experts.router_bias", [True])
        set_some(0.2, "experts.swiglu_limit", [0.1, 7.0])
        set_some(0.3, "experts.shared_ffn_dim", range(5, 40))
        if "experts.shared_ffn_dim" in self.training:
            set_some(0.4, "experts.shared_gate", [True])
        set_some(0.4, "experts.first_layer", range(self.layers))
        set_some(0.3, "experts.every", [2, 3])
        set_some(0.4, "experts.scores", ["sigmoid"])
        set_some(0.3, "experts.normalize", [False])
        set_some(0.3, "experts.scale", [2.5])
        set_some(0.4, "experts.balance_loss", [0.01])
        set_some(0.4, "experts.z_loss", [0.001])
        groups = [n for n in divisors(count) if n > 1 and count // n >= self.training["experts.per_token"]]
        if groups:
            set_some(0.4, "experts.groups", groups)
        if chooser.random() < 0.3:
            self.training |= {"experts.bias": True, "experts.bias_rate": 0.01}

    def _draw_data(self, chooser):
        self.format = chooser.choice(["text", "tokens"])
        self.vocab = chooser.randint(256, 300) if self.format == "text" else chooser.randint(30, 300)
        self.data = os.path.join(self.folder, f"data{self.number}.{'txt' if self.format == 'text' else 'tokens'}")
        self.words = chooser.randint(500, 3000) if self.format == "text" else chooser.randint(3000, 20000)
        self.change_data("made")
        if chooser.random() < 0.4:
            end = ord(".") if self.format == "text" else chooser.randrange(5)
            self.training |= {"data.isolate_documents": True, "data.end_token": end}
        self.second = os.path.join(self.folder, f"second{os.path.basename(self.data)}")
        self.blended = chooser.random() < 0.3
        if self.blended:
            self.training["data.weights"] = [chooser.choice([0.7, 3, 1]), chooser.choice([0.3, 1])]
            self._write_data(self.second, self.seed + 5, self.words // 2)

    def _write_data(self, path, seed, words):
        if self.format == "text":
            write_text(path, seed, words)
        else:
            write_tokens(path, seed, words, self.vocab)

    @property
    def _smallest_batch(self):
        return self.ramp_start or self.samples

    def _suits(self, pp, groups):
        """Whether degrees, in the order of GROUPS, divide their sizes."""
        replicate, shard, cp, tp = groups
        return (pp <= self.layers and self.heads % tp == 0 and (self.kv_heads % tp == 0 or tp % self.kv_heads == 0) and
                (cp == 1 or self.seq_len % (2 * cp) == 0) and self.seq_len // cp >= self.loss_chunks and
                self._smallest_batch % (replicate * shard) == 0)

    def _draw_layout(self, chooser):
        ways = []
        while not ways:
            ranks = chooser.choice(self.allowed_ranks)
            ways = [way for way in itertools.product(divisors(ranks), repeat=5)
                    if math.prod(way) == ranks and self._suits(way[0], way[1:])]
        pp, *groups = chooser.choice(ways)
        self.groups = dict(zip(GROUPS, groups))
        cp, tp = self.groups["cp"], self.groups["tp"]
        rows = self._smallest_batch // (self.groups["dp_replicate"] * self.groups["dp_shard"])
        self.micro = chooser.choice([m for m in divisors(rows) if m <= 3])
        self.layout_keys = {"parallel.reduce": chooser.choice(["microbatch", "step"])}
        if cp > 1:
            turns = math.gcd(self.heads, self.kv_heads) % (cp * tp) == 0
            self.layout_keys["parallel.context"] = chooser.choice(["ring", "all_gather", *["all_to_all"] * turns])
        if tp > 1:
            for key in ("sequence_parallel", "loss_parallel"):
                self.layout_keys[f"parallel.{key}"] = chooser.random() < 0.8
        if "experts.count" in self.training:
            self.layout_keys["experts.buffer"] = chooser.choice([0.25, 0.5, 1.0, 1.5, 9.0])
            self.layout_keys["parallel.ep"] = chooser.choice(self._expert_degrees())
        self._draw_switches(chooser, [pp])

    def _expert_degrees(self):
        """ep: tp if that divides it, then cp if that divides the rest, then a divisor of dp_shard."""
        def rest(ep):
            for axis in ("tp", "cp"):
                ep = ep // self.groups[axis] if ep % self.groups[axis] == 0 else ep
            return ep
        return [ep for ep in divisors(self.training["experts.count"]) if self.groups["dp_shard"] % rest(ep) == 0]

    def _draw_switches(self, chooser, stages=None):
        most = max(self.allowed_ranks) // math.prod(self.groups.values())
        pp = chooser.choice(stages or [pp for pp in range(1, most + 1) if self._suits(pp, self.groups.values())])
        rows = self._smallest_batch // (self.groups["dp_replicate"] * self.groups["dp_shard"])
        schedule, chunks = chooser.choice([(schedule, chunks) for schedule, all in SCHEDULES.items() for chunks in all
                                           if pp * chunks <= self.layers and
                                           rows // self.micro >= pp * MICROBATCHES.get(schedule, 0)])
        whole = self.layout_keys["parallel.reduce"] == "step" and self.shards > 1
        self.switches = {"parallel.pp": pp, "pipeline.schedule": schedule, "pipeline.chunks": chunks,
                         "parallel.zero": chooser.choice([1, 3] if whole else [1, 2, 3]),
                         "recompute.mode": chooser.choice(["none", "selective", "full"]),
                         "overlap.interleave": chooser.choice([True, False]),
                         "offload.optimizer": chooser.choice([0, 0, 0.5, 1]),
                         "offload.activations": chooser.choice([0, 0, 0.5, 1]),
                         "offload.parameters": chooser.choice([0, 0, 0.5, 1]),
                         "offload.gradients": chooser.choice([0, 0, 0.5, 1]),
                         "offload.chunk_bytes": chooser.choice([1024, 5000, 1 << 26])}
        if self.switches["parallel.zero"] == 3 and self.shards > 1:
            self.switches |= {"recompute.regather": chooser.choice(["auto", "always", "never"]),
                              "overlap.prefetch": chooser.randint(0, 2)}
            if self.groups["dp_shard"] == 4:
                self.switches["parallel.regather_group"] = chooser.choice([0, 2, 2])
        if self.groups["tp"] > 1:
            self.switches |= {"overlap.tensor": chooser.choice([True, False]),
                              "overlap.tensor_strips": chooser.randint(0, 3)}
        if self.groups["cp"] > 1:
            self.switches["overlap.context"] = chooser.choice([True, False])
        if "experts.count" in self.training:
            self.switches["overlap.experts"] = chooser.choice([True, False])
        if math.prod(self.groups.values()) > 1:
            self.switches |= {"overlap.gradients": chooser.choice([True, False]),
                              "run.costs": chooser.choice(["", COSTS])}
        if self.groups["dp_replicate"] * self.groups["dp_shard"] > 1:
            self.switches["guard.recompute_steps"] = chooser.choice([0, 3])

    @property
    def _keys(self):
        """All of them, by dotted name."""
        validation = {"data.validation": [self.data], "data.validate_every_steps": 7,
                      "data.validate_sequences": self.samples} if self.validates else {}
        return {
            "run.steps": self.steps, "run.seed": self.seed, "run.threads": 1,
            "model.family": self.family, "model.layers": self.layers, "model.dim": self.dim, "model.heads": self.heads,
            "model.kv_heads": self.kv_heads, "model.ffn_dim": self.ffn_dim, "model.vocab": self.vocab,
            "model.seq_len": self.seq_len, "model.tie_embeddings": self.tied, "model.init_std": 0.07,
            "batch.global": self.samples, "batch.micro": self.micro, "batch.ramp_start": self.ramp_start,
            "batch.ramp_steps": self.ramp_steps, "optimizer.lr": self.lr, "lr.warmup_steps": self.warmup,
            "lr.decay": self.decay, "data.format": self.format,
            "data.paths": [self.data, self.second] if self.blended else [self.data], **validation,
            "checkpoint.every_steps": self.every, "checkpoint.keep": self.keep,
            "checkpoint.asynchronous": self.asynchronous, "report.every_steps": 10,
            **{f"parallel.{axis}": degree for axis, degree in self.groups.items()},
            **self.training, **self.layout_keys, **self.switches
        }

    @property
    def text(self):
        sections = {}
        for key, value in self._keys.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"{name} = {toml(value)}\n")
        return "".join(f"[{section}]\n{''.join(lines)}" for section, lines in sections.items())

    def _write(self):
        self.path = os.path.join(self.folder, f"deck{self.number}-{next(self.files)}.toml")
        with open(self.path, "w") as file:
            file.write(self.text)

    def _accepted(self):
        done = launch(1, ["plan", self.path, "--ranks", str(self.ranks)])
        if done.returncode not in (0, 2):
            raise PlanFailed(f"plan ends with {done.returncode}\n{done.stdout}\n{self.text}")
        return done.returncode == 0

    def _until_accepted(self, draw):
        while True:
            draw()
            self._write()
            if self._accepted():
                return
            self.refused += 1
