// Bounds of options.
#pragma once

#include <CLI/CLI.hpp>

namespace espalier {

/// Bounds of a number, without a mention in the help.
template <typename T>
CLI::Validator Within(T min, T max) {
  CLI::Range range(min, max);
  range.description("");
  return range;
}

}  // namespace espalier
