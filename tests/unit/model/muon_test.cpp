// Muon's first step of a model with experts, against plain loops in fp64 that treat every matrix by itself.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "espalier/graph/provenance.hpp"
#include "one_rank.hpp"

namespace espalier {
namespace {

/// A matrix in fp64.
struct Matrix {
  int64_t rows, columns;
  std::vector<double> values;

  double& operator()(int64_t i, int64_t j) { return values[static_cast<size_t>(i * columns + j)]; }
  double operator()(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * columns + j)]; }
};

Matrix Zeros(int64_t rows, int64_t columns) {
  return {rows, columns, std::vector<double>(static_cast<size_t>(rows * columns))};
}
Matrix Transposed(const Matrix& a) {
  Matrix t = Zeros(a.columns, a.rows);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t j = 0; j < a.columns; ++j) t(j, i) = a(i, j);
  return t;
}
Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix c = Zeros(a.rows, b.columns);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.columns; ++k)
      for (int64_t j = 0; j < b.columns; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}
Matrix Combined(double alpha, const Matrix& a, double beta, const Matrix& b) {
  Matrix c = a;
  for (size_t i = 0; i < c.values.size(); ++i) c.values[i] = alpha * a.values[i] + beta * b.values[i];
  return c;
}
double Norm(const Matrix& a) {
  double squares = 0;
  for (double x : a.values) squares += x * x;
  return std::sqrt(squares);
}

/// Newton-Schulz from the right, whatever the shape (Jordan et al. 2024).
Matrix Orthogonal(const Matrix& direction, int iterations) {
  Matrix x = Combined(1 / std::max(Norm(direction), 1e-7), direction, 0, direction);
  for (int i = 0; i < iterations; ++i) {
    const Matrix gram = Transposed(x) * x;
    x = Combined(3.4445, x, 1, x * Combined(-4.7750, gram, 2.0315, gram * gram));
  }
  return x;
}

/// The matrices of a parameter: one, or those of all experts.
std::vector<Matrix> MatricesOf(const Tensor& x) {
  const size_t rank = x.shape.size();
  const int64_t count = rank == 3 ? x.shape[0] : 1, rows = x.shape[rank - 2], columns = x.shape[rank - 1];
  std::vector<Matrix> matrices;
  for (int64_t e = 0; e < count; ++e) {
    const float* first = x.As<float>() + e * rows * columns;
    matrices.push_back({rows, columns, std::vector<double>(first, first + rows * columns)});
  }
  return matrices;
}

class Muon : public ::testing::TestWithParam<const char*> {
 protected:
  /// The matrices of every layer's parameters that have some.
  std::map<std::string, std::vector<Matrix>> Weights() const {
    std::map<std::string, std::vector<Matrix>> weights;
    for (const std::string& name : run_.compilation().parameters)
      if (const Tensor w = run_.executor().At("parameters/" + name); w.shape.size() > 1 && name.starts_with("model.l"))
        weights[name] = MatricesOf(w);
    return weights;
  }
  static Deck DeckOf(const std::string& model) {
    Deck deck = OracleDeck({"", model, nullptr, false});
    deck.optimizer.name = OptimizerName::kMuon;
    deck.optimizer.muon_scale = MuonScale::kSpectral;
    deck.optimizer.clip_norm = 0;
    return deck;
  }

  const Deck deck_ = DeckOf(GetParam());
  OneRank run_{deck_, FindCpuKernel};
};

INSTANTIATE_TEST_SUITE_P(Models, Muon, ::testing::Values("llama", "mixtral", "qwen2_moe", "olmoe"),
                         [](const auto& info) { return std::string(info.param); });

// The iterations magnify what fp32 rounds in directions without a gradient by 3.4445^5 = 485. An expert with few tokens
// has many of them.
TEST_P(Muon, MovesEveryMatrixByItself) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < 2 * 9; ++i) tokens.push_back((31 * i * i + 5) % 37);
  run_.Fill("ids", 0, tokens);
  run_.Fill("targets", 0, {tokens.rbegin(), tokens.rend()});
  const std::map<std::string, std::vector<Matrix>> before = Weights();
  run_.Step(1, LearningRate(deck_, 1));
  const std::map<std::string, std::vector<Matrix>> after = Weights();
  const double rate = MuonLearningRate(deck_, 1);
  size_t of_experts = 0;
  for (const auto& [name, weights] : before) {
    EXPECT_EQ(run_.compilation().graph->FindOrNone(MomentName("exp_avg", name)), -1) << name;
    // At first the momentum is a multiple of the direction.
    const std::vector<Matrix> directions = MatricesOf(run_.executor().At(MomentName("momentum_buffer", name)));
    for (size_t e = 0; e < weights.size(); ++e) {
      const double scale = std::sqrt(std::max(1.0, double(weights[e].rows) / double(weights[e].columns)));
      const Matrix expected = Combined(1 - rate * deck_.optimizer.weight_decay, weights[e], -rate * scale,
                                       Orthogonal(directions[e], deck_.optimizer.muon_iterations));
      const double moved = Norm(Combined(1, expected, -1, weights[e]));
      EXPECT_LT(Norm(Combined(1, after.at(name)[e], -1, expected)), 1e-3 * moved) << name << " " << e;
    }
    of_experts += weights.size() > 1 ? weights.size() : 0;
  }
  EXPECT_EQ(of_experts, static_cast<size_t>(deck_.model.layers * 3 * deck_.model.experts.count));
}

}  // namespace
}  // namespace espalier
