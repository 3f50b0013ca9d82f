// Which of the scored layouts are compiled and simulated.
#pragma once

#include <vector>

#include "tune/space.hpp"

namespace espalier {

struct ChooseOptions {
  size_t count = 50;
  int64_t instructions = 0;  ///< instructions of all together
};

/// Indices into `scored` (ascending by time), in the order in which they are worth simulating: the first half are the
/// fastest by formula, at most kSiblings of a family (layouts that differ only in how data parallelism is divided or in
/// the context mode); then kConventional conventional ones; then the best of each schedule and of each (tp, pp), so
/// that an error of the formula does not decide; then more of the fastest. All are within kHopeful of the first. A
/// layout whose programs exceed the rest of `instructions` is skipped, unless it is the first.
std::vector<size_t> Choose(const std::vector<Scored>& scored, const std::vector<int64_t>& instructions,
                           const ChooseOptions& options);

inline constexpr int kSiblings = 2;
inline constexpr size_t kConventional = 3;
inline constexpr double kHopeful = 1.5;

}  // namespace espalier
