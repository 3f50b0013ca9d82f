"""Shared by the oracle scripts: Hugging Face's model for a deck, formula weights, tokens, learning rate, AdamW."""
import copy
import fnmatch
import glob
import math
import os
import tomllib

import numpy as np
import torch
import transformers
from transformers.models.deepseek_v2 import modeling_deepseek_v2

GOLDEN = 0x9E3779B97F4A7C15


def load_deck(path):
    """The deck as a dictionary; data paths made absolute, relative ones being relative to the deck."""
    with open(path, "rb") as file:
        deck = tomllib.load(file)
    folder = os.path.dirname(os.path.abspath(path))
    deck["data"]["paths"] = [os.path.join(folder, p) for p in deck["data"]["paths"]]
    return deck


def build_model(deck):
    """Hugging Face's model in fp32 with the shape of the deck's [model] and [experts], and layers for further tokens
    after its own, which its forward does not visit."""
    model = build_without_further(deck)
    for _ in range(deck["model"].get("mtp_layers", 0)):
        model.model.layers.append(further_layer(model))
    return model


def further_layer(model):
    """A layer like the last one, with what makes its input of the token ahead and the state so far, under the names of
    DeepSeek-V3's files."""
    layer, norm, dim = copy.deepcopy(model.model.layers[-1]), model.model.norm, model.config.hidden_size
    layer.enorm, layer.hnorm = copy.deepcopy(norm), copy.deepcopy(norm)
    layer.eh_proj = torch.nn.Linear(2 * dim, dim, bias=False)
    layer.shared_head = torch.nn.Module()
    layer.shared_head.norm = copy.deepcopy(norm)
    return layer


def build_without_further(deck):
    experts = deck.get("experts", {})
    if experts.get("count", 0) > 0:
        return build_sparse(deck["model"], experts)
    return {"llama": build_llama, "gpt2": build_gpt2}[deck["model"].get("family", "llama")](deck["model"])


def build_gpt2(m):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=m["vocab"], n_embd=m["dim"], n_inner=m["ffn_dim"], n_layer=m["layers"], n_head=m["heads"],
        n_positions=m["seq_len"], layer_norm_epsilon=m.get("norm_eps", 1e-5), activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=m.get("tie_embeddings", False),
        attn_implementation="eager"))


def rope_parameters(m):
    """The rope_parameters of transformers for a deck's [model]."""
    kind = m.get("rope_scaling", "none")
    parameters = {"rope_type": "default" if kind == "none" else kind, "rope_theta": m.get("rope_theta", 500000.0)}
    if kind != "none":
        parameters["factor"] = m.get("rope_factor", 1.0)
    if kind in ("llama3", "yarn"):
        parameters["original_max_position_embeddings"] = m.get("rope_original_seq_len", m.get("seq_len"))
    if kind == "llama3":
        parameters["low_freq_factor"] = m.get("rope_low_freq_factor", 1.0)
        parameters["high_freq_factor"] = m.get("rope_high_freq_factor", 4.0)
    if kind == "yarn":
        parameters["beta_fast"] = m.get("rope_beta_fast", 32.0)
        parameters["beta_slow"] = m.get("rope_beta_slow", 1.0)
        parameters["truncate"] = m.get("rope_truncate", True)
        if m.get("rope_attention_factor", 0.0):
            parameters["attention_factor"] = m["rope_attention_factor"]
        if m.get("score_factor", 1.0) != 1:
            parameters["mscale_all_dim"] = (math.sqrt(m["score_factor"]) - 1) / (0.1 * math.log(m["rope_factor"]))
    return parameters


def rotary_config(m):
    """The keys that the configurations of all architectures with rotary positions have in common."""
    return dict(
        vocab_size=m["vocab"], hidden_size=m["dim"], intermediate_size=m["ffn_dim"], num_hidden_layers=m["layers"],
        num_attention_heads=m["heads"], num_key_value_heads=m.get("kv_heads", m["heads"]),
        max_position_embeddings=m["seq_len"], rms_norm_eps=m.get("norm_eps", 1e-5), rope_parameters=rope_parameters(m),
        tie_word_embeddings=m.get("tie_embeddings", False), attn_implementation="eager",
        head_dim=m.get("head_dim", m["dim"] // m["heads"]), bos_token_id=None, eos_token_id=None, pad_token_id=None)


def build_sparse(m, e):
    """The architecture with experts that has the deck's norms."""
    config = rotary_config(m) | dict(num_experts_per_tok=e.get("per_token", 1), output_router_logits=False,
                                     experts_implementation="eager")
    window, normalize, norm = m.get("sliding_window", 0), e.get("normalize", True), m.get("qk_norm", "none")
    first, every = e.get("first_layer", 0), e.get("every", 1)
    dense = [i for i in range(m["layers"]) if i < first or (i - first) % every]
    bias = m.get("qkv_bias", False)
    usual = {"mlp_bias": False, "o_bias": bias, "norm_placement": "pre", "full_attention_layers": 0}
    usual_experts = {"shared_ffn_dim": 0, "scores": "softmax", "scale": 1, "balance_loss": 0, "z_loss": 0,
                     "bias": False}
    if m.get("attention") == "mla":
        return build_deepseek(m, e, config)
    if e.get("scores") == "sigmoid":
        return build_glm(m, e, config)
    if m.get("sinks", False):
        return build_gpt_oss(m, e, config)
    if e.get("shared_gate", False):
        return transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
            **config, num_experts=e["count"], moe_intermediate_size=e["ffn_dim"], norm_topk_prob=normalize,
            shared_expert_intermediate_size=e["shared_ffn_dim"], mlp_only_layers=dense))
    if any(m.get(key, value) != value for key, value in usual.items()) or any(
            e.get(key, value) != value for key, value in usual_experts.items()):
        raise SystemExit("no architecture that the oracle knows has experts of this deck")
    if norm == "head":
        return transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
            **config, num_experts=e["count"], moe_intermediate_size=e["ffn_dim"], norm_topk_prob=normalize,
            mlp_only_layers=dense, attention_bias=bias, use_sliding_window=window > 0,
            sliding_window=window or None))
    config["intermediate_size"] = e["ffn_dim"]
    if norm == "full" and not dense and not window:
        return transformers.OlmoeForCausalLM(transformers.OlmoeConfig(
            **config, num_experts=e["count"], norm_topk_prob=normalize, attention_bias=bias))
    if norm == "none" and not dense and normalize and not bias:
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(
            **config, num_local_experts=e["count"], sliding_window=window or None))
    raise SystemExit(f"no architecture with experts has the norm {norm} of queries and keys with the deck's other keys")


def build_glm(m, e, config):
    """DeepSeek-V3's router and shared experts, with a rotation of a part of each head."""
    head_dim = config["head_dim"]
    config["rope_parameters"]["partial_rotary_factor"] = m.get("rope_dim", head_dim) / head_dim
    return transformers.Glm4MoeForCausalLM(transformers.Glm4MoeConfig(
        **config, n_routed_experts=e["count"], moe_intermediate_size=e["ffn_dim"],
        n_shared_experts=e["shared_ffn_dim"] // e["ffn_dim"], norm_topk_prob=e.get("normalize", True),
        routed_scaling_factor=e.get("scale", 1.0), n_group=e.get("groups", 1), topk_group=e.get("top_groups", 1),
        first_k_dense_replace=e.get("first_layer", 0), use_qk_norm=m.get("qk_norm", "none") == "head",
        attention_bias=m.get("qkv_bias", False)))


def build_deepseek(m, e, config):
    """Multi-head latent attention, with the router of DeepSeek-V3 or V2."""
    config |= dict(
        head_dim=m["rope_dim"], qk_rope_head_dim=m["rope_dim"], qk_nope_head_dim=m["head_dim"] - m["rope_dim"],
        v_head_dim=m.get("v_dim", m["head_dim"]), kv_lora_rank=m["kv_rank"], q_lora_rank=m.get("q_rank", 0) or None,
        n_routed_experts=e["count"], moe_intermediate_size=e["ffn_dim"],
        n_shared_experts=e["shared_ffn_dim"] // e["ffn_dim"], routed_scaling_factor=e.get("scale", 1.0),
        first_k_dense_replace=e.get("first_layer", 0))
    if e.get("scores") == "sigmoid":
        return transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(
            **config, norm_topk_prob=e.get("normalize", True), n_group=e.get("groups", 1),
            topk_group=e.get("top_groups", 1), rope_interleave=m.get("rope_adjacent", False)))
    grouped = e.get("groups", 1) > 1
    if e.get("normalize", True) or (grouped and e.get("group_best", 2) != 1) or not m.get("rope_adjacent", False):
        raise SystemExit("DeepSeek-V2 has other experts, and rotates neighbours")
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
        **config, topk_method="group_limited_greedy" if grouped else "greedy", n_group=e.get("groups", 1),
        topk_group=e.get("top_groups", 1)))


def build_gpt_oss(m, e, config):
    """Sinks of attention, windows in some layers, experts with biases and limits of their gates."""
    first, every = m.get("full_attention_layers", 0), m.get("full_attention_every", 0)
    full = [l <= first or (every > 0 and l % every == 0) for l in range(1, m["layers"] + 1)]
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(
        **config | {"intermediate_size": e["ffn_dim"]}, num_local_experts=e["count"], swiglu_limit=e["swiglu_limit"],
        layer_types=["full_attention" if f else "sliding_attention" for f in full], sliding_window=m["sliding_window"],
        attention_bias=m.get("qkv_bias", False)))


def build_llama(m):
    """The architecture that has the deck's biases and norms."""
    common = rotary_config(m)
    qkv, o, mlp = (m.get(f"{part}_bias", False) for part in ("qkv", "o", "mlp"))
    form = m.get("norm_placement", "pre"), m.get("qk_norm", "none")
    if window := m.get("sliding_window", 0):
        if form == ("pre", "none") and not (qkv or o or mlp or m.get("full_attention_layers", 0)):
            return transformers.MistralForCausalLM(transformers.MistralConfig(**common, sliding_window=window))
        raise SystemExit("of windows the oracle knows Mistral's only")
    if form == ("post", "full") and qkv == o and not mlp:
        return transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**common, attention_bias=qkv))
    if form == ("pre", "head") and qkv == o and not mlp:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common, attention_bias=qkv))
    if form == ("pre", "none") and qkv and not o and not mlp:
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**common))
    if form == ("pre", "none") and qkv == o:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common, attention_bias=qkv, mlp_bias=mlp))
    raise SystemExit(f"no architecture of Hugging Face has the norms {form} with the biases of this deck")


def compute_in_double(model):
    """Turns the model into fp64, and its norms and routers, which compute in fp32 whatever the type. RoPE's tables stay
    fp32."""
    def norm(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    def route(self, x):
        logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight, getattr(self, "bias", None))
        weights, chosen = torch.topk(logits.softmax(-1), self.top_k, dim=-1)
        if getattr(self, "norm_topk_prob", True):  # Mixtral always
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, chosen

    def route_scaled(self, x):  # DeepSeek-V2
        logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        scores = logits.softmax(-1)
        values = scores
        if self.topk_method == "group_limited_greedy":
            values = values.view(len(scores), self.num_group, -1)
            groups = torch.topk(values.amax(-1), self.topk_group, dim=-1)[1]
            allowed = torch.zeros_like(values[..., 0]).scatter_(1, groups, 1)[..., None].expand_as(values)
            values = values.masked_fill(allowed == 0, -torch.inf).flatten(1)
        chosen = torch.topk(values, self.top_k, dim=-1)[1]
        return logits, self.routed_scaling_factor * scores.gather(1, chosen), chosen

    def route_groups(self, x):
        logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        scores = logits.sigmoid()
        values = (scores + self.e_score_correction_bias).view(len(scores), self.num_group, -1)
        groups = torch.topk(values.topk(2, dim=-1)[0].sum(-1), self.topk_group, dim=-1)[1]
        allowed = torch.zeros_like(values[..., 0]).scatter_(1, groups, 1)[..., None].expand_as(values)
        chosen = torch.topk(values.masked_fill(allowed == 0, -torch.inf).flatten(1), self.top_k, dim=-1)[1]
        weights = scores.gather(1, chosen)
        if self.norm_topk_prob:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, self.routed_scaling_factor * weights, chosen

    def rotate(q, k, turns):
        pairs = (torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous()) for x in (q, k))
        return tuple(torch.view_as_real(x * turns.unsqueeze(1)).flatten(3) for x in pairs)

    modeling_deepseek_v2.apply_rotary_emb = rotate  # which rounds to fp32
    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm.__get__(module)
        if type(module).__name__.endswith("TopKRouter"):
            module.forward = route.__get__(module)
        if type(module).__name__.endswith("TopkRouter"):
            module.forward = (route_scaled if hasattr(module, "topk_method") else route_groups).__get__(module)
    return model


def by_our_names(model, part=lambda parameter: parameter):
    """The parameters of a model, or what `part` makes of each, by their names in Espalier. transformers packs gate_proj
    and up_proj of all experts of a layer into one tensor; here they are two views of it, of gpt-oss of every second
    column. A shared expert with a gate is a mixture of one."""
    found = {}
    for name, parameter in model.named_parameters():
        tensor, (start, _, last) = part(parameter), name.rpartition(".")
        if start.endswith(".experts") and model.config.model_type == "gpt_oss":
            kind, tensor = ("bias", tensor) if last.endswith("_bias") else ("weight", tensor.transpose(1, 2))
            ours = ("gate_proj", "up_proj") if last.startswith("gate_up") else ("down_proj",)
            found |= {f"{start}.{word}.{kind}": tensor[:, i::len(ours)] for i, word in enumerate(ours)}
        elif ".router." in name:
            found[name.replace(".router.", ".gate.")] = tensor
        elif start.endswith(".experts") and last == "gate_up_proj":
            found[f"{start}.gate_proj.weight"], found[f"{start}.up_proj.weight"] = tensor.chunk(2, dim=1)
        elif start.endswith(".experts"):
            found[f"{name}.weight"] = tensor
        elif ".shared_expert." in name:
            found[name] = tensor[None]
        else:
            found[name] = tensor
    return found


def router_biases(model):
    """Buffers of Hugging Face's that are parameters of ours, which no gradient trains."""
    return {name: buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")}


def fnv1a64(text):
    """The 64-bit FNV-1a hash of a text's bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


def formula_weights(name, shape, scale=0.4):
    """Element i is scale * ((((fnv1a64(name) + i * GOLDEN) mod 2^64) >> 40) / 2^24 - 0.5), plus 1 if the tensor is a
    norm's weight (a vector that is no bias), computed in fp64 and rounded to fp32."""
    index = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = (np.uint64(fnv1a64(name)) + index * np.uint64(GOLDEN)) >> np.uint64(40)
    values = scale * (bits.astype(np.float64) / 2**24 - 0.5) + (1.0 if len(shape) == 1 and name.endswith(".weight") else
                                                                0.0)
    return values.astype(np.float32).reshape(shape)


def set_formula_weights(model):
    with torch.no_grad():
        for name, parameter in by_our_names(model).items():
            parameter.copy_(torch.from_numpy(formula_weights(name, tuple(parameter.shape))))
        for name, buffer in router_biases(model).items():
            buffer.copy_(torch.from_numpy(formula_weights(name, tuple(buffer.shape))))


def read_tokens(deck):
    """The bytes of the deck's text files, in sorted order of their paths, with a zero byte between files."""
    data = deck["data"]
    if data.get("format", "text") != "text" or data.get("shuffle", True):
        raise SystemExit('the oracle needs data.format = "text" and data.shuffle = false')
    files = set()
    for path in data["paths"]:
        files.update(glob.glob(path, recursive=True) if any(c in path for c in "*?[") else [path])
    texts = []
    for path in sorted(files):
        with open(path, "rb") as file:
            texts.append(file.read())
    return np.frombuffer(b"\0".join(texts), dtype=np.uint8).astype(np.int64)


def learning_rate(deck, step):
    """Rate of step 1, 2, ...: linear warm-up, stable steps, decay."""
    top, schedule = deck["optimizer"]["lr"], deck.get("lr", {})
    warmup, low = schedule.get("warmup_steps", 0), schedule.get("min_ratio", 0.1)
    stable_to = warmup + schedule.get("stable_steps", 0)
    decay_steps = schedule.get("decay_steps", 0)
    if decay_steps <= 0:
        decay_steps = max(1, deck["run"]["steps"] - stable_to)
    if step <= warmup:
        return top * step / warmup
    if step <= stable_to:
        return top
    progress = min(1.0, (step - stable_to) / decay_steps)
    return top * {"cosine": low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2,
                  "linear": 1 - (1 - low) * progress,
                  "one_minus_sqrt": 1 - (1 - low) * math.sqrt(progress),
                  "inverse_sqrt": max(low, math.sqrt(max(1, stable_to) / step)),
                  "constant": 1.0}[schedule.get("decay", "cosine")]


def settings_of(name, o):
    """The settings of the first entry of optimizer.groups that matches, as {"lr": "2", "decay": "0.1"}."""
    for entry in o.get("groups", []):
        pattern, *settings = entry.split()
        if fnmatch.fnmatchcase(name, pattern):
            return dict(setting.split("=") for setting in settings)
    return {}


def is_matrix(name, parameter):
    """Not a vector, nor one of each expert."""
    return parameter.dim() >= 2 and not name.endswith("bias")


def trains_with_muon(name, parameter, o):
    """With Muon, the matrices of the layers, those of experts and routers, too; not the biases of experts."""
    in_layer = name.startswith(("model.layers.", "transformer.h."))
    return o.get("name", "adamw") == "muon" and in_layer and is_matrix(name, parameter)


def parameter_groups(model, o):
    """A PyTorch group for each parameter of AdamW; vectors decay only if the deck says so. "factor" multiplies the
    rate."""
    groups = []
    for name, parameter in model.named_parameters():
        if trains_with_muon(name, parameter, o):
            continue
        settings = settings_of(name, o)
        decays = is_matrix(name, parameter) or o.get("decay_norms", False)
        decay = float(settings.get("decay", o.get("weight_decay", 0.1) if decays else 0.0))
        groups.append({"params": [parameter], "weight_decay": decay, "factor": float(settings.get("lr", 1))})
    return groups


def adamw(model, deck):
    """torch.optim.AdamW with the deck's groups."""
    o = deck["optimizer"]
    return torch.optim.AdamW(parameter_groups(model, o), lr=o["lr"],
                             betas=(o.get("beta1", 0.9), o.get("beta2", 0.95)), eps=o.get("eps", 1e-8))


class Muon:
    """torch.optim.Muon, but in the type of the parameters, where PyTorch's iterations are in bf16. GPT-2 stores
    weights as [in, out] and q, k and v as parts of one tensor; each of them is a matrix of its own, and so is each
    matrix of an expert, and each half of eh_proj."""
    A, B, C, EPS = 3.4445, -4.7750, 2.0315, 1e-7

    def __init__(self, model, deck):
        self.o = deck["optimizer"]
        self.gpt2 = deck["model"].get("family", "llama") == "gpt2"
        self.model = model
        self.momenta = {name: torch.zeros_like(parameter) for name, parameter in by_our_names(model).items()
                        if trains_with_muon(name, parameter, self.o)}

    @staticmethod
    def matrices(name, tensor):
        """Views of the matrices in a tensor."""
        if tensor.dim() == 3:
            return list(tensor)
        parts = 3 if name.endswith("c_attn.weight") else 2 if name.endswith("eh_proj.weight") else 1
        return tensor.chunk(parts, dim=1)

    def orthogonal(self, x):
        x = x / x.norm().clamp(min=self.EPS)
        for _ in range(self.o.get("muon_iterations", 5)):
            tall = x.shape[0] > x.shape[1]
            gram = x.T @ x if tall else x @ x.T
            polynomial = self.B * gram + self.C * gram @ gram
            x = self.A * x + (x @ polynomial if tall else polynomial @ x)
        return x

    def scale(self, shape):
        out, inner = reversed(shape) if self.gpt2 else shape
        if self.o.get("muon_scale", "match_adamw") == "match_adamw":
            return 0.2 * math.sqrt(max(out, inner))
        return math.sqrt(max(1, out / inner))

    @torch.no_grad()
    def step(self, share_of_rate):
        """A step at this share of the highest rate."""
        beta, rate = self.o.get("muon_momentum", 0.95), self.o.get("muon_lr", 0.02) * share_of_rate
        parameters, gradients = by_our_names(self.model), by_our_names(self.model, lambda parameter: parameter.grad)
        for name, momenta in self.momenta.items():
            settings = settings_of(name, self.o)
            decay, factor = (float(settings.get(*key)) for key in
                             (("decay", self.o.get("weight_decay", 0.1)), ("lr", 1)))
            for part, gradient, momentum in zip(*(self.matrices(name, tensor) for tensor in
                                                  (parameters[name], gradients[name], momenta))):
                momentum.lerp_(gradient, 1 - beta)
                direction = gradient.lerp(momentum, beta) if self.o.get("muon_nesterov", True) else momentum
                part.mul_(1 - rate * factor * decay)
                part.sub_(self.orthogonal(direction), alpha=rate * factor * self.scale(part.shape))


def documents_of(sample, deck):
    """The number of the document of each token [tokens], all 0 unless the deck isolates documents: one ends with each
    data.end_token."""
    data = deck["data"]
    ends = (sample == data["end_token"]) if data.get("isolate_documents", False) else torch.zeros_like(sample)
    return torch.nn.functional.pad(ends.long().cumsum(0)[:-1], (1, 0))


def attention_mask(documents, deck, dtype):
    """Added to the scores of [1, 1, queries, keys]: 0 where a query sees a key."""
    p = torch.arange(len(documents))
    seen = (p[:, None] >= p) & (documents[:, None] == documents)
    if window := deck["model"].get("sliding_window", 0):
        seen &= p[:, None] - p < window
    return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[None, None]


def targets_ahead(sample, documents, ahead):
    """The target [seq_len] of each position, so many tokens ahead; -100 beyond the sample or the document."""
    seq_len = len(sample) - 1
    at = torch.arange(seq_len) + ahead
    inside = at.clamp(max=seq_len)
    return torch.where((at <= seq_len) & (documents[inside] == documents[:seq_len]), sample[inside], -100)


def cross_entropies(logits, targets):
    """The sum over the targets [seq_len] that count, and their number."""
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, reduction="sum", ignore_index=-100)
    return loss, int((targets != -100).sum())


def further_losses(model, deck, sample):
    """By depth: sum and number of the cross-entropies of a sample [tokens] of multi-token prediction (DeepSeek-V3
    report, section 2.2): h(k) = norm(layer(W [norm(embedding of the token k ahead); norm(h(k - 1))])), h(0) the model's
    output after its norm."""
    base, layers, documents = model.model, deck["model"]["layers"], documents_of(sample, deck)
    seq_len = len(sample) - 1
    positions = torch.arange(seq_len)[None]
    mask = attention_mask(documents[:seq_len], deck, base.norm.weight.dtype)
    h = base(sample[None, :-1], attention_mask=mask, use_cache=False).last_hidden_state
    found = [cross_entropies(model.lm_head(h), targets_ahead(sample, documents, 1))]
    for k, layer in enumerate(base.layers[layers:], start=1):
        ahead = base.embed_tokens(sample[(positions + k).clamp(max=seq_len)])
        x = layer.eh_proj(torch.cat([layer.enorm(ahead), layer.hnorm(h)], dim=-1))
        x = layer(x, attention_mask=mask, position_ids=positions,
                  position_embeddings=base.rotary_emb(x, positions))
        h = layer.shared_head.norm(x[0] if isinstance(x, tuple) else x)
        found.append(cross_entropies(model.lm_head(h), targets_ahead(sample, documents, k + 1)))
    return found


def train_further(model, deck, samples):
    """One backward pass of the samples [batch, tokens] of a step: mean loss, and mean over the depths of theirs per
    target. As in DeepSeek-V3's equation 24 all depths are divided by the number of the model's own targets."""
    weight, depths = deck.get("loss", {}).get("mtp_weight", 0.3), deck["model"]["mtp_layers"]
    count = sum(int((targets_ahead(s, documents_of(s, deck), 1) != -100).sum()) for s in samples)
    sums, counts = [0.0] * (depths + 1), [0] * (depths + 1)
    for sample in samples:
        losses = further_losses(model, deck, sample)
        (losses[0][0] / count + weight / depths * sum(loss for loss, _ in losses[1:]) / count).backward()
        for k, (loss, number) in enumerate(losses):
            sums[k] += loss.item()
            counts[k] += number
    means = [total / number for total, number in zip(sums, counts)]
    return means[0], sum(means[1:]) / depths


def summed_losses(model, inputs, targets):
    """Sums over the tokens of [batch, seq] inputs: of the cross-entropies, and of log(Z)^2."""
    logits = model(inputs, use_cache=False).logits
    return (torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"),
            logits.logsumexp(-1).square().sum())


def summed_loss(model, inputs, targets):
    """Sum of the token cross-entropies of [batch, seq] inputs."""
    return summed_losses(model, inputs, targets)[0]


def train(model, deck, steps):
    """Trains in place; yields step, loss (before the update), grad_norm (before clipping) and lr of each step, and
    mtp_loss of a deck with model.mtp_layers."""
    model.train()
    tokens = read_tokens(deck)
    batch, seq_len = deck["batch"]["global"], deck["model"]["seq_len"]
    samples = (len(tokens) - 1) // seq_len
    clip, z_loss = deck["optimizer"].get("clip_norm", 1.0), deck.get("loss", {}).get("z_loss", 0.0)
    optimizer, muon = adamw(model, deck), Muon(model, deck)
    for step in range(1, steps + 1):
        model.zero_grad(set_to_none=True)
        loss, further = 0.0, {}
        chosen = [((step - 1) * batch + i) % samples for i in range(batch)]
        texts = [torch.from_numpy(tokens[k * seq_len:(k + 1) * seq_len + 1]) for k in chosen]
        if deck["model"].get("mtp_layers", 0):
            loss, further["mtp_loss"] = train_further(model, deck, texts)
            texts = []
        for sample in (text[None] for text in texts):
            share, squares = (x / (batch * seq_len) for x in summed_losses(model, sample[:, :-1], sample[:, 1:]))
            (share + z_loss * squares if z_loss else share).backward()
            loss += share.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip if clip > 0 else math.inf).item()
        lr = learning_rate(deck, step)
        for group in optimizer.param_groups:
            group["lr"] = lr * group["factor"]
        optimizer.step()
        muon.step(lr / deck["optimizer"]["lr"])
        yield {"step": step, "loss": loss, "grad_norm": norm, "lr": lr, **further}
