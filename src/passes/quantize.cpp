// Matmuls in fp8 (precision.matmul; Micikevicius et al. 2022). Both operands are rounded to fp8, with scales, and the
// matmul reads these:
//
//                                        x8, sx = quantize(x)
//   y = matmul(x, w)              ->     w8, sw = quantize(w)                  P, if w is whole for a step
//                                        y = matmul(x8, w8, sx, sw)
//
// Activations and weights are e4m3, gradients e5m2. Tensor cores of Hopper want operands that are contiguous along the
// contracted dim, so `quantize` stores the others transposed: w for dx, dy and x for dW. Readers of one value in one
// role share what is quantized alike. Blocks with scales (precision.fp8_scaling = "mx") lie along the contracted dim,
// so these copies differ in values, too; all are e4m3. Only matmuls that the model has marked are rewritten
// (precision.bf16_matmuls leaves some out). A marked matmul stays in bf16, and keeps its mark, where a rank's shard
// does not suit fp8, by a rule that is the same on all devices (Suits).
//
// Nothing but the operands of matmuls is in fp8: messages carry bf16. Scales are of the shards of a rank, so no message
// is needed for them. They are powers of two, so shards of one tensor are rounded as the whole would be, except close
// to zero (src/kernels/fp8.hpp).
//
// Grouped matmuls of experts are rewritten alike, but for their scales: each row of experts has one, and each expert's
// weight, or each row of it. So a row is rounded in the same way whatever other rows and experts are on its rank, in
// whatever pass. Their gradients of weights stay in bf16: they contract rows, of which an expert has any number, and
// operands contiguous along these would begin at any byte.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/graph/rewriter.hpp"
#include "espalier/ops/block_scales.hpp"
#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/fp8.hpp"
#include "espalier/passes/pipeline.hpp"

namespace espalier {
namespace {

/// Tensor cores read the contracted dim and write the last dim of a result in pieces of so many elements.
constexpr int64_t kPiece = 16;

/// The dims of an operand with the contracted ones last.
std::string ContractedLast(const MatmulSpec& spec, const std::string& dims) {
  std::string last = dims;
  std::ranges::stable_partition(last, [&](char dim) { return !spec.IsContracted(dim); });
  return last;
}

bool IsMatmul(const Op& op) { return op.kind == OpKind::kMatmul || op.kind == OpKind::kGroupedMatmul; }
bool IsMarked(const Op& op) { return IsMatmul(op) && op.attributes.numbers.contains(kFp8Mark); }

MatmulSpec SpecOf(const Op& op) {
  return op.kind == OpKind::kGroupedMatmul ? GroupedSpecOf(op.attributes) : MatmulSpecOf(op.attributes);
}
bool MakesExpertGradient(const Op& op) { return op.kind == OpKind::kGroupedMatmul && SpecOf(op).MakesWeightGradient(); }

class Quantizer {
 public:
  Quantizer(Graph& graph, const PassContext& context)
      : graph_(graph), mesh_(context.mesh), scaling_(context.deck.precision.fp8_scaling) {}

  void Run() {
    Rewriter old(graph_);
    std::vector<Op> rewritten;
    for (Op& op : old.ops) {
      Op next = IsMarked(op) && Suits(op) ? Rewrite(op) : std::move(op);
      std::ranges::move(before_, std::back_inserter(rewritten));
      before_.clear();
      rewritten.push_back(std::move(next));
    }
    PlacePrepared(rewritten);
  }

 private:
  /// Which quantized value: of a value, in a format, transposed, in a role of a chunk.
  using Key = std::tuple<int, Dtype, bool, Role, int>;
  struct Quantized {
    int values = -1, scales = -1;
  };

  const Type& TypeOf(int value) const { return graph_.value(value).type; }

  /// How an op's operands are scaled. Rows of experts have a scale each, and blocks would begin at any of them.
  Fp8Scaling ScalingOf(const Op& op) const {
    return op.kind == OpKind::kGroupedMatmul && scaling_ == Fp8Scaling::kMx ? Fp8Scaling::kRow : scaling_;
  }

  /// The extent of a dim on every rank; 0 if ranks differ.
  int64_t LocalExtent(const Type& type, size_t dim) const {
    const int64_t shards = ShardsOf(type, dim, mesh_);
    return type.shape[dim] % shards == 0 ? type.shape[dim] / shards : 0;
  }
  /// Whole pieces of the contracted dims and of the result's last dim on every rank, and operands that are no partial
  /// sums.
  bool Suits(const Op& op) const {
    if (MakesExpertGradient(op)) return false;
    const MatmulSpec spec = SpecOf(op);
    const Type& a = TypeOf(op.inputs[0]);
    const Type& b = TypeOf(op.inputs[1]);
    if (a.dtype != Dtype::kBf16 || b.dtype != Dtype::kBf16) return false;
    if (!a.placements.Partial().Empty() || !b.placements.Partial().Empty()) return false;
    int64_t depth = 1;
    for (size_t d = 0; d < spec.a.size(); ++d)
      if (spec.IsContracted(spec.a[d])) depth *= LocalExtent(a, d);
    const int64_t width = LocalExtent(b, spec.b.find(spec.result.back()));
    const int64_t piece = ScalingOf(op) == Fp8Scaling::kMx ? kScaleBlock : kPiece;
    return depth > 0 && depth % piece == 0 && width > 0 && width % kPiece == 0;
  }

  Op Rewrite(const Op& op) {
    const MatmulSpec spec = SpecOf(op);
    const MatmulSpec stored{ContractedLast(spec, spec.a), ContractedLast(spec, spec.b), spec.result};
    const Quantized left = Operand(op, 0, spec.a, stored.a, spec), right = Operand(op, 1, spec.b, stored.b, spec);
    Op scaled = op;
    scaled.inputs[0] = left.values;
    scaled.inputs[1] = right.values;
    scaled.inputs.insert(scaled.inputs.end(), {left.scales, right.scales});
    scaled.attributes.numbers.erase(scaled.attributes.numbers.find(kFp8Mark));
    scaled.attributes.texts["spec"] = stored.Text();
    scaled.attributes.texts["scales"] = DeckName(ScalingOf(op));
    return scaled;
  }

  /// Operand `index` of a matmul in fp8.
  Quantized Operand(const Op& reader, size_t index, const std::string& dims, const std::string& stored,
                    const MatmulSpec& spec) {
    const int value = reader.inputs[index];
    const Fp8Scaling scaling = ScalingOf(reader);
    const bool wide = MatmulSpec::IsGradient(dims) && scaling != Fp8Scaling::kMx;
    const Dtype format = wide ? Dtype::kF8E5M2 : Dtype::kF8E4M3;
    const Role role = graph_.value(value).frequency == Frequency::kStep ? Role::kP : reader.role;
    const auto [found, fresh] = made_.try_emplace({value, format, stored != dims, role, reader.chunk});
    if (fresh) found->second = Make(value, format, role, reader, Letters(dims, stored, spec, scaling));
    return found->second;
  }

  struct Dims {
    QuantizeSpec spec;
    std::vector<size_t> spanned;  ///< dims of the input that a scale spans
  };
  /// Letters that do not depend on which weight it is: "nk" or "bsk", of experts "enk" or "ebsk".
  static Dims Letters(const std::string& dims, const std::string& stored, const MatmulSpec& matmul,
                      Fp8Scaling scaling) {
    const bool experts = dims[0] == 'e', rows = scaling == Fp8Scaling::kRow || (experts && dims.size() == 4);
    const auto has_own = [&](char dim) { return !matmul.IsContracted(dim) && (rows || (experts && dim == 'e')); };
    QuantizeSpec spec{experts ? (rows && dims.size() == 4 ? "ebsk" : "enk") : dims.size() == 2 ? "nk" : "bsk", "", ""};
    for (char dim : stored) {
      const char letter = spec.from[dims.find(dim)];
      spec.to += letter;
      if (has_own(dim)) spec.scales += letter;
    }
    if (!experts) spec.scales += scaling == Fp8Scaling::kMx ? "yu" : "y";
    std::vector<size_t> spanned;
    for (size_t d = 0; d < dims.size(); ++d)
      if (!has_own(dims[d])) spanned.push_back(d);
    return {spec, spanned};
  }

  Quantized Make(int value, Dtype format, Role role, const Op& reader, const Dims& dims) {
    const Value source = graph_.value(value);
    std::vector<Axis> axes;
    int64_t shards = 1;
    for (size_t d : dims.spanned) {
      axes.insert(axes.end(), source.type.placements.dims[d].begin(), source.type.placements.dims[d].end());
      shards *= ShardsOf(source.type, d, mesh_);
    }
    Op op{OpKind::kQuantize, {value}, {-1, -1}, {}, role, reader.layer, reader.chunk};
    op.attributes.texts = {{"spec", dims.spec.Text()}, {"to", std::string(Name(format))}};
    Placements free;
    free.dims.assign(dims.spec.scales.size(), {});
    if (reader.kind == OpKind::kGroupedMatmul) {
      CHECK(axes.empty(), "{}: a scale of experts spans a dim that is sharded", source.name);
      if (dims.spec.IsOfExpertRows()) AddRowsOfExperts(op, reader);
    } else {
      op.attributes.numbers = {{"shards", static_cast<double>(shards)}};
      free.dims.at(dims.spec.scales.find('y')) = axes;
      if (dims.spec.HasBlockScales()) AddScaleBytes(op, source.type, dims.spec);
    }
    const std::vector<Type> types = InferOutputs(graph_, op, {Placements{}, free});
    const std::string name = source.name + (dims.spec.IsTransposed() ? ".f8t" : ".f8");
    const auto add = [&](const std::string& word, const Type& type) {
      return graph_.AddValue(
          {graph_.Unique(name + word), type, ValueKind::kActivation, FrequencyOf(role), reader.chunk, -1, ""});
    };
    const Quantized made{add("", types[0]), add(".scale", types[1])};
    op.outputs = {made.values, made.scales};
    if (role == Role::kP)
      prepared_[value].push_back(std::move(op));
    else
      before_.push_back(std::move(op));
    return made;
  }

  /// The bytes of the scales of blocks on the rank that has most.
  void AddScaleBytes(Op& op, const Type& type, const QuantizeSpec& spec) const {
    int64_t lines = 1, depth = 1;
    for (size_t d = 0; d < type.shape.size(); ++d) {
      const int64_t shards = ShardsOf(type, d, mesh_), extent = (type.shape[d] + shards - 1) / shards;
      (spec.IsTransposed() == (d + 1 < type.shape.size()) ? depth : lines) *= extent;
    }
    op.attributes.numbers["scale_bytes"] = static_cast<double>(BlockScaleBytes(lines, depth));
  }

  /// The expert of each row, and how many rows there are in this pass (src/ops/dispatch.cpp).
  static void AddRowsOfExperts(Op& op, const Op& reader) {
    op.inputs.push_back(reader.inputs[2]);
    for (const char* name : {"load", "pass"})
      if (const auto number = reader.attributes.numbers.find(name); number != reader.attributes.numbers.end())
        op.attributes.numbers.insert(*number);
  }

  /// A quantization of role P comes right after the op whose result it reads, so that its bf16 value is dead where
  /// nothing else reads it; a state comes first.
  void PlacePrepared(std::vector<Op>& ops) {
    const auto place = [&](int value) {
      const auto found = prepared_.find(value);
      if (found == prepared_.end()) return;
      std::ranges::move(found->second, std::back_inserter(graph_.ops));
      prepared_.erase(found);
    };
    std::vector<int> states;
    for (const auto& [value, made] : prepared_)
      if (graph_.value(value).kind != ValueKind::kActivation) states.push_back(value);
    for (int value : states) place(value);
    for (Op& op : ops) {
      const std::vector<int> outputs = op.outputs;
      graph_.ops.push_back(std::move(op));
      for (int value : outputs) place(value);
    }
    CHECK(prepared_.empty(), "{} weights in fp8 have no place", prepared_.size());
  }

  Graph& graph_;
  const Mesh& mesh_;
  const Fp8Scaling scaling_;
  std::map<Key, Quantized> made_;
  std::vector<Op> before_;                   // the next matmul
  std::map<int, std::vector<Op>> prepared_;  // by value, in role P
};

/// The parameter that a value is the copy of, or that role P or a gather has made it of; "" if none.
std::string SourceOf(const Graph& graph, int value) {
  while (graph.value(value).producer >= 0) {
    const Op& op = graph.op(graph.value(value).producer);
    const auto output = std::ranges::find(op.outputs, value) - op.outputs.begin();
    if (output >= std::ssize(op.inputs)) return "";
    value = op.inputs[static_cast<size_t>(output)];
  }
  const Value& source = graph.value(value);
  return source.kind == ValueKind::kCache || IsParameter(source) ? std::string(ParameterOf(source)) : "";
}

std::string WeightOf(const Graph& graph, const Op& op) {
  if (std::string name = SourceOf(graph, op.inputs[1]); op.role != Role::kW && !name.empty()) return name;
  return std::string(ParameterOf(graph.value(op.outputs[0])));
}

/// A name with * in place of the number of its layer: "model.layers.*.mlp.up_proj.weight".
std::string WithoutLayer(const std::string& name) {
  const size_t first = name.find_first_of("0123456789");
  if (first == name.npos || first == 0 || name[first - 1] != '.') return name;
  return name.substr(0, first) + "*" + name.substr(std::min(name.find('.', first), name.size()));
}

}  // namespace

void Quantize(Graph& graph, const PassContext& context) {
  if (context.deck.precision.matmul == MatmulPrecision::kFp8) Quantizer(graph, context).Run();
}

Fp8Matmuls CountFp8Matmuls(const Graph& graph) {
  Fp8Matmuls matmuls;
  for (const Op& op : graph.ops) {
    if (!IsMatmul(op) || op.attributes.NumberOr("pass", 0) > 0) continue;
    if (op.attributes.texts.contains("scales")) ++matmuls.in_fp8;
    if (!IsMarked(op)) continue;
    if (MakesExpertGradient(op)) {
      ++matmuls.expert_gradients;
      continue;
    }
    ++matmuls.in_bf16;
    matmuls.weights.insert(WeightOf(graph, op));
  }
  return matmuls;
}

std::string Describe(const Fp8Matmuls& matmuls, Fp8Scaling scaling) {
  std::string text = fmt::format("{} matmul{} of a microbatch", matmuls.in_fp8, matmuls.in_fp8 == 1 ? "" : "s");
  if (matmuls.expert_gradients > 0)
    text += fmt::format("; {} gradient{} of weights of experts stay{} in bf16", matmuls.expert_gradients,
                        matmuls.expert_gradients == 1 ? "" : "s", matmuls.expert_gradients == 1 ? "s" : "");
  if (matmuls.in_bf16 == 0) return text;
  std::set<std::string> names;
  for (const std::string& name : matmuls.weights) names.insert(WithoutLayer(name));
  const std::string sizes = scaling == Fp8Scaling::kMx ? fmt::format("{} (contracted ones of {})", kPiece, kScaleBlock)
                                                       : std::to_string(kPiece);
  return text +
         fmt::format("; {} stay{} in bf16, where sizes on a rank are no multiples of {} or values are partial sums: {}",
                     matmuls.in_bf16, matmuls.in_bf16 == 1 ? "s" : "", sizes, fmt::join(names, ", "));
}

}  // namespace espalier
