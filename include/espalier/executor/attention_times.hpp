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

namespace espalier {

/// Microseconds by way: a value of run.attention_backward, or kUnorderedBackward. A way that cannot compute the call is
/// not there.
using TimesByWay = std::map<std::string, double, std::less<>>;

struct TimedAttention {
  AttentionDemand call;  ///< without the attribute `backward`
  TimesByWay microseconds;
  bool lasting = true;  ///< another start would find the same ways: none was left out for want of memory
};

struct AttentionTimes {
  std::string gpu;      ///< "NVIDIA H200"
  std::string library;  ///< "cuDNN 9.19.0"
  std::vector<TimedAttention> calls;

  /// nullptr if the call was not timed.
  const TimedAttention* Find(const AttentionDemand& call) const;
};

/// JSON.
std::string ToText(const AttentionTimes& times);
/// Throws UserError (kData) that names `source` and the error in it.
AttentionTimes ParseAttentionTimes(std::string_view text, const std::string& source);
AttentionTimes ReadAttentionTimes(const std::string& path);

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
