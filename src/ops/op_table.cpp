// The table of all ops, and what follows for any of them from its letters.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/util/error.hpp"
#include "ops.hpp"

namespace espalier {
namespace {

std::vector<OpDefinition> MakeTable() {
  std::vector<OpDefinition> table = {
      Embedding(),
      EmbeddingGrad(),
      RmsNorm(),
      RmsNormGrad(),
      RmsNormWeightGrad(),
      Matmul(),
      Rope(),
      RopeTable(),
      Attention(),
      AttentionGrad(),
      AttentionMerge(),
      Add(),
      Swiglu(),
      SwigluGrad(),
      Cast(),
      LogitsMax(),
      LogitsSum(),
      TokenLoss(),
      CrossEntropyGrad(),
      SumSquares(),
      Clip(),
      Adamw(),
      LayerNorm(),
      LayerNormGrad(),
      LayerNormWeightGrad(),
      PositionEmbedding(),
      PositionEmbeddingGrad(),
      AddBias(),
      BiasGrad(),
      Gelu(),
      GeluGrad(),
      Accumulate(),
  };
  for (OpDefinition& op : CommunicationOps()) table.push_back(op);
  return table;
}

using LetterAxes = std::map<char, std::vector<Axis>>;

bool IsCapital(char letter) { return letter >= 'A' && letter <= 'Z'; }
char Small(char letter) { return IsCapital(letter) ? static_cast<char>(letter - 'A' + 'a') : letter; }

/// `axes`, after CHECKing that the letter may be sharded if there are any.
const std::vector<Axis>& Shardable(const Op& op, const Letters& letters, char letter, const std::vector<Axis>& axes) {
  CHECK(axes.empty() || letters.shardable.find(Small(letter)) != std::string::npos, "{}: letter {} may not be sharded",
        op.kind, letter);
  return axes;
}

/// The axes of small letters. Tensors with a capital letter stand behind one with the small one.
LetterAxes CollectAxes(const OpContext& c, const Letters& letters) {
  LetterAxes axes;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    CHECK(letters.inputs[i].size() == c.inputs[i].shape.size(), "{}: input {} has {} dims, expected '{}'", c.op.kind, i,
          c.inputs[i].shape.size(), letters.inputs[i]);
    for (size_t d = 0; d < letters.inputs[i].size(); ++d) {
      const char letter = letters.inputs[i][d];
      const std::vector<Axis>& here = c.inputs[i].placements.dims[d];
      if (!IsCapital(letter)) axes.emplace(letter, here);
      CHECK(AxesOfLetter(axes, letter) == here, "{}: inputs disagree on the axes of letter {}", c.op.kind, letter);
      Shardable(c.op, letters, letter, here);
    }
  }
  return axes;
}

/// Addition passes partial values on, and what is linear in one input those of kv_replicate; nothing else accepts them.
AxisSet PartialInputs(const OpContext& c, const OpDefinition& definition) {
  AxisSet partial;
  size_t carriers = 0, last = 0;
  for (size_t i = 0; i < c.inputs.size(); ++i) {
    const AxisSet here = c.inputs[i].placements.Partial();
    partial = partial | here;
    if (!here.Empty()) ++carriers, last = i;
  }
  if (carriers == 0) return partial;
  const bool joint = definition.jointly_linear && std::all_of(c.inputs.begin(), c.inputs.end(), [&](const Type& type) {
                       return type.placements.partial_sum == partial;
                     });
  const bool single = carriers == 1 && static_cast<int>(last) < definition.linear_inputs &&
                      c.inputs[last].placements.partial_sum == AxisSet{Axis::kKvReplicate} &&
                      partial == AxisSet{Axis::kKvReplicate};
  CHECK(joint || single, "{}: partial inputs are not allowed here", c.op.kind);
  return partial;
}

/// The part of an op over many tensors that is about the i-th of them.
Op OfTensor(const Op& op, const OpDefinition::PerTensor& each, size_t i) {
  Op one = op;
  one.inputs.assign(op.inputs.begin(), op.inputs.begin() + each.shared);
  for (size_t k = 0; k < each.inputs; ++k) one.inputs.push_back(op.inputs[each.shared + i * each.inputs + k]);
  one.outputs.assign(op.outputs.begin() + i * each.outputs, op.outputs.begin() + (i + 1) * each.outputs);
  return one;
}

/// How many tensors an op has; 1 unless its definition knows of many.
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

const OpDefinition& Define(std::string_view kind) {
  static const std::map<std::string_view, const OpDefinition*> index = [] {
    std::map<std::string_view, const OpDefinition*> map;
    for (const OpDefinition& op : AllOps()) map[op.kind] = &op;
    return map;
  }();
  const auto it = index.find(kind);
  CHECK(it != index.end(), "there is no op {}", kind);
  return *it->second;
}

std::vector<Axis> AxesOfLetter(const std::map<char, std::vector<Axis>>& axes, char letter) {
  const auto it = axes.find(Small(letter));
  std::vector<Axis> list = it == axes.end() ? std::vector<Axis>{} : it->second;
  if (IsCapital(letter)) std::erase(list, Axis::kKvReplicate);
  return list;
}

std::string LettersOfRank(size_t rank) { return std::string("abcdefgh").substr(0, rank); }

OpContext ContextOf(const Graph& graph, const Op& op) {
  OpContext context{op, {}};
  for (int input : op.inputs) context.inputs.push_back(graph.values[input].type);
  return context;
}

LocalOp LocalOpOf(const Graph& graph, const Op& op, const Mesh& mesh, const Coordinate& coordinate) {
  const auto type = [&](int value) -> const Type& { return graph.values[static_cast<size_t>(value)].type; };
  LocalOp local{op, {}, {}, type(op.inputs.at(0)).dtype};
  for (int value : op.inputs) local.inputs.push_back(LocalShape(type(value), mesh, coordinate));
  for (int value : op.outputs) local.outputs.push_back(LocalShape(type(value), mesh, coordinate));
  return local;
}

std::vector<Type> InferOutputs(const Graph& graph, const Op& op, const std::vector<Placements>& free) {
  const OpDefinition& definition = Define(op.kind);
  if (const size_t tensors = TensorsOf(op, definition.per_tensor); tensors > 1) {
    std::vector<Type> types;
    for (size_t i = 0; i < tensors; ++i)
      for (Type& type : InferOutputs(graph, OfTensor(op, definition.per_tensor, i), {}))
        types.push_back(std::move(type));
    return types;
  }
  const OpContext context = ContextOf(graph, op);
  const Letters letters = definition.letters(context);
  CHECK(letters.inputs.size() == op.inputs.size(), "{}: {} inputs, expected {}", op.kind, op.inputs.size(),
        letters.inputs.size());
  CHECK(letters.outputs.size() == op.outputs.size(), "{}: {} outputs, expected {}", op.kind, op.outputs.size(),
        letters.outputs.size());
  const LetterAxes axes = CollectAxes(context, letters);
  const AxisSet carried = PartialInputs(context, definition);
  std::vector<Type> types = definition.infer(context);
  for (size_t o = 0; o < types.size(); ++o) {
    const std::string& dims = letters.outputs[o];
    for (size_t d = 0; d < dims.size(); ++d) {
      if (axes.count(Small(dims[d])) > 0)
        types[o].placements.dims[d] = AxesOfLetter(axes, dims[d]);
      else if (o < free.size())
        types[o].placements.dims[d] = Shardable(op, letters, dims[d], free[o].dims[d]);
    }
    AxisSet& partial = letters.join == Reduce::kMax ? types[o].placements.partial_max : types[o].placements.partial_sum;
    partial = carried;
    for (const auto& [letter, contracted] : axes)
      if (dims.find(letter) == std::string::npos)
        for (Axis a : contracted) partial.Add(a);
    // An axis that shards an output-only letter holds different rows, not a part of a sum.
    partial = partial - types[o].placements.Sharded();
  }
  return types;
}

}  // namespace espalier
