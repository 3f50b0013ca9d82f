#!/usr/bin/env python3
"""Writes data/rope_frequencies.txt: RoPE's inverse frequencies and the factor of cosines and sines, by transformers'
ROPE_INIT_FUNCTIONS. Needs requirements_torch.txt."""
import os

import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import oracle

# Keys of [model]; every ramp has frequencies below, within and above it.
CASES = [
    {"rope_scaling": "linear", "rope_theta": 10000.0, "rope_factor": 2.5, "head_dim": 22},
    {"rope_scaling": "llama3", "rope_theta": 500000.0, "rope_factor": 8.0, "rope_original_seq_len": 8192,
     "head_dim": 128},
    {"rope_scaling": "llama3", "rope_theta": 500000.0, "rope_factor": 32.0, "rope_original_seq_len": 8192,
     "head_dim": 64},
    {"rope_scaling": "llama3", "rope_theta": 12345.0, "rope_factor": 3.0, "rope_original_seq_len": 100,
     "rope_low_freq_factor": 0.5, "rope_high_freq_factor": 6.0, "head_dim": 26},
    {"rope_scaling": "yarn", "rope_theta": 1000000.0, "rope_factor": 4.0, "rope_original_seq_len": 32768,
     "head_dim": 128},
    {"rope_scaling": "yarn", "rope_theta": 10000.0, "rope_factor": 16.0, "rope_original_seq_len": 4096,
     "rope_attention_factor": 1.5, "head_dim": 80},
    {"rope_scaling": "yarn", "rope_theta": 12345.0, "rope_factor": 1.0, "rope_original_seq_len": 100,
     "rope_beta_fast": 7.0, "rope_beta_slow": 0.3, "head_dim": 26},
    # The ramp has no width: it begins and ends at frequency 0.
    {"rope_scaling": "yarn", "rope_theta": 10000.0, "rope_factor": 2.0, "rope_original_seq_len": 3, "head_dim": 8},
]

HEAD = """\
# Written by rope.py: keys of [model], then the factor of cosines and sines, then the inverse frequencies, by
# transformers.
"""


def write_case(file, m):
    config = transformers.LlamaConfig(hidden_size=4 * m["head_dim"], num_attention_heads=4, head_dim=m["head_dim"],
                                      max_position_embeddings=1 << 20, rope_parameters=oracle.rope_parameters(m))
    frequencies, factor = ROPE_INIT_FUNCTIONS[m["rope_scaling"]](config, "cpu")
    file.write("model " + " ".join(f"model.{k}={v}" for k, v in m.items()) + "\n")
    file.write(f"factor {factor:.9g}\n")
    file.write("frequencies " + " ".join(f"{f:.9g}" for f in frequencies.tolist()) + "\n")


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "rope_frequencies.txt")
    with open(path, "w") as file:
        file.write(HEAD)
        for case in CASES:
            write_case(file, case)


if __name__ == "__main__":
    main()
