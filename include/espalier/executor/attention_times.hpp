// Times of attention_grad on a GPU by the way that computes it, and their file. `calibrate --attention` prints them.
// With run.attention_backward = "auto" starts write the file, time what it lacks, and take the fastest way.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/measurements.hpp"

namespace espalier {

/// Microseconds by way: a value of run.attention_backward, or kUnorderedBackward. A way that cannot compute the call is
/// not there.
using TimesByWay = std::map<std::string, double, std::less<>>;

struct TimedAttention {
  static const MeasurementsFormat kFormat;

  AttentionDemand call;  ///< without the attribute `backward`
  TimesByWay microseconds;
  bool lasting = true;  ///< another start would find the same ways: none was left out for want of memory

  /// Whatever way `other` names.
  bool IsOf(const AttentionDemand& other) const;
  bool IsOf(const TimedAttention& other) const { return IsOf(other.call); }
};

using AttentionTimes = Measurements<TimedAttention>;

/// The call, which must not outlive `demand`.
KernelCall CallOf(const AttentionDemand& demand);

/// The deterministic ways: the values of run.attention_backward but "auto". The first is the default.
std::vector<std::string> DeterministicWays();

/// Medians of five rounds, in which the ways alternate. `left_out` hears which way cannot compute the call, and why.
TimedAttention TimeWays(CudaModule& module, AttentionDemand call, std::span<const std::string> ways,
                        const std::function<void(const std::string& way, const std::string& why)>& left_out);

/// The sums over all calls of a step; a way that cannot compute one of them is not there.
TimesByWay TimesOfStep(std::span<const TimedAttention> calls);

/// The deterministic ways of a step from the fastest to the default one, which ends the list: another way is taken only
/// if it is faster by 1 %. Without the default all ways are there; empty: no way computes all calls.
std::vector<std::string> FastestWays(const TimesByWay& step);

}  // namespace espalier
