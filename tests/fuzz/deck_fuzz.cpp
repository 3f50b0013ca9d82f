// Decks: any text is refused with its mistakes or gives a deck whose effective deck gives it again.
#include "espalier/deck/print.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {
namespace {

/// Tables of the TOML library and messages: a few hundred bytes for one of the text.
int64_t Allowance(size_t bytes) { return (int64_t{1} << 20) + 1024 * static_cast<int64_t>(bytes); }

void TryDeck(const std::string& text) {
  std::string effective;
  const bool refused = Within(Allowance(text.size()), [&] {
    return IsRefused(ExitStatus::kDeck, [&] { effective = EffectiveDeck(ParseDeck(text, "fuzz").deck); });
  });
  if (refused) return;
  ++tally.accepted;
  const bool lost = IsRefused(ExitStatus::kDeck, [&] {
    Require(EffectiveDeck(ParseDeck(effective, "fuzz").deck) == effective, "the effective deck reads as another one");
  });
  Require(!lost, "the effective deck is refused");
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryDeck(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
