// Where a value comes from. Its name says it, and only this header knows how such names are made:
//
//   parameters/NAME        a weight; if it is trained in another type, the fp32 master
//   NAME                   the copy of a master in the compute type
//   gradients/NAME         the gradient of a weight, also its sum; of a second use of a tied weight gradients/NAME.2
//   optimizer/MOMENT/NAME  a moment of the optimizer
//   VALUE.again            VALUE, recomputed in backward instead of being kept
//   VALUE.host             VALUE, where it waits for backward on the host
//   staged/VALUE           VALUE, which is on the host, or a piece of it, on its way through the device
//   staged/VALUE.ROLE      the same of a weight or a gradient for a layer in one role; of a copy staged/parameters/NAME
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>

#include "espalier/graph/graph.hpp"

namespace espalier {

inline constexpr std::string_view kParameterPrefix = "parameters/", kGradientPrefix = "gradients/",
                                  kMomentPrefix = "optimizer/", kStagedPrefix = "staged/";

inline std::string StateName(std::string_view parameter) { return fmt::format("{}{}", kParameterPrefix, parameter); }
inline std::string GradientName(std::string_view parameter, size_t use = 1) {
  return fmt::format("{}{}{}", kGradientPrefix, parameter, use == 1 ? "" : fmt::format(".{}", use));
}
inline std::string MomentName(std::string_view moment, std::string_view parameter) {
  return fmt::format("{}{}/{}", kMomentPrefix, moment, parameter);
}
inline std::string StagedName(std::string_view value, const Piece& piece = {}) {
  return fmt::format("{}{}{}", kStagedPrefix, value, piece.count == 1 ? "" : fmt::format(".{}", piece.index));
}
inline std::string WaitingName(std::string_view value) { return fmt::format("{}.host", value); }
inline std::string RecomputedName(std::string_view value) { return fmt::format("{}.again", value); }

/// True if backward recomputes the value; also in further passes of experts.
inline bool IsRecomputed(const Value& value) { return value.name.find(RecomputedName("")) != std::string::npos; }

inline bool IsParameter(const Value& value) {
  return value.kind == ValueKind::kState && value.name.starts_with(kParameterPrefix);
}
inline bool IsGradientOfWeight(const Value& value) { return value.name.starts_with(kGradientPrefix); }
inline bool IsMoment(const Value& value) {
  return value.kind == ValueKind::kState && value.name.starts_with(kMomentPrefix);
}
inline bool IsStaged(const Value& value) { return value.name.starts_with(kStagedPrefix); }
/// A weight that is on the host, on its way through the device for one microbatch.
inline bool IsStagedWeight(const Value& value) {
  return value.frequency == Frequency::kMicrobatch && value.name.starts_with(StagedName(kParameterPrefix));
}
/// The sum of a gradient, which is on the host, while a microbatch adds to it.
inline bool IsStagedSum(const Value& value) {
  return value.frequency == Frequency::kMicrobatch && value.name.starts_with(StagedName(kGradientPrefix));
}
/// The copy of a master, which is kept from step to step.
inline bool IsCopy(const Graph& graph, const Value& value) {
  return value.kind == ValueKind::kCache && graph.FindOrNone(StateName(value.name)) >= 0;
}

/// NAME of a parameter, its copy, gradient or moment. The name of any other value.
inline std::string_view ParameterOf(const Value& value) {
  const std::string_view name = value.name;
  for (std::string_view prefix : {kParameterPrefix, kGradientPrefix})
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  return name.starts_with(kMomentPrefix) ? name.substr(name.find('/', kMomentPrefix.size()) + 1) : name;
}

}  // namespace espalier
