// Options that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "espalier/deck/parse.hpp"

namespace espalier {

inline constexpr int kMaxRanks = 1 << 20;

/// Bounds of a number, without a mention in the help.
template <typename T>
CLI::Validator Within(T min, T max) {
  CLI::Range range(min, max);
  range.description("");
  return range;
}

/// DECK and key=value.
void AddDeck(CLI::App* command, DeckArguments& arguments);

/// Turns an option into its key of the deck. The order of options and key=value arguments is not known, so giving both
/// is an error.
void AddFlag(const char* flag, const std::string& key, const std::string& value, std::vector<std::string>& overrides);

inline void AddRanks(CLI::App* command, int& ranks, const char* meaning) {
  command->add_option("--ranks", ranks, meaning)->type_name("N")->check(Within(1, kMaxRanks));
}

}  // namespace espalier
