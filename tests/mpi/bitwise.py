"""Settings that must not change a bit: pipeline degree, recompute mode, regather, prefetch, tensor overlap, strips of
rows, interleaved microbatches, early reduction of gradients, early cp communication, and the threads that make initial
weights; states on the host that pass through the device in chunks, activations that wait there, and weights and sums of
gradients that come in for each layer. Within a group all runs shard data and tensors in the same way, in sizes drawn at
random; each must have the same losses, norms, weights and moments as the group's first, bit for bit. Reducing gradients
after every microbatch regroups sums: rtol 1e-5. Sending gradients in bf16 rounds them: rtol 1e-3. The planned peak of
every rank is exactly the used one, in the memory of the device and in that of the host."""
import os

from support.checkpoints import same_bits, tensors
from support.runs import Checks, difference, planned, scratch, train
from support.share import share
from support.sizes import Sizes

STEPS = 4
RTOL = 1e-5
ROUNDED_RTOL = 1e-3
SELECTIVE, FULL, ATTENTION_AGAIN = (f"recompute.mode={mode}" for mode in ("selective", "full", "attention"))
OPS = 'recompute.ops=["norm","core_attention","activation","experts"]'
LAYERS = 'recompute.layers=["full: first 1", "qkv+mlp+rows: every 2"]'
AUTO = ["recompute.mode=auto", "recompute.budget=1"]  # nothing fits that: all that can be is recomputed
ALWAYS, NEVER = "recompute.regather=always", "recompute.regather=never"
AT_USE, TWO_AHEAD = "overlap.prefetch=0", "overlap.prefetch=2"
ALONE = "overlap.tensor=false"
TWO_STRIPS, THREE_STRIPS = "overlap.tensor_strips=2", "overlap.tensor_strips=3"
EACH, STEP = "parallel.reduce=microbatch", "parallel.reduce=step"
ZERO1, ZERO2, ZERO3 = (f"parallel.zero={z}" for z in (1, 2, 3))
BF16 = "parallel.reduce_dtype=bf16"
MOMENTS, MUON = "precision.moments=bf16", "optimizer.name=muon"
EXPERTS = ["experts.count=5", "experts.per_token=2", "experts.ffn_dim=23"]
PAIRS = "parallel.regather_group=2"
LATE = "overlap.gradients=false"
CHUNKS = "loss.chunks=5"
TOGETHER, APART = "overlap.interleave=true", "overlap.interleave=false"
JOIN = "fusion.join_matmuls=always"
AT_ATTENTION, NOT_UNDER = "overlap.context=false", "overlap.experts=false"
EXPERTS = ["experts.count=8", "experts.per_token=3", "experts.ffn_dim=23", "experts.shared_ffn_dim=17",
           "experts.balance_loss=0.01"]
SINKS = "model.sinks=true"
MLA = ["model.attention=mla", "model.heads=4", "model.kv_heads=4", "model.head_dim=12", "model.rope_dim=6",
       "model.v_dim=10", "model.q_rank=14", "model.kv_rank=9", "model.rope_adjacent=true"]
GPT_OSS = [*EXPERTS, SINKS, "experts.mlp_bias=true", "experts.router_bias=true", "experts.swiglu_limit=0.05",
           "model.sliding_window=7", "model.full_attention_every=2"]
FURTHER = ["model.mtp_layers=2", "loss.mtp_weight=0.5"]
GPT2 = "model.family=gpt2"
BIASES = [f"model.{part}_bias=true" for part in ("qkv", "o", "mlp")]
REPLICAS, CP = "parallel.dp_replicate=2", "parallel.cp=2"
WHOLE = "parallel.sequence_parallel=false"
MASKS = ["model.sliding_window=7", "model.full_attention_layers=1", "data.isolate_documents=true", "data.end_token=32"]
DROPS = ["dropout.embedding=0.1", "dropout.residual=0.3", "dropout.attention=0.2"]
UNEVEN = ["model.ffn_dim=89", "model.vocab=263", "model.seq_len=23"]
COMPUTE = "precision.compute=bf16"  # masters leave the device, too
OFFLOAD, PART = (["offload.optimizer=all", "offload.chunk_bytes=2048"],
                 ["offload.optimizer=0.6", "offload.chunk_bytes=3000"])  # pieces of tensors, and several small tensors
LARGE_CHUNKS = ["offload.optimizer=all"]
WEIGHTS, SOME_WEIGHTS = ["offload.parameters=all"], ["offload.parameters=0.5"]
SUMS, SOME_SUMS = ["offload.gradients=all"], ["offload.gradients=0.5"]
AWAY, SOME_AWAY = ["offload.activations=all"], ["offload.activations=0.5"]
ALL_AWAY, SOME_OF_ALL = [*OFFLOAD, *WEIGHTS, *SUMS, *AWAY], [*PART, *SOME_WEIGHTS, *SOME_SUMS, *SOME_AWAY]


def pp(degree):
    return f"parallel.pp={degree}"


def schedule(name):
    return f"pipeline.schedule={name}"


# dp_shard and tp, keys of all runs of the group besides sizes, and keys of each run; the others are compared with the
# first run.
GROUPS = [
    (1, 1, [], [[], [], [SELECTIVE], [FULL], [pp(2), FULL], [pp(3), SELECTIVE, TOGETHER], [pp(4)], [TOGETHER], [OPS],
                [LAYERS], [pp(2), LAYERS, OPS], AUTO, [pp(2), schedule("zbv"), *AUTO]]),
    (2, 1, [STEP], [[], [], [SELECTIVE], [FULL, ALWAYS], [NEVER], [FULL, NEVER], [AT_USE], [TWO_AHEAD, SELECTIVE],
                    [LATE], [ZERO1], [ZERO1, LATE], [pp(2)], [pp(2), LATE], [pp(2), ZERO3, ALWAYS, FULL],
                    [pp(3), ZERO3, ALWAYS, TWO_AHEAD], [pp(2), schedule("zb-h1")], [pp(2), schedule("zbv"), LATE],
                    [pp(2), schedule("dualpipev")], [pp(2), schedule("gpipe")], [pp(2), schedule("interleaved")],
                    [pp(2), ZERO3, ALWAYS, TOGETHER], [pp(2), schedule("interleaved"), APART]]),
    (2, 1, [EACH, ZERO2], [[], [LATE, TOGETHER], [ZERO3], [ZERO3, LATE], [ZERO3, FULL, TOGETHER], [pp(2)],
                           [pp(2), ZERO3, LATE],
                           [pp(2), schedule("zb-h1")], [pp(2), ZERO3, schedule("zbv")], [pp(2), schedule("dualpipev")],
                           [pp(2), schedule("dualpipev"), LATE, APART], [pp(2), schedule("interleaved")]]),
    # Groups of neighbours keep the parameters for the step.
    (4, 1, [ZERO3, EACH, *UNEVEN], [[], [PAIRS], [PAIRS, FULL], [PAIRS, AT_USE], [PAIRS, pp(2)],
                                    [PAIRS, pp(2), schedule("zbv")]]),
    (4, 1, ["parallel.cp=2", "parallel.context=all_gather"], [[], [PAIRS]]),
    (4, 2, ["model.tie_embeddings=true"], [[], [PAIRS, TWO_AHEAD]]),
    # Sums over axes that shard the state and over other axes: one order for all levels of ZeRO.
    (1, 1, [EACH, REPLICAS, CP, *BIASES], [[ZERO1], [ZERO2], [ZERO3], [ZERO1, LATE], [ZERO1, pp(2)]]),
    (2, 1, [EACH, REPLICAS, GPT2], [[ZERO1], [ZERO2], [ZERO3, FULL]]),
    (2, 2, [EACH, *BIASES], [[ZERO1], [ZERO2], [ZERO3, ALONE], [ZERO1, LATE]]),
    (1, 2, [EACH, CP, BF16, CHUNKS], [[ZERO1], [ZERO2, TWO_STRIPS], [ZERO3], [ZERO1, THREE_STRIPS]]),
    (2, 1, [EACH, REPLICAS, BF16], [[ZERO1], [ZERO2, LATE], [ZERO3]]),
    # Gradients sent in bf16: each rank rounds its own, whatever overlaps with them.
    (2, 1, [BF16, STEP, *UNEVEN], [[], [LATE, FULL], [ZERO1], [pp(2)], [pp(2), schedule("zbv")]]),
    (4, 1, [BF16, EACH, ZERO2, *UNEVEN], [[], [LATE], [ZERO3, AT_USE], [pp(2), SELECTIVE]]),
    # One microbatch per step, so nothing is accumulated.
    (2, 1, ["batch.global=2", "batch.micro=1"], [[], [LATE], [ZERO2], [STEP], [STEP, LATE], [ZERO1], [NEVER]]),
    (1, 2, [], [[], [ALONE], [SELECTIVE], [FULL], [FULL, ALONE], [pp(2), SELECTIVE],
                [pp(2), schedule("zb-h1"), FULL, ALWAYS], [pp(2), schedule("zbv"), SELECTIVE],
                [pp(2), schedule("dualpipev"), FULL], [TWO_STRIPS], [THREE_STRIPS, ALONE], [THREE_STRIPS, SELECTIVE],
                [pp(2), TWO_STRIPS, FULL], [pp(2), schedule("zbv"), THREE_STRIPS], [TOGETHER],
                [pp(2), schedule("dualpipev"), APART], [pp(2), TOGETHER, THREE_STRIPS, SELECTIVE], [OPS],
                [TWO_STRIPS, LAYERS], [pp(2), schedule("zb-h1"), LAYERS, OPS]]),
    (1, 2, UNEVEN, [[], [FULL], [SELECTIVE, ALONE], [THREE_STRIPS], [TWO_STRIPS, FULL]]),
    (1, 2, ["batch.micro=3", "batch.global=12"], [[], [TWO_STRIPS], [THREE_STRIPS, SELECTIVE]]),  # strips of a batch
    (2, 2, [STEP], [[], [FULL, ALONE, AT_USE], [SELECTIVE, NEVER], [pp(2), ZERO3, FULL, ALWAYS], [LATE],
                    [pp(2), schedule("gpipe"), SELECTIVE], [TWO_STRIPS], [pp(2), ZERO3, TWO_STRIPS, ALWAYS]]),
    (3, 1, ["batch.global=12", STEP], [[], [FULL], [SELECTIVE, NEVER], [TWO_AHEAD], [pp(2), ZERO3, ALWAYS]]),
    (1, 3, [], [[], [FULL], [SELECTIVE, ALONE], [pp(2)], [TWO_STRIPS], [THREE_STRIPS, FULL]]),
    (2, 2, ["parallel.sequence_parallel=false", "parallel.loss_parallel=false"], [[], [FULL, ALONE], [SELECTIVE],
                                                                                  [TWO_STRIPS]]),
    (2, 1, ["model.tie_embeddings=true", STEP], [[], [FULL, TWO_AHEAD], [SELECTIVE, NEVER], [LATE],
                                                 [pp(2), ZERO3, ALWAYS]]),
    (1, 1, ["parallel.cp=2", "parallel.context=ring", STEP], [[], [FULL], [OPS], [LAYERS], [SELECTIVE, AT_USE], [pp(2)],
                                                              [LATE]]),
    (2, 1, ["parallel.cp=2", "parallel.context=all_gather"], [[], [FULL], [SELECTIVE, TWO_AHEAD], [AT_ATTENTION],
                                                              [FULL, AT_ATTENTION]]),
    (1, 2, ["parallel.cp=2", "parallel.context=all_gather", *UNEVEN[:2]], [[], [AT_ATTENTION],
                                                                                               [TWO_STRIPS, FULL]]),
    (1, 2, ["parallel.cp=2", "parallel.context=all_to_all"], [[], [FULL], [SELECTIVE, ALONE], [AT_ATTENTION]]),
    (1, 2, ["parallel.cp=2", "parallel.context=ring"], [[], [TWO_STRIPS], [THREE_STRIPS, FULL, TOGETHER],
                                                        [AT_ATTENTION]]),
    # Windows and documents, whose input every stage reads. Zero's default depends on pp, and determines when gradients
    # of cp are added.
    (1, 2, ["parallel.cp=2", "parallel.context=ring", ZERO1, *MASKS], [[], [FULL], [SELECTIVE, TWO_STRIPS], [pp(2)],
                                                                [pp(2), schedule("zbv"), FULL], [AT_ATTENTION]]),
    (1, 1, ["parallel.cp=2", "parallel.context=all_to_all", ZERO1, GPT2, *MASKS],
     [[], [FULL], [SELECTIVE], [pp(2), schedule("dualpipev")]]),
    (1, 4, ["model.kv_heads=2"], [[], [ALONE], [FULL], [TWO_STRIPS], [THREE_STRIPS, SELECTIVE]]),  # shared kv heads
    (1, 4, [WHOLE, "model.seq_len=6", "batch.micro=1"], [[], ["overlap.tensor_strips=4"]]),  # 2, 2, 2 and 0 rows
    (1, 2, [GPT2], [[], [TWO_STRIPS], [THREE_STRIPS, FULL]]),  # fused biases
    # Dropout: backward and recomputation draw the same masks again, in any order of execution.
    (1, 1, [GPT2, *DROPS], [[], [SELECTIVE], [FULL], [pp(2), TOGETHER], [pp(2), schedule("zb-h1"), FULL],
                            [pp(2), schedule("zbv")], [pp(2), schedule("dualpipev")]]),
    (2, 2, [GPT2, STEP, *DROPS, *UNEVEN[1:]], [[], [TWO_STRIPS, FULL], [THREE_STRIPS, LATE], [ALONE, NEVER],
                                              [pp(2), ZERO3, SELECTIVE]]),
    (1, 1, ["parallel.cp=2", "parallel.context=ring", "dropout.attention=0.2"], [[], [FULL], [AT_ATTENTION]]),
    (1, 2, ["precision.compute=bf16"], [[], [TWO_STRIPS], [THREE_STRIPS, SELECTIVE]]),
    (1, 1, [GPT2, "precision.compute=bf16"], [[], [SELECTIVE], [FULL], [pp(2)]]),  # biases in their matmuls
    # Joined matmuls: recomputed ones are joined in the same way.
    (2, 2, [JOIN, STEP], [[], [FULL, ALONE, AT_USE], [SELECTIVE, NEVER], [pp(2), ZERO3, FULL, ALWAYS],
                          [pp(2), schedule("zbv")], [TWO_STRIPS]]),
    (1, 1, [JOIN, "precision.compute=bf16"], [[], [FULL], [SELECTIVE], [pp(2)]]),
    (2, 2, [EACH], [[], [FULL, AT_USE], [SELECTIVE, ALONE, NEVER], [pp(2), ZERO3, ALWAYS], [LATE]]),
    # Ranks that share experts: their messages under other matmuls, rows of a second pass, stages.
    (4, 1, [*EXPERTS, "parallel.ep=4", STEP], [[], [NOT_UNDER], [FULL], [SELECTIVE, NOT_UNDER], [pp(2)], [ZERO1], [OPS],
                                               [LAYERS, pp(2)],
                                               [pp(2), schedule("zbv"), NOT_UNDER]]),
    (4, 1, [*GPT_OSS, "parallel.ep=4", STEP], [[], [NOT_UNDER], [FULL], [SELECTIVE], [pp(2)], [ZERO1],
                                               [pp(2), schedule("zbv")]]),
    (2, 2, [*GPT_OSS, "parallel.ep=2", "experts.buffer=0.5", EACH, JOIN], [[], [NOT_UNDER, ALONE], [FULL], [TWO_STRIPS],
                                                                           [pp(2), TOGETHER], [LATE]]),
    (1, 2, ["parallel.cp=2", "parallel.context=all_to_all", SINKS], [[], [FULL], [SELECTIVE, ALONE], [AT_ATTENTION]]),
    # Latents of queries, keys and values.
    (2, 2, [*MLA, EACH], [[], [SELECTIVE, ALONE], [FULL], [OPS], [LAYERS], [ATTENTION_AGAIN],
                          [ATTENTION_AGAIN, pp(2), ZERO3, ALWAYS], [TWO_STRIPS], [AT_USE, LATE],
                          [pp(2), schedule("zbv")]]),
    (1, 2, ["parallel.cp=2", *MLA, "precision.compute=bf16"], [[], [ATTENTION_AGAIN], [AT_ATTENTION, FULL]]),
    (2, 2, [*EXPERTS, "parallel.ep=2", "experts.buffer=0.5", EACH], [[], [NOT_UNDER, ALONE], [FULL], [OPS], [LAYERS],
                                                                     [TWO_STRIPS], [pp(2), TOGETHER], [LATE]]),
    # The loss in chunks of rows, whose gradients are computed in forward.
    (1, 1, [CHUNKS], [[], [FULL], [SELECTIVE], [pp(2)], [pp(2), schedule("gpipe")], [pp(2), schedule("zb-h1")]]),
    (2, 1, [CHUNKS, STEP], [[], [LATE], [ZERO1], [pp(2), ZERO3, ALWAYS, FULL], [AT_USE], [pp(2), schedule("zbv")],
                            [pp(2), schedule("interleaved"), TOGETHER]]),
    (2, 1, [CHUNKS, EACH, ZERO2], [[], [LATE, TOGETHER], [ZERO3], [pp(2), schedule("zb-h1")],
                                   [pp(2), schedule("dualpipev"), LATE]]),
    (1, 2, [CHUNKS, *UNEVEN], [[], [ALONE], [SELECTIVE], [FULL], [THREE_STRIPS], [pp(2), schedule("zbv")]]),
    # Layers for further tokens, whose embedding and head other stages or layers use, too.
    (2, 1, [*FURTHER, STEP, *UNEVEN], [[], [FULL], [SELECTIVE, LATE], [ZERO1], [pp(2)], [pp(3), ZERO3, ALWAYS, FULL],
                                       [pp(2), schedule("zb-h1")], [pp(2), schedule("zbv"), SELECTIVE],
                                       [pp(2), schedule("interleaved"), TOGETHER]]),
    (1, 2, [*FURTHER, EACH, "model.tie_embeddings=true"], [[], [FULL, ALONE], [TWO_STRIPS, SELECTIVE], [pp(2)],
                                                          [pp(2), schedule("dualpipev")]]),
    (1, 1, [*FURTHER, CHUNKS, CP, ZERO1, "parallel.context=all_gather", *EXPERTS],
     [[], [FULL], [pp(2), schedule("zbv")]]),
    # bf16 moments: random bits depend only on the element, however states are sharded and updates are merged.
    (2, 1, [MOMENTS, STEP, *UNEVEN], [[], [ZERO1], [LATE], [pp(2), ZERO3], [pp(2), schedule("zbv")],
                                      [pp(2), schedule("interleaved")]]),
    (1, 2, [MOMENTS, MUON, *UNEVEN], [[], [FULL], [pp(2)]]),
    (2, 1, [MOMENTS, MUON, STEP, *EXPERTS], [[], [FULL], [SELECTIVE], [pp(2)]]),
    (2, 1, [MOMENTS, "parallel.cp=2", "parallel.context=all_gather", "optimizer.groups=['*norm* lr=0.5']"],
     [[], [FULL], [AT_ATTENTION]]),
    # States on the host.
    (1, 1, [COMPUTE], [[], OFFLOAD, [*PART, FULL], LARGE_CHUNKS, [pp(2), *OFFLOAD], [pp(2), schedule("zbv"), *PART],
                       [pp(3), TOGETHER, *OFFLOAD]]),
    (2, 1, [COMPUTE, STEP, *UNEVEN], [[], OFFLOAD, [ZERO1, *OFFLOAD], [pp(2), ZERO3, ALWAYS, *PART], [NEVER, *OFFLOAD],
                                      [pp(2), schedule("interleaved"), *OFFLOAD],
                                      [pp(2), schedule("zb-h1"), LATE, *PART]]),
    (2, 1, [COMPUTE, EACH, ZERO2], [[], OFFLOAD, [ZERO3, FULL, *PART], [pp(2), schedule("dualpipev"), *OFFLOAD]]),
    (1, 2, [COMPUTE, "model.tie_embeddings=true"], [[], OFFLOAD, [TWO_STRIPS, *PART], [pp(2), *OFFLOAD]]),
    (2, 2, [COMPUTE, *EXPERTS, "parallel.ep=2", EACH], [[], OFFLOAD, [FULL, *PART], [pp(2), *OFFLOAD]]),
    (2, 1, [COMPUTE, MUON, STEP, *EXPERTS], [[], OFFLOAD, PART, [pp(2), *OFFLOAD]]),
    (2, 1, [COMPUTE, MOMENTS, MUON, STEP, *UNEVEN], [[], OFFLOAD, [pp(2), *PART]]),
    (2, 1, [COMPUTE, MOMENTS, CP, "parallel.context=all_gather", "optimizer.groups=['*norm* lr=0.5']"],
     [[], OFFLOAD, PART]),
    (2, 1, [STEP], [[], OFFLOAD, [pp(2), *PART]]),  # moments alone
    # Activations that wait on the host.
    (1, 1, [], [[], AWAY, [*SOME_AWAY, SELECTIVE], [*AWAY, FULL], [pp(2), *AWAY], [pp(2), schedule("zb-h1"), *AWAY],
                [pp(2), schedule("zbv"), *AWAY], [pp(2), schedule("dualpipev"), *SOME_AWAY], [TOGETHER, pp(2), *AWAY]]),
    (2, 2, [COMPUTE, STEP, *UNEVEN], [[], AWAY, [*AWAY, TWO_STRIPS, FULL], [pp(2), ZERO3, ALWAYS, *AWAY, *OFFLOAD],
                                      [pp(2), schedule("interleaved"), *AWAY]]),
    (2, 1, [*EXPERTS, "parallel.ep=2", EACH, JOIN], [[], AWAY, [*SOME_AWAY, SELECTIVE], [pp(2), *AWAY]]),
    (1, 1, [CP, "parallel.context=ring", ZERO1, GPT2, *MASKS, "dropout.attention=0.2"], [[], AWAY, [pp(2), *AWAY]]),
    (1, 2, [CHUNKS, *MLA], [[], AWAY, [ATTENTION_AGAIN, *AWAY]]),
    # Weights on the host.
    (1, 1, [JOIN], [[], WEIGHTS, [*SOME_WEIGHTS, *OFFLOAD, FULL], [AT_USE, *WEIGHTS, *AWAY], [pp(2), *WEIGHTS],
                    [pp(2), schedule("zbv"), *SOME_WEIGHTS], [pp(3), TOGETHER, *WEIGHTS, *OFFLOAD]]),
    (2, 1, [COMPUTE, STEP, *UNEVEN], [[], WEIGHTS, [ZERO1, *WEIGHTS, *PART], [pp(2), ZERO3, ALWAYS, *SOME_WEIGHTS],
                                      [ZERO3, ALWAYS, TWO_AHEAD, *WEIGHTS, *OFFLOAD, *AWAY], [NEVER, *WEIGHTS],
                                      [pp(2), schedule("interleaved"), *WEIGHTS, *OFFLOAD],
                                      [pp(2), ZERO3, schedule("dualpipev"), TOGETHER, *WEIGHTS]]),
    (1, 2, [COMPUTE, "model.tie_embeddings=true"], [[], WEIGHTS, [TWO_STRIPS, *SOME_WEIGHTS, *OFFLOAD],
                                                    [pp(2), *WEIGHTS]]),
    (4, 1, [COMPUTE, PAIRS, EACH], [[], WEIGHTS, [LATE, SELECTIVE, *WEIGHTS, *OFFLOAD]]),
    (2, 2, [COMPUTE, *EXPERTS, "parallel.ep=2", EACH], [[], WEIGHTS, [FULL, *SOME_WEIGHTS], [pp(2), *WEIGHTS]]),
    (2, 1, [MUON, MOMENTS, STEP, CHUNKS], [[], WEIGHTS, [*SOME_WEIGHTS, *PART], [pp(2), *WEIGHTS, *OFFLOAD]]),
    (1, 1, [CP, "parallel.context=ring", ZERO1, GPT2, *MASKS], [[], WEIGHTS, [pp(2), *WEIGHTS, *AWAY]]),
    # Sums of gradients there, too.
    (1, 1, [JOIN], [[], SUMS, [*SOME_SUMS, *WEIGHTS, *OFFLOAD, FULL], [pp(2), *SUMS], [pp(2), schedule("zb-h1"), *SUMS],
                    [pp(2), schedule("zbv"), *SOME_SUMS, *AWAY], [pp(3), TOGETHER, *WEIGHTS, *SUMS]]),
    (2, 1, [COMPUTE, STEP, *UNEVEN], [[], SUMS, [ZERO1, *SUMS, *PART], [LATE, *SUMS],
                                      [pp(2), ZERO3, ALWAYS, *SOME_SUMS, *WEIGHTS],
                                      [pp(2), schedule("interleaved"), *SUMS, *OFFLOAD]]),
    (2, 1, [COMPUTE, EACH, ZERO2], [[], SUMS, [LATE, *SUMS], [ZERO3, FULL, *SUMS, *WEIGHTS, *OFFLOAD],
                                    [pp(2), schedule("dualpipev"), *SOME_SUMS], [pp(2), TOGETHER, *SUMS]]),
    (2, 1, [COMPUTE, EACH, ZERO2, BF16], [[], SUMS, [pp(2), *SUMS, *OFFLOAD]]),
    (1, 2, [COMPUTE, "model.tie_embeddings=true"], [[], SUMS, [TWO_STRIPS, *SOME_SUMS], [pp(2), *SUMS, *WEIGHTS]]),
    (2, 2, [COMPUTE, *EXPERTS, "parallel.ep=2", EACH], [[], SUMS, [FULL, *SOME_SUMS], [pp(2), *SUMS]]),
    (2, 1, [MUON, MOMENTS, STEP, CHUNKS], [[], SUMS, [*SUMS, *PART], [pp(2), *SUMS, *OFFLOAD]]),
    (1, 1, [CP, "parallel.context=ring", ZERO1, GPT2, *MASKS], [[], SUMS, [pp(2), *SUMS, *WEIGHTS]]),
    # All four.
    (1, 2, [*MLA, COMPUTE, CP, "parallel.context=all_gather", EACH, *UNEVEN[:2]],
     [[], ALL_AWAY, [ATTENTION_AGAIN, ZERO2, *SOME_OF_ALL], [pp(2), ZERO3, schedule("zb-interleaved"), *ALL_AWAY]]),
    (2, 1, [*EXPERTS, "parallel.ep=2", COMPUTE, REPLICAS, STEP],
     [[], ALL_AWAY, [pp(3), *SOME_OF_ALL], [pp(2), schedule("zb-interleaved"), SELECTIVE, *ALL_AWAY]]),
    (3, 1, ["batch.global=12", COMPUTE, CP, "parallel.context=all_to_all", STEP, *UNEVEN[:2]],
     [[], ALL_AWAY, [FULL, ZERO1, *SOME_OF_ALL]]),
]

# dp_replicate, dp_shard, tp, further keys: compared with the same run with another `reduce`.
REDUCED = [
    (1, 1, 1, []),
    (1, 2, 1, []),
    (1, 2, 1, [ZERO2]),
    (1, 2, 1, [ZERO1]),
    (2, 1, 1, []),
    (2, 2, 1, [FULL]),
    (1, 3, 1, ["batch.global=12", ZERO2]),
    (1, 1, 2, []),
    (1, 2, 2, [pp(2), ZERO2]),
    (1, 2, 1, [pp(2), "model.tie_embeddings=true"]),
]


# The same columns: compared with gradients sent in fp32.
ROUNDED = [
    (1, 2, 1, [EACH, *UNEVEN]),
    (4, 1, 1, [STEP, *UNEVEN]),
    (2, 2, 1, [STEP, *UNEVEN]),
    (1, 2, 1, ["parallel.cp=2", "batch.global=2"]),
    (2, 1, 2, ["parallel.zero=1"]),
]


class Runner:
    def __init__(self, folder, checks):
        self.folder, self.checks, self.count = folder, checks, 0

    def run(self, name, replicate, shard, tp, keys):
        """Trains; returns its curves and its last state."""
        degrees = [f"parallel.dp_replicate={replicate}", f"parallel.dp_shard={shard}", f"parallel.tp={tp}"]
        overrides = degrees + [f"run.steps={STEPS}"] + keys
        ranks = replicate * shard * tp
        for key in keys:
            if key.startswith(("parallel.pp=", "parallel.cp=", REPLICAS)):
                ranks *= int(key.split("=")[1])
        self.count += 1
        metrics = train(os.path.join(self.folder, f"run{self.count}"), ranks, overrides)
        plan = planned(self.folder, ranks, overrides)
        self.checks.that(metrics.end["rank_peak_bytes"] == plan["rank_peak_bytes"],
                         f"{name}: planned peak is what was used")
        on_host = plan.get("rank_host_bytes")
        states, some = (any(key.startswith(words) for key in keys)
                        for words in (("offload.optimizer", "offload.parameters", "offload.gradients"),
                                      "offload."))
        self.checks.that(metrics.end.get("rank_host_bytes") == on_host and (on_host is None or some) and
                         (on_host is not None or not states), f"{name}: planned peak on the host is what was used")
        return metrics.curve("loss"), metrics.curve("grad_norm"), tensors(metrics.checkpoint(STEPS))


def compare_group(runner, sizes, dp, tp, common, rows):
    first, drawn = None, sizes.draw([f"parallel.tp={tp}", *common], micro=(1, 2))
    print(f"dp {dp} tp {tp} {' '.join(common)} with {' '.join(drawn)}")
    for row in rows:
        name = f"dp {dp} tp {tp} {' '.join(common + row)}"
        loss, norm, state = runner.run(name, 1, dp, tp, [*drawn, *common, *row])
        first = first or (loss, norm, state)
        runner.checks.that(loss == first[0] and norm == first[1], f"{name}: losses and norms, bitwise")
        runner.checks.that(same_bits(state, first[2]), f"{name}: weights and moments, bitwise")


def compare_reduced(runner, replicate, dp, tp, keys):
    name = f"dp {replicate} x {dp} tp {tp} {' '.join(keys)}"
    whole = [ZERO1 if key == ZERO2 else key for key in keys]  # with zero = 2 gradients are never whole
    step, each = (runner.run(f"{name} {reduce}", replicate, dp, tp, [*of, reduce])
                  for of, reduce in ((whole, STEP), (keys, EACH)))
    worst = max(difference(each[i], step[i]) for i in (0, 1))
    runner.checks.that(worst <= RTOL, f"{name}: reduced each microbatch or once a step: {worst:.1e}")


def compare_rounded(runner, replicate, dp, tp, keys):
    name = f"dp {replicate} x {dp} tp {tp} {' '.join(keys)}"
    exact, rounded = (runner.run(f"{name} {' '.join(of)}", replicate, dp, tp, [*keys, *of]) for of in ([], [BF16]))
    worst = max(difference(rounded[i], exact[i]) for i in (0, 1))
    runner.checks.that(0 < worst <= ROUNDED_RTOL, f"{name}: gradients sent in bf16 or fp32: {worst:.1e}")


def compare_initial(folder, checks):
    """Initial weights of tensors that several threads fill."""
    large = ["model.layers=1", "model.dim=256", "model.vocab=20000", "run.steps=1", "checkpoint.at_start=true"]
    one, three = (train(os.path.join(folder, f"{n}-threads"), 1, [*large, f"run.threads={n}"]) for n in (1, 3))
    checks.that(same_bits(tensors(one.checkpoint(0)), tensors(three.checkpoint(0))),
                "initial weights by one thread or three, bitwise")


def main():
    checks = Checks()
    with scratch() as folder:
        compare_initial(folder, checks)
        runner = Runner(folder, checks)
        sizes = Sizes()
        comparisons = [(compare_group, (sizes, *group)) for group in GROUPS]
        comparisons += [(compare_reduced, row) for row in REDUCED] + [(compare_rounded, row) for row in ROUNDED]
        for compare, row in share(comparisons):
            compare(runner, *row)
    checks.finish()


main()
