// Muon (Jordan et al. 2024): the step of a matrix is the direction of its momentum, made orthogonal by Newton-Schulz
// iterations. For a matrix with at least as many rows as columns
//
//   D = direction;  X = D / |D|
//   repeat: G = X^T X,  P = b G + c G G,  X = a X + X P
//   master = master (1 - lr decay) - lr factor X
//
// and for a wide one G = X X^T and X = a X + P X. The matmuls are shared out among the ranks of tp, dp_shard and cp: X
// is sharded on its longer dim (layout "all_axes"), so that G, whose size is that of the shorter one, is a sum over
// them. G and P are sharded on their rows. With n columns, an iteration reduces and gathers n^2 elements twice. Ranks
// of dp_replicate repeat it.
//
// A weight of experts is a matrix for each: all of the above happens to each by itself, by matmuls with a dim e of
// matrices. They go to as many of these axes as have a matrix for each rank (layout "matrices"), where ZeRO has them
// already if all do: then nothing is sent. What axes are left are spread as above.
//
// The layers of a chunk are worked off in pairs: the messages of one overlap with the matmuls of the other, and memory
// holds the matrices G of two layers only.
#include "passes/optimizer/muon.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "espalier/graph/provenance.hpp"
#include "espalier/ops/matmul_spec.hpp"
#include "espalier/ops/op.hpp"
#include "passes/optimizer/moments.hpp"

namespace espalier {
namespace {

constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // Jordan et al. 2024: the steepest slope at 0
constexpr double kEps = 1e-7;

class Writer {
 public:
  Writer(Graph& graph, const Deck& deck, const MuonScalars& scalars) : graph_(graph), deck_(deck), scalars_(scalars) {
    for (const Op& op : graph.ops)
      if (op.kind == OpKind::kMatmul && op.role == Role::kF && MatmulSpecOf(op.attributes).b == "kn")
        in_out_.emplace(ParameterOf(graph.value(op.inputs[1])));
  }

  /// The matrices of one pair of layers.
  void Append(const std::vector<MuonMatrix>& matrices) {
    std::vector<Step> steps;
    for (const MuonMatrix& matrix : matrices) steps.push_back(StepOf(matrix));
    for (Step& s : steps) Direct(s);
    for (Step& s : steps) Normalize(s);
    for (int i = 0; i < deck_.optimizer.muon_iterations; ++i) {
      for (Step& s : steps) Gram(s);
      for (Step& s : steps) Polynomial(s);
      for (Step& s : steps) Improve(s, i + 1 == deck_.optimizer.muon_iterations);
    }
    for (Step& s : steps) Update(s);
  }

 private:
  /// An update that is being written.
  struct Step {
    const MuonMatrix& matrix;
    std::string name;
    bool tall;
    bool each;  ///< matrices of experts
    int direction = -1, squares = -1, x = -1, gram = -1, polynomial = -1;
  };

  Step StepOf(const MuonMatrix& matrix) const {
    const Value& parameter = graph_.value(matrix.parameter);
    const Shape& shape = parameter.type.shape;
    const bool each = shape.size() == 3;
    return {matrix, fmt::format("muon/{}", ParameterOf(parameter)), *(shape.end() - 2) >= shape.back(), each};
  }
  static std::string Layout(const Step& s, const char* dims) { return (s.each ? "matrices," : "") + std::string(dims); }
  static std::string Rows(const Step& s) { return Layout(s, "all_axes,whole"); }
  static std::string LayoutOfX(const Step& s) { return s.tall ? Rows(s) : Layout(s, "whole,all_axes"); }

  int Emit(const Step& s, OpKind kind, std::vector<int> inputs, const std::string& word, Attributes attributes,
           const std::string& layout) {
    const int chunk = graph_.value(s.matrix.parameter).chunk;
    Op op{kind, std::move(inputs), {}, std::move(attributes), Role::kU, s.matrix.layer, chunk};
    const Type type = Define(kind).infer(ContextOf(graph_, op))[0];
    const int output = graph_.AddValue(
        {graph_.Unique(s.name + "." + word), type, ValueKind::kActivation, Frequency::kStep, chunk, -1, layout});
    op.outputs = {output};
    graph_.AddOp(std::move(op));
    return output;
  }
  /// c = a b by the dims of a matrix in each of them.
  struct Dims {
    std::string_view a, b, c;
  };
  int Matmul(const Step& s, int a, int b, const Dims& dims, const std::string& word, const std::string& layout) {
    const char* each = s.each ? "e" : "";
    const std::string spec = fmt::format("{0}{1},{0}{2}->{0}{3}", each, dims.a, dims.b, dims.c);
    return Emit(s, OpKind::kMatmul, {a, b}, word, {{}, {{"spec", spec}}}, layout);
  }
  /// Attributes of an op that treats the matrices of experts one by one.
  static Attributes ForEach(const Step& s, Attributes attributes) {
    if (s.each) attributes.numbers["each"] = 1;
    return attributes;
  }
  int WeightedSum(const Step& s, double alpha, int x, double beta, int y, const std::string& word,
                  const std::string& layout) {
    return Emit(s, OpKind::kWeightedSum, {x, y}, word, {{{"alpha", alpha}, {"beta", beta}}, {}}, layout);
  }

  void Direct(Step& s) {
    const Value parameter = graph_.value(s.matrix.parameter);
    const int chunk = parameter.chunk;
    const int momentum = AddMoment(graph_, deck_, s.matrix.parameter, "momentum_buffer");
    s.direction = graph_.AddValue(
        {s.name + ".direction", parameter.type, ValueKind::kActivation, Frequency::kStep, chunk, -1, ""});
    const Deck::Optimizer& o = deck_.optimizer;
    Op op{OpKind::kMuonDirection,
          {scalars_.scale, scalars_.apply, momentum, s.matrix.gradient},
          {momentum, s.direction},
          {{{"beta", o.muon_momentum}, {"nesterov", o.muon_nesterov ? 1.0 : 0.0}}, {}},
          Role::kU,
          s.matrix.layer,
          chunk};
    if (scalars_.step >= 0) op.inputs.push_back(scalars_.step);
    SetRounding(graph_, deck_, s.matrix.parameter, op.attributes);
    graph_.AddOp(std::move(op));
    s.squares = Emit(s, OpKind::kSumSquares, {s.direction}, "squares", ForEach(s, {}), "");
  }
  void Normalize(Step& s) {
    const std::string to(Name(deck_.precision.compute));
    s.x = Emit(s, OpKind::kNormalize, {s.direction, s.squares}, "x", ForEach(s, {{{"eps", kEps}}, {{"to", to}}}),
               LayoutOfX(s));
  }
  void Gram(Step& s) {
    s.gram = Matmul(s, s.x, s.x, s.tall ? Dims{"sk", "sn", "kn"} : Dims{"sk", "nk", "sn"}, "gram", Rows(s));
  }
  /// G is symmetric: its rows are its columns.
  void Polynomial(Step& s) {
    const int square = Matmul(s, s.gram, s.gram, {"sk", "nk", "sn"}, "square", Rows(s));
    s.polynomial = WeightedSum(s, kB, s.gram, kC, square, "polynomial", Rows(s));
  }
  /// So is P.
  void Improve(Step& s, bool last) {
    const int product = s.tall ? Matmul(s, s.x, s.polynomial, {"sk", "nk", "sn"}, "product", LayoutOfX(s))
                               : Matmul(s, s.polynomial, s.x, {"sk", "kn", "sn"}, "product", LayoutOfX(s));
    const std::string layout = last ? graph_.value(s.matrix.parameter).layout + ";state" : LayoutOfX(s);
    s.x = WeightedSum(s, kA, s.x, 1, product, "x", layout);
  }
  void Update(Step& s) {
    const int p = s.matrix.parameter;
    Op op{OpKind::kMuonUpdate,  {scalars_.lr, scalars_.apply, p, s.x}, {p}, {}, Role::kU, s.matrix.layer,
          graph_.value(p).chunk};
    op.attributes.numbers = {{"weight_decay", s.matrix.weight_decay * s.matrix.lr_factor},
                             {"factor", s.matrix.lr_factor * FactorOf(graph_.value(p))}};
    graph_.AddOp(std::move(op));
  }

  /// The factor of the orthogonal matrix, besides the rate.
  double FactorOf(const Value& parameter) const {
    const Shape& shape = parameter.type.shape;
    const bool in_out = in_out_.contains(std::string(ParameterOf(parameter)));
    const auto rows = static_cast<double>(*(shape.end() - 2)), columns = static_cast<double>(shape.back());
    const double out = in_out ? columns : rows, in = in_out ? rows : columns;
    if (deck_.optimizer.muon_scale == MuonScale::kMatchAdamw) return 0.2 * std::sqrt(std::max(out, in));
    return std::sqrt(std::max(1.0, out / in));
  }

  Graph& graph_;
  const Deck& deck_;
  const MuonScalars scalars_;
  std::set<std::string> in_out_;  ///< weights that are stored as [in, out]
};

}  // namespace

bool IsMatrix(const Value& parameter) {
  const size_t dims = parameter.type.shape.size();
  return parameter.layout.starts_with("expert") ? dims > 2 : dims > 1;
}

bool TrainsWithMuon(const Deck& deck, const Value& parameter) {
  const auto has = [&](std::string_view dim) { return parameter.layout.find(dim) != std::string::npos; };
  const bool in_layer = !has("vocab") && !has("position");
  return deck.optimizer.name == OptimizerName::kMuon && IsMatrix(parameter) && in_layer;
}

void AppendMuon(Graph& graph, const Deck& deck, const std::vector<MuonMatrix>& matrices, const MuonScalars& scalars) {
  std::map<int, std::map<int, std::vector<MuonMatrix>>> layers;  // by chunk and layer
  for (const MuonMatrix& matrix : matrices) layers[graph.value(matrix.parameter).chunk][matrix.layer].push_back(matrix);
  Writer writer(graph, deck, scalars);
  for (const auto& [chunk, of_chunk] : layers) {
    std::vector<MuonMatrix> pair;
    size_t count = 0;
    for (const auto& [layer, of_layer] : of_chunk) {
      pair.insert(pair.end(), of_layer.begin(), of_layer.end());
      if (++count % 2 != 0 && count < of_chunk.size()) continue;
      writer.Append(pair);
      pair.clear();
    }
  }
}

}  // namespace espalier
