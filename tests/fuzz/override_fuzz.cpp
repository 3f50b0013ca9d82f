// The command line: each line of the input is one key=value over a good deck.
#include <sstream>
#include <vector>

#include "reads_deck.hpp"
#include "test_decks.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> overrides;
  std::istringstream lines(std::string(reinterpret_cast<const char*>(data), size));
  for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  espalier::fuzz::TryDeck(size, [&] { return espalier::SmallDeck(overrides); });
  return 0;
}
