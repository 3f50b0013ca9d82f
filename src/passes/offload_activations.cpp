// offload.activations: what forward keeps for backward waits on the host. After the last op of forward that needs them,
// the values that backward reads in one layer leave together. They come back while backward is in the layer before it:
//
//   F  y = op(x)      layer 1               F  y = op(x)
//   F  z = op(y)      layer 2               F  x.host = copy_out(x)                under layer 2
//   ...                             ->      F  z = op(y)
//   B  dy = grad(dz, y)   layer 2           B  staged/x = copy_in(x.host)          under layer 2
//   B  dx = grad(dy, x)   layer 1           B  dy = grad(dz, y)
//                                           B  dx = grad(dy, staged/x)
//
// The layer of a chunk with which backward begins keeps its values: they would come back at once. A fraction takes the
// layers with which forward begins, since their values wait longest. Copies change no bit.
#include <algorithm>
#include <map>
#include <ranges>
#include <set>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/uses.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

bool IsBackward(const Op& op) { return op.role == Role::kB || op.role == Role::kW; }

class ActivationMover {
 public:
  ActivationMover(Graph& graph, const Mesh& mesh, double share)
      : graph_(graph), mesh_(mesh), share_(share), uses_(graph) {}

  void Run() {
    FindLayers();
    for (size_t v = 0; v < graph_.values.size(); ++v) Consider(static_cast<int>(v));
    for (const auto& [chunk, groups] : groups_) Choose(groups);
    if (leaving_.empty()) return;
    Move();
  }

 private:
  /// Values of one chunk that backward reads in one layer.
  struct Group {
    int layer = kUnset;
    std::vector<int> values;
    int first_backward = 0;                      ///< the first op of backward that reads one of them
    int last_forward = -1;                       ///< the last op of forward that uses one of them
    std::map<Role, std::vector<int>> returning;  ///< by the role of the copy: W if no op of B reads them
    double bytes = 0;
  };
  using Groups = std::map<int, Group>;  // by layer

  /// By chunk and role: the first op of each layer, in order.
  void FindLayers() {
    for (int i = 0; i < std::ssize(graph_.ops); ++i) {
      const Op& op = graph_.op(i);
      if (!IsBackward(op)) continue;
      std::vector<int>& starts = starts_[{op.chunk, op.role}];
      const auto known = [&](int start) { return graph_.op(start).layer == op.layer; };
      if (std::ranges::none_of(starts, known)) starts.push_back(i);
    }
  }

  void Consider(int value) {
    const Value& v = graph_.value(value);
    if (v.kind != ValueKind::kActivation || v.frequency != Frequency::kMicrobatch || v.producer < 0) return;
    if (graph_.op(v.producer).role != Role::kF || IsGradientOfWeight(v)) return;
    int first = -1, last_forward = uses_.LastWriter(value);
    bool has_b = false;
    for (int reader : uses_.Readers(value)) {
      if (reader == uses_.End() || graph_.op(reader).chunk != v.chunk) return;  // a result, or read elsewhere
      const Op& op = graph_.op(reader);
      if (!IsBackward(op)) {
        last_forward = std::max(last_forward, reader);
        continue;
      }
      if (first < 0) first = reader;
      has_b = has_b || op.role == Role::kB;
    }
    if (first < 0) return;
    const Role role = has_b ? Role::kB : Role::kW;
    Add(value, role, first, last_forward);
  }

  void Add(int value, Role role, int first, int last_forward) {
    const Value& v = graph_.value(value);
    Groups& groups = groups_[v.chunk];
    const int layer = graph_.op(first).layer;
    const auto [found, fresh] = groups.try_emplace(layer);
    Group& g = found->second;
    g.layer = layer;
    g.first_backward = fresh ? first : std::min(g.first_backward, first);
    g.values.push_back(value);
    g.last_forward = std::max(g.last_forward, last_forward);
    g.returning[role].push_back(value);
    g.bytes += static_cast<double>(LocalVolume(v.type, mesh_, {}) * SizeOf(v.type.dtype));
  }

  /// Takes whole groups, the last of backward first, up to the share of all but the first of backward.
  void Choose(const Groups& groups) {
    std::vector<const Group*> in_backward;
    for (const auto& [layer, group] : groups) in_backward.push_back(&group);
    std::ranges::sort(in_backward, {}, &Group::first_backward);
    const auto others = in_backward | std::views::drop(1);
    double all = 0, taken = 0;
    for (const Group* group : others) all += group->bytes;
    for (const Group* group : others | std::views::reverse) {
      if (taken + group->bytes / 2 > share_ * all) break;
      taken += group->bytes;
      leaving_[group->last_forward].push_back(group);
      for (const auto& [role, values] : group->returning)
        coming_[AnchorOf(*group, role, values)].push_back({group, role});
      moved_.insert(group->values.begin(), group->values.end());
    }
  }

  /// The first op of the layer before the one that reads these values, in its role; the op itself if there is none.
  int AnchorOf(const Group& group, Role role, const std::vector<int>& values) const {
    const std::vector<int>& starts = starts_.at({graph_.value(values[0]).chunk, role});
    const auto own = std::ranges::find_if(starts, [&](int start) { return graph_.op(start).layer == group.layer; });
    return own == starts.begin() ? *own : *std::prev(own);
  }

  void Move() {
    std::map<int, int> host, staged;  // by value
    for (int value : moved_) {
      const Value v = graph_.value(value);
      Value on_host{WaitingName(v.name), v.type, ValueKind::kActivation, Frequency::kMicrobatch, v.chunk, -1, ""};
      on_host.space = Space::kHost;
      host[value] = graph_.AddValue(std::move(on_host));
      staged[value] = graph_.AddValue(
          {StagedName(v.name), v.type, ValueKind::kActivation, Frequency::kMicrobatch, v.chunk, -1, ""});
    }
    Rewriter old(graph_);
    for (int i = 0; i < std::ssize(old.ops); ++i) {
      if (const auto found = coming_.find(i); found != coming_.end())
        for (const auto& [group, role] : found->second) {
          Op copy = CopyOf(*group, OpKind::kCopyIn, role);
          for (int value : group->returning.at(role)) {
            copy.inputs.push_back(host.at(value));
            copy.outputs.push_back(staged.at(value));
          }
          graph_.ops.push_back(std::move(copy));
        }
      Op& op = old.ops[static_cast<size_t>(i)];
      if (IsBackward(op))
        for (int& input : op.inputs)
          if (const auto found = staged.find(input); found != staged.end()) input = found->second;
      graph_.ops.push_back(std::move(op));
      if (const auto found = leaving_.find(i); found != leaving_.end())
        for (const Group* group : found->second) {
          Op copy = CopyOf(*group, OpKind::kCopyOut, Role::kF);
          for (int value : group->values) {
            copy.inputs.push_back(value);
            copy.outputs.push_back(host.at(value));
          }
          graph_.ops.push_back(std::move(copy));
        }
    }
  }

  Op CopyOf(const Group& group, OpKind kind, Role role) const {
    return {kind, {}, {}, {}, role, group.layer, graph_.value(group.values[0]).chunk};
  }

  struct Return {
    const Group* group;
    Role role;
  };

  Graph& graph_;
  const Mesh& mesh_;
  const double share_;
  const Uses uses_;
  std::map<std::pair<int, Role>, std::vector<int>> starts_;
  std::map<int, Groups> groups_;                      // by chunk
  std::map<int, std::vector<const Group*>> leaving_;  // by op: groups that leave after it
  std::map<int, std::vector<Return>> coming_;         // by op: groups that come before it
  std::set<int> moved_;
};

}  // namespace

void OffloadActivations(Graph& graph, const PassContext& context) {
  const double share = context.deck.offload.activations;
  if (share > 0 && HasBackward(context.purpose)) ActivationMover(graph, context.mesh, share).Run();
}

}  // namespace espalier
