#!/usr/bin/env python3
"""Writes data/NAME.txt: losses and gradient norms of the steps of NAME.toml (those of NAMES), by Hugging Face's model
and PyTorch's AdamW, or Muon, in fp64, from the weights of oracle.formula_weights. Needs requirements_torch.txt.

    adamw.py [NAME ...]
"""
import os
import sys

import oracle

NAMES = ["llama_adamw", "gpt2_adamw", "llama_recipe", "gpt2_recipe", "llama_muon", "gpt2_muon", "mixtral_muon",
         "llama_mtp"]
HEAD = """\
# {steps} steps of {name}.toml, written by adamw.py with Hugging Face's {model}, torch.optim.AdamW,
# oracle.Muon and clip_grad_norm_ in fp64. In fp32 PyTorch differs by at most {loss:.1e} (loss) and
# {grad_norm:.1e} (norm).
# Element i of the initial weight NAME is 0.4 * ((((fnv1a64(NAME) + i * 0x9E3779B97F4A7C15) mod 2^64) >> 40) / 2^24 -
# 0.5), plus 1 for the weights of norms, computed in fp64 and rounded to fp32. Sample k is bytes [27 k, 27 (k + 1)] of
# data/text.txt; step t (from 1) trains on samples 4 (t - 1) ... 4 (t - 1) + 3.
# A line a step: step, mean loss before the update, gradient norm before clipping, learning rate, and with layers for
# further tokens their mean loss. Then the Euclidean
# norm of every parameter after the last step.
"""


def run(deck, double):
    model = oracle.build_model(deck)
    if double:
        oracle.compute_in_double(model)
    oracle.set_formula_weights(model)
    return list(oracle.train(model, deck, deck["run"]["steps"])), model


def write(name):
    here = os.path.dirname(os.path.abspath(__file__))
    deck = oracle.load_deck(os.path.join(here, f"{name}.toml"))
    truth, model = run(deck, double=True)
    fp32, _ = run(deck, double=False)
    off = {k: max(abs(a[k] / b[k] - 1) for a, b in zip(fp32, truth)) for k in ("loss", "grad_norm")}
    path = os.path.join(here, "data", f"{name}.txt")
    with open(path, "w") as file:
        file.write(HEAD.format(steps=len(truth), name=name, model=type(model).__name__, **off))
        for s in truth:
            file.write(f"step {s['step']} {s['loss']:.9g} {s['grad_norm']:.9g} {s['lr']:.9g}"
                       + (f" {s['mtp_loss']:.9g}" if "mtp_loss" in s else "") + "\n")
        for name, parameter in oracle.by_our_names(model).items():
            file.write(f"norm {name} {parameter.norm().item():.9g}\n")
    print(f"{path}: loss {truth[0]['loss']:.6g} ... {truth[-1]['loss']:.6g}; fp32 differs by {off}")


def main():
    for name in sys.argv[1:] or NAMES:
        write(name)


if __name__ == "__main__":
    main()
