// The compiler's passes, Graph -> Graph, and the ordered list of them.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/graph/graph.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/model/model.hpp"
#include "espalier/passes/pass_list.hpp"
#include "espalier/passes/properties.hpp"

namespace espalier {

/// The settings on which passes may depend besides the graph.
struct PassContext {
  const Deck& deck;
  Mesh mesh;
  std::vector<int> stage_of_chunk;
  const ScheduleTraits& schedule;
  Purpose purpose = Purpose::kTrain;
  /// Whether times may decide into how many kernels or messages the same work is divided: only where no sum depends on
  /// their sizes, since a change of run.costs changes no result.
  bool sizes_follow_times = true;
};

#define ESPALIER_DECLARE_PASS(name, Function, required, established, ended, why) \
  void Function(Graph& graph, const PassContext& context);
ESPALIER_PASSES(ESPALIER_DECLARE_PASS)
#undef ESPALIER_DECLARE_PASS

struct Pass {
  std::string_view name;
  void (*run)(Graph& graph, const PassContext& context);
  Properties required, established, ended;
  std::string_view why;  ///< it is at this place
};
/// In order.
std::span<const Pass> Passes();

/// The properties of a graph after all of these passes. Throws InvariantError, which names the pass and the property,
/// if one is required that no earlier pass establishes, or that one has ended.
Properties PropertiesAfter(std::span<const Pass> passes);

/// When the graph is verified: after every pass, which names the pass that broke it, or once after the last one.
enum class Verification : uint8_t { kEveryPass, kAtTheEnd };

/// Sees the graph after a pass.
using PassObserver = std::function<void(std::string_view pass, const Graph& graph)>;

/// Runs every pass on a forward graph, in order, and verifies the graph and its properties. `observe` may be empty.
void RunPasses(Graph& graph, const PassContext& context, const PassObserver& observe = {},
               Verification verification = Verification::kEveryPass);

}  // namespace espalier
