#!/usr/bin/env python3
"""Trains with Hugging Face's model and PyTorch's AdamW what a run trained, and compares every loss and gradient norm;
with layers for further tokens in fp64, and their loss, too.

    compare_run.py RUN [--steps N] [--rtol 1e-5]

RUN is the folder of a run with data.shuffle = false, data.format = "text", precision.compute = "fp32" and
checkpoint.at_start = true: the start weights are read through RUN/checkpoints/step-00000000/master.h5, the rest from
RUN/deck.toml and RUN/metrics.jsonl. The mesh is ignored: numbers must not depend on it. Prints a line a step; exits 0
if all agree. Needs requirements_torch.txt.
"""
import argparse
import json
import os

import h5py
import numpy as np
import torch

import oracle

COMPARED = ("loss", "grad_norm", "lr", "mtp_loss")


def read_parameters(master):
    """Every data set under /parameters, by name."""
    found = {}

    def collect(name, node):
        if isinstance(node, h5py.Dataset):
            found[name] = node[()]

    with h5py.File(master, "r") as file:
        file["parameters"].visititems(collect)
    return found


def set_weights(model, found):
    """Copies the weights; exits unless names and shapes are exactly the model's."""
    wanted = oracle.by_our_names(model) | oracle.router_biases(model)
    if wanted.keys() != found.keys():
        raise SystemExit(f"only Hugging Face has {sorted(wanted.keys() - found.keys())}, "
                         f"only the checkpoint has {sorted(found.keys() - wanted.keys())}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            if tuple(parameter.shape) != found[name].shape:
                raise SystemExit(f"{name}: Hugging Face has {tuple(parameter.shape)}, "
                                 f"the checkpoint {found[name].shape}")
            parameter.copy_(torch.from_numpy(found[name].astype(np.float32)))


def read_metrics(path):
    """The step lines by step; of a step that was repeated after a restart, the last."""
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return {line["step"]: line for line in lines if "step" in line and "loss" in line}


def compare(run, steps, rtol):
    """True if all steps agree."""
    deck = oracle.load_deck(os.path.join(run, "deck.toml"))
    if deck["precision"]["compute"] != "fp32":
        raise SystemExit('the oracle needs precision.compute = "fp32"')
    model = oracle.build_model(deck)
    if deck["model"].get("mtp_layers", 0):
        oracle.compute_in_double(model)
    set_weights(model, read_parameters(os.path.join(run, "checkpoints", "step-00000000", "master.h5")))
    ours = read_metrics(os.path.join(run, "metrics.jsonl"))
    last = min(steps, max(ours, default=0)) if steps else max(ours, default=0)
    worst = dict.fromkeys(COMPARED, 0.0)
    agree = last > 0
    for theirs in oracle.train(model, deck, last):
        mine = ours.get(theirs["step"])
        if mine is None:
            raise SystemExit(f"metrics.jsonl has no step {theirs['step']}")
        for key in theirs.keys() & COMPARED:
            difference = abs(mine[key] - theirs[key]) / max(abs(theirs[key]), 1e-30)
            agree = agree and difference <= rtol  # never true of a NaN
            worst[key] = max(worst[key], difference)
        print(f"step {theirs['step']:4d}  loss {mine['loss']:.9g} / {theirs['loss']:.9g}  "
              f"norm {mine['grad_norm']:.9g} / {theirs['grad_norm']:.9g}", flush=True)
    seen = {key: worst[key] for key in COMPARED if key in theirs}
    print(f"{last} steps, largest relative difference: " + ", ".join(f"{k} {v:.2e}" for k, v in seen.items())
          + (": agreed" if agree else f": not within {rtol:g}"))
    return agree


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--steps", type=int, default=0, help="compare only the first N steps; 0: all of the run")
    parser.add_argument("--rtol", type=float, default=1e-5)
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    raise SystemExit(0 if compare(arguments.run, arguments.steps, arguments.rtol) else 1)


if __name__ == "__main__":
    main()
