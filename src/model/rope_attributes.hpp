// The deck's settings of RoPE's frequencies, as attributes of rope_table (RopeRule in src/kernels/arithmetic.hpp).
#pragma once

#include "espalier/deck/deck.hpp"
#include "espalier/util/attributes.hpp"

namespace espalier {

/// As Hugging Face computes them (modeling_rope_utils.py of transformers: default, linear, llama3, yarn).
Attributes RopeAttributes(const Deck::Model& model);

}  // namespace espalier
