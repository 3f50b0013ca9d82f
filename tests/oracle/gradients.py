#!/usr/bin/env python3
"""Writes data/NAME_gradients_{untied,tied}.txt: loss and all gradients of small models of several architectures, or of
those named, by Hugging Face's in fp64.

The weights follow oracle.formula_weights, so that a test can make them again. Needs requirements_torch.txt."""
import os
import sys

import torch

import oracle

SHAPE = {"layers": 2, "dim": 24, "heads": 4, "kv_heads": 2, "ffn_dim": 40, "vocab": 37, "seq_len": 9,
         "norm_eps": 1e-5, "rope_theta": 10000.0}
# Per model: what differs from SHAPE, whether the head is tied, and [experts] of the deck.
MODELS = {
    "llama": ({}, (False, True)),
    "gpt2": ({"family": "gpt2"}, (False, True)),
    "llama31": ({"head_dim": 10, "qkv_bias": True, "o_bias": True, "mlp_bias": True, "rope_scaling": "llama3",
                 "rope_factor": 3.0, "rope_original_seq_len": 40, "rope_low_freq_factor": 0.5,
                 "rope_high_freq_factor": 3.0}, (False,)),
    "qwen2": ({"qkv_bias": True, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_seq_len": 60,
               "rope_beta_fast": 4.0, "rope_beta_slow": 0.5}, (True,)),
    "qwen3": ({"head_dim": 8, "qk_norm": "head", "rope_scaling": "linear", "rope_factor": 2.5}, (True,)),
    "olmo2": ({"norm_placement": "post", "qk_norm": "full"}, (False,)),
    "mixtral": ({"sliding_window": 5}, (False,), {"count": 5, "per_token": 2, "ffn_dim": 13}),
    "qwen3_moe": ({"head_dim": 8, "qk_norm": "head"}, (False,),
                  {"count": 6, "per_token": 3, "ffn_dim": 11, "first_layer": 1, "every": 2}),
    "qwen2_moe": ({"qkv_bias": True}, (False,), {"count": 6, "per_token": 3, "ffn_dim": 11, "normalize": False,
                                                 "shared_ffn_dim": 14, "shared_gate": True}),
    "glm4_moe": ({"head_dim": 8, "rope_dim": 4, "qk_norm": "head", "qkv_bias": True}, (False,),
                 {"count": 8, "per_token": 3, "ffn_dim": 11, "shared_ffn_dim": 22, "scores": "sigmoid", "scale": 2.5,
                  "groups": 4, "top_groups": 2, "bias": True, "first_layer": 1}),
    "gpt_oss": ({"head_dim": 8, "qkv_bias": True, "o_bias": True, "sinks": True, "sliding_window": 4,
                 "full_attention_every": 2, "rope_scaling": "yarn", "rope_factor": 4.0, "rope_original_seq_len": 60,
                 "rope_beta_fast": 4.0, "rope_beta_slow": 0.5, "rope_truncate": False}, (False,),
                {"count": 5, "per_token": 2, "ffn_dim": 13, "mlp_bias": True, "router_bias": True,
                 "swiglu_limit": 0.3}),
    "deepseek_v3": ({"attention": "mla", "kv_heads": 4, "head_dim": 10, "rope_dim": 4, "v_dim": 7, "q_rank": 11,
                     "kv_rank": 9, "rope_adjacent": True, "rope_scaling": "yarn", "rope_factor": 4.0,
                     "rope_original_seq_len": 60, "rope_beta_fast": 4.0, "rope_beta_slow": 0.5,
                     "rope_attention_factor": 1.0, "score_factor": 1.44}, (False,),
                    {"count": 8, "per_token": 3, "ffn_dim": 11, "shared_ffn_dim": 11, "scores": "sigmoid", "scale": 2.5,
                     "groups": 4, "top_groups": 2, "bias": True, "first_layer": 1}),
    "deepseek_v2": ({"attention": "mla", "kv_heads": 4, "head_dim": 8, "rope_dim": 6, "v_dim": 9, "kv_rank": 10,
                     "rope_adjacent": True}, (False,),
                    {"count": 6, "per_token": 3, "ffn_dim": 11, "shared_ffn_dim": 22, "normalize": False,
                     "scale": 1.5}),
    "olmoe": ({"qk_norm": "full"}, (False,), {"count": 7, "per_token": 3, "ffn_dim": 10, "normalize": False}),
}
BATCH = 2

HEAD = """\
# Loss and gradients of a small model, written by gradients.py with Hugging Face's {model} in fp64.
# {shape}
# Element i of the weight NAME is 0.4 * ((((fnv1a64(NAME) + i * 0x9E3779B97F4A7C15) mod 2^64) >> 40) / 2^24 - 0.5),
# plus 1 for the weights of norms, computed in fp64 and rounded to fp32; the tied model has no lm_head.weight.
# Token p of row r is (31 r + 17 p + 3 p p + 5) mod vocab, its target is token p + 1.
# The loss is the mean over all tokens. Then, for every parameter: name, extents, first and last weight on one line, and
# d loss / d weight on the next, row-major.
"""


def tokens():
    rows = [[(31 * r + 17 * p + 3 * p * p + 5) % SHAPE["vocab"] for p in range(SHAPE["seq_len"] + 1)]
            for r in range(BATCH)]
    return torch.tensor(rows)


def settings(name):
    return SHAPE | {"family": "llama"} | MODELS[name][0]


def experts(name):
    return (*MODELS[name], {})[2]


def gradients(name, tied, double):
    """The model after one backward pass, and its mean loss."""
    model = oracle.build_model({"model": settings(name) | {"tie_embeddings": tied}, "experts": experts(name)})
    if double:
        oracle.compute_in_double(model)
    oracle.set_formula_weights(model)
    rows = tokens()
    loss = oracle.summed_loss(model, rows[:, :-1], rows[:, 1:]) / (BATCH * SHAPE["seq_len"])
    loss.backward()
    return model, loss.item()


def check_fp32(name, tied, truth, loss):
    """The unmodified fp32 model must agree: guards what compute_in_double replaces."""
    model, fp32_loss = gradients(name, tied, double=False)
    assert abs(fp32_loss / loss - 1) < 1e-6
    for (weight, a), (_, b) in zip(model.named_parameters(), truth.named_parameters()):
        assert (a.grad - b.grad).norm() < 1e-5 * b.grad.norm() + 1e-8, (name, weight)


def write(name, tied):
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "data", f"{name}_gradients_{'tied' if tied else 'untied'}.txt")
    model, loss = gradients(name, tied, double=True)
    check_fp32(name, tied, model, loss)
    rows = tokens()
    unused = ("family", "kv_heads", "rope_theta") if name == "gpt2" else ("family",)
    shown = {k: v for k, v in settings(name).items() if k not in unused}
    shown |= {f"experts.{k}": v for k, v in experts(name).items()} | {"batch": BATCH}
    text = lambda v: f"{v:g}" if isinstance(v, (int, float)) and not isinstance(v, bool) else str(v).lower()
    shape = ", ".join(f"{k} {text(v)}" for k, v in shown.items()) + (", tied" if tied else ", untied")
    with open(path, "w") as file:
        file.write(HEAD.format(shape=shape, model=type(model).__name__))
        for word, part in (("tokens", rows[:, :-1]), ("targets", rows[:, 1:])):
            file.write(f"{word} {BATCH} {SHAPE['seq_len']}\n")
            file.write(" ".join(str(t) for t in part.flatten().tolist()) + "\n")
        file.write(f"loss {loss:.9g}\n")
        gradients_by_name = oracle.by_our_names(model, lambda parameter: parameter.grad)
        for parameter_name, parameter in oracle.by_our_names(model).items():
            weight, gradient = parameter.flatten().tolist(), gradients_by_name[parameter_name].flatten().tolist()
            extents = " ".join(str(n) for n in parameter.shape)
            file.write(f"parameter {parameter_name} {extents} {weight[0]:.9g} {weight[-1]:.9g}\n")
            file.write(" ".join(f"{g:.9g}" for g in gradient) + "\n")
    print(f"{path}: loss {loss:.9g}")


def main():
    for name in sys.argv[1:] or MODELS:
        for tied in MODELS[name][1]:
            write(name, tied)


if __name__ == "__main__":
    main()
