// The effective deck as TOML.
#include "espalier/deck/print.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <functional>

#include "espalier/deck/schema.hpp"

namespace espalier {
namespace {

size_t LongestName(std::string_view section) {
  size_t longest = 0;
  for (const DeckKey& key : DeckSchema())
    if (key.section == section) longest = std::max(longest, key.name.size());
  return longest;
}

/// run.steps has no value yet where run.epochs replaces it.
bool IsKnown(const Deck& deck, const DeckKey& key) {
  const auto* required = std::get_if<Required>(&key.fallback);
  return required == nullptr || required->unless.empty() || Get(deck, key) != DeckValue(int64_t{0});
}

using Remark = std::function<std::string(const DeckKey&)>;

std::string Line(const Deck& deck, const DeckKey& key, size_t width, const Remark& remark) {
  constexpr size_t kRemarkColumn = 28;
  const std::string setting = fmt::format("{:<{}} = {}", key.name, width, ToToml(Get(deck, key)));
  const std::string text = remark(key);
  return text.empty() ? setting + "\n" : fmt::format("{:<{}}  # {}\n", setting, kRemarkColumn, text);
}

std::string Print(const Deck& deck, const Remark& remark) {
  std::string text;
  for (const DeckSection& section : DeckSections()) {
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", section.name);
    const size_t width = LongestName(section.name);
    for (const DeckKey& key : DeckSchema())
      if (key.section == section.name && IsKnown(deck, key)) text += Line(deck, key, width, remark);
  }
  return text;
}

}  // namespace

std::string EffectiveDeck(const Deck& deck) {
  return Print(deck, [](const DeckKey&) { return std::string(); });
}

std::string EffectiveDeck(const LoadedDeck& loaded) {
  return Print(loaded.deck, [&](const DeckKey& key) { return loaded.origins.at(key.FullName()); });
}

}  // namespace espalier
