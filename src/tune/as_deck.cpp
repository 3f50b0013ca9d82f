// A candidate as TOML.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "espalier/deck/schema.hpp"
#include "espalier/tune/tune.hpp"
#include "tune/layout.hpp"

namespace espalier {
namespace {

bool IsDefault(const Deck& deck, const DeckKey& key) {
  const auto* fallback = std::get_if<DeckValue>(&key.fallback);
  return fallback != nullptr && Get(deck, key) == *fallback;
}

/// Degrees but ep, schedule, chunks and microbatch are always written; other keys if the deck has another value or they
/// are not defaults.
bool IsWritten(const DeckKey& key, const Deck& candidate, const Deck& deck) {
  const std::string name = key.FullName();
  if (name == "pipeline.schedule" || name == "pipeline.chunks" || name == "batch.micro") return true;
  static constexpr auto kOthers = std::to_array<std::string_view>({"ep", "reduce", "context", "zero"});
  if (key.section == "parallel" && std::ranges::find(kOthers, key.name) == kOthers.end()) return true;
  return Get(candidate, key) != Get(deck, key) || !IsDefault(candidate, key);
}

}  // namespace

std::string AsDeck(const Candidate& candidate, const Deck& deck) {
  std::string text, section;
  for (std::string_view name : SearchedKeys()) {
    const DeckKey& key = *FindDeckKey(name);
    if (!IsWritten(key, candidate.deck, deck)) continue;
    if (section != key.section) text += fmt::format("{}[{}]\n", section.empty() ? "" : "\n", key.section);
    section = key.section;
    text += fmt::format("{} = {}\n", key.name, ToToml(Get(candidate.deck, key)));
  }
  return text;
}

}  // namespace espalier
