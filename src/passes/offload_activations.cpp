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
// They come back earlier if that layer is too short to hide the copy (ops/op_times.hpp), and other copies leave the
// lane free. The layer of a chunk with which backward begins keeps its values: they would come back at once. A fraction
// takes the layers with which forward begins, since their values wait longest. offload.layers names layers in place of
// a share. Copies change no bit.
#include <algorithm>
#include <limits>
#include <map>
#include <ranges>
#include <set>

#include "espalier/deck/recompute.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/graph/uses.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

bool IsBackward(const Op& op) { return op.role == Role::kB || op.role == Role::kW; }

class ActivationMover {
 public:
  ActivationMover(Graph& graph, const PassContext& context)
      : graph_(graph),
        mesh_(context.mesh),
        stage_of_chunk_(context.stage_of_chunk),
        offload_(context.deck.offload),
        times_(TimesOf(context.deck)),
        uses_(graph) {}

  void Run() {
    FindLayers();
    FindNamed();
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

  /// The layers of offload.layers. Layers of the graph count from 1: 0 is the embedding, and the last is the head.
  void FindNamed() {
    if (offload_.layers.empty()) return;
    const LayerSet set = ParseLayerSet(offload_.layers, std::numeric_limits<int64_t>::max()).set;
    int head = 0;
    std::map<int, int> stage_of;  // ascending: the layers of a stage in order
    for (const Op& op : graph_.ops) head = std::max(head, op.layer);
    for (const Op& op : graph_.ops)
      if (op.role == Role::kF && op.layer > 0 && op.layer < head && op.chunk >= 0)
        stage_of.try_emplace(op.layer, stage_of_chunk_[static_cast<size_t>(op.chunk)]);
    std::map<int, int> places;  // by stage: layers so far
    for (const auto& [layer, stage] : stage_of)
      if (set.Names(layer - 1, places[stage]++)) named_.insert(layer);
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
    g.bytes += static_cast<double>(BytesOf(value));
  }

  /// Takes whole groups, the last of backward first: those that offload.layers names, or up to the share of all but the
  /// first of backward.
  void Choose(const Groups& groups) {
    std::vector<const Group*> in_backward;
    for (const auto& [layer, group] : groups) in_backward.push_back(&group);
    std::ranges::sort(in_backward, {}, &Group::first_backward);
    const auto others = in_backward | std::views::drop(1);
    double all = 0, taken = 0;
    for (const Group* group : others) all += group->bytes;
    for (const Group* group : others | std::views::reverse) {
      const bool of_share = taken + group->bytes / 2 <= offload_.activations * all;
      if (!named_.contains(group->layer) && !(of_share && offload_.layers.empty())) continue;
      taken += group->bytes;
      leaving_[group->last_forward].push_back(group);
      moved_.insert(group->values.begin(), group->values.end());
    }
    std::map<Role, int> before;  // the layer whose values come back before, by the role of their copy
    for (const Group* group : others)
      if (moved_.contains(group->values[0]))
        for (const auto& [role, values] : group->returning) {
          coming_[AnchorOf(*group, role, values, before)].push_back({group, role});
          before[role] = group->layer;
        }
  }

  /// The first op of a layer before the one that reads these values, in its role: of the nearest from which on kernels
  /// hide the copy, but not before the layer whose values come back `before`. The op itself if there is none.
  int AnchorOf(const Group& group, Role role, const std::vector<int>& values, const std::map<Role, int>& before) const {
    const std::vector<int>& starts = starts_.at({graph_.value(values[0]).chunk, role});
    const auto layer_at = [&](size_t place) { return graph_.op(starts[place]).layer; };
    size_t place = 0;
    while (layer_at(place) != group.layer) ++place;
    int64_t bytes = 0;
    for (int value : values) bytes += BytesOf(value);
    double left =
        times_.HostCopy(OpKind::kCopyIn, bytes, mesh_.Ranks()) - times_.HostCopy(OpKind::kCopyIn, 0, mesh_.Ranks());
    for (bool one = false; place > 0 && (!one || left > 0); one = true) {
      --place;
      for (int i = starts[place]; i < starts[place + 1]; ++i)
        if (graph_.op(i).role == role && graph_.op(i).layer == layer_at(place))
          left -= times_.Of(graph_, graph_.op(i), mesh_);
      const auto found = before.find(role);
      if (found != before.end() && layer_at(place) == found->second) break;
    }
    return starts[place];
  }
  int64_t BytesOf(int value) const {
    const Type& type = graph_.value(value).type;
    return LocalVolume(type, mesh_, {}) * SizeOf(type.dtype);
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
  const std::vector<int>& stage_of_chunk_;
  const Deck::Offload& offload_;
  const OpTimes& times_;
  const Uses uses_;
  std::map<std::pair<int, Role>, std::vector<int>> starts_;
  std::map<int, Groups> groups_;                      // by chunk
  std::map<int, std::vector<const Group*>> leaving_;  // by op: groups that leave after it
  std::map<int, std::vector<Return>> coming_;         // by op: groups that come before it
  std::set<int> moved_;
  std::set<int> named_;  // layers of the graph
};

}  // namespace

void OffloadActivations(Graph& graph, const PassContext& context) {
  const Deck::Offload& offload = context.deck.offload;
  CHECK(offload.activations != kAutoShare, "offload.activations = \"auto\" has not been resolved");
  if ((offload.activations > 0 || !offload.layers.empty()) && HasBackward(context.purpose))
    ActivationMover(graph, context).Run();
}

}  // namespace espalier
