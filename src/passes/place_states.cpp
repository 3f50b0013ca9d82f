// offload.optimizer keeps states that only the update needs on the host: fp32 masters of weights that are computed in
// another type, and moments. With "all":
//
//   value parameters/w : f32[8,4] state step chunk 0        value parameters/w : f32[8,4] state step chunk 0 host
//   value optimizer/exp_avg/w : f32[8,4] state ...    ->    value optimizer/exp_avg/w : f32[8,4] state ... host
//   value w : bf16[8,4] cache step chunk 0                  value w : bf16[8,4] cache step chunk 0
//
// A fraction takes whole tensors, evenly over the parameters of each chunk in model order. Every program of a deck
// decides alike, since it sees the same parameters. Weights that are computed in fp32 stay: forward reads them.
#include <map>
#include <set>
#include <string>

#include "espalier/graph/provenance.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Takes a share of what it is offered, to half of the last offer.
class Chooser {
 public:
  explicit Chooser(double share) : share_(share) {}
  bool Takes(double elements) {
    offered_ += elements;
    const bool takes = taken_ + elements / 2 <= share_ * offered_;
    if (takes) taken_ += elements;
    return takes;
  }

 private:
  double share_, offered_ = 0, taken_ = 0;
};

/// The names of the parameters whose states leave the device.
std::set<std::string, std::less<>> ChosenParameters(const Graph& graph, double share) {
  std::map<int, Chooser> choosers;  // by chunk
  std::set<std::string, std::less<>> chosen;
  for (const Value& v : graph.values)
    if (IsParameter(v) && v.trained)
      if (choosers.try_emplace(v.chunk, share).first->second.Takes(static_cast<double>(Volume(v.type.shape))))
        chosen.emplace(ParameterOf(v));
  return chosen;
}

}  // namespace

void PlaceStates(Graph& graph, const PassContext& context) {
  const double share = context.deck.offload.optimizer;
  if (share == 0 || KeepsComputeType(context.purpose)) return;
  const auto chosen = ChosenParameters(graph, share);
  const bool masters = context.deck.precision.compute != Dtype::kF32;
  for (Value& v : graph.values)
    if ((IsMoment(v) || (IsParameter(v) && masters)) && chosen.contains(ParameterOf(v))) v.space = Space::kHost;
}

}  // namespace espalier
