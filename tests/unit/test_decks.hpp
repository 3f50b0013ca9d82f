// Decks for tests, as text, so that they pass through the same checks as a user's.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

/// A small Llama: 4 layers, grouped heads, odd-ish widths; `overrides` as on the command line.
inline Deck SmallDeck(const std::vector<std::string>& overrides = {}) {
  constexpr const char* kText = R"(
[run]
steps = 20
[model]
family = "llama"
layers = 4
dim = 48
heads = 4
kv_heads = 2
ffn_dim = 88
vocab = 260
seq_len = 24
[parallel]
dp_shard = 1
[batch]
global = 8
micro = 1
[precision]
compute = "fp32"
[optimizer]
lr = 1e-3
[data]
paths = ["/dev/null"]
)";
  return ParseDeck(kText, "small", overrides).deck;
}

/// Overrides for a layout such as "222": pp, dp, tp in one digit each.
inline std::vector<std::string> DegreesOf(const std::string& digits, const std::string& dp_axis = "dp_shard") {
  const std::string other = dp_axis == "dp_shard" ? "dp_replicate" : "dp_shard";
  return {fmt::format("parallel.pp={}", digits[0]), fmt::format("parallel.{}={}", dp_axis, digits[1]),
          fmt::format("parallel.{}=1", other), fmt::format("parallel.tp={}", digits[2])};
}

inline int RanksOf(const std::string& digits) { return (digits[0] - '0') * (digits[1] - '0') * (digits[2] - '0'); }

}  // namespace espalier
