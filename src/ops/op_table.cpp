// The table of all ops, and what is inferred for any of them from its einsum dims.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/ops/unjoin.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

std::vector<OpDefinition> MakeTable() {
#define ESPALIER_CALL(name, op) op(),
  std::vector<OpDefinition> table = {ESPALIER_OPS(ESPALIER_CALL, ESPALIER_CALL)};
#undef ESPALIER_CALL
  for (size_t i = 0; i < table.size(); ++i) table[i].kind = static_cast<OpKind>(i + 1);
  return table;
}

using DimAxes = std::map<char, std::vector<Axis>>;

bool IsUpperCase(char dim) { return dim >= 'A' && dim <= 'Z'; }
char LowerCase(char dim) { return IsUpperCase(dim) ? static_cast<char>(dim - 'A' + 'a') : dim; }

/// `axes`; CHECKs that the dim may be sharded if there are any.
const std::vector<Axis>& Shardable(const Op& op, const Einsum& einsum, char dim, const std::vector<Axis>& axes) {
  CHECK(axes.empty() || einsum.shardable.find(LowerCase(dim)) != std::string::npos, "{}: dim {} may not be sharded",
        op.kind, dim);
  return axes;
}

/// The axes of lower-case dims. An upper-case dim comes after a tensor that has the lower-case one.
DimAxes CollectAxes(const OpContext& c, const Einsum& einsum) {
  DimAxes axes;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    CHECK(einsum.inputs[i].size() == c.inputs[i].shape.size(), "{}: input {} has {} dims, expected '{}'", c.op.kind, i,
          c.inputs[i].shape.size(), einsum.inputs[i]);
    for (size_t d = 0; d < einsum.inputs[i].size(); ++d) {
      const char dim = einsum.inputs[i][d];
      const std::vector<Axis>& here = c.inputs[i].placements.dims[d];
      if (!IsUpperCase(dim)) axes.emplace(dim, here);
      CHECK(AxesOfDim(axes, dim) == here, "{}: inputs disagree on the axes of dim {}", c.op.kind, dim);
      Shardable(c.op, einsum, dim, here);
    }
  }
  return axes;
}

/// Axes on which the outputs are partial because inputs are: jointly linear ops accept any, and so does a cast that
/// says that it rounds the parts of a sum (`parts`). Ops that are linear in one input accept axes that replicate,
/// unless another input is sharded on one; all others none.
AxisSet PartialInputs(const OpContext& c, const OpDefinition& definition) {
  AxisSet partial;
  size_t carriers = 0, last = 0;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const AxisSet here = c.inputs[i].placements.Partial();
    partial = partial | here;
    if (!here.Empty()) ++carriers, last = i;
  }
  if (carriers == 0) return partial;
  const bool takes_parts = definition.jointly_linear || c.op.attributes.IntegerOr("parts", 0) == 1;
  const bool joint = takes_parts && std::all_of(c.inputs.begin(), c.inputs.end(), [&](const Type& type) {
                       return type.placements.partial_sum == partial;
                     });
  // Where another input is sharded on the axis, each rank would take its part of the sum for the whole.
  const bool sharded = std::ranges::any_of(
      c.inputs, [](const Type& type) { return !(type.placements.Sharded() & kReplicatingAxes).Empty(); });
  const bool single = carriers == 1 && static_cast<int>(last) < definition.linear_inputs && !sharded &&
                      c.inputs[last].placements.partial_sum == partial && (partial - kReplicatingAxes).Empty();
  CHECK(joint || single, "{}: partial inputs are not allowed here", c.op.kind);
  return partial;
}

/// Restricts `one`, which is `op` but for its operands, to the i-th tensor of a multi-tensor op.
void Restrict(Op& one, const Op& op, const OpDefinition::PerTensor& each, size_t i) {
  one.inputs.assign(op.inputs.begin(), op.inputs.begin() + each.shared);
  for (size_t k = 0; k < each.inputs; ++k) one.inputs.push_back(op.inputs[each.shared + i * each.inputs + k]);
  one.outputs.assign(op.outputs.begin() + i * each.outputs, op.outputs.begin() + (i + 1) * each.outputs);
}

/// Number of tensors of a multi-tensor op; 1 for any other.
size_t TensorsOf(const Op& op, const OpDefinition::PerTensor& each) {
  if (each.inputs == 0) return 1;
  const size_t tensors = op.outputs.size() / each.outputs;
  CHECK(op.inputs.size() == each.shared + tensors * each.inputs && op.outputs.size() == tensors * each.outputs,
        "{}: {} inputs and {} outputs fit no number of tensors", op.kind, op.inputs.size(), op.outputs.size());
  return tensors;
}

}  // namespace

const std::vector<OpDefinition>& AllOps() {
  static const std::vector<OpDefinition> table = MakeTable();
  return table;
}

const OpDefinition& Define(OpKind kind) {
  CHECK(kind != OpKind::kNone, "op kind '{}' has no definition", kind);
  return AllOps()[static_cast<size_t>(kind) - 1];
}

OpDefinition::PerTensor PerTensorOf(const Op& op) {
  OpDefinition::PerTensor each = Define(op.kind).per_tensor;
  if (each.inputs > 0 && op.attributes.texts.contains("copy")) ++each.outputs;
  return each;
}

std::vector<Axis> AxesOfDim(const std::map<char, std::vector<Axis>>& axes, char dim) {
  const auto it = axes.find(LowerCase(dim));
  std::vector<Axis> list = it == axes.end() ? std::vector<Axis>{} : it->second;
  if (IsUpperCase(dim)) std::erase_if(list, [](Axis a) { return kReplicatingAxes.Has(a); });
  return list;
}

std::string DimsOfRank(size_t rank) { return std::string("abcdefgh").substr(0, rank); }

OpContext ContextOf(const Graph& graph, const Op& op) {
  OpContext context{op, {}};
  context.inputs.reserve(op.inputs.size());
  for (int input : op.inputs) context.inputs.push_back(graph.value(input).type);
  return context;
}

LocalOp LocalOpOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const auto type = [&](int value) -> const Type& { return graph.value(value).type; };
  LocalOp local{op, {}, {}, type(op.inputs.at(0)).dtype};
  local.inputs.reserve(op.inputs.size());
  local.input_dtypes.reserve(op.inputs.size());
  local.outputs.reserve(op.outputs.size());
  local.output_dtypes.reserve(op.outputs.size());
  for (int value : op.inputs) {
    local.inputs.push_back(LocalShape(type(value), mesh, coordinate));
    local.input_dtypes.push_back(type(value).dtype);
  }
  for (int value : op.outputs) {
    local.outputs.push_back(LocalShape(type(value), mesh, coordinate));
    local.output_dtypes.push_back(type(value).dtype);
  }
  const std::optional<Strip> strip = StripOf(op);
  if (!strip) {
    Unjoin(local);
    return local;
  }
  const OperandBoxes boxes = BoxesOf(graph, op, mesh, coordinate);
  const auto shrink = [&](const std::vector<std::vector<Box>>& boxes_of, std::vector<Shape>& shapes) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (boxes_of[i].size() == 1 && ExtentsOf(boxes_of[i][0]) == shapes[i]) continue;
      local.blocks = std::max(local.blocks, std::ssize(boxes_of[i]));
      shapes[i][strip->dim] = 0;
      for (const Box& box : boxes_of[i]) shapes[i][strip->dim] += box[strip->dim].Extent();
    }
  };
  shrink(boxes.inputs, local.inputs);
  shrink(boxes.outputs, local.outputs);
  Unjoin(local);
  return local;
}

std::vector<Type> InferOutputs(const Graph& graph, const Op& op, const std::vector<Placements>& free) {
  const OpDefinition& definition = Define(op.kind);
  const OpDefinition::PerTensor each = PerTensorOf(op);
  if (const size_t tensors = TensorsOf(op, each); tensors > 1) {
    std::vector<Type> types;
    Op one = op;
    for (size_t i = 0; i < tensors; ++i) {
      Restrict(one, op, each, i);
      for (Type& type : InferOutputs(graph, one, {})) types.push_back(std::move(type));
    }
    return types;
  }
  const OpContext context = ContextOf(graph, op);
  const Einsum einsum = definition.einsum(context);
  CHECK(einsum.inputs.size() == op.inputs.size(), "{}: {} inputs, expected {}", op.kind, op.inputs.size(),
        einsum.inputs.size());
  CHECK(einsum.outputs.size() == op.outputs.size(), "{}: {} outputs, expected {}", op.kind, op.outputs.size(),
        einsum.outputs.size());
  const DimAxes axes = CollectAxes(context, einsum);
  const AxisSet carried = PartialInputs(context, definition);
  std::vector<Type> types = definition.infer(context);
  for (size_t o = 0; o < types.size(); ++o) {
    const std::string& dims = einsum.outputs[o];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (axes.count(LowerCase(dims[d])) > 0)
        types[o].placements.dims[d] = AxesOfDim(axes, dims[d]);
      else if (o < free.size())
        types[o].placements.dims[d] = Shardable(op, einsum, dims[d], free[o].dims[d]);
    }
    AxisSet& partial =
        einsum.reduce == Reduce::kMax ? types[o].placements.partial_max : types[o].placements.partial_sum;
    partial = carried;
    for (const auto& [dim, contracted] : axes)
      if (dims.find(dim) == std::string::npos)
        for (Axis a : contracted) partial.Add(a);
    // An axis that shards an output-only dim holds different rows, not a part of a sum.
    partial = partial - types[o].placements.Sharded();
  }
  return types;
}

}  // namespace espalier
