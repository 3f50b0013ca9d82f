#!/usr/bin/env python3
"""Writes data/NAME_conversations.txt: the loss of data/conversations.jsonl, of which only the assistant's words are
labels, and the norm of every gradient, by Hugging Face's models in fp64.

Each conversation is a row of its own, padded; bytes are tokens. Transformers renders them with the template
generation.jinja of tests/reference and says what the assistant's words are; every other label is -100. The weights
follow oracle.formula_weights. Needs requirements_torch.txt."""
import json
import os

import torch
from transformers.utils.chat_template_utils import render_jinja_template

import oracle

HERE = os.path.dirname(os.path.abspath(__file__))
TEMPLATE = os.path.join(HERE, "..", "reference", "templates", "generation.jinja")
SHAPE = {"layers": 2, "dim": 24, "heads": 4, "kv_heads": 2, "ffn_dim": 40, "vocab": 256, "seq_len": 300,
         "norm_eps": 1e-5, "rope_theta": 10000.0}
MODELS = {"llama": {}, "gpt2": {"family": "gpt2"},
          "qwen3": {"head_dim": 8, "qk_norm": "head", "tie_embeddings": True, "rope_scaling": "linear",
                    "rope_factor": 2.5}}

HEAD = """\
# By conversations.py with Hugging Face's {model} in fp64: the mean loss over the {labels} labels that are not
# -100, then the norm of the gradient of each parameter.
"""


def rows():
    """Ids, attention masks and labels of all conversations."""
    with open(os.path.join(HERE, "data", "conversations.jsonl")) as file:
        conversations = [json.loads(line)["messages"] for line in file]
    with open(TEMPLATE) as file:
        template = file.read()
    texts, spans = render_jinja_template(conversations=conversations, chat_template=template,
                                         return_assistant_tokens_mask=True)
    width = max(len(text.encode()) for text in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    mask, labels = torch.zeros_like(ids), torch.full_like(ids, -100)
    for row, (text, found) in enumerate(zip(texts, spans, strict=True)):
        part = torch.tensor(list(text.encode()))
        ids[row, :len(part)], mask[row, :len(part)] = part, 1
        for begin, end in found:
            begin, end = len(text[:begin].encode()), len(text[:end].encode())
            labels[row, begin:end] = part[begin:end]
    return ids, mask, labels


def write(name, own):
    model = oracle.build_model({"model": SHAPE | {"family": "llama"} | own})
    oracle.compute_in_double(model)
    oracle.set_formula_weights(model)
    ids, mask, labels = rows()
    loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    path = os.path.join(HERE, "data", f"{name}_conversations.txt")
    with open(path, "w") as file:
        file.write(HEAD.format(model=type(model).__name__, labels=int((labels[:, 1:] >= 0).sum())))
        file.write(f"loss {loss.item():.12g}\n")
        for parameter_name, parameter in model.named_parameters():
            file.write(f"{parameter_name} {parameter.grad.norm().item():.12g}\n")
    print(f"{path}: loss {loss.item():.12g}")


if __name__ == "__main__":
    for model_name, keys in MODELS.items():
        write(model_name, keys)
