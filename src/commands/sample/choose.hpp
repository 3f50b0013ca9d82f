// Draws the next token.
#pragma once

#include <cstdint>
#include <span>

namespace espalier {

/// How tokens are drawn from softmax(logits / temperature).
struct Sampling {
  double temperature = 0;  ///< 0: always the likeliest (the first of several)
  int64_t top_k = 0;       ///< only the `top_k` likeliest; 0: all
  double top_p = 1;        ///< among these, only the likeliest that together have this probability; 1: all
};

/// The token drawn by `uniform` in [0, 1).
int32_t Choose(std::span<const float> logits, const Sampling& sampling, double uniform);

}  // namespace espalier
