#!/usr/bin/env python3
"""Writes data/{llama,gpt2}_gradients_{untied,tied}.txt: loss and all gradients of a small model, by Hugging Face's in
fp64.

The weights follow oracle.formula_weights, so that a test can make them again. Needs requirements_torch.txt."""
import os

import torch

import oracle

SHAPE = {"layers": 2, "dim": 24, "heads": 4, "kv_heads": 2, "ffn_dim": 40, "vocab": 37, "seq_len": 9,
         "norm_eps": 1e-5, "rope_theta": 10000.0}
FAMILIES = {"llama": SHAPE, "gpt2": {k: v for k, v in SHAPE.items() if k not in ("kv_heads", "rope_theta")}}
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


def gradients(family, tied, double):
    """The model after one backward pass, and its mean loss."""
    model = oracle.build_model({"model": FAMILIES[family] | {"family": family, "tie_embeddings": tied}})
    if double:
        oracle.compute_in_double(model)
    oracle.set_formula_weights(model)
    rows = tokens()
    loss = oracle.summed_loss(model, rows[:, :-1], rows[:, 1:]) / (BATCH * SHAPE["seq_len"])
    loss.backward()
    return model, loss.item()


def check_fp32(family, tied, truth, loss):
    """The unmodified fp32 model must agree: guards what compute_in_double replaces."""
    model, fp32_loss = gradients(family, tied, double=False)
    assert abs(fp32_loss / loss - 1) < 1e-6
    for (name, a), (_, b) in zip(model.named_parameters(), truth.named_parameters()):
        assert (a.grad - b.grad).norm() < 1e-5 * b.grad.norm(), name


def write(family, tied):
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "data", f"{family}_gradients_{'tied' if tied else 'untied'}.txt")
    model, loss = gradients(family, tied, double=True)
    check_fp32(family, tied, model, loss)
    rows = tokens()
    settings = FAMILIES[family] | {"batch": BATCH}
    shape = ", ".join(f"{k} {v:g}" for k, v in settings.items()) + (", tied" if tied else ", untied")
    with open(path, "w") as file:
        file.write(HEAD.format(shape=shape, model=type(model).__name__))
        for name, part in (("tokens", rows[:, :-1]), ("targets", rows[:, 1:])):
            file.write(f"{name} {BATCH} {SHAPE['seq_len']}\n")
            file.write(" ".join(str(t) for t in part.flatten().tolist()) + "\n")
        file.write(f"loss {loss:.9g}\n")
        for name, parameter in model.named_parameters():
            weight, gradient = parameter.flatten().tolist(), parameter.grad.flatten().tolist()
            extents = " ".join(str(n) for n in parameter.shape)
            file.write(f"parameter {name} {extents} {weight[0]:.9g} {weight[-1]:.9g}\n")
            file.write(" ".join(f"{g:.9g}" for g in gradient) + "\n")
    print(f"{path}: loss {loss:.9g}")


def main():
    for family in FAMILIES:
        for tied in (False, True):
            write(family, tied)


if __name__ == "__main__":
    main()
