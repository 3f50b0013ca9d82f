// Which layouts are worth compiling, by peaks that are known already.
#pragma once

#include <map>
#include <tuple>

#include "tune/space.hpp"

namespace espalier {

class ExpectedPeaks {
 public:
  explicit ExpectedPeaks(int64_t memory_bytes) : memory_bytes_(static_cast<double>(memory_bytes)) {}

  /// True if its bound does not say whether it fits: programs may need twice as much.
  bool IsUncertain(const Scored& scored) const;
  /// Learns from the peak that a smaller model predicts.
  void NoteExpected(const Scored& scored);
  /// Learns from the peak of a compiled layout.
  void NoteCompiled(const Scored& scored, int64_t bytes);
  /// False if it is too large even with the least ratio of its kind, of a peak and the prediction or, without one, the
  /// bound.
  bool MayFit(const Scored& scored) const;

 private:
  /// Layouts of a kind exceed bounds and predictions alike.
  using Kind = std::tuple<ScheduleKind, bool, RecomputeMode, bool, bool>;
  static Kind KindOf(const Layout& l) {
    return {l.schedule, l.interleave, l.recompute, l.GathersAgain(), l.ReducesEach()};
  }
  /// Lowers the least ratio of a kind to that of `bytes` and `of`, if that is lower.
  static void Lower(std::map<Kind, double>& least, const Scored& scored, int64_t bytes, int64_t of);

  const double memory_bytes_;
  std::map<Kind, double> over_bound_;     // the least ratio of a peak and its bound
  std::map<Kind, double> over_expected_;  // the least ratio of a compiled peak and the predicted one
};

}  // namespace espalier
