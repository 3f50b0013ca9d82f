#include "espalier/ops/strip.hpp"

#include <algorithm>

#include "espalier/graph/local_range.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Which operands have the rows of an op.
struct RowOperands {
  std::vector<bool> inputs, outputs;
};

/// Rows are the first two dims of the first input ("bs" of "bsk,nk->bsn").
bool HasRows(const std::string& dims, const std::string& rows) { return dims.starts_with(rows); }
bool HasPartOfRows(const std::string& dims, const std::string& rows) {
  return !HasRows(dims, rows) && dims.find_first_of(rows) != std::string::npos;
}

/// Scales of blocks lie in tiles of 128 rows (block_scales.hpp), and a strip begins at any row.
bool HasBlockScales(const Op& op) { return op.attributes.TextOr("scales", "") == "mx"; }

/// Every operand and result with dims of an element-wise op in a step.
RowOperands TensorsOf(const Graph& graph, const Op& op) {
  RowOperands operands;
  for (int v : op.inputs) operands.inputs.push_back(!graph.value(v).type.shape.empty());
  for (int v : op.outputs) operands.outputs.push_back(!graph.value(v).type.shape.empty());
  return operands;
}

RowOperands RowOperandsOf(const Graph& graph, const Op& op) {
  if (op.frequency() == Frequency::kStep) return TensorsOf(graph, op);
  if (IsCollective(op.kind)) return {std::vector(op.inputs.size(), true), std::vector(op.outputs.size(), true)};
  const Einsum einsum = Define(op.kind).einsum(ContextOf(graph, op));
  const std::string rows = einsum.inputs.at(0).substr(0, 2);
  RowOperands operands;
  for (const std::string& dims : einsum.inputs) operands.inputs.push_back(HasRows(dims, rows));
  for (const std::string& dims : einsum.outputs) operands.outputs.push_back(HasRows(dims, rows));
  return operands;
}

/// True if the sequence is sharded on one of the strip's axes.
bool IsShardedOn(const Type& type, const Strip& strip) {
  return !(type.placements.Sharded() & strip.axes).Empty() &&
         std::ranges::any_of(type.placements.dims[strip.dim], [&](Axis a) { return strip.axes.Has(a); });
}

/// The shards of the tokens that this rank holds: its own if they are sharded on the strip's axes, else the shards of
/// all members of the group.
std::vector<Range> ShardsOf(const Type& type, const Strip& strip, const Mesh& mesh, const Coordinate& coordinate) {
  if (strip.dim == 0 || IsShardedOn(type, strip)) return {LocalRange(type, strip.dim, mesh, coordinate)};
  Type sharded = type;
  for (Axis a : strip.axes.List()) sharded.placements.dims[strip.dim].push_back(a);
  std::vector<Range> shards;
  for (int member = 0; member < mesh.GroupSize(strip.axes); ++member)
    shards.push_back(LocalRange(sharded, strip.dim, mesh, mesh.GroupMember(strip.axes, coordinate, member)));
  return shards;
}

}  // namespace

std::optional<Strip> StripOf(const Op& op) {
  const auto index = op.attributes.numbers.find("strip");
  if (index == op.attributes.numbers.end()) return std::nullopt;
  return Strip{static_cast<int>(index->second), static_cast<int>(op.attributes.Integer("strips")),
               static_cast<size_t>(op.attributes.Integer("strip_dim")), AxesOf(op.attributes.Number("strip_axes"))};
}

void SetStrip(Op& op, const Strip& strip) {
  op.attributes.numbers["strip"] = strip.index;
  op.attributes.numbers["strips"] = strip.count;
  op.attributes.numbers["strip_dim"] = static_cast<double>(strip.dim);
  op.attributes.numbers["strip_axes"] = strip.axes.bits();
}

bool IsRowwise(const Graph& graph, const Op& op) {
  if (op.inputs.empty() || Define(op.kind).kernel.rows != Rows::kIndependent) return false;
  if (HasBlockScales(op)) return false;
  const Einsum einsum = Define(op.kind).einsum(ContextOf(graph, op));
  if (einsum.inputs[0].size() < 2) return false;
  const std::string rows = einsum.inputs[0].substr(0, 2);
  if (rows.find_first_of(einsum.anchored) != rows.npos) return false;  // rows of experts are no tokens
  return std::ranges::none_of(einsum.inputs, [&](const std::string& dims) { return HasPartOfRows(dims, rows); }) &&
         std::ranges::all_of(einsum.outputs, [&](const std::string& dims) { return HasRows(dims, rows); });
}

bool TakesBlocks(const Op& op) { return op.kind == OpKind::kMatmul && !op.attributes.texts.contains("scales"); }

std::vector<Box> StripBoxes(const Type& type, const Strip& strip, const Mesh& mesh, const Coordinate& coordinate) {
  CHECK(strip.dim < type.shape.size(), "a strip of {}", ToString(type));
  std::vector<Box> boxes;
  for (const Range& shard : ShardsOf(type, strip, mesh, coordinate)) {
    Box box = LocalBox(type, mesh, coordinate);
    box[strip.dim] = ShardOf(shard, strip.count, strip.index);
    if (!IsEmpty(box)) boxes.push_back(std::move(box));
  }
  return boxes;
}

OperandBoxes BoxesOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const std::optional<Strip> strip = StripOf(op);
  const RowOperands rows = strip ? RowOperandsOf(graph, op) : RowOperands{};
  const auto boxes = [&](const std::vector<int>& values, const std::vector<bool>& has_rows) {
    std::vector<std::vector<Box>> all;
    for (size_t i = 0; i < values.size(); ++i) {
      const Value& value = graph.value(values[i]);
      if (strip && has_rows[i])
        all.push_back(StripBoxes(value.type, *strip, mesh, coordinate));
      else
        all.push_back({LocalBox(value.type, mesh, coordinate)});
    }
    return all;
  };
  return {boxes(op.inputs, rows.inputs), boxes(op.outputs, rows.outputs)};
}

Box HeldBox(const Value& value, const Mesh& mesh, const Coordinate& coordinate) {
  Box box = LocalBox(value.type, mesh, coordinate);
  const auto [index, count, dim] = value.piece;
  if (count > 1) box.at(dim) = ShardOf(box.at(dim), count, index);
  return box;
}

ByteRange BytesOf(const Value& value, const Box& box, const Mesh& mesh, const Coordinate& coordinate) {
  const Type& type = value.type;
  const Box whole = HeldBox(value, mesh, coordinate);
  int64_t offset = 0, volume = 1;
  bool partial = false;  // an inner dim is not whole, so outer ones must have one element
  for (size_t d = box.size(), stride = SizeOf(type.dtype); d-- > 0; stride *= static_cast<size_t>(whole[d].Extent())) {
    CHECK(!partial || box[d].Extent() <= 1, "a box of {} is not contiguous", ToString(type));
    partial = partial || box[d].Extent() != whole[d].Extent();
    offset += (box[d].begin - whole[d].begin) * static_cast<int64_t>(stride);
    volume *= box[d].Extent();
  }
  return {offset, volume * SizeOf(type.dtype)};
}

}  // namespace espalier
