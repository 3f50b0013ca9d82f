// The kinds of ops and their names. src/ops defines what each of them does.
#pragma once

#include <fmt/core.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "espalier/graph/op_list.hpp"

namespace espalier {

/// One enumerator per row of op_list.hpp: kEmbedding.
enum class OpKind : uint8_t {
  kNone,  ///< no op: the place of one that a pass has removed
#define ESPALIER_KIND(name, op) k##op,
  ESPALIER_OPS(ESPALIER_KIND, ESPALIER_KIND)
#undef ESPALIER_KIND
};

/// The names by which graphs, programs and kernels know the kinds.
inline constexpr auto kOpNames = std::to_array<std::string_view>({"",
#define ESPALIER_NAME(name, op) name,
                                                                  ESPALIER_OPS(ESPALIER_NAME, ESPALIER_NAME)
#undef ESPALIER_NAME
});

constexpr std::string_view Name(OpKind kind) { return kOpNames[static_cast<size_t>(kind)]; }

/// The kind with this name, if there is one.
std::optional<OpKind> FindOpKind(std::string_view name);
/// The same; CHECKs that it exists.
OpKind OpKindOf(std::string_view name);

/// Collectives of a group: every member sends to and receives from every other. They carry one or more tensors.
constexpr bool IsCollective(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kReduceScatter || kind == OpKind::kAllReduce ||
         kind == OpKind::kAllToAll;
}

/// Point-to-point between pipeline stages.
constexpr bool IsBetweenStages(OpKind kind) { return kind == OpKind::kSend || kind == OpKind::kRecv; }

/// Everything that runs on a communication lane.
constexpr bool IsCommunication(OpKind kind) {
  return IsCollective(kind) || IsBetweenStages(kind) || kind == OpKind::kRingShift || kind == OpKind::kGatherStages;
}

/// Copies between the memory of the device and that of the host.
constexpr bool IsHostCopy(OpKind kind) { return kind == OpKind::kCopyOut || kind == OpKind::kCopyIn; }

/// `reshard` and what it lowers to: the placements of the outputs are stated, not inferred.
constexpr bool IsReshard(OpKind kind) {
  return kind == OpKind::kReshard || kind == OpKind::kSlice || kind == OpKind::kPad || IsCollective(kind) ||
         IsBetweenStages(kind) || kind == OpKind::kGatherStages;
}

}  // namespace espalier

/// A kind prints as its name.
template <>
struct fmt::formatter<espalier::OpKind> : fmt::formatter<std::string_view> {
  format_context::iterator format(espalier::OpKind kind, format_context& context) const;
};
