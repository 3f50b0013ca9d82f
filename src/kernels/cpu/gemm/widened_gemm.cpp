// Blocks of both operands are widened to fp32, small enough for the last-level cache, and multiplied by oneDNN's fp32
// GEMM, which has its own blocks for the caches below. Sums stay fp32: in c itself, or in a block that is rounded
// once.
#include "widened_gemm.hpp"

#include "espalier/util/error.hpp"
#include "kernels/cpu/runtime/parallel.hpp"
#include "kernels/cpu/runtime/scratch.hpp"
#include "kernels/cpu/runtime/vector.hpp"
#include "one_dnn_gemm.hpp"

namespace espalier::cpu {
namespace {

constexpr int64_t kRows = 1024, kColumns = 1024, kDepth = 2048;  // of a block: operands are 8 MiB each
constexpr int64_t kWide = 4096;                                  // columns of c whose sums are kept at once

/// One operand: element (i, p) at data[i * row + p * depth], i along the kept dim, p along the contracted one.
struct Operand {
  const Bf16* data;
  int64_t row, depth;
};

/// Widens `rows` x `depths` elements into a dense block that keeps the operand's order: p fastest, or i if row is 1.
void Widen(const Operand& x, int64_t rows, int64_t depths, float* to) {
  const bool by_depth = x.row == 1;
  const int64_t lines = by_depth ? depths : rows, length = by_depth ? rows : depths,
                stride = by_depth ? x.depth : x.row;
  ParallelRanges(
      lines, std::max<int64_t>(1, kWorthAThread / std::max<int64_t>(1, length)), [=](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          const Bf16* from = x.data + line * stride;
          float* target = to + line * length;
          ForLanes(0, length, [=](int64_t j, auto lanes) { Store(target + j, Load(from + j, lanes), lanes); });
        }
      });
}

/// Rounds sums, or sums plus a bias.
void Round(const float* sums, int64_t rows, int64_t columns, const Bf16* bias, Bf16* c, int64_t c_row) {
  ParallelRanges(rows, std::max<int64_t>(1, kWorthAThread / columns), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* from = sums + i * columns;
      Bf16* to = c + i * c_row;
      ForLanes(0, columns, [=](int64_t j, auto lanes) {
        const F16 sum = Load(from + j, lanes);
        Store(to + j, bias == nullptr ? sum : sum + Load(bias + j, lanes), lanes);
      });
    }
  });
}

class Blocks {
 public:
  Blocks(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate, const Bf16* bias)
      : s_(shape),
        a_{a, s_.a_row, s_.a_column},
        b_{b, s_.b_column, s_.b_row},
        c_(c),
        accumulate_(accumulate),
        bias_(bias) {
    CHECK(bias == nullptr || c.dtype == Dtype::kBf16, "a bias of bf16, a result of {}", Name(c.dtype));
    const int64_t rows = std::min(kRows, s_.m), depth = std::min(kDepth, s_.k);
    const int64_t sums = c.dtype == Dtype::kF32 ? 0 : rows * std::min(kWide, s_.n);
    widened_a_ = ScratchOf<float>(rows * depth + depth * std::min(kColumns, s_.n) + sums);
    widened_b_ = widened_a_ + rows * depth;
    sums_ = widened_b_ + depth * std::min(kColumns, s_.n);
  }

  void Run() {
    for (int64_t row = 0; row < s_.m; row += kRows)
      for (int64_t wide = 0; wide < s_.n; wide += kWide)
        RunWide(row, std::min(kRows, s_.m - row), wide, std::min(kWide, s_.n - wide));
  }

 private:
  /// Rows [row, row + rows) of columns [wide, wide + columns), over the whole contracted dim.
  void RunWide(int64_t row, int64_t rows, int64_t wide, int64_t columns) {
    const bool in_place = c_.dtype == Dtype::kF32;
    float* sums = in_place ? c_.As<float>() + row * s_.n + wide : sums_;
    const int64_t sums_row = in_place ? s_.n : columns;
    for (int64_t p = 0; p < s_.k; p += kDepth) {
      const int64_t depth = std::min(kDepth, s_.k - p);
      Widen({a_.data + row * a_.row + p * a_.depth, a_.row, a_.depth}, rows, depth, widened_a_);
      for (int64_t j = 0; j < columns; j += kColumns) {
        const int64_t n = std::min(kColumns, columns - j);
        Widen({b_.data + (wide + j) * b_.row + p * b_.depth, b_.row, b_.depth}, n, depth, widened_b_);
        GemmShape block{rows, n, depth, depth, 1, 1, depth, sums_row};
        if (a_.row == 1) block.a_row = 1, block.a_column = rows;
        if (b_.row == 1) block.b_row = n, block.b_column = 1;
        MultiplyF32(block, widened_a_, widened_b_, sums + j, accumulate_ || p > 0);
      }
    }
    if (!in_place)
      Round(sums_, rows, columns, bias_ == nullptr ? nullptr : bias_ + wide, c_.As<Bf16>() + row * s_.n + wide, s_.n);
  }

  const GemmShape s_;
  const Operand a_, b_;
  const Array& c_;
  const bool accumulate_;
  const Bf16* bias_;
  float *widened_a_, *widened_b_, *sums_;
};

}  // namespace

void WidenedGemm(const GemmShape& shape, const Bf16* a, const Bf16* b, const Array& c, bool accumulate,
                 const Bf16* bias) {
  if (shape.m * shape.n == 0) return;
  Blocks(shape, a, b, c, accumulate, bias).Run();
}

}  // namespace espalier::cpu
