"""The layouts that tests use: degrees of all axes, with keys that change the model, keys that must not change its
numbers, and settings of the communication switches. tests/mpi/matrix.py trains each; tests/predict/simulate.py
simulates each."""
import os

from support.runs import DECK, ROOT
from support.switches import Cover

GPT2 = os.path.join(ROOT, "tests", "decks", "small_gpt2.toml")
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
# Keys that change the model, and with it the numbers.
MANY_HEADS = ["model.heads=8", "model.kv_heads=4"]
UNEVEN = ["model.ffn_dim=89", "model.vocab=263"]
THREES = ["model.dim=54", "model.heads=9", "model.kv_heads=3", "model.ffn_dim=89", "model.vocab=263", "batch.global=12"]
ONE_KV_HEAD = ["model.kv_heads=1"]
FEW_ROWS = [*ONE_KV_HEAD, "model.head_dim=2"]
EIGHT_LAYERS = ["model.layers=8"]
TIED = ["model.tie_embeddings=true"]
GROUPS = ["optimizer.groups=['*norm.weight lr=0.5 decay=0.2', '*.self_attn.* lr=2', '*embed* decay=0']"]
Z_LOSS = "loss.z_loss=0.01"
MUON = ["optimizer.name=muon"]
MOMENTS = ["precision.moments=bf16"]
UNTIED = ["model.tie_embeddings=false"]
WINDOW = ["model.sliding_window=7"]
SOME_WINDOWS = ["model.sliding_window=3", "model.full_attention_layers=2"]
DOCUMENTS = ["data.isolate_documents=true", "data.end_token=32"]  # each word is a document
BIASES = [f"model.{part}_bias=true" for part in ("qkv", "o", "mlp")]
WIDE_HEADS, NARROW_HEADS = ["model.head_dim=14"], ["model.head_dim=6"]  # other widths than dim / heads
EACH_HEAD, ALL_HEADS = ["model.qk_norm=head"], ["model.qk_norm=full"]
POST = ["model.norm_placement=post"]
SINKS = ["model.sinks=true"]
LLAMA31 = ["model.rope_scaling=llama3", "model.rope_factor=4.0", "model.rope_original_seq_len=64"]
YARN = ["model.rope_scaling=yarn", "model.rope_factor=4.0", "model.rope_original_seq_len=64"]
EXPERTS = ["experts.count=5", "experts.per_token=2", "experts.ffn_dim=23"]
SOME_EXPERTS = [*EXPERTS, "experts.first_layer=1", "experts.shared_ffn_dim=17"]
SHARED_OUT = ["experts.count=8", "experts.per_token=3", "experts.ffn_dim=23"]
# Experts of gpt-oss: limits that some gates and ups exceed.
BIASED_EXPERTS = ["experts.mlp_bias=true", "experts.router_bias=true", "experts.swiglu_limit=0.05"]
GPT_OSS = ["model.sinks=true", "model.sliding_window=7", "model.full_attention_every=2", "model.qkv_bias=true",
           "model.o_bias=true", "model.head_dim=6", "model.rope_scaling=yarn", "model.rope_factor=4.0",
           "model.rope_original_seq_len=64", "model.rope_truncate=false", "experts.count=8", "experts.per_token=3",
           "experts.ffn_dim=23", *BIASED_EXPERTS]
SIGMOID = ["experts.scores=sigmoid", "experts.scale=2.5"]
# DeepSeek-V3's router, and GLM-4.5's rotation of half of each head.
GROUPED_EXPERTS = ["experts.count=6", "experts.per_token=3", "experts.ffn_dim=23", "experts.groups=3",
                   "experts.top_groups=2", "experts.bias=true", "experts.bias_rate=0.01", "experts.scores=sigmoid"]
GROUPED = [*GROUPED_EXPERTS, "model.rope_dim=4"]
# Multi-head latent attention with and without a latent of queries; half of a key is rotated, and values are narrower.
MLA = ["model.attention=mla", "model.kv_heads=4", "model.head_dim=12", "model.rope_dim=6", "model.v_dim=10",
       "model.q_rank=14", "model.kv_rank=9", "model.rope_adjacent=true"]
MLA_OF_STREAM = [*MLA[:-3], "model.q_rank=0", *MLA[-2:]]
ROUTER_LOSSES = ["experts.balance_loss=0.01", "experts.z_loss=0.001"]
FURTHER, FURTHER2 = (["loss.mtp_weight=0.5", f"model.mtp_layers={n}"] for n in (1, 2))
# Dropout of attention alone, and of all places of GPT-2.
DROPS = ["dropout.attention=0.2"]
ALL_DROPS = ["dropout.embedding=0.1", "dropout.residual=0.3", *DROPS]
RAMP = ["batch.ramp_start=4", "batch.ramp_step=6", "batch.ramp_steps=2"]  # steps of 4, 4, 10, 10 and 16 sequences
# Keys that must not change the numbers.
ALL_GATHER, ALL_TO_ALL, RING = (f"parallel.context={c}" for c in ("all_gather", "all_to_all", "ring"))
ZERO1, ZERO2, ZERO3 = (f"parallel.zero={z}" for z in (1, 2, 3))
EACH = "parallel.reduce=microbatch"
SELECTIVE, FULL, ATTENTION_AGAIN = (f"recompute.mode={mode}" for mode in ("selective", "full", "attention"))
ALWAYS, NEVER = "recompute.regather=always", "recompute.regather=never"
JOIN = "fusion.join_matmuls=always"
EP2, EP3, EP4, EP8 = (f"parallel.ep={n}" for n in (2, 3, 4, 8))
BUFFER = [f"experts.buffer={share}" for share in (0.25, 0.5, 1.0, 100.0)]
NO_SP, NO_LP = "parallel.sequence_parallel=false", "parallel.loss_parallel=false"


def schedule(name, chunks=None):
    return [f"pipeline.schedule={name}"] + ([f"pipeline.chunks={chunks}"] if chunks else [])


class Row:
    """pp, dp_replicate, dp_shard, cp, tp; then overrides of the deck."""

    def __init__(self, degrees, model=(), keys=(), deck=DECK, steps=5, compute="fp32"):
        self.degrees, self.deck, self.compute = degrees, deck, compute
        self.model = [*model, "optimizer.eps=1e-6", f"run.steps={steps}", f"precision.compute={compute}"]
        self.keys = [*keys, *(f"parallel.{axis}={n}" for axis, n in zip(AXES, degrees))]
        self.ranks = 1
        for n in degrees:
            self.ranks *= n
        family = "gpt2 " if deck == GPT2 else ""
        long = [f"{steps} steps"] if steps != 5 else []
        short = [k.split(".", 1)[1] for k in (*model, *keys)]
        self.name = " ".join(["x".join(map(str, degrees)), family + compute, *long, *short])
        self.switches = []

    def set(self, switches):
        """Adds keys that must not change the numbers. The name stays."""
        self.switches, self.keys = switches, [*self.keys, *switches]

    def predicts_further(self):
        """With layers for further tokens there is a metric mtp_loss."""
        return any(key.startswith("model.mtp_layers=") for key in self.model)

    def __str__(self):
        return " ".join([self.name, *(["with"] if self.switches else []), *self.switches])


def cover(rows):
    """Sets the switches of the rows."""
    return Cover([[*row.model, *row.keys] for row in rows])


def muon_of_experts(add, half):
    """Muon with a matrix for each expert: on all ranks, or on some of them with the rest spread, or on none; where ZeRO
    has whole matrices and where it has rows."""
    model = [*SHARED_OUT, *MUON]
    add(1, 1, 2, 1, 2, model=model, keys=[EP2])
    for zero in (ZERO1, ZERO2, ZERO3):
        add(1, 1, 4, 1, 1, model=model, keys=[zero])
        add(1, 1, 4, 1, 1, model=model, keys=[EP2, zero, BUFFER[1]])
    add(1, 1, 1, 1, 2, model=model)
    add(1, 1, 2, 2, 1, model=model, keys=[EP4, RING])
    add(1, 1, 8, 1, 1, model=model, keys=[EP8])
    add(2, 1, 2, 1, 1, model=model, keys=[EP2, FULL])
    add(2, 2, 1, 1, 1, model=model, keys=[SELECTIVE, EACH])
    add(2, 1, 2, 1, 2, model=[*MUON, *EXPERTS], keys=[ZERO2, EACH])  # five matrices on four ranks
    add(1, 1, 4, 1, 2, model=[*MUON, *EXPERTS], keys=[ZERO3])  # on four of eight
    add(1, 1, 4, 1, 2, model=[*model, "experts.count=3", "experts.per_token=2"])  # on two of eight
    add(1, 1, 8, 1, 1, model=[*MUON, *EXPERTS], keys=["parallel.regather_group=2"])  # two of four
    add(1, 1, 6, 1, 1, model=[*MUON, *GROUPED, "batch.global=12"], keys=[EP3, ZERO3])
    add(1, 1, 2, 1, 2, model=[*MUON, *SOME_EXPERTS, "experts.shared_gate=true", "optimizer.muon_scale=spectral"],
        keys=[ZERO3])
    add(2, 1, 2, 1, 1, model=[*EIGHT_LAYERS, *model, "experts.every=2", "optimizer.muon_nesterov=false"],
        keys=[EP2, *schedule("zbv", 2)])
    add(1, 1, 2, 1, 2, model=[*MOMENTS, *model], keys=[EP2])
    add(1, 1, 3, 1, 1, model=[*MOMENTS, *model, "batch.global=12"], keys=[ZERO1])
    half(1, 1, 2, 1, 2, model=model, keys=[EP2])
    half(1, 1, 4, 1, 1, model=[*MUON, *EXPERTS], keys=[ZERO3])


def table():
    """The rows of the matrix, with settings of the switches such that every pair of settings occurs."""
    rows = plain_table()
    for row, switches in zip(rows, cover(rows).added):
        row.set(switches)
    return rows


def plain_table():
    """Degrees are pp x dp_replicate x dp_shard x cp x tp."""
    rows = []
    add = lambda *degrees, **more: rows.append(Row(degrees, **more))

    # Each axis alone, with degrees 2, 3 and 4.
    for n in (2, 4):
        add(n, 1, 1, 1, 1)
        add(1, n, 1, 1, 1)
        add(1, 1, n, 1, 1)
        add(1, 1, 1, n, 1, keys=[RING])
        add(1, 1, 1, 1, n, model=MANY_HEADS, steps=20)
    add(3, 1, 1, 1, 1, model=["batch.global=4"])
    for axis in range(1, 5):
        degrees = [1] * 5
        degrees[axis] = 3
        add(*degrees, model=THREES, steps=20)
    for context in (ALL_GATHER, ALL_TO_ALL):
        add(1, 1, 1, 2, 1, keys=[context])
        add(1, 1, 1, 4, 1, model=MANY_HEADS, keys=[context])
        add(1, 1, 1, 3, 1, model=THREES, keys=[context])
    # Five rows over four ranks: shards of 2, 2, 1 and 0.
    narrow = ["model.dim=10", "model.heads=5", "model.kv_heads=5", "model.ffn_dim=5"]
    add(1, 1, 4, 1, 1, model=narrow)
    add(1, 1, 4, 1, 1, model=narrow, keys=[ZERO2, EACH])
    add(1, 2, 4, 1, 1, model=narrow, keys=[ZERO1])
    add(1, 1, 4, 1, 2, model=["model.dim=4", "model.heads=2", "model.kv_heads=1", "model.ffn_dim=5", "model.vocab=263"])

    # All pairs.
    for i in range(5):
        for j in range(i + 1, 5):
            add(*(2 if a in (i, j) else 1 for a in range(5)))
    # All triples, each time with another kind of context parallelism.
    ways = [RING, ALL_GATHER, ALL_TO_ALL]
    for i in range(5):
        for j in range(i + 1, 5):
            for k in range(j + 1, 5):
                degrees = [2 if a in (i, j, k) else 1 for a in range(5)]
                context = [ways[len(rows) % 3]] if degrees[3] > 1 else []
                add(*degrees, model=MANY_HEADS if context == [ALL_TO_ALL] else [], keys=context)
    # Four axes together; HSDP 2x2 with tp, with cp, and with both.
    for context in ways:
        add(2, 1, 2, 2, 2, model=MANY_HEADS, keys=[context], steps=20 if context == RING else 5)
    add(1, 2, 2, 1, 2, steps=20)
    add(1, 2, 2, 2, 1, steps=20)
    add(1, 2, 2, 2, 2)
    add(2, 2, 2, 1, 2)
    add(2, 2, 2, 2, 1)

    # Every schedule with tp 2 and dp 2; V schedules, and interleaved with two and four chunks.
    for name in ("gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "dualpipev"):
        chunks = 2 if name in ("interleaved", "zbv", "dualpipev") else None
        add(2, 1, 2, 1, 2, keys=schedule(name, chunks))
        add(2, 1, 2, 1, 2, model=EIGHT_LAYERS, keys=[*schedule(name, chunks), EACH])
        add(2, 1, 1, 2, 2, model=TIED, keys=schedule(name, chunks))
        add(2, 2, 1, 1, 2, model=UNTIED, keys=[*schedule(name, chunks), ZERO2, SELECTIVE])
    add(2, 1, 2, 1, 1, model=EIGHT_LAYERS, keys=schedule("interleaved", 4))
    add(4, 1, 1, 1, 2, model=EIGHT_LAYERS, keys=schedule("interleaved", 2))
    add(4, 1, 1, 1, 2, model=EIGHT_LAYERS, keys=schedule("zbv", 2))
    add(4, 1, 1, 1, 2, model=EIGHT_LAYERS + TIED, keys=schedule("dualpipev", 2))
    add(4, 1, 2, 1, 1, model=TIED, keys=schedule("zb-h1"))
    add(3, 1, 1, 1, 1, model=["batch.global=6", "model.layers=7"],
        keys=[*schedule("interleaved", 2), "pipeline.split=[1,1,2,1,1,1]"])

    # Sharded states: zero, when gradients are reduced, when parameters are gathered.
    for zero in (ZERO1, ZERO2, ZERO3):
        add(1, 1, 2, 1, 1, keys=[zero])
        add(1, 1, 2, 1, 2, keys=[zero, EACH])
        add(1, 2, 2, 1, 1, keys=[zero, EACH])
        add(2, 1, 2, 1, 1, keys=[zero])
        add(1, 1, 2, 2, 1, keys=[zero])
    # Weights of keys and values with fewer rows than shards: ZeRO shards their columns.
    add(1, 1, 4, 1, 1, model=FEW_ROWS, keys=[ZERO3])
    add(1, 1, 4, 1, 2, model=FEW_ROWS, keys=[ZERO2, EACH])
    add(1, 2, 2, 2, 1, model=[*FEW_ROWS, *MUON], keys=[RING])
    for regather in (ALWAYS, NEVER):
        add(1, 1, 2, 1, 1, keys=[regather])
        add(2, 1, 2, 1, 2, keys=[ZERO3, regather])
        add(1, 1, 2, 2, 1, keys=[regather, "overlap.prefetch=2"])
    add(1, 1, 2, 1, 2, keys=["overlap.prefetch=0", "overlap.tensor=false"])
    add(2, 2, 2, 1, 1, keys=["overlap.gradients=false"])
    add(1, 2, 2, 1, 2, keys=["overlap.gradients=false"])
    # One microbatch per step.
    add(1, 2, 2, 1, 1, model=["batch.global=4"])
    add(2, 1, 2, 1, 1, model=["batch.global=2"], keys=[ZERO2])
    # Strips of rows: of the sequence, uneven, under cp, of a batch, without sequence parallelism.
    strips = "overlap.tensor_strips=2"
    add(1, 1, 1, 1, 2, keys=[strips], steps=20)
    add(2, 1, 2, 1, 2, keys=["overlap.tensor_strips=3", SELECTIVE])
    add(1, 1, 1, 2, 2, keys=[strips, RING])
    add(1, 1, 1, 1, 2, model=["batch.micro=2"], keys=[strips, FULL])
    add(2, 1, 1, 1, 3, model=THREES, keys=[strips])
    add(1, 1, 2, 1, 2, keys=[strips, NO_SP])
    add(1, 1, 1, 1, 4, model=ONE_KV_HEAD, keys=[strips])
    # Recompute.
    for mode in (SELECTIVE, FULL):
        add(1, 1, 1, 1, 2, keys=[mode])
        add(1, 1, 2, 1, 2, keys=[mode, ALWAYS])
        add(2, 1, 1, 2, 1, keys=[mode])
        add(2, 1, 2, 1, 2, keys=[mode])
    # Tensor parallel without sequence or loss parallelism, uneven, and with more ranks than kv heads.
    add(1, 1, 1, 1, 2, keys=[NO_SP])
    add(1, 1, 1, 1, 2, keys=[NO_LP])
    add(2, 1, 2, 1, 2, keys=[NO_SP, NO_LP])
    add(1, 1, 1, 2, 2, keys=[NO_SP, NO_LP, RING])
    add(1, 1, 1, 1, 2, model=[*UNEVEN, "model.seq_len=23"])
    add(2, 1, 1, 1, 3, model=THREES)
    add(1, 1, 3, 1, 2, model=["batch.global=12", *UNEVEN, *TIED])
    add(1, 1, 1, 1, 4, model=ONE_KV_HEAD)
    add(1, 1, 1, 1, 4, steps=20)
    add(1, 1, 2, 1, 4, model=ONE_KV_HEAD, keys=[NO_SP])
    add(2, 1, 1, 2, 4)
    add(1, 2, 1, 2, 2, model=ONE_KV_HEAD, keys=[ALL_GATHER])
    add(1, 2, 1, 1, 4, model=[*ONE_KV_HEAD, "model.seq_len=23"])
    add(1, 1, 1, 1, 6, model=["model.heads=6", "model.kv_heads=3"])
    add(1, 1, 1, 2, 3, model=THREES)
    # Tied embeddings.
    add(1, 1, 2, 1, 2, model=TIED)
    add(2, 1, 2, 1, 2, model=TIED)
    add(4, 1, 1, 1, 1, model=TIED)
    add(1, 1, 2, 1, 2, model=[*TIED, "batch.micro=2"])
    add(1, 1, 2, 1, 4, model=TIED)
    add(2, 1, 1, 1, 3, model=[*THREES, *TIED])

    # Sliding windows, isolated documents, and both.
    for context in ways:
        add(1, 1, 1, 2, 1, model=WINDOW, keys=[context])
        add(1, 1, 1, 2, 1, model=DOCUMENTS, keys=[context])
        add(2, 1, 2, 2, 2, model=[*MANY_HEADS, *SOME_WINDOWS, *DOCUMENTS], keys=[context])
    add(1, 1, 1, 4, 1, model=WINDOW, keys=[RING])  # shorter than two chunks: some hops are masked
    add(1, 1, 1, 3, 1, model=[*THREES, *WINDOW, *DOCUMENTS], keys=[ALL_GATHER])
    add(2, 1, 1, 1, 2, model=[*WINDOW, *DOCUMENTS], keys=[strips, FULL])
    add(1, 2, 2, 1, 1, model=DOCUMENTS, keys=[SELECTIVE])
    add(2, 1, 1, 1, 2, model=[*EIGHT_LAYERS, *SOME_WINDOWS, *DOCUMENTS], keys=schedule("dualpipev", 2))
    add(1, 1, 1, 1, 4, model=[*ONE_KV_HEAD, *WINDOW, *DOCUMENTS])
    add(1, 1, 2, 1, 1, model=["batch.micro=2", *DOCUMENTS])
    # Biases, heads of another width, norms of queries and keys, norms after each half of a layer: in pairs, with tp and
    # with kv heads that several ranks share.
    add(1, 1, 1, 1, 2, model=[*BIASES, *EACH_HEAD], steps=20)
    add(1, 1, 1, 1, 4, model=[*ONE_KV_HEAD, *BIASES, *ALL_HEADS])
    add(2, 1, 2, 1, 2, model=[*POST, *ALL_HEADS], steps=20)
    add(1, 1, 1, 2, 2, model=[*POST, *EACH_HEAD, *BIASES], keys=[RING])
    add(1, 1, 2, 2, 1, model=[*ALL_HEADS, *WIDE_HEADS, *YARN], keys=[ALL_GATHER])
    add(1, 1, 2, 1, 2, model=[*EACH_HEAD, *NARROW_HEADS, *LLAMA31], keys=[SELECTIVE])
    add(2, 1, 1, 1, 2, model=[*POST, *ALL_HEADS, *BIASES], keys=[strips, FULL])
    add(1, 1, 1, 1, 2, model=[*POST, *WIDE_HEADS, *BIASES], keys=[NO_SP, SELECTIVE])
    add(1, 1, 1, 1, 4, model=[*POST, *EACH_HEAD, *BIASES, *WIDE_HEADS])
    add(1, 1, 1, 1, 3, model=[*THREES, *ALL_HEADS, *BIASES, "model.head_dim=10"])
    add(2, 1, 2, 1, 2, model=[*ALL_HEADS, *BIASES, *TIED], keys=schedule("zbv", 2))
    add(1, 1, 1, 2, 2, model=[*MANY_HEADS, *ALL_HEADS, *NARROW_HEADS], keys=[ALL_TO_ALL, strips])

    # GPT-2, tied and untied.
    gpt2 = lambda *degrees, **more: add(*degrees, deck=GPT2, **more)
    gpt2(2, 1, 1, 1, 1)
    gpt2(1, 1, 2, 1, 1)
    gpt2(1, 1, 1, 2, 1)
    gpt2(1, 1, 1, 1, 2, steps=20)
    gpt2(1, 1, 4, 1, 1, keys=[ZERO2, EACH])
    gpt2(4, 1, 1, 1, 1, model=UNTIED)
    gpt2(2, 1, 2, 1, 2, steps=20)
    gpt2(2, 1, 1, 1, 2, keys=[strips])
    gpt2(1, 2, 1, 1, 2, model=UNTIED, keys=[NO_SP])
    gpt2(2, 1, 1, 2, 2, keys=[ALL_GATHER, FULL])
    gpt2(1, 1, 2, 2, 1, keys=[ALL_TO_ALL, SELECTIVE])
    gpt2(2, 1, 1, 1, 2, keys=schedule("zbv", 2))
    gpt2(2, 1, 2, 1, 1, keys=schedule("interleaved", 2))
    gpt2(2, 1, 2, 2, 2, model=["model.vocab=263"])
    gpt2(1, 1, 2, 2, 2, model=["model.dim=28"])  # heads of 7
    gpt2(1, 1, 1, 2, 1, model=DOCUMENTS, keys=[ALL_TO_ALL])
    gpt2(2, 1, 1, 2, 2, model=[*DOCUMENTS, *SOME_WINDOWS], keys=[RING, FULL])
    gpt2(1, 2, 2, 1, 1, model=DOCUMENTS)

    # Dropout: the same elements in any layout. With dp and microbatches, with every kind of cp and with windows and
    # documents, with shared kv heads, strips, recomputation and schedules, and with uneven sizes.
    for context in ways:
        add(1, 1, 1, 2, 1, model=DROPS, keys=[context])
        gpt2(2, 1, 1, 2, 2, model=[*ALL_DROPS, *DOCUMENTS, *SOME_WINDOWS], keys=[context, FULL])
    add(1, 2, 2, 1, 1, model=[*DROPS, "batch.micro=2"])
    add(1, 1, 1, 1, 4, model=[*DROPS, *ONE_KV_HEAD], steps=20)
    add(1, 1, 3, 1, 2, model=["batch.global=12", *UNEVEN, *DROPS, "model.seq_len=23"], keys=[JOIN])
    gpt2(1, 1, 1, 1, 2, model=ALL_DROPS, steps=20)
    gpt2(1, 1, 2, 1, 2, model=[*ALL_DROPS, "model.seq_len=23", "model.vocab=263", "batch.micro=2"], keys=[strips])
    gpt2(1, 1, 1, 1, 3, model=[*ALL_DROPS, "model.dim=54", "model.heads=9", "model.seq_len=23"], keys=[strips])
    gpt2(1, 2, 1, 1, 2, model=ALL_DROPS, keys=[NO_SP, SELECTIVE])
    gpt2(2, 1, 2, 1, 1, model=ALL_DROPS, keys=[*schedule("zbv", 2), EACH])
    gpt2(2, 1, 2, 1, 2, model=[*ALL_DROPS, *RAMP], keys=schedule("zbv", 2))

    # Optimizer settings for some parameters, or for all.
    add(2, 1, 2, 1, 2, model=GROUPS)
    add(2, 1, 2, 1, 2, model=[Z_LOSS, *UNEVEN])
    add(2, 1, 2, 1, 2, model=["guard.spike_z=0.5", "guard.spike_window=2"])
    add(1, 1, 2, 2, 2, model=[Z_LOSS], keys=[NO_LP, RING])
    add(2, 1, 2, 1, 2, model=MUON)
    add(1, 1, 4, 1, 1, model=[*MUON, *narrow], keys=[ZERO1])
    add(1, 2, 2, 2, 1, model=MUON)
    add(1, 1, 2, 1, 4, model=[*MUON, *ONE_KV_HEAD, "optimizer.muon_nesterov=false"])
    add(1, 1, 1, 1, 3, model=[*MUON, *THREES, "optimizer.muon_scale=spectral"])
    gpt2(1, 1, 2, 1, 2, model=MUON)

    # A batch that grows.
    add(2, 1, 2, 1, 2, model=RAMP)
    add(1, 2, 1, 2, 1, model=RAMP, keys=[RING])
    add(2, 1, 1, 1, 2, model=RAMP, keys=schedule("zbv", 2))
    gpt2(1, 1, 2, 1, 2, model=[*RAMP, Z_LOSS])

    # bf16.
    half = lambda *degrees, **more: add(*degrees, compute="bf16", **more)
    half(2, 1, 1, 1, 1)
    half(1, 2, 1, 1, 1)
    half(1, 1, 2, 1, 1)
    half(1, 1, 1, 2, 1, keys=[RING])
    half(1, 1, 1, 2, 1, keys=[ALL_TO_ALL])
    half(1, 1, 1, 1, 2)
    half(1, 1, 1, 1, 4)
    half(2, 1, 2, 1, 2, keys=[ZERO3])
    half(1, 1, 2, 2, 2)
    half(2, 1, 2, 2, 2, keys=[ZERO3])
    half(2, 1, 2, 1, 2, keys=[*schedule("zbv", 2), FULL])
    half(1, 2, 2, 1, 2, keys=[EACH, ZERO2])
    half(2, 1, 2, 1, 2, deck=GPT2)
    half(1, 1, 2, 1, 2, model=MUON)
    half(1, 1, 1, 2, 2, model=[*WINDOW, *DOCUMENTS], keys=[RING])
    half(2, 1, 1, 2, 1, model=[*WINDOW, *DOCUMENTS], keys=[ALL_TO_ALL])
    half(2, 1, 2, 1, 2, model=[*POST, *ALL_HEADS])
    half(1, 1, 1, 1, 4, model=[*EACH_HEAD, *BIASES])
    half(1, 1, 2, 2, 1, model=[*BIASES, *WIDE_HEADS, *LLAMA31], keys=[SELECTIVE])

    # Moments of bf16.
    add(2, 1, 1, 1, 1, model=MOMENTS, steps=20)
    add(1, 1, 1, 1, 3, model=[*THREES, *MOMENTS])
    add(1, 1, 1, 2, 1, model=MOMENTS, keys=[RING])
    for zero in (ZERO1, ZERO2, ZERO3):
        add(1, 1, 4, 1, 1, model=[*narrow, *MOMENTS], keys=[zero])
    add(1, 2, 2, 1, 2, model=[*MOMENTS, *GROUPS])
    add(2, 1, 2, 2, 2, model=[*MANY_HEADS, *MOMENTS], keys=[ALL_TO_ALL])
    add(2, 1, 2, 1, 2, model=[*EIGHT_LAYERS, *MOMENTS, *MUON], keys=schedule("zbv", 2))
    add(1, 1, 2, 2, 1, model=[*MOMENTS, *MUON, *UNEVEN], keys=[ZERO1])
    add(2, 1, 2, 1, 2, model=MOMENTS, deck=GPT2)
    half(2, 1, 2, 1, 2, model=MOMENTS, keys=[ZERO3])
    half(1, 1, 2, 1, 2, model=[*MOMENTS, *MUON])

    # Joined matmuls: with each way to shard a step, and with settings that keep q, k and v separate.
    add(1, 1, 1, 1, 1, keys=[JOIN], steps=20)
    add(1, 1, 1, 1, 2, keys=[JOIN], steps=20)
    add(2, 1, 2, 1, 2, keys=[JOIN, ZERO3, FULL])
    add(1, 1, 2, 1, 2, keys=[JOIN, SELECTIVE])
    add(1, 2, 2, 1, 1, keys=[JOIN, ZERO2, EACH])
    add(2, 1, 1, 1, 2, model=EIGHT_LAYERS, keys=[JOIN, *schedule("zbv", 2)])
    add(1, 1, 2, 2, 1, keys=[JOIN, RING])
    add(1, 1, 1, 1, 4, model=ONE_KV_HEAD, keys=[JOIN, strips])
    add(2, 1, 1, 1, 2, model=[*SOME_WINDOWS, *DOCUMENTS], keys=[JOIN])
    add(1, 1, 1, 1, 2, model=[*BIASES, *EACH_HEAD], keys=[JOIN])
    add(1, 1, 2, 1, 2, model=POST, keys=[JOIN, FULL])
    add(1, 1, 2, 1, 2, model=[*MUON, *UNEVEN], keys=[JOIN])
    half(2, 1, 2, 1, 2, keys=[JOIN, SELECTIVE])
    # Experts, with every axis, their losses, uneven shards and all that recomputes or moves their rows.
    for axis in range(5):
        add(*(2 if a == axis else 1 for a in range(5)), model=EXPERTS, keys=[RING] if axis == 3 else [])
    add(1, 1, 2, 1, 2, model=[*SOME_EXPERTS, *ROUTER_LOSSES], steps=20)
    add(2, 1, 2, 1, 2, model=[*EXPERTS, *ROUTER_LOSSES, *SIGMOID], keys=[ZERO2, EACH])
    add(2, 2, 1, 2, 1, model=[*SOME_EXPERTS, *ROUTER_LOSSES, *SIGMOID, "experts.normalize=false"], keys=[ALL_GATHER])
    add(1, 1, 2, 2, 1, model=[*EXPERTS, *ROUTER_LOSSES], keys=[ALL_TO_ALL, SELECTIVE])
    add(1, 1, 1, 1, 2, model=[*EXPERTS, *ROUTER_LOSSES, "model.seq_len=23"], keys=[NO_SP, FULL])
    add(1, 1, 3, 1, 2, model=["batch.global=12", *UNEVEN, *SOME_EXPERTS, *TIED], keys=[ZERO3])
    add(1, 1, 1, 1, 4, model=[*ONE_KV_HEAD, *EXPERTS, *POST, *ALL_HEADS], keys=[strips])
    add(2, 1, 1, 1, 2, model=[*SOME_EXPERTS, "batch.micro=2"], keys=[strips, FULL])
    add(2, 1, 2, 1, 1, model=[*EIGHT_LAYERS, *EXPERTS, "experts.every=2"], keys=schedule("zbv", 2))
    add(2, 1, 1, 1, 2, model=[*EIGHT_LAYERS, *SOME_EXPERTS, *ROUTER_LOSSES], keys=[*schedule("dualpipev", 2), EACH])
    add(1, 1, 2, 1, 2, model=[*GROUPED, "experts.first_layer=2"], keys=[ZERO3], steps=20)
    add(2, 2, 1, 2, 1, model=[*GROUPED, *ROUTER_LOSSES], keys=[RING, EACH])
    add(1, 2, 2, 1, 2, model=[*GROUPED, "experts.shared_ffn_dim=17", "experts.shared_gate=true"], keys=[FULL])
    add(1, 2, 2, 1, 1, model=[*SOME_EXPERTS, *DOCUMENTS, "experts.count=3", "experts.per_token=3"], keys=[ALWAYS])
    shared_experts(add, half)
    sinks(add, half)
    gpt_oss(add, half)
    further_tokens(add, half)
    return rows


def gpt_oss(add, half):
    """Experts with biases and limits, and all that gpt-oss has, where ranks share experts and where pools are too
    small."""
    for buffer in BUFFER[:3]:
        add(1, 1, 2, 1, 1, model=[*SHARED_OUT, *BIASED_EXPERTS], keys=[EP2, buffer])
    add(1, 1, 1, 1, 1, model=[*SHARED_OUT, *BIASED_EXPERTS], keys=[BUFFER[0], SELECTIVE], steps=20)
    for context in (RING, ALL_GATHER, ALL_TO_ALL):
        add(1, 1, 2, 2, 1, model=GPT_OSS, keys=[EP4, context])
        half(2, 1, 1, 2, 2, model=[*GPT_OSS, *MANY_HEADS], keys=[EP4, context])
    add(2, 1, 2, 1, 2, model=GPT_OSS, keys=[EP2, BUFFER[1]], steps=20)
    add(1, 1, 4, 1, 2, model=[*GPT_OSS, *ONE_KV_HEAD, *ROUTER_LOSSES], keys=[EP4, ZERO3, FULL])
    add(1, 2, 2, 1, 1, model=[*GPT_OSS, *MUON, *MOMENTS], keys=[EP2, ZERO2, EACH])
    add(1, 1, 1, 1, 3, model=[*THREES, *EXPERTS, *BIASED_EXPERTS], keys=[ZERO1])
    add(2, 1, 1, 1, 2, model=[*EIGHT_LAYERS, *GPT_OSS], keys=[EP2, *schedule("dualpipev", 2)])


def sinks(add, half):
    """Sinks of attention, with all that shards heads and tokens, and all that computes attention again."""
    for context in (RING, ALL_GATHER, ALL_TO_ALL):
        add(1, 1, 1, 2, 1, model=[*SINKS, *SOME_WINDOWS], keys=[context])
        add(2, 1, 1, 2, 2, model=[*MANY_HEADS, *SINKS, *DOCUMENTS], keys=[context, FULL])
        half(1, 1, 1, 2, 2, model=[*MANY_HEADS, *SINKS], keys=[context])
    add(1, 1, 1, 1, 4, model=[*ONE_KV_HEAD, *SINKS, *DROPS], steps=20)
    add(1, 1, 2, 1, 2, model=[*SINKS, "model.seq_len=23"], keys=[ZERO3, JOIN])
    add(1, 1, 4, 1, 1, model=[*SINKS, "model.sliding_window=5", "model.full_attention_every=2"], keys=[ZERO2, EACH])
    add(1, 1, 1, 3, 1, model=[*THREES, *SINKS, *DROPS], keys=[ALL_TO_ALL, SELECTIVE])
    add(2, 1, 1, 1, 2, model=[*EIGHT_LAYERS, *SINKS, *MUON], keys=schedule("zbv", 2))

    # Latents: every way of attention over cp, sharded streams, stages, experts, recompute.
    for context in (RING, ALL_GATHER, ALL_TO_ALL):
        add(1, 1, 1, 2, 1, model=[*MLA, *SOME_WINDOWS], keys=[context])
        half(1, 1, 1, 2, 2, model=[*MLA, *DOCUMENTS], keys=[context])
        add(1, 1, 2, 2, 1, model=MLA_OF_STREAM, keys=[context, SELECTIVE, ZERO3])
    add(1, 1, 1, 1, 4, model=[*MLA, *YARN, "model.score_factor=1.3"], steps=20)
    add(1, 1, 1, 1, 4, model=[*MLA_OF_STREAM, *DROPS], keys=[NO_SP])
    add(1, 1, 2, 1, 2, model=[*MLA, *SINKS, "model.seq_len=23"], keys=[ZERO3, JOIN])
    add(2, 1, 2, 1, 2, model=[*MLA, *GROUPED_EXPERTS, "experts.shared_ffn_dim=17"], keys=[EP2, ZERO3, EACH], steps=20)
    add(2, 2, 1, 1, 2, model=[*EIGHT_LAYERS, *MLA, *MUON], keys=schedule("zbv", 2))
    add(2, 1, 1, 2, 2, model=[*EIGHT_LAYERS, *MLA], keys=[*schedule("interleaved", 2), FULL])
    half(2, 1, 1, 2, 2, model=MLA, keys=[RING, ATTENTION_AGAIN])
    add(1, 1, 2, 1, 2, model=[*MLA, *POST], keys=[ATTENTION_AGAIN, ZERO3])
    add(1, 1, 2, 1, 2, keys=[ATTENTION_AGAIN, ZERO3])


def shared_experts(add, half):
    """Ranks that share experts: over each axis and several of them, with pools that are too small, just right and large
    enough for any routing."""
    strips = "overlap.tensor_strips=2"
    for buffer in BUFFER:
        add(1, 1, 2, 1, 1, model=SHARED_OUT, keys=[EP2, buffer])
        add(1, 1, 1, 1, 2, model=SHARED_OUT, keys=[EP2, buffer])
        add(1, 1, 1, 2, 1, model=SHARED_OUT, keys=[EP2, RING, buffer])
        add(1, 1, 4, 1, 1, model=SHARED_OUT, keys=[EP4, buffer])
    # Without ranks to share, a pool may be too small, too.
    add(1, 1, 1, 1, 1, model=SHARED_OUT, keys=[BUFFER[0]], steps=20)
    add(1, 1, 2, 1, 2, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[BUFFER[1], SELECTIVE])
    # Parts of dp_shard, with ZeRO over the rest.
    add(1, 1, 4, 1, 1, model=SHARED_OUT, keys=[EP2], steps=20)
    for zero in (ZERO1, ZERO2, ZERO3):
        add(1, 1, 4, 1, 1, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[EP2, zero, BUFFER[1]])
    add(1, 2, 2, 1, 1, model=[*SHARED_OUT, *SIGMOID], keys=[EP2, ZERO2, EACH])
    add(1, 2, 4, 1, 1, model=[*GROUPED, *ROUTER_LOSSES], keys=[EP2, ZERO3, ALWAYS])
    add(1, 1, 3, 1, 1, model=["batch.global=12", *UNEVEN, *GROUPED], keys=[EP3, ZERO3])
    add(1, 1, 6, 1, 1, model=["batch.global=12", *GROUPED], keys=[EP3, BUFFER[1]])
    add(1, 1, 8, 1, 1, model=SHARED_OUT, keys=[EP8])
    # Over tp, cp, both, and dp_shard besides.
    add(1, 1, 2, 1, 2, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[EP2], steps=20)
    add(1, 1, 2, 1, 2, model=SHARED_OUT, keys=[EP4, BUFFER[1]])
    add(1, 1, 2, 1, 2, model=[*SHARED_OUT, "model.seq_len=23"], keys=[EP2, NO_SP, FULL])
    add(1, 1, 1, 1, 3, model=[*THREES, *GROUPED], keys=[EP3])
    add(1, 1, 1, 1, 4, model=[*ONE_KV_HEAD, *SHARED_OUT, *POST, *ALL_HEADS], keys=[EP4, strips])
    add(1, 1, 2, 1, 4, model=[*ONE_KV_HEAD, *SHARED_OUT], keys=[EP2, ZERO3])
    add(1, 1, 2, 2, 1, model=SHARED_OUT, keys=[EP2, RING, ZERO3])
    add(1, 1, 2, 2, 1, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[EP4, ALL_GATHER, BUFFER[1], SELECTIVE])
    # With the seed of the others, two experts of a token score the same to the last bits on AVX2, at the fifth step.
    add(1, 1, 1, 2, 2, model=[*MANY_HEADS, *SHARED_OUT, "run.seed=4321"], keys=[EP4, ALL_TO_ALL])
    add(1, 1, 2, 2, 2, model=SHARED_OUT, keys=[EP8, RING, BUFFER[0], FULL])
    add(1, 1, 1, 2, 2, model=SHARED_OUT, keys=[EP2, RING, BUFFER[1]])
    add(1, 1, 2, 1, 2, model=[*SHARED_OUT, "experts.z_loss=0.001", "batch.micro=2"],
        keys=[EP4, NO_SP, strips])
    # With stages, and all that recomputes or moves rows.
    add(2, 1, 1, 1, 2, model=[*SHARED_OUT, *SOME_EXPERTS[3:]], keys=[EP2, BUFFER[1], "overlap.experts=false"])
    add(2, 1, 2, 1, 2, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[EP2, ZERO2, EACH], steps=20)
    add(2, 1, 2, 1, 2, model=SHARED_OUT, keys=[EP4, SELECTIVE, BUFFER[1]])
    add(2, 1, 2, 1, 1, model=[*EIGHT_LAYERS, *SHARED_OUT], keys=[EP2, *schedule("zbv", 2), BUFFER[1]])
    add(2, 1, 2, 1, 1, model=[*EIGHT_LAYERS, *SHARED_OUT, *ROUTER_LOSSES],
        keys=[EP2, *schedule("dualpipev", 2), EACH, BUFFER[1]])
    add(2, 1, 2, 1, 1, model=[*EIGHT_LAYERS, *SHARED_OUT, "experts.every=2"],
        keys=[EP2, *schedule("interleaved", 2), "overlap.interleave=true"])
    add(2, 1, 2, 1, 1, model=[*SHARED_OUT, *TIED, *DOCUMENTS], keys=[EP2, FULL, BUFFER[0]])
    add(1, 2, 2, 1, 2, model=[*GROUPED, "experts.shared_ffn_dim=17", "experts.shared_gate=true"], keys=[EP2, BUFFER[1]])
    muon_of_experts(add, half)
    add(1, 1, 4, 1, 1, model=[*SHARED_OUT, *MOMENTS], keys=[EP2, ZERO3])
    add(2, 1, 2, 1, 1, model=[*SHARED_OUT, *RAMP], keys=[EP2])
    half(1, 1, 2, 1, 2, model=[*SHARED_OUT, *ROUTER_LOSSES], keys=[EP4])
    half(2, 1, 2, 1, 2, model=SHARED_OUT, keys=[EP2, ZERO3, SELECTIVE])
    half(1, 1, 4, 1, 1, model=GROUPED, keys=[EP2, BUFFER[1], FULL])
    half(1, 1, 2, 1, 1, model=[*SHARED_OUT, "experts.shared_ffn_dim=17"], keys=[EP2])
    # Positions choose, wherever a token is.
    add(2, 1, 1, 2, 1, model=[*SHARED_OUT, *DOCUMENTS, "experts.routing=balanced"], keys=[EP2, RING])
    add(1, 1, 2, 1, 2, model=[*SHARED_OUT, *ROUTER_LOSSES, "experts.routing=balanced"], keys=[EP2, FULL])
    half(1, 2, 1, 1, 2, model=SHARED_OUT, keys=[EP2])


def further_tokens(add, half):
    """Multi-token prediction: over each axis and all schedules, tied and untied, with documents, experts, and all that
    recomputes, cuts or moves the ops of a layer and of the head."""
    strips = "overlap.tensor_strips=2"
    for axis in range(5):
        add(*(2 if a == axis else 1 for a in range(5)), model=FURTHER2, keys=[RING] if axis == 3 else [])
    add(2, 1, 2, 1, 2, model=FURTHER, steps=20)
    add(2, 1, 2, 1, 2, model=[*FURTHER2, *TIED], keys=[FULL])
    add(4, 1, 1, 1, 1, model=[*FURTHER, *TIED], keys=[SELECTIVE])
    for name in ("gpipe", "interleaved", "zb-h1", "zbv", "dualpipev"):
        chunks = 2 if name in ("interleaved", "zbv", "dualpipev") else None
        add(2, 1, 1, 1, 2, model=[*FURTHER2, *EIGHT_LAYERS], keys=[*schedule(name, chunks), EACH])
        add(2, 1, 2, 1, 1, model=[*FURTHER, *TIED], keys=[*schedule(name, chunks), "loss.chunks=3"])
    add(1, 1, 2, 2, 1, model=[*FURTHER2, *DOCUMENTS, *UNEVEN], keys=[ALL_GATHER, ZERO3])
    add(2, 1, 1, 2, 2, model=[*FURTHER, *DOCUMENTS, *SOME_WINDOWS], keys=[RING, FULL])
    add(1, 1, 1, 2, 1, model=[*FURTHER, *DROPS], keys=[ALL_TO_ALL])
    add(1, 2, 2, 1, 2, model=[*FURTHER2, Z_LOSS], keys=[ZERO3, ALWAYS, "loss.chunks=5"])
    add(1, 1, 4, 1, 1, model=FURTHER, keys=[ZERO2, EACH, JOIN])
    add(1, 1, 2, 1, 2, model=[*FURTHER, "model.seq_len=23"], keys=[NO_SP, NO_LP])
    add(1, 1, 1, 1, 4, model=[*FURTHER2, *ONE_KV_HEAD, *POST, *ALL_HEADS, *BIASES], keys=[strips])
    add(1, 1, 1, 1, 3, model=[*THREES, *FURTHER], keys=[strips])
    add(1, 1, 2, 1, 2, model=[*FURTHER, *MUON], keys=[ZERO2])
    add(2, 1, 2, 1, 2, model=[*FURTHER2, *RAMP])
    add(1, 1, 2, 1, 2, model=[*FURTHER2, *SOME_EXPERTS, *ROUTER_LOSSES], keys=[FULL])
    add(2, 1, 2, 1, 2, model=[*FURTHER, *SHARED_OUT, *ROUTER_LOSSES], keys=[EP4, BUFFER[1]])
    add(2, 1, 2, 1, 1, model=[*FURTHER, *GROUPED, *EIGHT_LAYERS, "experts.every=2"],
        keys=[EP2, *schedule("dualpipev", 2), "overlap.interleave=true"])
    half(2, 1, 2, 1, 2, model=FURTHER2, keys=[ZERO3, SELECTIVE])
    half(2, 1, 1, 2, 1, model=[*FURTHER, *SHARED_OUT, *TIED], keys=[*schedule("zbv", 2), RING])
