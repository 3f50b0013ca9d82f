// Weights and gradients on the host (offload.parameters, offload.gradients) pass through the device layer by layer. The
// weights of a layer come in for its forward and again for its backward, while the layer before is computed; so do the
// sums of its gradients, which leave with what the microbatch has added:
//
//   F  y = matmul(x, w1)    layer 1          F  s1 = copy_in(w1)
//   F  z = matmul(y, w2)    layer 2          F  s2 = copy_in(w2)        under layer 1
//   ...                                      F  y = matmul(x, s1)
//   B  dy = matmul(dz, w2)  layer 2   ->     F  z = matmul(y, s2)
//   W  g2 += matmul(dz, y)                   ...
//   B  dx = matmul(dy, w1)  layer 1          B  s1' = copy_in(w1)       under layer 2
//                                            B  dy = matmul(dz, s2')
//                                            W  t2 += matmul(dz, y)     t2 = copy_in(g2): a layer before
//                                            W  g2 = copy_out(t2)       under layer 1
//                                            B  dx = matmul(dy, s1')
//
// The device has memory for two layers; with prefetched gathers (pass `prefetch`) for one more. In microbatch 0 sums do
// not come in (program/emit.cpp). Ops that run once per step read weights and sums that come in right before them, and
// what they make stays: gathered weights, reduced gradients. Updates are for pass `stream_states`.
#include <fmt/core.h>

#include <algorithm>
#include <compare>
#include <map>
#include <vector>

#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

class LayerStreamer {
 public:
  LayerStreamer(Graph& graph, const std::vector<int>& stage_of_chunk) : graph_(graph), stage_(stage_of_chunk) {}

  void Run() {
    FindLayers();
    for (int i = 0; i < std::ssize(graph_.ops); ++i)
      if (!WritesKept(graph_.op(i))) Stage(i);
    std::map<int, std::vector<const Copy*>> before;  // by op
    std::map<int, Op> after;                         // by op: sums that leave
    for (const auto& [place, copy] : copies_) before[copy.anchor].push_back(&copy);
    for (const auto& [sum, last] : last_writer_) {
      Op& copy = after.try_emplace(last, CopyOf(OpKind::kCopyOut, PlaceOf(graph_.op(last)))).first->second;
      copy.inputs.push_back(staged_sums_.at(sum));
      copy.outputs.push_back(sum);
    }
    Rewriter old(graph_);
    for (int i = 0; i < std::ssize(old.ops); ++i) {
      std::ranges::sort(before[i], {}, &Copy::first_user);
      for (const Copy* copy : before[i]) graph_.ops.push_back(copy->op);
      graph_.ops.push_back(std::move(old.ops[static_cast<size_t>(i)]));
      if (const auto leaves = after.find(i); leaves != after.end()) graph_.ops.push_back(std::move(leaves->second));
    }
  }

 private:
  /// Where values come in together: for a layer in one role, or for one op that runs once per step.
  struct Place {
    Role role;
    int chunk, layer;
    int op = -1;        ///< the op that runs once per step
    bool sums = false;  ///< of gradients
    auto operator<=>(const Place&) const = default;
  };
  struct Copy {
    Op op;
    int first_user, anchor;     ///< ops; it goes before the anchor
    std::map<int, int> staged;  ///< by value on the host
  };

  static Place PlaceOf(const Op& op) { return {op.role, op.chunk, op.layer}; }
  bool IsSum(int value) const { return graph_.value(value).kind == ValueKind::kAccumulator; }
  /// Weights, and sums of gradients.
  bool IsStreamed(int value) const {
    const Value& v = graph_.value(value);
    return v.space == Space::kHost && v.kind != ValueKind::kActivation;
  }
  bool WritesKept(const Op& op) const {
    return std::ranges::any_of(op.outputs, [&](int v) { return IsKept(graph_.value(v).kind); });
  }

  void FindLayers() {
    std::map<Place, bool> seen;
    for (int i = 0; i < std::ssize(graph_.ops); ++i) {
      const Op& op = graph_.op(i);
      if (!IsCommunication(op.kind) && !IsHostCopy(op.kind) && seen.try_emplace(PlaceOf(op)).second)
        starts_[{op.role, op.chunk}].push_back(i);
    }
  }
  /// The first op of the layer before the one at op `user`, in its role; at the first layer, its first op.
  int AnchorOf(int user) const {
    const auto found = starts_.find({graph_.op(user).role, graph_.op(user).chunk});
    if (found == starts_.end()) return user;
    const std::vector<int>& starts = found->second;
    const auto begun = std::ranges::upper_bound(starts, user) - starts.begin();
    return begun == 0 ? user : starts[static_cast<size_t>(std::max<ptrdiff_t>(begun - 2, 0))];
  }

  void Stage(int user) {
    Op& op = graph_.op(user);
    for (int& input : op.inputs)
      if (IsStreamed(input)) input = Staged(input, user);
    for (int& output : op.outputs) {
      if (!IsStreamed(output)) continue;
      last_writer_[output] = user;
      const auto known = staged_sums_.find(output);
      const int staged = known != staged_sums_.end() ? known->second : Staged(output, user);
      staged_sums_[output] = staged;
      output = staged;
    }
  }

  int Staged(int value, int user) {
    const Value v = graph_.value(value);
    const Op& op = graph_.op(user);
    const bool is_sent = stage_.at(static_cast<size_t>(v.chunk)) != stage_.at(static_cast<size_t>(op.chunk));
    const bool of_step = is_sent || op.frequency() == Frequency::kStep;
    const Role of_sent = IsSum(value) ? Role::kS : Role::kP;
    const Place place = of_step ? Place{is_sent ? of_sent : op.role, v.chunk, op.layer, user, IsSum(value)}
                                : Place{op.role, op.chunk, op.layer, -1, IsSum(value)};
    const int anchor = !of_step ? AnchorOf(user) : place.role == Role::kP && op.role != Role::kP ? 0 : user;
    Copy& copy = copies_.try_emplace(place, Copy{CopyOf(OpKind::kCopyIn, place), user, anchor, {}}).first->second;
    copy.anchor = std::min(copy.anchor, anchor);
    const auto [staged, fresh] = copy.staged.try_emplace(value, -1);
    if (fresh) {
      const std::string of = IsSum(value) ? v.name : StateName(ParameterOf(v));
      const std::string name = graph_.Unique(fmt::format("{}.{}", StagedName(of), Name(place.role)));
      staged->second =
          graph_.AddValue({name, v.type, ValueKind::kActivation, FrequencyOf(place.role), place.chunk, -1, ""});
      copy.op.inputs.push_back(value);
      copy.op.outputs.push_back(staged->second);
    }
    return staged->second;
  }

  static Op CopyOf(OpKind kind, const Place& place) { return {kind, {}, {}, {}, place.role, place.layer, place.chunk}; }

  Graph& graph_;
  const std::vector<int>& stage_;                            // by chunk
  std::map<std::pair<Role, int>, std::vector<int>> starts_;  // by role and chunk: the first kernel of each layer
  std::map<Place, Copy> copies_;
  std::map<int, int> staged_sums_, last_writer_;  // by sum
};

}  // namespace

void StreamParameters(Graph& graph, const PassContext& context) {
  const Deck::Offload& share = context.deck.offload;
  if ((share.parameters > 0 || share.gradients > 0) && !KeepsComputeType(context.purpose))
    LayerStreamer(graph, context.stage_of_chunk).Run();
}

}  // namespace espalier
