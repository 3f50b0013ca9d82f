// Properties of a graph that passes rely on. A row of pass_list.hpp says which of them its pass requires, establishes
// and ends.
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/graph/graph.hpp"

namespace espalier {

struct PassContext;

/// Each with a sentence that is true of a graph which has it.
#define ESPALIER_PROPERTIES(X)                                               \
  X(kUnplaced, "no value has placements")                                    \
  X(kPlaced, "states and inputs have the placements of their layouts")       \
  X(kDifferentiated, "in training, an op makes the gradient of each weight") \
  X(kSummed, "gradients of weights are accumulators")                        \
  X(kSingleUpdates, "in training, each weight has an update of its own")     \
  X(kCastCopies, "no update writes the copy of a weight")                    \
  X(kReshards, "no reshard is lowered")                                      \
  X(kLowered, "all reshards are lowered")                                    \
  X(kSingleMessages, "a collective carries one tensor")                      \
  X(kUnfused, "matmuls and sums of logits have their own operands alone")    \
  X(kWhole, "no op computes a strip")                                        \
  X(kUncut, "nothing is sent to another stage")                              \
  X(kCut, "ops read values of their own stage")

#define ESPALIER_PROPERTY(name, sentence) name,
enum class Property : uint8_t { ESPALIER_PROPERTIES(ESPALIER_PROPERTY) };
#undef ESPALIER_PROPERTY
#define ESPALIER_PROPERTY(name, sentence) Property::name,
inline constexpr Property kProperties[] = {ESPALIER_PROPERTIES(ESPALIER_PROPERTY)};
#undef ESPALIER_PROPERTY

/// Its sentence.
std::string_view Name(Property property);

/// A set of properties.
class Properties {
 public:
  constexpr Properties() = default;
  constexpr Properties(Property property) : bits_(uint32_t{1} << static_cast<int>(property)) {}
  constexpr bool Has(Property property) const { return (bits_ & Properties(property).bits_) != 0; }
  constexpr Properties operator|(Properties others) const { return Properties(bits_ | others.bits_); }
  constexpr Properties Without(Properties others) const { return Properties(bits_ & ~others.bits_); }

 private:
  constexpr explicit Properties(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};
constexpr Properties operator|(Property a, Property b) { return Properties(a) | b; }

/// The properties of a model's graph, before the first pass.
inline constexpr Properties kPropertiesOfModels = Property::kUnplaced | Property::kCastCopies | Property::kReshards |
                                                  Property::kSingleMessages | Property::kUnfused | Property::kWhole |
                                                  Property::kUncut;

/// Throws InvariantError, which names `place` (as in "before fuse"), the property, and the op or value that lacks it.
void CheckProperties(const Graph& graph, const PassContext& context, Properties properties, std::string_view place);

}  // namespace espalier
