// Ops that move pieces between ranks, or cut one out of a whole. `reshard` is all that passes above `lower` see; the
// others are what it lowers to. Their outputs' placements are stated, not inferred: that is what they are for. Not so
// `ring_shift`, which leaves placements as they are: what a member holds under them is then another member's piece.
#include "espalier/ops/op.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

Letters EachLetters(const OpContext& c) {
  Letters letters;
  for (const Type& type : c.inputs) letters.inputs.push_back(LettersOfRank(type.shape.size()));
  letters.outputs = letters.inputs;
  return letters;
}
std::vector<Type> EachType(const OpContext& c) {
  std::vector<Type> types;
  for (const Type& type : c.inputs) types.push_back(MakeType(type.dtype, type.shape));
  return types;
}

Letters SendLetters(const OpContext& c) {
  Letters letters = EachLetters(c);
  letters.outputs.clear();
  return letters;
}
std::vector<Type> Nothing(const OpContext&) { return {}; }

/// Every piece goes to the next member of a group as it is.
Letters PassedOn(const OpContext& c) {
  Letters letters = EachLetters(c);
  letters.shardable = LettersOfRank(8);
  return letters;
}

OpDefinition Moving(std::string_view kind, std::string_view summary) {
  return {.kind = kind, .summary = summary, .letters = EachLetters, .infer = EachType};
}

}  // namespace

std::vector<OpDefinition> CommunicationOps() {
  return {
      Moving("reshard", "the same values under other placements"),
      Moving("slice", "a replicated value cut to this rank's piece; no communication"),
      Moving("pad", "a piece as a partial value: nothing to add outside of it; no communication"),
      Moving("all_gather", "pieces of a group joined on every member"),
      Moving("reduce_scatter", "partial values joined, each member keeping its piece"),
      Moving("all_reduce", "partial values joined on every member"),
      Moving("all_to_all", "a group turns pieces of one dim into pieces of another"),
      {.kind = "ring_shift",
       .summary = "each member's pieces passed on to the next member of its group",
       .letters = PassedOn,
       .infer = EachType,
       .jointly_linear = true},
      Moving("gather_stages", "scalars of every stage, known to all stages"),
      {.kind = "send", .summary = "values for another stage", .letters = SendLetters, .infer = Nothing},
      {.kind = "recv", .summary = "values from another stage", .letters = SendLetters, .infer = Nothing},
  };
}

bool IsReshard(std::string_view kind) {
  constexpr std::string_view kKinds[] = {"reshard",    "slice",      "pad",           "all_gather", "reduce_scatter",
                                         "all_reduce", "all_to_all", "gather_stages", "send",       "recv"};
  for (std::string_view k : kKinds)
    if (k == kind) return true;
  return false;
}

}  // namespace espalier
