#!/usr/bin/env python3
"""Writes data/evaluate_losses.json: the loss of every document of evaluated_models.py under several architectures, by
Hugging Face's models in fp64, in windows with two strides.

Each entry is [targets, summed loss]. The folders of the models are those that tests/commands/evaluate.py imports. Needs
requirements_torch.txt."""
import json
import os
import tempfile

import torch
import transformers

import evaluated_models as models
import oracle


def load(name, folder):
    models.write_folder(name, folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="sdpa")
    oracle.compute_in_double(model)
    return model.eval()


def document_loss(model, tokens, stride):
    """Summed -ln p of each target, once, in the first window that has it; and how many targets there are."""
    total, counted, begin = 0.0, 1, 0
    while counted < len(tokens):
        end = min(len(tokens), begin + models.WINDOW + 1)
        ids = torch.tensor([tokens[begin:end]])
        with torch.no_grad():
            logits = model(input_ids=ids[:, :-1]).logits[0].double()
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        total += losses[counted - begin - 1:].sum().item()
        counted, begin = end, begin + stride
    return total, len(tokens) - 1


def main():
    found = {}
    for name in models.CONFIGS:
        with tempfile.TemporaryDirectory() as scratch:
            model = load(name, os.path.join(scratch, name))
        for stride in models.STRIDES:
            losses = [document_loss(model, tokens, stride) for tokens in models.documents()]
            found[f"{name} stride {stride}"] = [[targets, loss] for loss, targets in losses]
            print(name, stride, sum(loss for loss, _ in losses) / sum(targets for _, targets in losses))
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "evaluate_losses.json")
    with open(path, "w") as file:
        lines = [f"{json.dumps(name)}: {json.dumps(losses)}" for name, losses in found.items()]
        file.write("{" + ",\n ".join(lines) + "}\n")


if __name__ == "__main__":
    main()
