// Which values the deck keeps on the host. offload.optimizer takes states that only the update
// needs: fp32 masters of weights that are computed in another type, and moments. offload.parameters takes the weights
// that forward and backward read: these copies, or with fp32 compute the masters. offload.gradients takes the sums of
// gradients. With offload.optimizer = "all":
//
//   value parameters/w : f32[8,4] state step chunk 0        value parameters/w : f32[8,4] state step chunk 0 host
//   value optimizer/exp_avg/w : f32[8,4] state ...    ->    value optimizer/exp_avg/w : f32[8,4] state ... host
//   value w : bf16[8,4] cache step chunk 0                  value w : bf16[8,4] cache step chunk 0
//
// A fraction of the state takes whole tensors, evenly over the parameters of each chunk in model order; one of weights
// or gradients takes whole layers, since those of one layer may be adjacent in memory (pass `join`). Every program of
// a deck decides alike, since it sees the same parameters.
#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "espalier/deck/offload.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using Names = std::set<std::string, std::less<>>;

/// The layer of a parameter: its name up to the first word that is a number. The whole name if there is none.
std::string LayerOf(const std::string& name) {
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('.', begin);
    const std::string word = name.substr(begin, end - begin);
    if (!word.empty() && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; }))
      return name.substr(0, begin + word.size());
  }
  return name;
}

/// A share of the trained parameters of each chunk, in model order, to half of the last one. Those with one key are
/// chosen together.
Names Chosen(const Graph& graph, double share, const std::function<std::string(std::string)>& key_of) {
  struct Group {
    int chunk = kAllChunks;
    double elements = 0;
    std::vector<std::string> names = {};
  };
  Names chosen;
  if (share == 0) return chosen;
  std::vector<Group> groups;
  std::map<std::pair<int, std::string>, size_t> known;  // by chunk and key
  for (const Value& v : graph.values) {
    if (!IsParameter(v) || !v.trained) continue;
    const std::string name(ParameterOf(v));
    const auto [found, fresh] = known.try_emplace({v.chunk, key_of(name)}, groups.size());
    if (fresh) groups.push_back({v.chunk});
    Group& group = groups[found->second];
    group.elements += static_cast<double>(Volume(v.type.shape));
    group.names.push_back(name);
  }
  std::map<int, double> offered, taken;  // by chunk
  for (const Group& group : groups) {
    offered[group.chunk] += group.elements;
    if (taken[group.chunk] + group.elements / 2 > share * offered[group.chunk]) continue;
    taken[group.chunk] += group.elements;
    chosen.insert(group.names.begin(), group.names.end());
  }
  return chosen;
}

/// The parameter of a gradient, also of that of a further use of a tied weight.
std::string_view FirstUseOf(const Graph& graph, const Value& gradient) {
  const std::string_view name = ParameterOf(gradient);
  return graph.FindOrNone(StateName(name)) >= 0 ? name : name.substr(0, name.rfind('.'));
}

}  // namespace

void PlaceStates(Graph& graph, const PassContext& context) {
  const Deck::Offload& share = context.deck.offload;
  CHECK(!AnyShareIs(context.deck, kAutoShare, kOffloadedStates), "\"auto\" of offload has not been resolved");
  if (KeepsComputeType(context.purpose)) return;
  const Names states = Chosen(graph, share.optimizer, std::identity{}),
              weights = Chosen(graph, share.parameters, LayerOf), gradients = Chosen(graph, share.gradients, LayerOf);
  const bool has_copies = context.deck.precision.compute != Dtype::kF32;
  for (Value& v : graph.values) {
    const bool is_weight = has_copies ? IsCopy(graph, v) : IsParameter(v);
    const bool is_state = !is_weight && (IsMoment(v) || IsParameter(v));
    const bool is_sum = v.kind == ValueKind::kAccumulator && IsGradientOfWeight(v);
    if ((is_state && states.contains(ParameterOf(v))) || (is_weight && weights.contains(ParameterOf(v))) ||
        (is_sum && gradients.contains(FirstUseOf(graph, v))))
      v.space = Space::kHost;
  }
}

}  // namespace espalier
