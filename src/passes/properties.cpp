#include "espalier/passes/properties.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "espalier/graph/columns.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"
#include "passes/placement/layout.hpp"

namespace espalier {
namespace {

std::vector<Property> ListOf(Properties properties) {
  std::vector<Property> list;
  std::ranges::copy_if(kProperties, std::back_inserter(list), [&](Property p) { return properties.Has(p); });
  return list;
}

class PropertyChecker {
 public:
  PropertyChecker(const Graph& graph, const PassContext& context, Properties properties)
      : graph_(graph), context_(context), properties_(properties), is_written_(graph.values.size()) {
    if (properties.Has(Property::kDifferentiated) || properties.Has(Property::kSummed))
      for (const Value& v : graph.values)
        if (IsGradientOfWeight(v)) gradients_[ParameterOf(v)] = static_cast<int>(&v - graph.values.data());
    if (properties.Has(Property::kDifferentiated) || properties.Has(Property::kSingleUpdates))
      for (const Op& op : graph.ops)
        for (int v : op.outputs) is_written_[v] = true;
  }

  /// The first property that does not hold, and the op or value for which it does not; "" if all hold.
  std::string Offence() {
    const std::vector<Property> wanted = ListOf(properties_);
    for (size_t i = 0; i < graph_.ops.size(); ++i)
      for (Property property : wanted)
        if (const Op& op = graph_.ops[i]; !Holds(property, op))
          return fmt::format("{}: op {} {}{}", Name(property), i, op.kind,
                             op.outputs.empty() ? "" : " -> " + NameOf(op.outputs[0]));
    for (size_t v = 0; v < graph_.values.size(); ++v)
      for (Property property : wanted)
        if (!Holds(property, static_cast<int>(v)))
          return fmt::format("{}: {}", Name(property), NameOf(static_cast<int>(v)));
    return "";
  }

 private:
  const std::string& NameOf(int value) const { return graph_.value(value).name; }

  bool Holds(Property property, const Op& op) const {
    switch (property) {
      case Property::kSingleUpdates:
        return op.role != Role::kU ||
               std::ranges::count_if(op.outputs, [&](int v) { return IsParameter(graph_.value(v)); }) <= 1;
      case Property::kCastCopies:
        return op.role != Role::kU ||
               std::ranges::none_of(op.outputs, [&](int v) { return graph_.value(v).kind == ValueKind::kCache; });
      case Property::kReshards:
        return !IsReshard(op.kind) || op.kind == OpKind::kReshard;
      case Property::kLowered:
        return op.kind != OpKind::kReshard;
      case Property::kSingleMessages:
        return !IsCollective(op.kind) || op.inputs.size() == 1;
      case Property::kUnfused:
        return !IsFused(op);
      case Property::kWhole:
        return !StripOf(op);
      case Property::kUncut:
        return !IsBetweenStages(op.kind) && op.kind != OpKind::kGatherStages;
      case Property::kCut:
        return op.kind == OpKind::kGatherStages ||
               std::ranges::all_of(op.inputs, [&](int v) { return IsAt(graph_.value(v), op.chunk); });
      default:
        return true;
    }
  }

  bool Holds(Property property, int value) {
    const Value& v = graph_.value(value);
    switch (property) {
      case Property::kUnplaced:
        return v.type.placements.Partial().Empty() &&
               std::ranges::all_of(v.type.placements.dims, [](const std::vector<Axis>& axes) { return axes.empty(); });
      case Property::kPlaced:
        return (v.kind != ValueKind::kState && v.kind != ValueKind::kInput) || v.layout.empty() ||
               v.type.placements == PlacementsOf(v);
      case Property::kDifferentiated:
        return !IsTrained(v) || (GradientOf(v) >= 0 && is_written_[GradientOf(v)]);
      case Property::kSummed:
        return !IsParameter(v) || GradientOf(v) < 0 || graph_.value(GradientOf(v)).kind == ValueKind::kAccumulator;
      case Property::kSingleUpdates:
        return !IsTrained(v) || is_written_[value];
      default:
        return true;
    }
  }

  static bool IsFused(const Op& op) {
    if (op.kind == OpKind::kMatmul) return op.inputs.size() != 2 && !op.attributes.texts.contains(kColumns);
    return op.kind == OpKind::kCrossEntropy || (op.kind == OpKind::kLogitsSum && op.inputs.size() == 2);
  }
  /// On the stage of an op of this chunk; for an op of all stages, on all of them.
  bool IsAt(const Value& v, int chunk) const {
    const std::vector<int>& stage = context_.stage_of_chunk;
    if (v.chunk == kAllChunks) return true;
    return chunk == kAllChunks ? std::ranges::max(stage) == 0 : stage[v.chunk] == stage[chunk];
  }
  const Placements& PlacementsOf(const Value& v) {
    const auto [found, fresh] = placements_.try_emplace({v.layout, v.kind, v.type.shape});
    if (fresh) found->second = LayoutPlacements(v, context_.deck, context_.mesh);
    return found->second;
  }
  bool IsTrained(const Value& v) const { return context_.purpose == Purpose::kTrain && IsParameter(v) && v.trained; }
  /// -1: none.
  int GradientOf(const Value& weight) const {
    const auto found = gradients_.find(ParameterOf(weight));
    return found == gradients_.end() ? -1 : found->second;
  }

  const Graph& graph_;
  const PassContext& context_;
  const Properties properties_;
  std::vector<bool> is_written_;                                                     // by value
  std::unordered_map<std::string_view, int> gradients_;                              // by weight
  std::map<std::tuple<std::string_view, ValueKind, Shape>, Placements> placements_;  // by layout
};

}  // namespace

std::string_view Name(Property property) {
#define ESPALIER_PROPERTY(name, sentence) sentence,
  static constexpr std::string_view kNames[] = {ESPALIER_PROPERTIES(ESPALIER_PROPERTY)};
#undef ESPALIER_PROPERTY
  return kNames[static_cast<size_t>(property)];
}

void CheckProperties(const Graph& graph, const PassContext& context, Properties properties, std::string_view place) {
  const std::string offence = PropertyChecker(graph, context, properties).Offence();
  CHECK(offence.empty(), "{}: it is not so that {}", place, offence);
}

}  // namespace espalier
