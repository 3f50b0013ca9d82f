// Decks: any text.
#include "reads_deck.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  espalier::fuzz::TryDeck(size, [&] { return espalier::ParseDeck(text, "fuzz").deck; });
  return 0;
}
