"""Runs on emulated GPUs: the real GPU module, with its kernels, streams, graphs and NCCL on the host. A device computes
the same as the processor, in every layout that is tried here, over MPI and over NCCL, issued or as a graph; checkpoints
can be exchanged between the two. Skipped if the emulated module is not built. Arguments: names of checks to run."""
import itertools, json, os, re, sys

from support.checkpoints import same_bits, tensors
from support.emulated import environment, skip_without_module
from support.runs import (Checks, DECK, Metrics, difference, launch, planned, planned_peaks, program, scratch, train)
from support.share import share

BASE = ["model.layers=2", "batch.global=4", "run.steps=5", "optimizer.eps=1e-6"]
CPU, CUDA, MPI, NCCL = "run.device=cpu", "run.device=cuda", "run.transport=mpi", "run.transport=nccl"
RTOL, ROUNDED_RTOL, BF16_RTOL = 1e-5, 1e-4, 1e-3
FP8 = ["model.dim=64", "model.ffn_dim=128", "model.seq_len=32", "precision.compute=bf16", "precision.matmul=fp8"]
EXPERTS = ["experts.count=8", "experts.per_token=3", "experts.ffn_dim=32"]
FP8_RTOL = {"loss": 5e-3, "grad_norm": 5e-2}
LAYOUTS = {
    "2x1x2x1x2": (8, ["parallel.pp=2", "parallel.dp_shard=2", "parallel.tp=2"]),
    "ring": (2, ["parallel.cp=2", "parallel.context=ring"]),
}


def close(mine, theirs):
    return max(difference(mine.curve(key), theirs.curve(key)) for key in ("loss", "grad_norm"))


def equal(mine, theirs):
    return all(mine.curve(key) == theirs.curve(key) for key in ("loss", "grad_norm"))


def check_one_rank(checks, home):
    cpu = train(home("cpu"), 1, [*BASE, CPU])
    graph = train(home("graph"), 1, [*BASE, CUDA])
    far = close(graph, cpu)
    checks.that(far <= RTOL, f"one rank: losses and norms of the processor to {far:.1e}")
    checks.that(graph.end["rank_peak_bytes"] == planned_peaks(home(""), 1, [*BASE, CUDA]),
                "one rank: planned peak is what was used")
    environment(ESPALIER_CUDA_GRAPH="0")
    eager = train(home("eager"), 1, [*BASE, CUDA])
    environment(ESPALIER_CUDA_GRAPH=None)
    checks.that(
        equal(graph, eager) and same_bits(tensors(graph.checkpoint(5)), tensors(eager.checkpoint(5))),
        "as a graph and issued: bitwise equal")
    environment(ESPALIER_EMULATED_STREAMS="late")
    late = train(home("late"), 1, [*BASE, CUDA])
    environment(ESPALIER_EMULATED_STREAMS=None)
    checks.that(equal(graph, late), "streams that run as late as they may: bitwise equal")


def train_and_listen(run_dir, ranks, overrides):
    """Trains; returns the run and its output."""
    done = launch(ranks, ["run", DECK, "-d", run_dir, *overrides])
    if done.returncode != 0:
        sys.exit(done.stdout)
    return Metrics(run_dir), done.stdout


def check_capture(checks, home):
    """A step that cannot be captured is issued, and the run reports it once."""
    graph = train(home("captured"), 1, [*BASE, CUDA])
    for where in ("inside", "end", "instantiate"):
        environment(ESPALIER_EMULATED_CAPTURE=where)
        run, text = train_and_listen(home(f"capture-{where}"), 1, [*BASE, CUDA])
        environment(ESPALIER_EMULATED_CAPTURE=None)
        said = text.count("a step cannot be captured as a CUDA graph")
        bits = same_bits(tensors(graph.checkpoint(5)), tensors(run.checkpoint(5)))
        checks.that(said == 1 and equal(graph, run) and bits, f"capture fails ({where}): said {said}, bitwise equal")
    environment(ESPALIER_EMULATED_GPUS="2", ESPALIER_EMULATED_CAPTURE="end")
    layout = [*BASE, "parallel.dp_shard=2", CUDA, NCCL]
    issued = train(home("capture-2"), 2, layout)
    environment(ESPALIER_EMULATED_CAPTURE=None)
    captured = train(home("captured-2"), 2, layout)
    checks.that(equal(issued, captured), "two ranks over NCCL, issued and captured: bitwise equal")
    environment(ESPALIER_EMULATED_GPUS=None)


def check_hungry(checks, home):
    """cuDNN needs more workspace than planned: it computes smaller parts, or the plain kernels compute the call."""
    run = train(home("planned"), 1, [*LONG, CUDA])
    for appetite, text in (("hungry", "sequences and"), ("starving", "the plain kernel computes it")):
        environment(ESPALIER_EMULATED_CUDNN=appetite)
        other, output = train_and_listen(home(appetite), 1, [*LONG, CUDA])
        environment(ESPALIER_EMULATED_CUDNN=None)
        said = [line for line in output.split("\n") if "bytes of workspace" in line and text in line]
        far = close(other, run)
        checks.that(said and far <= (0 if appetite == "hungry" else BF16_RTOL),
                    f"{appetite}: {len(said)} lines, losses and norms to {far:.1e}")


def check_checkpoints(checks, home):
    """Each device continues where the other stopped, and loads exactly the saved bits."""
    steps = ["checkpoint.every_steps=3", "checkpoint.at_start=true"]
    straight = {device: train(home(f"straight-{device[11:]}"), 1, [*BASE, *steps, device]) for device in (CPU, CUDA)}
    for device, other in ((CPU, CUDA), (CUDA, CPU)):
        saved = straight[device].checkpoint(3)
        on = train(home(f"from-{device[11:]}"), 1, [*BASE, *steps, other], flags=["-r", saved])
        checks.that(same_bits(tensors(saved), tensors(on.checkpoint(3))),
                    f"{device} -> {other}: loaded tensors bitwise")
        far = difference(on.curve("loss"), straight[device].curve("loss", 4))
        checks.that(far <= RTOL, f"{device} -> {other}: losses to {far:.1e}")
    again = train(home("again"), 1, [*BASE, *steps, CUDA], flags=["-r", straight[CUDA].checkpoint(3)])
    checks.that(again.curve("loss") == straight[CUDA].curve("loss", 4), "cuda -> cuda: bitwise the unbroken run")
    sync = train(home("sync"), 1, [*BASE, *steps, CUDA, "checkpoint.asynchronous=false"])
    checks.that(same_bits(tensors(sync.checkpoint(5)), tensors(straight[CUDA].checkpoint(5))),
                "saves that training waits for: bitwise equal")


def check_fp8(checks, home):
    """fp8 matmuls: operands are rounded as on the processor, so that only the order of sums differs. The rows of strips
    are in several blocks, each with its own GEMM. Matmuls of experts are our own kernels."""
    environment(ESPALIER_EMULATED_GPUS="2")
    strips = ["parallel.tp=2", "overlap.tensor_strips=2", NCCL]
    shared_out = ["parallel.dp_shard=2", "parallel.ep=2", "experts.buffer=0.5", NCCL]
    wide = ["model.dim=128", "model.ffn_dim=256", "model.seq_len=64", "optimizer.lr=1e-3"]  # blocks of 32 on every rank
    for scaling, (model, experts, two) in (*itertools.product(("tensor", "row"), (("dense", [], strips),
                                                                                  ("experts", EXPERTS, shared_out))),
                                           ("mx", ("dense", wide, strips))):
        environment(ESPALIER_EMULATED_CAPABILITY="100" if scaling == "mx" else None)
        what = f"{model} in fp8 by {scaling}"
        keys = [*BASE, *FP8, *experts, f"precision.fp8_scaling={scaling}"]
        cpu = train(home(f"{what}-cpu"), 1, [*keys, CPU])
        for ranks, layout in ((1, []), (2, two)):
            run = train(home(f"{what}-{ranks}"), ranks, [*keys, *layout, CUDA])
            far = {key: difference(run.curve(key), cpu.curve(key)) for key in FP8_RTOL}
            text = ", ".join(f"{key} {far[key]:.1e}" for key in far)
            checks.that(all(far[key] <= FP8_RTOL[key] for key in far), f"{what}, {ranks} ranks: {text}")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), ranks, [*keys, *layout, CUDA]),
                        f"{what}, {ranks} ranks: planned peak is what was used")
    environment(ESPALIER_EMULATED_GPUS=None, ESPALIER_EMULATED_CAPABILITY=None)


def check_moments(checks, home):
    """bf16 moments of AdamW and of Muon, of experts, too: the same random bits as on the processor."""
    experts = ["experts.count=4", "experts.per_token=2", "experts.ffn_dim=23"]
    for optimizer, more in (("adamw", []), ("muon", []), ("muon", experts)):
        keys = [*BASE, "precision.moments=bf16", f"optimizer.name={optimizer}", "checkpoint.at_start=true", *more]
        optimizer += " of experts" if more else ""
        name = lambda word: home(f"moments-{optimizer}-{word}")
        cpu = train(name("cpu"), 1, [*keys, CPU])
        environment(ESPALIER_EMULATED_GPUS="2")
        for ranks, layout in ((1, []), (2, ["parallel.dp_shard=2", NCCL])):
            run = train(name(f"cuda{ranks}"), ranks, [*keys, *layout, CUDA])
            far = close(run, cpu)
            checks.that(far <= RTOL, f"{optimizer}, {ranks} ranks: losses and norms of the processor to {far:.1e}")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), ranks, [*keys, *layout, CUDA]),
                        f"{optimizer}, {ranks} ranks: planned peak is what was used")
            mine, theirs = tensors(run.checkpoint(5)), tensors(cpu.checkpoint(5))
            moments = [n for n in mine if n.startswith("optimizer/")]
            same = sum(a == b for n in moments for a, b in zip(mine[n], theirs[n]))
            share = same / sum(len(mine[n]) for n in moments)
            checks.that(share > 0.95, f"{optimizer}, {ranks} ranks: {100 * share:.2f} % of the moments are equal")
        environment(ESPALIER_EMULATED_GPUS=None)


def check_layouts(checks, home):
    cpu = train(home("cpu-again"), 1, [*BASE, CPU])
    environment(ESPALIER_EMULATED_GPUS="8")
    for name, (ranks, degrees) in LAYOUTS.items():
        runs = {}
        for way, transport, graph, streams in (("mpi", MPI, None, None), ("mpi late", MPI, None, "late"),
                                               ("nccl", NCCL, None, None), ("nccl issued", NCCL, "0", None)):
            environment(ESPALIER_CUDA_GRAPH=graph, ESPALIER_EMULATED_STREAMS=streams)
            runs[way] = train(home(f"{name}-{way}".replace(" ", "-")), ranks, [*BASE, *degrees, CUDA, transport])
            far = close(runs[way], cpu)
            checks.that(far <= RTOL, f"{name} over {way}: losses and norms of one rank on the processor to {far:.1e}")
            checks.that(runs[way].end["rank_peak_bytes"] == planned_peaks(home(""), ranks, [*BASE, *degrees, CUDA]),
                        f"{name} over {way}: planned peak is what was used")
        checks.that(equal(runs["nccl"], runs["nccl issued"]), f"{name}: as a graph and issued: bitwise equal")
        checks.that(equal(runs["mpi"], runs["mpi late"]),
                    f"{name} over mpi: streams that run as late as they may: bitwise equal")
    environment(ESPALIER_EMULATED_GPUS=None, ESPALIER_CUDA_GRAPH=None, ESPALIER_EMULATED_STREAMS=None)


def check_experts(checks, home):
    """Figures of routers: loads by layer, which come from both stages, and entropies. Two ranks share the experts."""
    environment(ESPALIER_EMULATED_GPUS="4")
    for scores in ("softmax", "sigmoid"):
        keys = [*BASE, "experts.count=8", "experts.per_token=3", "experts.ffn_dim=24", f"experts.scores={scores}",
                "parallel.pp=2", "parallel.dp_shard=2", "parallel.ep=2"]
        cpu, gpu = (train(home(f"{scores}-{device[11:]}"), 4, [*keys, device, *transport])
                    for device, transport in ((CPU, []), (CUDA, [NCCL])))
        loads = gpu.curve("experts_loads")
        checks.that(loads == cpu.curve("experts_loads") and len(loads[0]) == 2, f"{scores}: loads {loads[0]}")
        far = max(close(gpu, cpu), difference(gpu.curve("router_entropy"), cpu.curve("router_entropy")))
        checks.that(far <= RTOL, f"{scores}: losses, norms and entropies of the processor to {far:.1e}")
        checks.that(gpu.end["rank_peak_bytes"] == planned_peaks(home(""), 4, [*keys, CUDA]),
                    f"{scores}: planned peak is what was used")
    environment(ESPALIER_EMULATED_GPUS=None)


def check_rounded(checks, home):
    """Gradients sent in bf16, with the library's sums and with ours, compared with the processor."""
    layout = [*BASE, "parallel.dp_shard=2", "parallel.reduce_dtype=bf16", "model.vocab=263"]
    cpu = train(home("rounded-cpu"), 2, [*layout, CPU])
    environment(ESPALIER_EMULATED_GPUS="2")
    for way, native in (("native", None), ("exchanges", "0")):
        environment(ESPALIER_NCCL_NATIVE=native)
        run = train(home(f"rounded-{way}"), 2, [*layout, CUDA, NCCL])
        far = close(run, cpu)
        checks.that(far <= ROUNDED_RTOL, f"gradients in bf16, {way}: losses and norms of the processor to {far:.1e}")
        checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), 2, [*layout, CUDA]),
                    f"gradients in bf16, {way}: planned peak is what was used")
    environment(ESPALIER_EMULATED_GPUS=None, ESPALIER_NCCL_NATIVE=None)


# bf16 with chunks of 128 tokens, which cuDNN's attention computes in blocks: emulated too.
LONG = [
    "precision.compute=bf16", "model.layers=1", "model.dim=32", "model.heads=4", "model.kv_heads=2", "model.ffn_dim=48",
    "model.seq_len=512", "batch.global=2", "run.steps=3", "optimizer.eps=1e-6"
]
# Heads and kv heads of a rank.
HEADS = {"ring": (4, 2), "all_gather": (4, 2), "all_to_all": (2, 1)}


def blocks_of_two(heads, kv_heads):
    """The blocks that cuDNN gets on two ranks: the diagonal block; a second chunk and a later block; a block and the
    first chunk of an earlier one."""
    return {f"[1,{queries},{heads} x 8] queries, {keys} keys, {kv_heads} kv heads, {mask}"
            for queries, keys, mask in ((256, 256, "causal"), (128, 256, "not causal"), (256, 128, "not causal"))}


def check_attention(checks, home):
    """Context parallelism in bf16: attention in cuDNN blocks, in each of its ways."""
    cpu = train(home("long-cpu"), 1, [*LONG, CPU])
    environment(ESPALIER_EMULATED_GPUS="2")
    for way, heads in HEADS.items():
        layout = [*LONG, "parallel.cp=2", f"parallel.context={way}", CUDA, NCCL]
        environment(ESPALIER_EMULATED_CUDNN="say")
        done = launch(2, ["run", DECK, "-d", home(f"{way}-said"), *layout, "run.steps=1"])
        environment(ESPALIER_EMULATED_CUDNN=None)
        for op in ("attention", "attention_grad"):
            said = {
                line.partition(f"emulated cuDNN: {op} of ")[2] for line in done.stdout.splitlines()
                if f"emulated cuDNN: {op} of " in line
            }
            checks.that(done.returncode == 0 and said == blocks_of_two(*heads),
                        f"{way}: {op} in blocks: {sorted(said)}")
        run, again = (train(home(f"{way}-{name}"), 2, layout) for name in ("blocks", "again"))
        far = close(run, cpu)
        checks.that(far <= BF16_RTOL, f"{way} in bf16: losses and norms of one rank on the processor to {far:.1e}")
        checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), 2, layout),
                    f"{way} in bf16: planned peak is what was used")
        checks.that(
            equal(run, again) and same_bits(tensors(run.checkpoint(3)), tensors(again.checkpoint(3))),
            f"{way} in bf16, twice: bitwise equal")
        environment(ESPALIER_EMULATED_CUDNN="none")
        far = close(run, train(home(f"{way}-plain"), 2, layout))
        environment(ESPALIER_EMULATED_CUDNN=None)
        checks.that(0 < far <= BF16_RTOL, f"{way} in bf16: losses and norms of the plain kernel to {far:.1e}")
    environment(ESPALIER_EMULATED_GPUS=None)


def check_any_order(checks, home):
    """Attention's backward alone may add in any order; cuDNN is asked for it."""
    keys = [*LONG, CUDA]
    run = train(home("in-order"), 1, keys)
    for name, more, free in (("in order", [], False), ("attention", ["run.deterministic_attention=false"], True),
                             ("everything", ["run.deterministic=false"], True)):
        environment(ESPALIER_EMULATED_CUDNN="say")
        other, text = train_and_listen(home(f"any-order-{name}"), 1, [*keys, *more])
        environment(ESPALIER_EMULATED_CUDNN=None)
        said = re.findall(r"emulated cuDNN: (attention\S*) of .* causal(.*)", text)
        wanted = {("attention", ""), ("attention_grad", ", added in any order" if free else "")}
        checks.that(set(said) == wanted and close(other, run) <= BF16_RTOL, f"any order, {name}: {said}")
        checks.that(other.end["rank_peak_bytes"] == planned_peaks(home(""), 1, [*keys, *more]),
                    f"any order, {name}: planned peak is what was used")


def check_offload(checks, home):
    """All that can be on the host: the bits of a run without, however streams run and messages travel."""
    away = [f"offload.{what}=all" for what in ("optimizer", "activations", "parameters", "gradients")]
    away.append("offload.chunk_bytes=2048")
    two = ["parallel.dp_shard=2", "parallel.zero=3"]
    ways = [("graph", 1, [], {}), ("issued", 1, [], {"ESPALIER_CUDA_GRAPH": "0"}),
            ("late streams", 1, [], {"ESPALIER_EMULATED_STREAMS": "late"}), ("over MPI", 2, two, {}),
            ("over NCCL", 2, [*two, NCCL], {"ESPALIER_EMULATED_GPUS": "2"}),
            ("over NCCL, late streams", 2, [*two, NCCL],
             {"ESPALIER_EMULATED_GPUS": "2", "ESPALIER_EMULATED_STREAMS": "late"})]
    for way, ranks, keys, settings in ways:
        keys = [*BASE, "precision.compute=bf16", CUDA, *keys]
        environment(**settings)
        without, run = (train(home(f"offload-{way}-{len(more)}"), ranks, [*keys, *more]) for more in ([], away))
        environment(**{name: None for name in settings})
        plan = planned(home(""), ranks, [*keys, *away])
        checks.that(equal(run, without) and same_bits(tensors(run.checkpoint(5)), tensors(without.checkpoint(5))),
                    f"offload, {way}: bitwise the run without")
        checks.that(run.end["rank_peak_bytes"] == plan["rank_peak_bytes"] and
                    run.end["rank_host_bytes"] == plan["rank_host_bytes"], f"offload, {way}: both peaks as planned")
    keys = [*BASE, "precision.compute=bf16", CUDA, *away]
    environment(ESPALIER_EMULATED_PINNED=str(planned(home(""), 1, keys)["host_bytes"] - 1))
    done = launch(1, ["run", DECK, "-d", home("offload-pinned"), *keys])
    environment(ESPALIER_EMULATED_PINNED=None, ESPALIER_EMULATED_BYTES=str(1 << 50))
    checks.that(done.returncode == 4 and "the system gives no pinned memory of " in done.stdout and
                "ulimit -l" in done.stdout, f"offload, no pinned memory: exit {done.returncode}, {done.stdout[-300:]}")
    done = launch(1, ["run", DECK, "-d", home("offload-host"), *BASE, "precision.compute=bf16", CUDA,
                      "offload.optimizer=all", "model.vocab=2000000000"])
    environment(ESPALIER_EMULATED_BYTES=None)
    checks.that(done.returncode == 4 and "for the states that it keeps on the host (offload)" in done.stdout,
                f"offload, more than the host has: exit {done.returncode}, {done.stdout[-300:]}")


DOCUMENTS = ["data.isolate_documents=true", "data.end_token=32"]
WINDOWS = ["model.sliding_window=7", "model.full_attention_layers=1"]


def check_masks(checks, home):
    """Windows and documents: the plain kernels in fp32; in bf16 cuDNN with a window, and the plain kernels for masks
    that it lacks."""
    masks = {"windows": WINDOWS, "documents": DOCUMENTS, "both": [*WINDOWS, *DOCUMENTS]}
    for mask, keys in masks.items():
        cpu = train(home(f"{mask}-cpu"), 1, [*BASE, *keys, CPU])
        environment(ESPALIER_EMULATED_GPUS="2")
        for name, ranks, layout in (("one rank", 1, []), ("ring", 2, ["parallel.cp=2", "parallel.context=ring"]),
                                    ("all_to_all", 2, ["parallel.cp=2", "parallel.context=all_to_all"])):
            run = train(home(f"{mask}-{name}"), ranks, [*BASE, *keys, *layout, CUDA, NCCL])
            far = close(run, cpu)
            checks.that(far <= RTOL, f"{mask}, {name}: losses and norms of the processor to {far:.1e}")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), ranks, [*BASE, *keys, *layout, CUDA]),
                        f"{mask}, {name}: planned peak is what was used")
        environment(ESPALIER_EMULATED_GPUS=None)
    window = [*LONG, "model.sliding_window=100"]
    for mask, keys in (("window", window), ("documents", [*LONG, *DOCUMENTS])):
        cpu = train(home(f"{mask}-bf16-cpu"), 1, [*keys, CPU])
        environment(ESPALIER_EMULATED_CUDNN="say")
        done = launch(1, ["run", DECK, "-d", home(f"{mask}-said"), *keys, CUDA])
        environment(ESPALIER_EMULATED_CUDNN=None)
        fused, plain = "emulated cuDNN: attention" in done.stdout, "no mask for isolated documents" in done.stdout
        checks.that(done.returncode == 0 and fused != plain and plain == (mask == "documents"),
                    f"{mask} in bf16: by cuDNN {fused}, the run says that the plain kernels compute it: {plain}")
        if fused:
            checks.that(", causal, window 100" in done.stdout, "cuDNN is given the window")
        run = train(home(f"{mask}-bf16"), 1, [*keys, CUDA])
        far = close(run, cpu)
        checks.that(far <= BF16_RTOL, f"{mask} in bf16: losses and norms of the processor to {far:.1e}")
        checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), 1, [*keys, CUDA]),
                    f"{mask} in bf16: planned peak is what was used")


def check_gpt_oss(checks, home):
    """Sinks of attention, and experts with biases and limits, too few rows of which fit at once; in bf16 attention of
    two ranks is in cuDNN's blocks."""
    keys = [*WINDOWS, "model.full_attention_every=2", "model.sinks=true", *EXPERTS, "experts.buffer=0.5",
            "experts.mlp_bias=true", "experts.router_bias=true", "experts.swiglu_limit=0.05"]
    for kind, base, bound in (("fp32", [*BASE, *keys], RTOL), ("bf16", [*LONG, *keys], BF16_RTOL)):
        cpu = train(home(f"gpt-oss-{kind}-cpu"), 1, [*base, CPU])
        environment(ESPALIER_EMULATED_GPUS="2")
        for way in HEADS:
            layout = [*base, "parallel.cp=2", f"parallel.context={way}", "parallel.ep=2", CUDA]
            run = train(home(f"gpt-oss-{kind}-{way}"), 2, [*layout, NCCL])
            far = close(run, cpu)
            checks.that(far <= bound, f"gpt-oss in {kind}, {way}: losses and norms of the processor to {far:.1e}")
            checks.that(run.end["rank_peak_bytes"] == planned_peaks(home(""), 2, layout),
                        f"gpt-oss in {kind}, {way}: planned peak is what was used")
        environment(ESPALIER_EMULATED_GPUS=None)


def events(run, event):
    with open(os.path.join(run, "metrics.jsonl")) as file:
        return [line for line in map(json.loads, file) if line.get("event") == event]


def check_products(checks, home):
    """cuBLASLt without an algorithm for a product ends the run with its name. Operands have the alignment that was
    promised, of strips and of Muon's matrices, too."""
    for switch in ("hungry", "refuse:2"):
        environment(ESPALIER_EMULATED_CUBLASLT=switch)
        done = launch(1, ["run", DECK, "-d", home(switch), *BASE, CUDA])
        checks.that(
            done.returncode == 4 and re.search(r"GEMM \d+ x \d+ x \d+, f32 -> f32.*cuBLASLt [\d.]+ has no algorithm",
                                               done.stdout), f"cuBLASLt, {switch}: exit {done.returncode}")
    environment(ESPALIER_EMULATED_CUBLASLT="aligned", ESPALIER_EMULATED_GPUS="2")
    strips = ["parallel.tp=2", "overlap.tensor_strips=2", NCCL]
    for name, ranks, keys in (("fp32", 1, []), ("strips", 2, strips), ("strips in fp8", 2, [*strips, *FP8]),
                              ("Muon", 2, ["parallel.dp_shard=2", "optimizer.name=muon", *EXPERTS, NCCL])):
        done = launch(ranks, ["run", DECK, "-d", home(f"aligned {name}"), *BASE, "run.steps=2", CUDA, *keys])
        checks.that(done.returncode == 0, f"operands are aligned, {name}: exit {done.returncode}" + done.stdout[-500:])
    environment(ESPALIER_EMULATED_CUBLASLT=None, ESPALIER_EMULATED_GPUS=None)


def check_capabilities(checks, home):
    """bf16 runs on every GPU; fp8 only on those that have it, with scales by row on 9.0, of blocks from 10.0 on."""
    for capability, tensor, row, mx in (("80", 2, 2, 2), ("89", 0, 2, 2), ("90", 0, 0, 2), ("100", 0, 2, 0)):
        environment(ESPALIER_EMULATED_CAPABILITY=capability)
        runs = (("bf16", 0, ["precision.compute=bf16"]), ("tensor", tensor, [*FP8, "precision.fp8_scaling=tensor"]),
                ("row", row, [*FP8, "precision.fp8_scaling=row"]), ("mx", mx, [*FP8, "precision.fp8_scaling=mx"]))
        for name, wanted, keys in runs:
            done = launch(1, ["run", DECK, "-d", home(f"{capability}-{name}"), *BASE, "run.steps=2", *keys, CUDA])
            checks.that(done.returncode == wanted, f"capability {capability}, {name}: exit {done.returncode}")
            if name == "bf16":
                checks.that(("the driver compiles its kernels" in done.stdout) == (capability == "100"),
                            f"capability {capability}: kernels from PTX are named where they are")
    environment(ESPALIER_EMULATED_CAPABILITY=None)


def check_errors(checks, home):
    """Errors of the device and of NCCL end the run, with the step's error; peers do not wait."""
    environment(ESPALIER_EMULATED_FAULT="600")
    for graph in (None, "0"):
        environment(ESPALIER_CUDA_GRAPH=graph)
        done = launch(1, ["run", DECK, "-d", home(f"fault-{graph}"), *BASE, CUDA])
        checks.that(done.returncode == 1 and "cudaErrorIllegalAddress" in done.stdout,
                    f"an illegal access: exit {done.returncode}" + done.stdout[-500:])
    environment(ESPALIER_EMULATED_FAULT=None, ESPALIER_EMULATED_GPUS="2")
    for call, graph, streams in (("20", None, None), ("20", "0", None), ("20", None, "random:1")):
        environment(ESPALIER_EMULATED_NCCL_ERROR=f"1:{call}", ESPALIER_CUDA_GRAPH=graph,
                    ESPALIER_EMULATED_STREAMS=streams)
        done = launch(2, ["run", DECK, "-d", home(f"nccl-{call}-{graph}-{streams}"), *BASE, "parallel.dp_shard=2", CUDA,
                          NCCL])
        said = "rank 1: " in done.stdout and "an operation under way failed" in done.stdout
        checks.that(done.returncode == 1 and said,
                    f"an error of NCCL, graph {graph}, {streams}: exit {done.returncode}" + done.stdout[-500:])
    environment(ESPALIER_EMULATED_NCCL_ERROR=None, ESPALIER_CUDA_GRAPH=None, ESPALIER_EMULATED_STREAMS=None,
                ESPALIER_EMULATED_GPUS=None)


def check_guard(checks, home):
    """A step that is not finite, judged while the next one runs: the weights equal the processor's."""
    name = "gradients/model.layers.0.self_attn.o_proj.weight"
    listed = program(1, 0, [*BASE, CUDA])
    found = [re.match(r" *(\d+) compute +[BW]0 .*-> \((?:.*, )?" + re.escape(name) + "@", line) for line in listed]
    at = next(m[1] for m in found if m)
    environment(ESPALIER_FAULT=f"instruction-{at}:nan:2")
    for way, kind in (("skip", "skipped"), ("rollback", "rollback"), ("stop", None)):
        more = [
            *BASE, "checkpoint.every_steps=1" if way == "rollback" else "checkpoint.every_steps=0",
            f"guard.on_nonfinite={way}"
        ]
        code = 1 if way == "stop" else 0
        pair = [train(home(f"{way}-{device[11:]}"), 1, [*more, device], expect=code) for device in (CPU, CUDA)]
        if way == "stop":
            checks.that(pair[0].steps.keys() == pair[1].steps.keys() == {1, 2}, "stop: exit 1 after the step")
            continue
        found = events(pair[1].dir, kind)
        checks.that([e["step"] for e in found] == [2] and name in found[0]["reason"],
                    f"{way}: recorded with step and tensor: {found}")
        far = difference(pair[1].curve("loss"), pair[0].curve("loss"))
        checks.that(far <= RTOL, f"{way}: losses of the processor to {far:.1e}")
    environment(ESPALIER_FAULT=None)


def check_watch(checks, home):
    """A step that takes longer than the watchdog's limit and sends nothing meanwhile: the device shows progress, in a
    graph too."""
    environment(ESPALIER_EMULATED_STREAMS="late")
    for ranks, overrides in ((1, ["batch.global=64"]),
                             (2, ["parallel.dp_replicate=2", "batch.global=128", "run.transport=mpi"])):
        run = train(home(f"long-steps-{ranks}"), ranks,
                    [*BASE, CUDA, "run.steps=2", "batch.micro=1", "run.watchdog_s=2", *overrides])
        longest = max(step["step_ms"] for step in run.steps.values()) / 1e3
        checks.that(run.steps.keys() == {1, 2}, f"{ranks} ranks, a step of {longest:.1f} s, watched every 2 s")
    environment(ESPALIER_EMULATED_STREAMS=None)


def check_choice(checks, home):
    """The device that "auto" chooses, and which settings are refused."""
    device = lambda run: run.starts[-1]["device"]
    checks.that(device(train(home("auto"), 1, [*BASE, "run.steps=1"])) == "cuda", "auto with a GPU: cuda")
    checks.that(
        device(train(home("auto-2"), 2, [*BASE, "run.steps=1", "parallel.dp_shard=2"])) == "cpu",
        "auto with one GPU for two ranks: cpu")
    done = launch(2, ["run", DECK, "-d", home("shared"), *BASE, "parallel.dp_shard=2", CUDA, NCCL])
    checks.that(done.returncode == 2 and "would share 0000:01:00.0" in done.stdout,
                "nccl with one GPU for two ranks: exit 2" + done.stdout)
    said = launch(1, ["check", DECK]).stdout
    checks.that(
        '"auto" comes to cuda on this host, which has 1 GPU (an emulated GPU), for one rank, and to cpu for more'
        in said, "check says what auto comes to" + said[:300])
    environment(ESPALIER_EMULATED_GPUS="0")
    said = launch(1, ["check", DECK]).stdout
    checks.that('"auto" comes to cpu on this host: cuda: there is no GPU' in said,
                "check says why auto comes to cpu" + said[:300])
    done = launch(1, ["run", DECK, "-d", home("none"), *BASE, CUDA])
    checks.that(done.returncode == 1 and "there is no GPU" in done.stdout, "cuda without a GPU: exit 1" + done.stdout)
    environment(ESPALIER_EMULATED_GPUS=None, ESPALIER_EMULATED_BYTES="100000")
    done = launch(1, ["run", DECK, "-d", home("small"), *BASE, CUDA])
    checks.that(done.returncode == 4 and "0.1 MB is available (free memory of an emulated GPU" in done.stdout,
                "a GPU that is too small: exit 4" + done.stdout)
    environment(ESPALIER_EMULATED_BYTES=None)
    built = "is loaded, and this program was built with the headers of 2.28"
    for version, status, words in (("3.0", 1, f"NCCL 3.0 {built}"), ("2.20", 0, f"NCCL 2.20 {built}"),
                                   ("2.30", 0, None)):
        environment(ESPALIER_EMULATED_VERSIONS=f"NCCL={version}")
        done = launch(1, ["run", DECK, "-d", home(f"nccl-{version}"), *BASE, "run.steps=1", CUDA])
        said = (words or "NCCL") in done.stdout
        right = done.returncode == status and said == (words is not None)
        checks.that(right, f"NCCL {version}: exit {done.returncode}")
    environment(ESPALIER_EMULATED_VERSIONS="driver=12.4")
    done = launch(1, ["run", DECK, "-d", home("driver"), *BASE, CUDA])
    checks.that(done.returncode == 1 and "the driver knows CUDA up to 12.4" in done.stdout,
                "a driver that is too old: exit 1" + done.stdout)
    environment(ESPALIER_EMULATED_VERSIONS=None, ESPALIER_EMULATED_BYTES="1200000000")
    done = launch(1, ["run", DECK, "-d", home("no-room"), *BASE, CUDA])
    checks.that(done.returncode == 4 and "and for libraries (2 GB of it: run.outside_bytes)" in done.stdout,
                "no room for libraries beside the arena: exit 4" + done.stdout)
    train(home("room"), 1, [*BASE, CUDA, "run.outside_bytes=100000000", "run.steps=1"])
    environment(ESPALIER_EMULATED_BYTES=None)
    checks.that("an emulated GPU, 0000:01:00.0" in launch(1, ["info"]).stdout, "info lists the GPU")


def main():
    skip_without_module()
    checks = Checks()
    with scratch() as folder:
        home = lambda name: os.path.join(folder, name)
        # In this order each third takes about as long: the longest three are neighbours.
        all_checks = [check_one_rank, check_capture, check_hungry, check_checkpoints, check_layouts, check_attention,
                      check_masks, check_moments, check_fp8, check_watch, check_rounded, check_experts, check_guard,
                      check_choice, check_gpt_oss, check_products, check_capabilities, check_errors, check_offload,
                      check_any_order]
        named = [check for check in all_checks if check.__name__ in sys.argv[1:]]
        for check in named if sys.argv[1:] else share(all_checks, always=[check_one_rank]):
            check(checks, home)
    checks.finish()


main()
