#include "tune/expected_peaks.hpp"

#include <algorithm>

namespace espalier {
namespace {

constexpr double kMostExcess = 2;     // of a peak over its bound
constexpr double kErrorOfPeak = 0.1;  // by which a prediction may be too high

}  // namespace

bool ExpectedPeaks::IsUncertain(const Scored& scored) const {
  return kMostExcess * static_cast<double>(scored.least_bytes) > memory_bytes_;
}

void ExpectedPeaks::Lower(std::map<Kind, double>& least, const Scored& scored, int64_t bytes, int64_t of) {
  const double ratio = static_cast<double>(bytes) / static_cast<double>(of);
  double& known = least.try_emplace(KindOf(scored.layout), ratio).first->second;
  known = std::min(known, ratio);
}

void ExpectedPeaks::NoteExpected(const Scored& scored) {
  Lower(over_bound_, scored, scored.expected_bytes, scored.least_bytes);
}

void ExpectedPeaks::NoteCompiled(const Scored& scored, int64_t bytes) {
  Lower(over_bound_, scored, bytes, scored.least_bytes);
  if (scored.expected_bytes > 0) Lower(over_expected_, scored, bytes, scored.expected_bytes);
}

bool ExpectedPeaks::MayFit(const Scored& scored) const {
  const bool expected = scored.expected_bytes > 0;
  const std::map<Kind, double>& least = expected ? over_expected_ : over_bound_;
  const auto ratio = least.find(KindOf(scored.layout));
  const double unknown = expected ? 1 - kErrorOfPeak : 1;
  const auto bytes = static_cast<double>(expected ? scored.expected_bytes : scored.least_bytes);
  return bytes * (ratio == least.end() ? unknown : ratio->second) <= memory_bytes_;
}

}  // namespace espalier
