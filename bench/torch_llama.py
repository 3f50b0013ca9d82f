"""The same training in PyTorch: a Llama in plain torch.nn, AdamW and clipping, on the samples that an Espalier deck
reads in order.

    torch_llama.py DECK [--device cuda|cpu] [--steps N] [--compile] [--deterministic] [--weights CHECKPOINT]

DECK is an effective deck (`espalier check`) with data.shuffle = false, on one rank. Parameters are fp32; in bf16 the
GEMMs run under autocast, and the residual stream is bf16, as in Espalier. If memory is short, the microbatch is halved.
Prints one JSON line: milliseconds, loss and gradient norm of every step, the microbatch, the peak of allocated
memory."""
import argparse, array, glob, json, math, os, struct, sys, time, tomllib

import torch
from torch import nn
from torch.nn import functional as F

HEADER = struct.Struct("<8sIIQQ")
if os.environ.get("ATEN_CPU_CAPABILITY") == "avx2":  # so that the kernels that torch.compile generates have the
                                                     # library's cap
    torch._inductor.config.cpp.simdlen = 256


class Attention(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.head_dim = m["dim"] // m["heads"]
        self.q_proj = nn.Linear(m["dim"], m["dim"], bias=False)
        self.k_proj = nn.Linear(m["dim"], m["kv_heads"] * self.head_dim, bias=False)
        self.v_proj = nn.Linear(m["dim"], m["kv_heads"] * self.head_dim, bias=False)
        self.o_proj = nn.Linear(m["dim"], m["dim"], bias=False)

    def heads(self, x):
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def forward(self, x, cos, sin):
        q, k, v = (self.heads(p(x)) for p in (self.q_proj, self.k_proj, self.v_proj))
        o = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True,
                                           enable_gqa=q.shape[1] != k.shape[1])
        return self.o_proj(o.transpose(1, 2).flatten(2))


class LatentAttention(nn.Module):
    """Multi-head latent attention. Values are padded to the width of queries: PyTorch's quick attention on processors
    takes one width, and what it falls back to is several times slower."""

    def __init__(self, m):
        super().__init__()
        self.heads_, self.width, self.v_dim, self.rope = m["heads"], m["head_dim"], m["v_dim"], m["rope_dim"]
        self.rank = m["kv_rank"]
        self.q_a_proj = nn.Linear(m["dim"], m["q_rank"], bias=False)
        self.q_a_layernorm = Norm(dict(m, dim=m["q_rank"]))
        self.q_b_proj = nn.Linear(m["q_rank"], m["heads"] * self.width, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(m["dim"], self.rank + self.rope, bias=False)
        self.kv_a_layernorm = Norm(dict(m, dim=self.rank))
        self.kv_b_proj = nn.Linear(self.rank, m["heads"] * (self.width - self.rope + self.v_dim), bias=False)
        self.o_proj = nn.Linear(m["heads"] * self.v_dim, m["dim"], bias=False)

    def heads(self, x):
        return x.unflatten(-1, (self.heads_, -1)).transpose(1, 2)

    def forward(self, x, cos, sin):
        nope = self.width - self.rope
        q = self.heads(self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))))
        q = torch.cat((q[..., :nope], rotated(q[..., nope:], cos, sin)), dim=-1)
        latents, k_rope = self.kv_a_proj_with_mqa(x).split([self.rank, self.rope], dim=-1)
        k, v = self.heads(self.kv_b_proj(self.kv_a_layernorm(latents))).split([nope, self.v_dim], dim=-1)
        k_rope = rotated(k_rope[:, None], cos, sin).expand(-1, self.heads_, -1, -1)
        o = F.scaled_dot_product_attention(q, torch.cat((k, k_rope), dim=-1), F.pad(v, (0, self.width - self.v_dim)),
                                           is_causal=True)[..., :self.v_dim]
        return self.o_proj(o.transpose(1, 2).flatten(2))


def rotated(x, cos, sin):
    """Rotary positions with Hugging Face's pairs: element i with element i + half."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.gate_proj = nn.Linear(m["dim"], m["ffn_dim"], bias=False)
        self.up_proj = nn.Linear(m["dim"], m["ffn_dim"], bias=False)
        self.down_proj = nn.Linear(m["ffn_dim"], m["dim"], bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """A mixture of experts with softmax scores. Rows are sorted by expert and multiplied by torch's grouped matmul,
    where it takes the type, else expert by expert."""

    def __init__(self, m, e):
        super().__init__()
        self.per_token, self.count, self.normalize, self.scale = e["per_token"], e["count"], e["normalize"], e["scale"]
        self.gate = nn.Linear(m["dim"], e["count"], bias=False)
        self.experts = nn.Module()
        for name, out, width in (("gate_proj", e["ffn_dim"], m["dim"]), ("up_proj", e["ffn_dim"], m["dim"]),
                                 ("down_proj", m["dim"], e["ffn_dim"])):
            part = nn.Module()
            part.weight = nn.Parameter(torch.empty(e["count"], out, width))
            setattr(self.experts, name, part)

    def product(self, rows, part, counts, ends):
        weight = getattr(self.experts, part).weight.to(rows.dtype).transpose(-2, -1)
        if rows.dtype == torch.bfloat16:
            return torch._grouped_mm(rows, weight, offs=ends)
        return torch.cat([x @ w for x, w in zip(rows.split(counts), weight)])

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        weights, chosen = F.softmax(self.gate(x), dim=-1, dtype=torch.float32).topk(self.per_token, dim=-1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=self.count)
        ends = counts.cumsum(0).to(torch.int32)
        counts = counts.tolist() if x.dtype != torch.bfloat16 else None
        rows = x[order // self.per_token]
        h = F.silu(self.product(rows, "gate_proj", counts, ends)) * self.product(rows, "up_proj", counts, ends)
        h = h * (self.scale * weights.flatten()[order])[:, None].to(h.dtype)
        down = self.product(h, "down_proj", counts, ends)
        y = torch.empty_like(down)
        y[order] = down
        return y.view(-1, self.per_token, shape[-1]).sum(1).view(shape)


class Norm(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(m["dim"])), m["norm_eps"]

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps).to(x.dtype)


class Layer(nn.Module):
    def __init__(self, m, experts):
        super().__init__()
        self.self_attn = LatentAttention(m) if m["attention"] == "mla" else Attention(m)
        self.mlp = Experts(m, experts) if experts["count"] > 0 else FeedForward(m)
        self.input_layernorm, self.post_attention_layernorm = Norm(m), Norm(m)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Returns the sum of the token losses. Names of the parameters are Espalier's, which are Hugging Face's."""

    def __init__(self, deck, compute):
        super().__init__()
        m = deck["model"]
        self.compute = compute
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(m["vocab"], m["dim"])
        self.model.layers = nn.ModuleList(Layer(m, deck["experts"]) for _ in range(m["layers"]))
        self.model.norm = Norm(m)
        self.lm_head = nn.Linear(m["dim"], m["vocab"], bias=False)
        if m["tie_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        half = m["rope_dim"] // 2
        angles = torch.outer(torch.arange(m["seq_len"]).float(), m["rope_theta"]**(-torch.arange(half).float() / half))
        self.register_buffer("cos", angles.cos().to(compute), persistent=False)
        self.register_buffer("sin", angles.sin().to(compute), persistent=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=m["init_std"])

    def forward(self, ids, targets):
        x = self.model.embed_tokens(ids).to(self.compute)
        for layer in self.model.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.model.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def read_tokens(data):
    """All tokens of the deck's files: bytes of texts with a zero in between, or ids."""
    paths = sorted({p for pattern in data["paths"] for p in glob.glob(pattern, recursive=True) if os.path.isfile(p)})
    if data["format"] == "text":
        return torch.frombuffer(bytearray(b"\0".join(open(p, "rb").read() for p in paths)), dtype=torch.uint8).long()
    parts = []
    for path in paths:
        with open(path, "rb") as file:
            _, _, width, _, count = HEADER.unpack(file.read(HEADER.size))
            ids = array.array({2: "H", 4: "I"}[width])
            ids.fromfile(file, count)
        parts.append(torch.tensor(ids, dtype=torch.int64))
    return torch.cat(parts)


def learning_rate(deck, step):
    """Learning rate of step 1, 2, ...: linear warm-up, stable steps, decay (doc/numerics.md)."""
    lr, top = deck["lr"], deck["optimizer"]["lr"]
    warmup, low, stable_to = lr["warmup_steps"], lr["min_ratio"], lr["warmup_steps"] + lr["stable_steps"]
    if step <= warmup:
        return top * step / warmup
    if step <= stable_to:
        return top
    progress = min(1.0, (step - stable_to) / lr["decay_steps"])
    return top * {"cosine": low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2,
                  "linear": 1 - (1 - low) * progress,
                  "one_minus_sqrt": 1 - (1 - low) * math.sqrt(progress),
                  "inverse_sqrt": max(low, math.sqrt(max(1, stable_to) / step)),
                  "constant": 1.0}[lr["decay"]]


class Trainer:
    """One model on one device; `step` trains on the deck's next samples in microbatches of `micro`."""

    def __init__(self, deck, device, compiled):
        self.deck, self.device, self.micro = deck, device, deck["batch"]["micro"]
        compute = torch.bfloat16 if deck["precision"]["compute"] == "bf16" else torch.float32
        torch.manual_seed(deck["run"]["seed"])
        with torch.device(device):  # on the device: billions of random numbers are drawn at once
            self.model = Llama(deck, compute)
        # Sizes as constants: a dynamic batch would be another, slower program.
        self.run = torch.compile(self.model, dynamic=False) if compiled else self.model
        self.autocast = lambda: torch.autocast(device, dtype=torch.bfloat16, enabled=compute == torch.bfloat16)
        self.tokens = read_tokens(deck["data"]).to(device)
        o, parameters = deck["optimizer"], list(self.model.parameters())
        groups = [{"params": [p for p in parameters if p.dim() > 1], "weight_decay": o["weight_decay"]}, {
            "params": [p for p in parameters if p.dim() < 2],
            "weight_decay": o["weight_decay"] if o["decay_norms"] else 0.0
        }]
        self.optimizer = torch.optim.AdamW(groups, lr=o["lr"], betas=(o["beta1"], o["beta2"]), eps=o["eps"], fused=True)

    def samples(self, step):
        seq = self.deck["model"]["seq_len"]
        count, batch = (len(self.tokens) - 1) // seq, self.deck["batch"]["global"]
        first = torch.tensor([((step - 1) * batch + i) % count * seq for i in range(batch)], device=self.device)
        return self.tokens[first[:, None] + torch.arange(seq + 1, device=self.device)]

    def gradients(self, rows):
        """Adds the gradients of the mean loss of the rows, and returns that loss."""
        loss = torch.zeros((), device=self.device)
        for part in rows.split(self.micro):
            with self.autocast():
                share = self.run(part[:, :-1], part[:, 1:]) / (rows.shape[0] * (rows.shape[1] - 1))
            share.backward()
            loss += share.detach()
        return loss

    def step(self, step):
        loss = self.gradients(self.samples(step))
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.deck["optimizer"]["clip_norm"] or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.deck, step)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, norm

    def fit(self):
        """Halves the microbatch until a forward and backward pass fits, besides the optimizer states that are made
        later."""
        rows = self.samples(1)
        states = [torch.empty_like(p) for p in self.model.parameters() for _ in range(2)]
        while True:
            try:
                self.gradients(rows)
                break
            except torch.OutOfMemoryError:
                if self.micro == 1:
                    raise
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch._dynamo.reset()  # drop the code compiled for the microbatch that did not fit
            self.micro //= 2
        self.optimizer.zero_grad(set_to_none=True)
        del states


class Clock:
    """Milliseconds between steps: by events on a GPU, so that no step waits for the host."""

    def __init__(self, device):
        self.device, self.marks = device, []

    def mark(self):
        if self.device == "cpu":
            self.marks.append(1e3 * time.perf_counter())
        else:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()

    def milliseconds(self):
        pairs = zip(self.marks, self.marks[1:])
        if self.device == "cpu":
            return [b - a for a, b in pairs]
        torch.cuda.synchronize()
        return [a.elapsed_time(b) for a, b in pairs]


def load_weights(model, checkpoint):
    """Copies the parameters of an Espalier checkpoint; exits unless names and sizes are the model's."""
    from support.checkpoints import tensors
    found = {n.removeprefix("parameters/"): v for n, v in tensors(checkpoint).items() if n.startswith("parameters/")}
    wanted = dict(model.named_parameters())
    if {n: p.numel() for n, p in wanted.items()} != {n: len(v) for n, v in found.items()}:
        sys.exit(f"{checkpoint}: other parameters than the model's: {sorted(wanted.keys() ^ found.keys())}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(torch.tensor(found[name]).view_as(parameter))


def make_deterministic():
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)


def train(arguments):
    with open(arguments.deck, "rb") as file:
        deck = tomllib.load(file)
    if arguments.device == "cuda":  # before the first allocation: otherwise fragmentation costs a part of the memory
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    if arguments.deterministic:
        make_deterministic()
    trainer, clock = Trainer(deck, arguments.device, arguments.compile), Clock(arguments.device)
    if arguments.weights:
        load_weights(trainer.model, arguments.weights)
    if arguments.device == "cuda":
        trainer.fit()
    clock.mark()
    results = []
    for step in range(1, arguments.steps + 1):
        results.append(trainer.step(step))
        clock.mark()
    peak = torch.cuda.max_memory_allocated() if arguments.device == "cuda" else 0
    losses, norms = ([value.item() for value in column] for column in zip(*results))
    return {"ms": clock.milliseconds(), "losses": losses, "norms": norms, "micro": trainer.micro, "peak_bytes": peak,
            "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("deck")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--weights")
    print(json.dumps(train(parser.parse_args())))


if __name__ == "__main__":
    main()
