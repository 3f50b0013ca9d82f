#include "instruction_costs.hpp"

#include <algorithm>
#include <cmath>

#include "espalier/graph/columns.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/transfers.hpp"
#include "formulas/formulas.hpp"

namespace espalier {
namespace {

/// The type of the rows, or weights, of several experts that an op works on; null: it is another op.
const Type* FindExperts(const Graph& graph, const Op& op) {
  const int64_t experts = op.attributes.IntegerOr("experts", 1);
  if (experts == 1 || !op.attributes.numbers.contains("load")) return nullptr;
  const Einsum einsum = Define(op.kind).einsum(ContextOf(graph, op));
  const auto find = [&](const std::vector<std::string>& dims, const std::vector<int>& values) -> const Type* {
    for (size_t i = 0; i < dims.size() && i < values.size(); ++i)
      if (const Type& type = graph.value(values[i]).type; dims[i].starts_with('e') && type.shape.at(0) == experts)
        return &type;
    return nullptr;
  };
  const Type* type = find(einsum.inputs, op.inputs);
  return type != nullptr ? type : find(einsum.outputs, op.outputs);
}

/// The less certain of two origins: a sum is as uncertain as its least certain part.
CostSource Least(CostSource a, CostSource b) { return std::max(a, b); }

}  // namespace

AxisSet RoutingAxes(const Costs& costs, const Program& program) {
  if (costs.routing().IsBalanced()) return {};
  AxisSet axes;
  for (const Op& op : program.graph->ops)
    if (const Type* type = FindExperts(*program.graph, op))
      for (Axis axis : type->placements.dims.at(0)) axes.Add(axis);
  return axes;
}

InstructionCosts::InstructionCosts(const Costs& costs, const Program& program, const Coordinate& coordinate)
    : costs_(costs),
      cluster_(costs.cluster()),
      program_(program),
      graph_(*program.graph),
      coordinate_(coordinate),
      by_op_(2 * graph_.ops.size()) {
  signatures_.Read(graph_);
  if (cluster_.merged_matmuls) merged_.emplace(program);
  if (cluster_.recompute_unread) FindUnread();
  for (const Op& op : graph_.ops)
    if (op.kind == OpKind::kRoute) {
      experts_per_token_ = std::max(experts_per_token_, op.attributes.Number("per_token"));
      experts_ = graph_.value(op.inputs.at(0)).type.shape.back();  // logits
    }
}

const InstructionCost& InstructionCosts::Of(const Instruction& instruction) {
  std::optional<InstructionCost>& cost = by_op_[2 * instruction.op + (instruction.accumulate ? 1 : 0)];
  if (!cost) cost = Price(instruction);
  return *cost;
}

InstructionCost InstructionCosts::Price(const Instruction& instruction) {
  const Op& op = graph_.op(instruction.op);
  if (IsHostCopy(op.kind)) return HostCopy(op, CopiedBytes(program_, instruction));
  if (IsBetweenStages(op.kind)) return Message(op);
  if (op.kind == OpKind::kGatherStages) return GatherStages(op, std::ssize(instruction.inputs));
  if (!IsCommunication(op.kind)) {
    InstructionCost cost = Kernel(op, instruction.accumulate);
    cost.us = costs_.slowest() * (cost.us + GradientPassesUs(op, instruction.accumulate));
    return cost;
  }
  const bool exchanges = cluster_.exchange_tokens && IsExpertTransfer(graph_, op);
  const auto transfer = [&] {
    const int64_t bytes = ReducedBytes(op, WireBytes(graph_, op, program_.mesh, coordinate_));
    InstructionCost cost = exchanges ? Exchange(op, bytes) : Collective(op, bytes);
    cost.us += StripOf(op) ? costs_.PackingUs(LocalOpOf(graph_, op, program_.mesh, coordinate_)) : 0;
    return cost;
  };
  // Layers differ in their routing.
  return exchanges && !costs_.routing().IsBalanced() ? transfer() : CachedCost(op, false, transfer);
}

template <typename Make>
const InstructionCost& InstructionCosts::CachedCost(const Op& op, bool accumulate, const Make& make) {
  const auto [it, fresh] = by_signature_.try_emplace({signatures_.Of(op), op.role, accumulate});
  if (fresh) it->second = make();
  return it->second;
}

InstructionCost InstructionCosts::Kernel(const Op& op, bool accumulate) {
  if (merged_ && merged_->IsNeedless(op)) return {};
  if (const MergedMatmul* group = merged_ ? merged_->Find(op) : nullptr) return {MergedUs(op, *group, accumulate)};
  InstructionCost cost = CachedCost(op, accumulate, [&]() -> InstructionCost {
    const Cost alone = costs_.Kernel(LocalOpOf(graph_, op, program_.mesh, coordinate_), accumulate);
    return {alone.us, alone.source, Port::kNone};
  });
  if (!costs_.routing().IsBalanced()) cost.us = RoutedUs(op, accumulate, cost.us);
  cost.us += ExtraUs(op);
  return cost;
}

double InstructionCosts::RoutedUs(const Op& op, bool accumulate, double us) const {
  const Type* type = FindExperts(graph_, op);
  if (type == nullptr) return us;
  const LocalOp balanced = LocalOpOf(graph_, op, program_.mesh, coordinate_);
  LocalOp routed = balanced;
  const Range experts = LocalRange(*type, 0, program_.mesh, coordinate_);
  routed.op.attributes.numbers.at("load") *= costs_.routing().Load(op.layer, experts);
  const double routed_us = KernelUs(cluster_, routed, accumulate, LoadsWithin(op.layer, experts)),
               balanced_us = KernelUs(cluster_, balanced, accumulate);
  return balanced_us > 0 ? us * routed_us / balanced_us : routed_us;
}

/// Rows of each of these experts, relative to their mean; none if all have as many.
std::vector<double> InstructionCosts::LoadsWithin(int layer, const Range& experts) const {
  std::vector<double> loads;
  double mean = 0;
  for (int64_t e = experts.begin; e < experts.end; ++e) {
    loads.push_back(costs_.routing().Load(layer, {e, e + 1}));
    mean += loads.back() / double(experts.Extent());
  }
  const auto is_mean = [&](double load) { return std::abs(load - mean) <= 1e-9 * mean; };
  if (mean == 0 || std::ranges::all_of(loads, is_mean)) return {};
  for (double& load : loads) load /= mean;
  return loads;
}

double InstructionCosts::MergedUs(const Op& op, const MergedMatmul& group, bool accumulate) const {
  const auto shape_of = [&](const Op& part) {
    return MatmulShapeOf(LocalOpOf(graph_, part, program_.mesh, coordinate_), accumulate);
  };
  const auto volume = [](const MatmulShape& s) { return double(s.m) * double(s.n) * double(s.k); };
  const MatmulShape own = shape_of(op);
  MatmulShape all = shape_of(*group.parts[0]);
  for (size_t i = 1; i < group.parts.size(); ++i) {
    const MatmulShape part = shape_of(*group.parts[i]);
    all.*group.dim += part.*group.dim;
    all.aligned = all.aligned && part.aligned;
  }
  return MatmulKernelUs(cluster_, all) * volume(own) / volume(all);
}

InstructionCost InstructionCosts::Collective(const Op& op, int64_t wire_bytes) const {
  const GroupPlace place = PlaceOf(program_.mesh, op.Axes(), coordinate_, cluster_.NearRanks());
  const Cost cost = costs_.Collective(op.kind, wire_bytes, place);
  return {cost.us, cost.source, place.nodes > 1 ? Port::kNetwork : Port::kNode};
}

/// Each of the k experts of a token, drawn independently, is with chance p on a rank that has p of the rows; so the
/// rank receives 1 - (1 - p)^k of the tokens. All wait for the rank with most rows.
InstructionCost InstructionCosts::Exchange(const Op& op, int64_t wire_bytes) const {
  const GroupPlace place = PlaceOf(program_.mesh, op.Axes(), coordinate_, cluster_.NearRanks());
  double most = 1;
  if (const int64_t each = experts_ / place.ranks; each > 0 && !costs_.routing().IsBalanced())
    for (int64_t first = 0; first + each <= experts_; first += each)
      most = std::max(most, costs_.routing().Load(op.layer, {first, first + each}));
  const double share = 1 - std::pow(1 - std::min(1.0, most / place.ranks), experts_per_token_);
  const Cost cost = costs_.Collective(OpKind::kAllToAll, static_cast<int64_t>(share * double(wire_bytes)), place);
  return {cost.us, cost.source, place.nodes > 1 ? Port::kNetwork : Port::kNode};
}

InstructionCost InstructionCosts::HostCopy(const Op& op, int64_t bytes) const {
  const int ranks = std::min(cluster_.ranks_per_node, program_.mesh.Ranks());
  const auto [alone_us, beside_us] = costs_.HostCopy(op.kind, bytes, ranks);
  return {alone_us, CostSource::kFormula, Port::kNone, alone_us > 0 ? beside_us / alone_us : 1};
}

InstructionCost InstructionCosts::GatherStages(const Op& op, int64_t scalars) const {
  return Collective(op, scalars * 4 * (program_.mesh.GroupSize(op.Axes()) - 1));
}

InstructionCost InstructionCosts::Message(const Op& op) const {
  const std::vector<int>& values = op.kind == OpKind::kSend ? op.inputs : op.outputs;
  Coordinate there = coordinate_;
  there[Axis::kPp] = op.Peer();
  const int near = cluster_.NearRanks();
  const bool same_node = program_.mesh.RankOf(coordinate_) / near == program_.mesh.RankOf(there) / near;
  const Port port = same_node ? Port::kNode : Port::kNetwork;
  const int64_t bytes = ReducedBytes(op, LocalBytes(values));
  const GroupPlace tensor = PlaceOf(program_.mesh, kTensorAxes, coordinate_, near);
  if (!cluster_.split_messages || same_node || tensor.ranks == 1 || tensor.nodes > 1 || !SameOnTensorAxes(values)) {
    const Cost cost = costs_.Message(bytes, same_node);
    return {cost.us, cost.source, port};
  }
  const int64_t part = (bytes + tensor.ranks - 1) / tensor.ranks;
  const Cost message = costs_.Message(part, same_node);
  const Cost gather = costs_.Collective(OpKind::kAllGather, part * (tensor.ranks - 1), tensor);
  return {message.us + gather.us, Least(message.source, gather.source), port};
}

int64_t InstructionCosts::LocalBytes(const std::vector<int>& values) const {
  int64_t bytes = 0;
  for (int v : values) {
    const Type& type = graph_.value(v).type;
    bytes += Volume(LocalShape(type, program_.mesh, coordinate_)) * SizeOf(type.dtype);
  }
  return bytes;
}

int64_t InstructionCosts::ReducedBytes(const Op& op, int64_t bytes) const {
  if (cluster_.gather_bytes > 0 && op.kind == OpKind::kAllGather && op.role != Role::kS && op.role != Role::kU)
    return bytes * cluster_.gather_bytes / SizeOf(graph_.value(op.inputs.at(0)).type.dtype);
  if (cluster_.gradient_bytes == 0 || (op.role != Role::kS && op.role != Role::kW)) return bytes;
  const int value = op.kind == OpKind::kRecv ? op.outputs.at(0) : op.inputs.at(0);
  return bytes * cluster_.gradient_bytes / SizeOf(graph_.value(value).type.dtype);
}

bool InstructionCosts::SameOnTensorAxes(const std::vector<int>& values) const {
  for (int v : values) {
    const Placements& placements = graph_.value(v).type.placements;
    if (!((placements.Sharded() | placements.Partial()) & kTensorAxes).Empty()) return false;
  }
  return true;
}

double InstructionCosts::ExtraUs(const Op& op) const {
  const auto unread = unread_us_.find(&op);
  double us = unread == unread_us_.end() ? 0 : unread->second;
  // Plain attention keeps its probabilities only from a forward pass in the same job.
  if (op.kind == OpKind::kAttentionGrad && cluster_.attention == AttentionKernels::kPlain) {
    const size_t lse = op.attributes.texts.contains(kColumns) ? 2 : 4;
    const int forward = graph_.value(op.inputs.at(lse)).producer;
    if (forward < 0 || graph_.op(forward).role == Role::kF)
      us += PlainAttentionAgainUs(cluster_, LocalOpOf(graph_, op, program_.mesh, coordinate_));
  }
  return us;
}

/// Zeros, scales and the like of gradients come once per step: where the first microbatch writes them.
double InstructionCosts::GradientPassesUs(const Op& op, bool accumulate) const {
  const double passes = cluster_.accumulation_passes + (accumulate ? 0 : cluster_.gradient_passes);
  if (passes == 0 || op.role != Role::kW) return 0;
  double elements = 0;
  for (int v : op.outputs)
    if (graph_.value(v).kind == ValueKind::kAccumulator && IsGradientOfWeight(graph_.value(v)))
      elements += double(Volume(LocalShape(graph_.value(v).type, program_.mesh, coordinate_)));
  return MemoryUs(cluster_.compute, passes * 4 * elements) / cluster_.efficiency;
}

void InstructionCosts::FindUnread() {
  std::map<int, const Op*> recomputed;  // by layer
  for (const Op& op : graph_.ops)
    if (op.kind == OpKind::kAttention && op.role == Role::kB) recomputed[op.layer] = &op;
  for (const Op& op : graph_.ops) {
    const auto attention = recomputed.find(op.layer);
    if (op.role != Role::kF || attention == recomputed.end() || IsBetweenStages(op.kind)) continue;
    if (program_.stage_of_chunk[op.chunk] != program_.stage) continue;
    if (graph_.FindOrNone(RecomputedName(graph_.value(op.outputs.at(0)).name)) >= 0) continue;
    const InstructionCost cost = IsCommunication(op.kind)
                                     ? Collective(op, WireBytes(graph_, op, program_.mesh, coordinate_))
                                     : Kernel(op, false);
    unread_us_[attention->second] += cost.us;
  }
}

}  // namespace espalier
