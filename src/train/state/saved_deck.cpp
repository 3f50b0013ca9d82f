#include "espalier/train/saved_deck.hpp"

#include <fmt/core.h>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/hint.hpp"

namespace espalier {

Deck SavedDeck(const std::string& dir, const std::string& text, const std::vector<std::string>& overrides) {
  try {
    return ParseDeck(text, dir + "/deck.toml", overrides, KeyNames::kOfAnyVersion).deck;
  } catch (const UserError& error) {
    throw UserError(ExitStatus::kData, error.messages());
  }
}

void RequireSameModel(const std::string& dir, const std::vector<DeckDifference>& differences) {
  std::vector<std::string> messages;
  for (const DeckDifference& difference : differences)
    if (difference.fixed) messages.push_back(Hint(difference.Text()));
  if (messages.empty()) return;
  messages.insert(
      messages.begin(),
      fmt::format("{} holds the weights of another model; to train this one, set checkpoint.restart=never or "
                  "another run.dir; keys that differ:",
                  dir));
  throw RefusedForGood(ExitStatus::kData, std::move(messages));
}

}  // namespace espalier
