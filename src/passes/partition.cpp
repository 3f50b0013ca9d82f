// One engine places every value: forward, backward and update alike. For each op, in order, the axes of its dims follow
// from its inputs. Where inputs disagree about an axis
//   - on dp and cp (Winner::kBatch) the batch or sequence dim wins: weights are gathered;
//   - on tp (Winner::kWeight) the dim of the weight, or of the weight gradient, wins: weights are not moved. It wins on
//     kv_replicate, too, where a matmul with an unsharded weight is replicated;
//   - a dim that is anchored wins (Einsum::anchored); a dim of an output alone follows from the layout of the output;
//   - otherwise the dim with the least traffic wins, the first one of equals.
// Then each input is resharded to the axes of its dims (never partial, except into additions), equal reshards are
// shared, and the placements of the outputs follow. A value for which the model asks a layout is resharded to it by its
// producer.
#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <tuple>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/passes/reshard.hpp"
#include "espalier/util/error.hpp"
#include "passes/placement/layout.hpp"

namespace espalier {
namespace {

using DimAxes = std::map<char, std::vector<Axis>>;

class Partitioner {
 public:
  Partitioner(Graph& graph, const PassContext& context) : old_(graph), context_(context), mesh_(context.mesh) {}

  Graph Run() {
    // Values keep their ids, so that ops can be copied one by one; raw and resharded values are added after them.
    for (const Value& v : old_.values) {
      new_.AddValue(v);
      if (v.producer < 0 && v.kind != ValueKind::kAccumulator && !v.layout.empty())
        new_.values.back().type.placements = LayoutPlacements(v, context_.deck, mesh_);
    }
    for (const Op& op : old_.ops) {
      if (op.kind == OpKind::kReshard)
        Move(op);
      else
        Place(op);
    }
    new_.results = old_.results;
    new_.Renumber();
    return std::move(new_);
  }

 private:
  Placements Wanted(int id) const {
    const Value& v = new_.value(id);
    return LayoutPlacements(v, context_.deck, mesh_);
  }

  /// The same; a value with kv heads may stay a partial sum over the ranks that share them.
  Placements Wanted(int id, const Type& made) const {
    Placements placements = Wanted(id);
    if (new_.value(id).layout.ends_with("kv_heads"))
      placements.partial_sum = made.placements.partial_sum & kReplicatingAxes;
    return placements;
  }

  /// A reshard that the graph already has: the layout of its output is the target.
  void Move(const Op& op) {
    const int output = op.outputs[0];
    new_.value(output).type.placements = Wanted(output);
    new_.AddOp(op);
  }

  void Place(Op op) {
    const OpDefinition& definition = Define(op.kind);
    const OpContext context = ContextOf(new_, op);
    const Einsum einsum = definition.einsum(context);
    const DimAxes axes = ChooseAxes(op, context, einsum);
    for (size_t i = 0; i < op.inputs.size(); ++i)
      op.inputs[i] = Resharded(op.inputs[i],
                               Required(axes, einsum.inputs[i], KeptPartial(context, definition, i, axes, einsum)), op);
    std::vector<Placements> free;
    for (const std::string& dims : einsum.outputs) free.push_back(PlacementsOf(axes, dims));
    const std::vector<Type> types = InferOutputs(new_, op, free);
    std::vector<std::pair<int, int>> moves;  // raw -> wanted
    for (size_t o = 0; o < types.size(); ++o) op.outputs[o] = PlaceOutput(op.outputs[o], types[o], op.role, moves);
    const Role role = op.role;
    const int layer = op.layer, chunk = op.chunk;
    new_.AddOp(std::move(op));
    for (const auto& [raw, wanted] : moves) new_.AddOp({OpKind::kReshard, {raw}, {wanted}, {}, role, layer, chunk});
  }

  /// Gives an output its type. If the model asks for another layout, the op writes a raw value that is resharded to it.
  /// A weight gradient of one microbatch keeps the placements of its op: its layout only tells the axes of its weight.
  int PlaceOutput(int id, const Type& type, Role role, std::vector<std::pair<int, int>>& moves) {
    Value& v = new_.value(id);
    const bool enforced = v.kind == ValueKind::kActivation && !v.layout.empty() && role != Role::kW;
    if (v.kind == ValueKind::kState)
      CHECK(v.type == type, "{}: the update has {}, the state {}", v.name, ToString(type), ToString(v.type));
    v.type = type;
    if (!enforced || Wanted(id, type) == type.placements) return id;
    v.type.placements = Wanted(id, type);
    Value raw = v;
    raw.name = new_.Unique(v.name + ".raw");
    raw.layout.clear();
    raw.type = type;
    const int raw_id = new_.AddValue(std::move(raw));
    moves.emplace_back(raw_id, id);
    return raw_id;
  }

  /// Axes on which input `i` may stay a partial sum: all if the op adds inputs with equal placements, those that
  /// replicate if it is linear in this input and no other input is sharded there.
  static AxisSet KeptPartial(const OpContext& c, const OpDefinition& definition, size_t i, const DimAxes& axes,
                             const Einsum& einsum) {
    if (definition.jointly_linear)
      return std::all_of(c.inputs.begin(), c.inputs.end(),
                         [&](const Type& t) { return t.placements == c.inputs[0].placements; })
                 ? c.inputs[i].placements.partial_sum
                 : AxisSet();
    if (static_cast<int>(i) >= definition.linear_inputs) return {};
    for (size_t other = 0; other < einsum.inputs.size(); ++other)
      for (char dim : einsum.inputs[other])
        if (other != i && std::ranges::any_of(AxesOfDim(axes, dim), [](Axis a) { return kReplicatingAxes.Has(a); }))
          return {};
    return c.inputs[i].placements.partial_sum & kReplicatingAxes;
  }

  Placements PlacementsOf(const DimAxes& axes, const std::string& dims) const {
    Placements placements;
    for (char dim : dims) placements.dims.push_back(AxesOfDim(axes, dim));
    return placements;
  }
  Placements Required(const DimAxes& axes, const std::string& dims, AxisSet partial) const {
    Placements placements = PlacementsOf(axes, dims);
    placements.partial_sum = partial;
    return placements;
  }

  /// An input or output that wants an axis on a dim.
  struct Claim {
    char dim;
    bool weight;
  };

  std::vector<Claim> ClaimsOn(Axis axis, const Op& op, const OpContext& c, const Einsum& einsum) const {
    std::vector<Claim> claims;
    const auto claim = [&](const Placements& p, const std::string& dims, bool weight) {
      const int d = p.DimOf(axis);
      if (d < 0) return;
      const char dim = static_cast<char>(std::tolower(dims[d]));
      if (weight && einsum.anchored.find(dim) != std::string::npos) return;
      if (einsum.shardable.find(dim) != std::string::npos) claims.push_back({dim, weight});
    };
    for (size_t i = 0; i < c.inputs.size(); ++i)
      claim(c.inputs[i].placements, einsum.inputs[i], IsWeight(op.inputs[i]));
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      const Value& v = new_.value(op.outputs[o]);
      if ((v.kind == ValueKind::kAccumulator || op.role == Role::kW) && !v.layout.empty())
        claim(Wanted(op.outputs[o]), einsum.outputs[o], true);
      else if (v.kind == ValueKind::kActivation && !v.layout.empty())
        claim(OnNewDims(Wanted(op.outputs[o]), einsum, o), einsum.outputs[o], false);
    }
    const auto is_anchored = [&](const Claim& k) { return einsum.anchored.find(k.dim) != std::string::npos; };
    if (std::ranges::any_of(claims, is_anchored)) std::erase_if(claims, std::not_fn(is_anchored));
    return claims;
  }
  /// The placements of output `o` on the dims that no input has.
  static Placements OnNewDims(Placements p, const Einsum& einsum, size_t o) {
    for (size_t d = 0; d < p.dims.size(); ++d)
      if (std::ranges::any_of(einsum.inputs, [&](const std::string& dims) {
            return dims.find(einsum.outputs[o][d]) != std::string::npos;
          }))
        p.dims[d].clear();
    return p;
  }
  bool IsWeight(int id) const {
    const Value& v = new_.value(id);
    return v.frequency == Frequency::kStep && v.kind != ValueKind::kAccumulator;
  }

  DimAxes ChooseAxes(const Op& op, const OpContext& c, const Einsum& einsum) const {
    std::vector<std::pair<Axis, char>> chosen;
    for (Axis axis : kAxes) {
      if (axis == Axis::kPp || mesh_.Degree(axis) == 1) continue;
      std::vector<Claim> claims = ClaimsOn(axis, op, c, einsum);
      const bool weights_win = RowOf(axis).winner == Winner::kWeight;
      const bool repeated = RowOf(axis).replicates && Define(op.kind).linear_inputs == 2;
      if (repeated ||
          std::any_of(claims.begin(), claims.end(), [&](const Claim& k) { return k.weight == weights_win; }))
        std::erase_if(claims, [&](const Claim& k) { return k.weight != weights_win; });
      std::string candidates;
      for (const Claim& k : claims)
        if (candidates.find(k.dim) == std::string::npos) candidates += k.dim;
      if (candidates.empty()) continue;
      chosen.emplace_back(axis, candidates.size() == 1 ? candidates[0] : LeastTraffic(axis, candidates, c, einsum));
    }
    return InOrder(chosen, c, einsum);
  }

  char LeastTraffic(Axis axis, const std::string& candidates, const OpContext& c, const Einsum& einsum) const {
    char best = candidates[0];
    int64_t least = -1;
    for (char dim : candidates) {
      int64_t traffic = 0;
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        Placements to = c.inputs[i].placements;
        for (std::vector<Axis>& dim : to.dims) std::erase(dim, axis);
        to.partial_sum.Remove(axis);
        to.partial_max.Remove(axis);
        const size_t d = einsum.inputs[i].find(dim);
        if (d != std::string::npos) to.dims[d].push_back(axis);
        if (to.Partial().Empty()) traffic += ReshardTraffic(c.inputs[i], to, mesh_);
      }
      if (least < 0 || traffic < least) {
        least = traffic;
        best = dim;
      }
    }
    return best;
  }

  /// The axes of each dim in the order in which some input already has them; else outermost first.
  DimAxes InOrder(const std::vector<std::pair<Axis, char>>& chosen, const OpContext& c, const Einsum& einsum) const {
    DimAxes axes;
    for (const auto& [axis, dim] : chosen) axes[dim].push_back(axis);
    for (auto& [dim, list] : axes)
      for (size_t i = 0; i < c.inputs.size(); ++i) {
        const size_t d = einsum.inputs[i].find(dim);
        if (d == std::string::npos) continue;
        const std::vector<Axis>& here = c.inputs[i].placements.dims[d];
        if (std::is_permutation(here.begin(), here.end(), list.begin(), list.end())) list = here;
      }
    return axes;
  }

  /// The chunk that reshards a value: its consumer's, so that it crosses stages with its placements, never gathered; or
  /// its producer's if the value is partial, so that it is reduced before it crosses.
  static int ChunkOfReshard(const Value& v, const Op& consumer, bool prepared) {
    if (consumer.chunk == kAllChunks) return v.chunk;
    const bool whole = v.type.placements.Partial().Empty();
    return prepared || whole || v.chunk == kAllChunks ? consumer.chunk : v.chunk;
  }

  /// Equal reshards are shared: within a role; by B with W unless the schedule defers W; and, where a sum was reduced
  /// (the result is no larger than its source), by F with B and W. A gathered activation is gathered again in backward.
  int Resharded(int id, const Placements& to, const Op& consumer) {
    const Value& v = new_.value(id);
    if (v.type.placements == to) return id;
    const bool prepared = v.frequency == Frequency::kStep && consumer.frequency() == Frequency::kMicrobatch;
    const bool updates = v.producer >= 0 && new_.op(v.producer).role == Role::kU;
    const Role role = prepared ? Role::kP : consumer.role == Role::kU && !updates ? Role::kS : consumer.role;
    const int chunk = ChunkOfReshard(v, consumer, prepared);
    Type type = v.type;
    type.placements = to;
    const std::string wanted = ToString(type);
    std::vector<Role> usable = {role};
    const bool reduces = !v.type.placements.Partial().Empty();
    if (role == Role::kW && (reduces || !context_.schedule.DefersW())) usable.push_back(Role::kB);
    if (reduces && (role == Role::kB || role == Role::kW)) usable.push_back(Role::kF);
    for (Role made_in : usable)
      if (const auto it = shared_.find({id, wanted, made_in, chunk}); it != shared_.end()) return it->second;
    Op reshard{OpKind::kReshard, {id}, {}, {}, role, consumer.layer, chunk};
    const int output = new_.AddValue({new_.Unique(v.name + ".on." + std::string(Name(role))), std::move(type),
                                      ValueKind::kActivation, reshard.frequency(), chunk, -1, ""});
    reshard.outputs = {output};
    new_.AddOp(std::move(reshard));
    shared_[{id, wanted, role, chunk}] = output;
    return output;
  }

  const Graph& old_;
  const PassContext& context_;
  const Mesh& mesh_;
  Graph new_;
  std::map<std::tuple<int, std::string, Role, int>, int> shared_;
};

}  // namespace

void Partition(Graph& graph, const PassContext& context) { graph = Partitioner(graph, context).Run(); }

}  // namespace espalier
