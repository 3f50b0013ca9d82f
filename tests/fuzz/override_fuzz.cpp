// The command line: each line of the input is one key=value over a good deck.
#include <sstream>
#include <vector>

#include "espalier/deck/print.hpp"
#include "fuzz.hpp"
#include "test_decks.hpp"

namespace espalier::fuzz {
namespace {

/// Tables of the TOML library and messages: a few hundred bytes for one of the text.
int64_t Allowance(size_t bytes) { return (int64_t{1} << 20) + 1024 * static_cast<int64_t>(bytes); }

void TryOverrides(const std::string& text) {
  std::vector<std::string> overrides;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  Deck deck;
  const bool refused = Within(Allowance(text.size()), [&] {
    return IsRefused(ExitStatus::kDeck, [&] { deck = SmallDeck(overrides); });
  });
  if (refused) return;
  ++tally.accepted;
  const std::string effective = EffectiveDeck(deck);
  const bool lost = IsRefused(ExitStatus::kDeck, [&] {
    Require(EffectiveDeck(ParseDeck(effective, "fuzz").deck) == effective, "the effective deck reads as another one");
  });
  Require(!lost, "the effective deck is refused");
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryOverrides(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
