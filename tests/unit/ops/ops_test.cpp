// Every op's rule by itself: types and placements of its outputs (ops_rules.hpp), held against what the reference
// kernels compute on the parts of each rank; its backward ops, its cost, and what the partitioner makes of inputs that
// disagree.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "espalier/ops/op.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/ops/verify.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"
#include "gradient_rules.hpp"
#include "kernels_testing.hpp"
#include "ops_rules.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr, ::testing::UnorderedElementsAre;
using testing::OwnedTensor;

std::vector<std::string> Words(std::string_view text) {
  std::istringstream stream{std::string(text)};
  return {std::istream_iterator<std::string>(stream), {}};
}

std::vector<Type> Types(std::string_view text) {
  std::vector<Type> types;
  for (const std::string& word : Words(text)) types.push_back(ParseType(word));
  return types;
}

std::string Text(const std::vector<Type>& types) {
  std::string text;
  for (const Type& type : types) text += (text.empty() ? "" : " ") + ToString(type);
  return text;
}

/// "kind name=value ...": numbers where the value is one, else texts.
Op ParseOp(std::string_view text) {
  const std::vector<std::string> words = Words(text);
  Op op;
  op.kind = OpKindOf(words[0]);
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string name = words[i].substr(0, equals), value = words[i].substr(equals + 1);
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end == '\0')
      op.attributes.numbers[name] = number;
    else
      op.attributes.texts[name] = value;
  }
  return op;
}

std::string KindOf(std::string_view op) { return Words(op)[0]; }

/// A graph of one op, its inputs x0, x1, ... and its outputs y0, y1, ..., of which only `made` have types.
struct OneOp {
  Graph graph;
  Op op;

  OneOp(std::string_view text, const std::vector<Type>& inputs, size_t outputs, const std::vector<Type>& made = {})
      : op(ParseOp(text)) {
    op.role = Role::kF;
    op.layer = 1;
    op.chunk = 0;
    for (size_t i = 0; i < inputs.size(); ++i)
      op.inputs.push_back(
          graph.AddValue({"x" + std::to_string(i), inputs[i], ValueKind::kInput, Frequency::kMicrobatch, 0, -1, ""}));
    for (size_t o = 0; o < outputs; ++o)
      op.outputs.push_back(graph.AddValue({"y" + std::to_string(o), o < made.size() ? made[o] : Type{},
                                           ValueKind::kActivation, Frequency::kMicrobatch, 0, -1, ""}));
  }
};

/// The message of a broken invariant in f(), after "error: "; else what f() returns.
template <typename F>
std::string ResultOf(F f) {
  try {
    return f();
  } catch (const InvariantError& error) {
    return std::string("error: ") + error.what();
  }
}

void ExpectResult(const std::string& result, std::string_view expected, const std::string& what) {
  if (!expected.starts_with("error: ")) {
    EXPECT_EQ(result, expected) << what;
    return;
  }
  EXPECT_TRUE(result.starts_with("error: ")) << what << ": allowed, with " << result;
  EXPECT_THAT(result, HasSubstr(std::string(expected.substr(7)))) << what;
}

std::string Name(const auto& rule) { return fmt::format("{} of {}", rule.op, rule.inputs); }

bool IsRefused(const Rule& rule) { return rule.outputs.starts_with("error: "); }

bool HasCopy(const Rule& rule) { return ParseOp(rule.op).attributes.texts.contains("copy"); }

/// How many outputs an op has with such inputs: as in a rule that allows as many inputs, or any.
size_t OutputsOf(const Rule& rule) {
  if (!IsRefused(rule)) return Types(rule.outputs).size();
  size_t outputs = 0;
  for (const Rule& other : kRules) {
    if (IsRefused(other) || KindOf(other.op) != KindOf(rule.op) || HasCopy(other) != HasCopy(rule)) continue;
    if (outputs == 0 || Types(other.inputs).size() == Types(rule.inputs).size()) outputs = Types(other.outputs).size();
  }
  return outputs;
}

std::vector<Type> Infer(const OneOp& one, std::string_view asked) {
  std::vector<Placements> free;
  for (const Type& type : Types(asked)) free.push_back(type.placements);
  return InferOutputs(one.graph, one.op, free);
}

TEST(Ops, TypesAndPlacementsOfOutputs) {
  for (const Rule& rule : kRules) {
    const OneOp one(rule.op, Types(rule.inputs), OutputsOf(rule));
    ExpectResult(ResultOf([&] { return Text(Infer(one, rule.asked)); }), rule.outputs, Name(rule));
  }
}

TEST(Ops, StatedPlacementsKeepTypesAndShapes) {
  for (const Rule& rule : kStated) {
    const std::vector<Type> outputs = Types(rule.asked);
    OneOp one(rule.op, Types(rule.inputs), outputs.size(), outputs);
    one.graph.AddOp(one.op);
    EXPECT_TRUE(IsReshard(one.op.kind) || IsHostCopy(one.op.kind)) << Name(one.op.kind);
    ExpectResult(ResultOf([&] { return Verify(one.graph, "test"), std::string("allowed"); }), rule.outputs, Name(rule));
  }
}

// --- no op and no dim is left out ------------------------------------------------------------------------------------

std::set<std::string> KindsOf(const auto& rules) {
  std::set<std::string> kinds;
  for (const auto& rule : rules) kinds.insert(KindOf(rule.op));
  return kinds;
}

TEST(Ops, EveryOpHasRules) {
  const std::set<std::string> ruled = KindsOf(kRules), stated = KindsOf(kStated), gradients = KindsOf(kGradients),
                              costs = KindsOf(kFlops);
  for (const OpDefinition& definition : AllOps()) {
    const std::string kind(Name(definition.kind));
    EXPECT_EQ(IsReshard(definition.kind) || IsHostCopy(definition.kind) ? stated.count(kind) : ruled.count(kind), 1u)
        << kind << " has no row in ops_rules.hpp";
    EXPECT_EQ(definition.gradient != nullptr, gradients.count(kind) > 0) << kind << ": its gradient and its row";
    EXPECT_EQ(definition.kernel.work.flops != nullptr, costs.count(kind) > 0) << kind << ": its flops and its row";
    EXPECT_FALSE(definition.summary.empty()) << kind;
  }
}

// A definition that leaves out an answer does not compile.
double Moved(const LocalOp&, bool) { return 0; }
template <typename T>
concept IsWhole = requires {
  T{.rows = Rows::kTogether, .work = Moved, .key = kNoAttributes};
};
template <typename T>
concept DefaultsRows = requires {
  T{.work = Moved, .key = kNoAttributes};
};
template <typename T>
concept DefaultsWork = requires {
  T{.rows = Rows::kTogether, .key = kNoAttributes};
};
template <typename T>
concept DefaultsKey = requires {
  T{.rows = Rows::kTogether, .work = Moved};
};
static_assert(IsWhole<KernelTraits> && !DefaultsRows<KernelTraits> && !DefaultsWork<KernelTraits> &&
              !DefaultsKey<KernelTraits>);
template <typename T>
concept IsDefined = requires(const KernelTraits& kernel) {
  T{.einsum = nullptr, .infer = nullptr, .kernel = kernel};
};
template <typename T>
concept DefaultsEinsum = requires(const KernelTraits& kernel) {
  T{.infer = nullptr, .kernel = kernel};
};
template <typename T>
concept DefaultsInfer = requires(const KernelTraits& kernel) {
  T{.einsum = nullptr, .kernel = kernel};
};
template <typename T>
concept DefaultsKernel = requires {
  T{.einsum = nullptr, .infer = nullptr};
};
static_assert(IsDefined<OpDefinition> && !DefaultsEinsum<OpDefinition> && !DefaultsInfer<OpDefinition> &&
              !DefaultsKernel<OpDefinition>);

TEST(Ops, ADefinitionIsThatOfItsKind) {
  ASSERT_EQ(AllOps().size(), kOpNames.size() - 1);
  for (size_t i = 0; i < AllOps().size(); ++i) {
    const OpKind kind = AllOps()[i].kind;
    EXPECT_EQ(static_cast<size_t>(kind), i + 1);
    EXPECT_EQ(&Define(kind), &AllOps()[i]);
    EXPECT_EQ(FindOpKind(Name(kind)), kind);
  }
  EXPECT_THROW(Define(OpKind::kNone), InvariantError);
}

TEST(Ops, IndependentRowsAreTheFirstDimsOfEveryOperand) {
  std::set<OpKind> rowwise;
  for (const Rule& rule : kRules) {
    if (IsRefused(rule)) continue;
    const OneOp one(rule.op, Types(rule.inputs), OutputsOf(rule));
    if (IsRowwise(one.graph, one.op)) rowwise.insert(one.op.kind);
  }
  for (const OpDefinition& definition : AllOps())
    EXPECT_EQ(definition.kernel.rows == Rows::kIndependent, rowwise.contains(definition.kind)) << Name(definition.kind);
}

TEST(Ops, EveryDimOfEveryInputIsShardedInSomeRow) {
  std::map<std::pair<std::string, size_t>, std::vector<bool>> tried;
  for (const Rule& rule : kRules) {
    const std::vector<Type> inputs = Types(rule.inputs);
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<bool>& dims = tried[{KindOf(rule.op), i}];
      dims.resize(std::max(dims.size(), inputs[i].shape.size()));
      for (size_t d = 0; d < inputs[i].shape.size(); ++d)
        if (!inputs[i].placements.dims[d].empty()) dims[d] = true;
    }
  }
  for (const auto& [input, dims] : tried)
    for (size_t d = 0; d < dims.size(); ++d)
      EXPECT_TRUE(dims[d]) << input.first << ": no row shards dim " << d << " of input " << input.second;
}

TEST(Ops, AnOutputFitsTheMemoryOfTheInputThatItMayTake) {
  for (const Rule& rule : kRules) {
    if (IsRefused(rule)) continue;
    const std::vector<Type> inputs = Types(rule.inputs), outputs = Types(rule.outputs);
    for (const InPlace& pair : Define(OpKindOf(KindOf(rule.op))).in_place) {
      const auto o = static_cast<size_t>(pair.output), i = static_cast<size_t>(pair.input);
      if (o >= outputs.size() || i >= inputs.size()) continue;
      EXPECT_EQ(outputs[o].shape, inputs[i].shape) << Name(rule);
      EXPECT_EQ(outputs[o].placements.dims, inputs[i].placements.dims) << Name(rule);
      EXPECT_LE(SizeOf(outputs[o].dtype), SizeOf(inputs[i].dtype)) << Name(rule);
    }
  }
}

// --- what the rules say is what kernels compute on the parts of each rank --------------------------------------------

/// Whether placements such as "{dp_replicate,tp}" name an axis.
bool Names(std::string_view text, Axis axis) {
  const std::string_view name = Name(axis);
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1))
    if ((text[at - 1] == '{' || text[at - 1] == ',') &&
        (text[at + name.size()] == '}' || text[at + name.size()] == ','))
      return true;
  return false;
}

/// 2 along the axes that a rule names, except kv_replicate: 3, since two kv heads are shared by three heads each.
Mesh MeshOf(std::string_view text) {
  Coordinate degrees;
  for (size_t a = 0; a < kAxisCount; ++a)
    degrees[kAxes[a]] = !Names(text, kAxes[a]) ? 1 : kAxes[a] == Axis::kKvReplicate ? 3 : 2;
  return Mesh(degrees);
}

/// As fp32, for exact sums; ids stay.
std::vector<Type> InFp32(std::vector<Type> types) {
  for (Type& type : types)
    if (type.dtype == Dtype::kBf16) type.dtype = Dtype::kF32;
  return types;
}

/// f(offset in the box, offset in the whole) for each element of a part of a tensor.
void ForElements(const Box& box, const Shape& whole, const auto& f) {
  const Shape extents = ExtentsOf(box);
  for (int64_t i = 0; i < Volume(extents); ++i) {
    int64_t rest = i, offset = 0, stride = 1;
    for (size_t d = extents.size(); d-- > 0; rest /= extents[d], stride *= whole[d])
      offset += (box[d].begin + rest % extents[d]) * stride;
    f(i, offset);
  }
}

Shape StartOf(const Box& box) {
  Shape start;
  for (const Range& range : box) start.push_back(range.begin);
  return start;
}

/// The share of a whole tensor that a rank holds: its part; of a sum over n ranks the first holds the whole and n - 1
/// more, the others -1 each.
OwnedTensor PartOf(const OwnedTensor& whole, const Type& type, const Mesh& mesh, const Coordinate& at) {
  const Box box = LocalBox(type, mesh, at);
  OwnedTensor part(type.dtype, ExtentsOf(box), StartOf(box));
  const AxisSet sum = type.placements.partial_sum;
  const int ranks = mesh.GroupSize(sum), index = mesh.IndexInGroup(sum, at);
  ForElements(box, whole.shape(), [&](int64_t i, int64_t offset) {
    part.Set(i, sum.Empty() ? whole[offset] : index == 0 ? whole[offset] + ranks - 1 : -1.0);
  });
  return part;
}

std::vector<OwnedTensor> Run(const Op& op, const std::vector<OwnedTensor>& inputs, std::vector<OwnedTensor> outputs) {
  std::vector<const OwnedTensor*> in;
  std::vector<OwnedTensor*> out;
  for (const OwnedTensor& x : inputs) in.push_back(&x);
  for (OwnedTensor& y : outputs) out.push_back(&y);
  testing::Run(FindReferenceKernel(Name(op.kind)), in, out, op.attributes);
  return outputs;
}

std::vector<OwnedTensor> RunWhole(const Op& op, const std::vector<OwnedTensor>& inputs,
                                  const std::vector<Type>& types) {
  std::vector<OwnedTensor> outputs;
  for (const Type& type : types) outputs.emplace_back(type.dtype, type.shape);
  return Run(op, inputs, std::move(outputs));
}

/// Where an output that ranks have made, parts put together, sums and maxima over groups taken, differs from the whole;
/// empty: nowhere.
std::string DifferenceOf(const std::vector<std::vector<OwnedTensor>>& made, size_t o, const OwnedTensor& whole,
                         const Type& type, const Mesh& mesh) {
  std::string difference;
  const bool max = !type.placements.partial_max.Empty();
  const double unit = type.dtype == Dtype::kBf16 ? 1.0 / 128 : 1e-5;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Coordinate at = mesh.CoordinateOf(rank);
    const std::vector<int> group = mesh.GroupRanks(type.placements.Partial(), at);
    ForElements(LocalBox(type, mesh, at), type.shape, [&](int64_t i, int64_t offset) {
      double value = made[static_cast<size_t>(group[0])][o][i];
      for (size_t member = 1; member < group.size(); ++member) {
        const double other = made[static_cast<size_t>(group[member])][o][i];
        value = max ? std::max(value, other) : value + other;
      }
      const double expected = whole[offset];
      // Both may be -inf: where a query sees no key.
      const bool near = value == expected || std::abs(value - expected) <= unit * (1 + std::abs(expected));
      if (!near && difference.empty())
        difference = fmt::format("output {}, element {}, rank {}: {} instead of {}", o, offset, rank, value, expected);
    });
  }
  return difference;
}

/// The keys of a hop of a ring are another rank's, so its ops are no parts of one op; tests/unit/kernels
/// compares whole rings. Chunks of rows are chunks of each rank's own, and so is the order of rows of experts. In fp8
/// each rank scales its own part.
bool HasWhole(const Op& op) {
  using enum OpKind;
  const bool of_rank =
      std::ranges::count(std::array{kTakeRows, kPutRows, kQuantize, kDispatch, kDispatchGrad, kCombine, kCombineGrad,
                                    kGroupedMatmul, kAddRowBias, kRowBiasGrad, kRowWeightGrad},
                         op.kind) > 0;
  return FindReferenceKernel(Name(op.kind)) != nullptr && !op.attributes.numbers.contains("hop") && !of_rank &&
         !op.attributes.texts.contains("scales");
}

/// Runs a rule's op on whole inputs, and on each rank's parts of them; empty if what the ranks make is, as `outputs`
/// places it, the whole.
std::string Difference(const Rule& rule, std::string_view outputs) {
  const std::vector<Type> inputs = InFp32(Types(rule.inputs));
  std::vector<Type> types = Types(outputs);
  Op op = ParseOp(rule.op);
  for (size_t o = 0; o < types.size(); ++o)
    if (op.attributes.texts.count("to") + op.attributes.texts.count("copy") == 0) types[o] = InFp32({types[o]})[0];
  if (op.kind == OpKind::kAdamw)
    op.attributes.numbers = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}, {"decaying", 1}};
  testing::Random random;
  std::vector<OwnedTensor> whole;
  for (const Type& type : inputs) {
    const bool ids = type.dtype == Dtype::kI32;
    whole.push_back(ids ? random.Integer(type.shape, 0, 12) : random.Real(type.dtype, type.shape, 0.1, 1));
  }
  const std::vector<OwnedTensor> expected = RunWhole(op, whole, types);
  const Mesh mesh = MeshOf(std::string(rule.inputs) + std::string(rule.asked));
  std::vector<std::vector<OwnedTensor>> made;
  for (int rank = 0; rank < mesh.Ranks(); ++rank) {
    const Coordinate at = mesh.CoordinateOf(rank);
    std::vector<OwnedTensor> parts, results;
    for (size_t i = 0; i < inputs.size(); ++i) parts.push_back(PartOf(whole[i], inputs[i], mesh, at));
    for (const Type& type : types) {
      const Box box = LocalBox(type, mesh, at);
      results.emplace_back(type.dtype, ExtentsOf(box), StartOf(box));
    }
    made.push_back(Run(op, parts, std::move(results)));
  }
  std::string difference;
  for (size_t o = 0; o < types.size() && difference.empty(); ++o)
    difference = DifferenceOf(made, o, expected[o], types[o], mesh);
  return difference;
}

TEST(Ops, PartsOfAllRanksMakeTheWhole) {
  for (const Rule& rule : kRules)
    if (!IsRefused(rule) && HasWhole(ParseOp(rule.op))) {
      EXPECT_EQ(Difference(rule, rule.outputs), "") << Name(rule);
    }
}

TEST(Ops, AWrongRuleIsSeen) {
  for (const Rule& rule : kWrong)
    EXPECT_NE(Difference(rule, rule.outputs), "") << Name(rule) << " is taken for " << rule.outputs;
}

TEST(Ops, OnlyCommunicationHasNoReferenceKernel) {
  std::vector<std::string> without;
  for (const OpDefinition& definition : AllOps())
    if (FindReferenceKernel(Name(definition.kind)) == nullptr) without.emplace_back(Name(definition.kind));
  EXPECT_THAT(without, UnorderedElementsAre("reshard", "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                            "ring_shift", "gather_stages", "send", "recv", "copy_out", "copy_in"));
}

// --- backward --------------------------------------------------------------------------------------------------------

constexpr int kOutput = 100, kAdjoint = 200;

/// Writes down what an op's gradient does.
class Recorder final : public GradientBuilder {
 public:
  struct Emitted {
    Op op;
    std::vector<int> adjoint_of;
  };

  Recorder(Attributes attributes, bool seed) : attributes_(std::move(attributes)), seed_(seed) {}

  int Inputs() const override { return inputs; }
  int Input(int i) const override { return i; }
  int Output(int i) const override { return kOutput + i; }
  int Completed(int i) const override { return Output(i); }
  const Attributes& ForwardAttributes() const override { return attributes_; }
  int Adjoint(int output) const override { return seed_ ? kSeed : kAdjoint + output; }
  void Emit(OpKind kind, std::vector<int> inputs, Attributes attributes, std::vector<int> adjoint_of) override {
    std::string outputs, arguments;
    for (int i : adjoint_of) outputs += (outputs.empty() ? "dx" : ", dx") + std::to_string(i);
    for (int id : inputs) arguments += (arguments.empty() ? "" : ", ") + NameOf(id);
    std::string line = fmt::format("{} = {}({})", outputs, kind, arguments);
    for (const auto& [name, number] : attributes.numbers) line += fmt::format(" {}={}", name, number);
    for (const auto& [name, text] : attributes.texts) line += fmt::format(" {}={}", name, text);
    Write(line);
    emitted.push_back({{kind, std::move(inputs), {}, std::move(attributes)}, std::move(adjoint_of)});
  }
  void Pass(int i, int adjoint) override { Write(fmt::format("dx{} = {}", i, NameOf(adjoint))); }

  int inputs = 3;  ///< of the forward op
  std::string text;
  std::vector<Emitted> emitted;

 private:
  static std::string NameOf(int id) {
    if (id == kSeed) return "1";
    if (id >= kAdjoint) return fmt::format("dy{}", id - kAdjoint);
    return id >= kOutput ? fmt::format("y{}", id - kOutput) : fmt::format("x{}", id);
  }
  void Write(const std::string& line) { text += (text.empty() ? "" : "\n") + line; }

  Attributes attributes_;
  bool seed_;
};

TEST(Ops, Gradients) {
  for (const GradientRule& rule : kGradients) {
    const Op op = ParseOp(rule.op);
    Recorder recorder(op.attributes, rule.adjoint == "1");
    const std::string result = ResultOf([&] { return Define(op.kind).gradient(recorder), recorder.text; });
    ExpectResult(result, rule.backward, std::string(rule.op));
  }
}

TEST(Ops, TheGradientOfAttentionKnowsTheDocumentsAndTheDropout) {
  Recorder recorder(Attributes{{{"window", 7}}, {}}, false);
  recorder.inputs = 4;
  Define(OpKind::kAttention).gradient(recorder);
  EXPECT_EQ(recorder.text, "dx0, dx1, dx2 = attention_grad(x0, x1, x2, y0, y1, dy0, x3) window=7");
  Recorder dropped(Attributes{{{"rate", 0.5}}, {{"key", "ab"}}}, false);
  dropped.inputs = 6;
  Define(OpKind::kAttention).gradient(dropped);
  EXPECT_EQ(dropped.text, "dx0, dx1, dx2 = attention_grad(x0, x1, x2, y0, y1, dy0, x3, x4, x5) rate=0.5 key=ab");
}

TEST(Ops, ABiasOfWeightedRowsHasAGradientInTheWeights) {
  Recorder recorder(Attributes{}, false);
  recorder.inputs = 4;
  Define(OpKind::kAddRowBias).gradient(recorder);
  EXPECT_EQ(recorder.text, "dx0 = dy0\ndx1 = row_bias_grad(dy0, x2, x3)\ndx3 = row_weight_grad(dy0, x1, x2)");
}

/// Whole types of an op's inputs and outputs, from a rule that shards nothing.
const Rule& WholeRule(const std::string& kind) {
  for (const Rule& rule : kRules)
    if (KindOf(rule.op) == kind && rule.inputs.find('{') == std::string_view::npos && !IsRefused(rule)) return rule;
  ADD_FAILURE() << kind << " has no row without placements";
  return kRules[0];
}

TEST(Ops, AnAdjointHasTheShapeOfWhatItBelongsTo) {
  for (const GradientRule& gradient : kGradients) {
    const Rule& rule = WholeRule(KindOf(gradient.op));
    if (gradient.backward.starts_with("error") || (KindOf(gradient.op) == "matmul" && gradient.op != rule.op)) continue;
    const Op op = ParseOp(gradient.op);
    const std::vector<Type> inputs = Types(rule.inputs), outputs = Types(rule.outputs);
    Recorder recorder(op.attributes, gradient.adjoint == "1");
    Define(op.kind).gradient(recorder);
    for (const Recorder::Emitted& emitted : recorder.emitted) {
      OpContext context{emitted.op, {}};
      for (int id : emitted.op.inputs)
        context.inputs.push_back(id < kOutput ? inputs[static_cast<size_t>(id)]
                                              : outputs[static_cast<size_t>(id % kOutput)]);
      const std::vector<Type> adjoints = Define(emitted.op.kind).infer(context);
      ASSERT_EQ(adjoints.size(), emitted.adjoint_of.size()) << gradient.op;
      for (size_t o = 0; o < adjoints.size(); ++o)
        EXPECT_EQ(adjoints[o].shape, inputs[static_cast<size_t>(emitted.adjoint_of[o])].shape)
            << gradient.op << ", " << Name(emitted.op.kind);
    }
  }
}

// --- cost ------------------------------------------------------------------------------------------------------------

TEST(Ops, FlopsOfTheFirstRank) {
  for (const FlopsRule& rule : kFlops) {
    const std::vector<Type> inputs = Types(rule.inputs);
    OneOp one(rule.op, inputs, OutputsOf({rule.op, rule.inputs, "error: "}));
    const std::vector<Type> outputs = InferOutputs(one.graph, one.op);
    for (size_t o = 0; o < outputs.size(); ++o)
      one.graph.values[static_cast<size_t>(one.op.outputs[o])].type = outputs[o];
    const LocalOp first = LocalOpOf(one.graph, one.op, MeshOf(rule.inputs), {});
    EXPECT_EQ(Define(one.op.kind).kernel.work.flops(first), rule.flops) << Name(rule);
  }
}

// The hops of a ring have the work of gathered keys together, without a window and with any.
TEST(Ops, HopsOfARingShareTheScoresThatAWindowLeaves) {
  for (int cp : {2, 3, 4})
    for (int window : {0, 1, 3, 8, 13, 30, 47, 1000}) {
      const int64_t keys = 16, length = cp * keys;
      Op op{OpKind::kAttention, {}, {}, {{{"cp", cp}, {"length", double(length)}, {"window", window}}, {}}};
      const Shape q = {1, keys, 8}, gathered = {1, length, 8};
      const double whole = Define(op.kind).kernel.work.flops({op, {q, gathered, gathered}, {}});
      double hops = 0;
      for (int hop = 0; hop < cp; ++hop) {
        op.attributes.numbers["hop"] = hop;
        const double flops = Define(op.kind).kernel.work.flops({op, {q, q, q}, {}});
        EXPECT_GE(flops, 0);
        hops += flops;
      }
      EXPECT_NEAR(hops, whole, 1e-9 * whole) << "cp " << cp << ", window " << window;
    }
}

// --- the partitioner -------------------------------------------------------------------------------------------------

Deck PlainDeck() {
  Deck deck{};
  deck.parallel.cp = deck.parallel.tp = deck.parallel.ep = 1;
  deck.parallel.zero = 3;
  deck.parallel.sequence_parallel = deck.parallel.loss_parallel = true;
  return deck;
}

TEST(Ops, PartitionerMovesInputsThatDisagree) {
  for (const PartitionRule& rule : kPartitions) {
    std::vector<Type> inputs;
    std::vector<bool> weights;
    for (const std::string& word : Words(rule.inputs)) {
      weights.push_back(word.starts_with("w:"));
      inputs.push_back(ParseType(weights.back() ? word.substr(2) : word));
    }
    OneOp one(rule.op, inputs, Types(rule.outputs).size());
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i]) one.graph.values[static_cast<size_t>(one.op.inputs[i])].frequency = Frequency::kStep;
    if (!rule.asked.empty()) {
      if (one.op.kind != OpKind::kDispatch) one.op.role = Role::kW;
      one.graph.values[static_cast<size_t>(one.op.outputs[0])].layout = rule.asked;
    }
    one.graph.AddOp(one.op);
    const Deck deck = PlainDeck();
    Partition(one.graph, {deck, MeshOf(rule.inputs), {0}, TraitsOf(ScheduleKind::k1F1B)});
    Verify(one.graph, "partition");
    const Op& placed = *std::ranges::find_if(one.graph.ops, [](const Op& op) { return op.kind != OpKind::kReshard; });
    const auto types = [&](const std::vector<int>& ids) {
      std::vector<Type> list;
      for (int id : ids) list.push_back(one.graph.values[static_cast<size_t>(id)].type);
      return Text(list);
    };
    EXPECT_EQ(types(placed.inputs), rule.moved) << Name(rule);
    EXPECT_EQ(types(placed.outputs), rule.outputs) << Name(rule);
  }
}

}  // namespace
}  // namespace espalier
