#include "espalier/deck/compare.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "espalier/deck/epochs.hpp"
#include "espalier/deck/schema.hpp"

namespace espalier {
namespace {

constexpr size_t kLongestValue = 120;  // limit of the characters of a value

/// Keys that determine shapes and names of the weights, or, for the numbers of heads, the meaning of their rows.
constexpr auto kOfWeights = std::to_array<std::string_view>(
    {"family",   "layers", "dim",      "heads",         "kv_heads",       "head_dim",  "attention",      "q_rank",
     "kv_rank",  "v_dim",  "rope_dim", "rope_adjacent", "ffn_dim",        "vocab",     "norm_placement", "qk_norm",
     "qkv_bias", "o_bias", "mlp_bias", "sinks",         "tie_embeddings", "mtp_layers"});

/// The same of [experts].
constexpr auto kOfExperts = std::to_array<std::string_view>(
    {"count", "ffn_dim", "shared_ffn_dim", "shared_gate", "first_layer", "every", "bias", "mlp_bias", "router_bias"});

bool IsFixed(const DeckKey& key, const Deck& saved) {
  if (key.section == "experts") return std::ranges::find(kOfExperts, key.name) != kOfExperts.end();
  if (key.section != "model") return false;
  if (key.name == "seq_len") return saved.model.family == Family::kGpt2;  // learned positions
  return std::ranges::find(kOfWeights, key.name) != kOfWeights.end();
}

bool Computes(const DeckKey& key) {
  return (key.section == "model" && key.name != "init_std") || key.section == "experts";
}

/// Unknown when a deck that sets run.epochs was saved before a run.
bool WasUnknown(const DeckKey& key, const Deck& saved) {
  const auto* derived = std::get_if<Derived>(&key.fallback);
  const bool follows = derived != nullptr && std::ranges::count(derived->keys, "run.steps") > 0;
  return AwaitsData(saved) && (follows || key.FullName() == "run.steps" || key.FullName() == "run.epochs");
}

std::string Shorten(const std::string& value) {
  return value.size() <= kLongestValue ? value : value.substr(0, kLongestValue - 3) + "...";
}

}  // namespace

std::string DeckDifference::Text() const {
  return fmt::format("{} = {} ({}), {} in the checkpoint", key, Shorten(now), origin, Shorten(before));
}

std::vector<DeckDifference> Differences(const Deck& saved, const LoadedDeck& now) {
  std::vector<DeckDifference> differences;
  for (const DeckKey& key : DeckSchema()) {
    std::string before = ToToml(Get(saved, key)), after = ToToml(Get(now.deck, key));
    if (before == after || WasUnknown(key, saved)) continue;
    differences.push_back({key.FullName(), std::move(before), std::move(after), now.origins.at(key.FullName()),
                           IsFixed(key, saved), Computes(key)});
  }
  return differences;
}

}  // namespace espalier
