// Options that several commands share.
#pragma once

#include <CLI/CLI.hpp>

namespace espalier {

inline constexpr int kMaxRanks = 1 << 20;

/// Bounds of a number, without a mention in the help.
template <typename T>
CLI::Validator Within(T min, T max) {
  CLI::Range range(min, max);
  range.description("");
  return range;
}

inline void AddRanks(CLI::App* command, int& ranks, const char* meaning) {
  command->add_option("--ranks", ranks, meaning)->type_name("N")->check(Within(1, kMaxRanks));
}

}  // namespace espalier
