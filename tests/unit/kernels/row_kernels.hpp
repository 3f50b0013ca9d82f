// One table of the kernels that work row by row or element by element. The tests run them at odd widths and alignments,
// the benchmark at the extents of a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "kernel_cases.hpp"

namespace espalier::testing {

/// Makes the tensors of a case.
struct RowMaker {
  Random& random;
  Dtype type;
  Shape lead;  ///< [b,s]
  int64_t width, heads, table_rows;

  Shape Rows() const { return {lead[0], lead[1], width}; }
  OwnedTensor Real(Shape shape) { return random.Real(type, std::move(shape)); }
  OwnedTensor X() { return Real(Rows()); }                                    ///< rows
  OwnedTensor W() { return Real({width}); }                                   ///< a weight or bias
  OwnedTensor Y() const { return OwnedTensor(type, Rows()); }                 ///< rows of a result
  OwnedTensor DW() { return F32({width}); }                                   ///< a weight's gradient
  OwnedTensor Row() const { return OwnedTensor(kF32, lead); }                 ///< one number per row of a result
  OwnedTensor Each(double low, double high) { return F32(lead, low, high); }  ///< one number per row
  OwnedTensor F32(Shape shape, double low = -1, double high = 1) {
    return random.Real(kF32, std::move(shape), low, high);
  }
  /// Indices of rows of the table, per token or per position.
  OwnedTensor Ids() { return random.Integer(lead, 0, static_cast<int>(table_rows) - 1); }
  OwnedTensor Positions() { return random.Integer({lead[1]}, 0, static_cast<int>(table_rows) - 1); }
  OwnedTensor Table() { return Real({table_rows, width}); }
  OwnedTensor DTable() { return F32({table_rows, width}); }
  /// A shard of the table that lacks the last id.
  OwnedTensor TableShard() { return Real({table_rows - 1, width}); }
  OwnedTensor DTableShard() { return F32({table_rows - 1, width}); }
  Shape HeadRows(int64_t head_dim) const { return {lead[0], lead[1], heads * head_dim}; }
};

/// The extent of a model that rows have in the benchmark.
enum class Width { kModel, kFfn, kVocab, kHead, kHalfHead };

struct RowKernel {
  std::string name;  ///< name of the benchmark: the op's, or the op's and the special case
  Width width;
  std::function<Case(RowMaker&)> make;
  std::function<double(Dtype, int64_t width)> absolute;  ///< the largest absolute error
};

inline std::vector<RowKernel> RowKernels() {
  const Attributes eps{{{"eps", 1e-1}}, {}};
  const auto none = [](Dtype, int64_t) { return 0.0; };
  const auto sum_of = [](int64_t terms, double scale) {
    return [=](Dtype, int64_t) { return SumBound(terms, scale); };
  };
  const auto row_sum = [](double scale) { return [=](Dtype, int64_t width) { return SumBound(width, scale); }; };
  // With an addend the gradient is rounded twice.
  const auto row_sum_with_addend = [](double scale) {
    return [=](Dtype type, int64_t width) { return SumBound(width, scale) + scale * UnitOf(type); };
  };
  using M = RowMaker;
  return {
      {"embedding", Width::kModel,
       [](M& m) {
         return Case{"embedding", {m.Ids(), m.TableShard()}, {m.Y()}};
       },
       none},
      {"embedding_grad", Width::kModel,
       [](M& m) {
         return Case{"embedding_grad", {m.Ids(), m.X()}, {m.DTableShard()}};
       },
       sum_of(6, 1)},
      {"embedding_grad accumulating", Width::kModel,
       [](M& m) {
         return Case{"embedding_grad", {m.Ids(), m.X()}, {m.DTableShard()}, {}, true};
       },
       sum_of(7, 1)},
      {"position_embedding", Width::kModel,
       [](M& m) {
         return Case{"position_embedding", {m.X(), m.Positions(), m.Table()}, {m.Y()}};
       },
       sum_of(2, 1)},
      {"position_embedding_grad", Width::kModel,
       [](M& m) {
         return Case{"position_embedding_grad", {m.Positions(), m.X()}, {m.DTable()}};
       },
       sum_of(6, 1)},
      {"rms_norm", Width::kModel,
       [=](M& m) {
         return Case{"rms_norm", {m.X(), m.W()}, {m.Y(), m.Row()}, eps};
       },
       row_sum(4)},
      {"rms_norm with an addend", Width::kModel,
       [=](M& m) {
         return Case{"rms_norm", {m.X(), m.W(), m.X()}, {m.Y(), m.Row(), m.Y()}, eps};
       },
       row_sum(8)},
      {"rms_norm_grad", Width::kModel,
       [](M& m) {
         return Case{"rms_norm_grad", {m.X(), m.W(), m.Each(1, 2), m.X()}, {m.Y()}};
       },
       row_sum(16)},
      {"rms_norm_grad with an addend", Width::kModel,
       [](M& m) {
         return Case{"rms_norm_grad", {m.X(), m.W(), m.Each(1, 2), m.X(), m.X()}, {m.Y()}};
       },
       row_sum_with_addend(16)},
      {"rms_norm_weight_grad", Width::kModel,
       [](M& m) {
         return Case{"rms_norm_weight_grad", {m.X(), m.Each(1, 2), m.X()}, {m.DW()}};
       },
       [](Dtype type, int64_t) { return SumBound(6, 2) + (type == kBf16 ? 6.0 / 128 : 0); }},
      {"rms_norm_backward", Width::kModel,
       [](M& m) {
         return Case{"rms_norm_backward", {m.X(), m.W(), m.Each(1, 2), m.X(), m.X()}, {m.Y(), m.DW()}};
       },
       [=](Dtype type, int64_t width) {
         return row_sum_with_addend(16)(type, width) + SumBound(6, 2) + (type == kBf16 ? 6.0 / 128 : 0);
       }},
      {"row_squares", Width::kModel,
       [](M& m) {
         return Case{"row_squares", {m.X()}, {m.Row()}};
       },
       row_sum(1)},
      {"row_squares_grad", Width::kModel,
       [](M& m) {
         return Case{"row_squares_grad", {m.Each(-1, 1), m.X()}, {m.Y()}};
       },
       sum_of(2, 2)},
      {"row_norm", Width::kModel,
       [=](M& m) {
         return Case{"row_norm", {m.X(), m.W(), m.Each(1, 2)}, {m.Y()}, eps};
       },
       sum_of(4, 4)},
      {"row_norm_grad", Width::kModel,
       [=](M& m) {
         return Case{"row_norm_grad", {m.X(), m.W(), m.Each(1, 2)}, {m.Y()}, eps};
       },
       sum_of(4, 4)},
      {"row_norm_squares_grad", Width::kModel,
       [=](M& m) {
         return Case{"row_norm_squares_grad", {m.X(), m.X(), m.W(), m.Each(1, 2)}, {m.Row()}, eps};
       },
       row_sum(16)},
      {"row_norm_weight_grad", Width::kModel,
       [=](M& m) {
         return Case{"row_norm_weight_grad", {m.X(), m.X(), m.Each(1, 2)}, {m.DW()}, eps};
       },
       [](Dtype type, int64_t) { return SumBound(6, 4) + (type == kBf16 ? 6 * 4.0 / 128 : 0); }},
      {"layer_norm", Width::kModel,
       [=](M& m) {
         return Case{"layer_norm", {m.X(), m.W(), m.W()}, {m.Y(), m.Row(), m.Row()}, eps};
       },
       row_sum(16)},
      {"layer_norm with an addend", Width::kModel,
       [=](M& m) {
         return Case{"layer_norm", {m.X(), m.W(), m.W(), m.X()}, {m.Y(), m.Row(), m.Row(), m.Y()}, eps};
       },
       row_sum(16)},
      {"layer_norm_grad", Width::kModel,
       [](M& m) {
         return Case{"layer_norm_grad", {m.X(), m.W(), m.Each(-1, 1), m.Each(1, 2), m.X()}, {m.Y()}};
       },
       row_sum(32)},
      {"layer_norm_grad with an addend", Width::kModel,
       [](M& m) {
         return Case{"layer_norm_grad", {m.X(), m.W(), m.Each(-1, 1), m.Each(1, 2), m.X(), m.X()}, {m.Y()}};
       },
       row_sum_with_addend(32)},
      {"layer_norm_weight_grad", Width::kModel,
       [](M& m) {
         return Case{"layer_norm_weight_grad", {m.X(), m.Each(-1, 1), m.Each(1, 2), m.X()}, {m.DW(), m.DW()}};
       },
       sum_of(6, 4)},
      {"layer_norm_backward", Width::kModel,
       [](M& m) {
         return Case{
             "layer_norm_backward", {m.X(), m.W(), m.Each(-1, 1), m.Each(1, 2), m.X(), m.X()}, {m.Y(), m.DW(), m.DW()}};
       },
       [=](Dtype type, int64_t width) { return row_sum_with_addend(32)(type, width) + SumBound(6, 4); }},
      {"add_bias", Width::kFfn,
       [](M& m) {
         return Case{"add_bias", {m.X(), m.W()}, {m.Y()}};
       },
       sum_of(2, 1)},
      {"bias_grad", Width::kFfn,
       [](M& m) {
         return Case{"bias_grad", {m.X()}, {m.DW()}};
       },
       sum_of(6, 1)},
      {"gelu", Width::kFfn,
       [](M& m) {
         return Case{"gelu", {m.X()}, {m.Y()}};
       },
       sum_of(8, 1)},
      {"gelu_grad", Width::kFfn,
       [](M& m) {
         return Case{"gelu_grad", {m.X(), m.X()}, {m.Y()}};
       },
       sum_of(8, 1)},
      {"dropout", Width::kModel,
       [](M& m) {
         return Case{"dropout",
                     {m.X(), m.random.Integer(m.lead, 0, 1 << 20), m.F32({}, 9, 9)},
                     {m.Y()},
                     {{{"rate", 0.1}}, {{"key", "0123456789abcdef"}}}};
       },
       none},
      {"rope", Width::kHalfHead,
       [](M& m) {
         const int64_t e = 2 * m.width;
         return Case{"rope",
                     {m.Real(m.HeadRows(e)), m.F32({m.lead[1], e})},
                     {OwnedTensor(m.type, m.HeadRows(e))},
                     {{{"head_dim", e}, {"inverse", 0}}, {}}};
       },
       sum_of(2, 1)},
      {"attention_merge", Width::kHead,
       [](M& m) {
         const Shape lse = {m.lead[0], m.heads, m.lead[1]}, o = m.HeadRows(m.width);
         return Case{"attention_merge",
                     {m.F32(o), m.F32(lse), m.F32(o), m.F32(lse)},
                     {OwnedTensor(m.type, o), OwnedTensor(kF32, lse)}};
       },
       sum_of(2, 4)},
      {"attention_sink", Width::kHead,
       [](M& m) {
         const Shape lse = {m.lead[0], m.heads, m.lead[1]}, o = m.HeadRows(m.width);
         return Case{"attention_sink",
                     {m.Real(o), m.F32(lse), m.Real({m.heads})},
                     {OwnedTensor(m.type, o), OwnedTensor(kF32, lse)},
                     {{{"head_dim", m.width}}, {}}};
       },
       sum_of(2, 4)},
      {"attention_sink_grad", Width::kHead,
       [](M& m) {
         const Shape lse = {m.lead[0], m.heads, m.lead[1]}, o = m.HeadRows(m.width);
         return Case{"attention_sink_grad",
                     {m.F32(lse), m.Real({m.heads}), m.Real(o), m.Real(o)},
                     {OwnedTensor(kF32, {m.heads})},
                     {{{"head_dim", m.width}}, {}}};
       },
       [](Dtype, int64_t width) { return SumBound(4 * width, 64); }},
      {"add", Width::kModel,
       [](M& m) {
         return Case{"add", {m.X(), m.X()}, {m.Y()}};
       },
       sum_of(3, 1)},
      {"add of three", Width::kModel,
       [](M& m) {
         return Case{"add", {m.X(), m.X(), m.X()}, {m.Y()}};
       },
       sum_of(3, 1)},
      {"swiglu", Width::kFfn,
       [](M& m) {
         return Case{"swiglu", {m.X(), m.X()}, {m.Y()}};
       },
       sum_of(8, 1)},
      {"swiglu_grad", Width::kFfn,
       [](M& m) {
         return Case{"swiglu_grad", {m.X(), m.X(), m.X()}, {m.Y(), m.Y()}};
       },
       sum_of(8, 1)},
      {"logits_max", Width::kVocab,
       [](M& m) {
         return Case{"logits_max", {m.X()}, {m.Row()}};
       },
       none},
      {"logits_sum", Width::kVocab,
       [](M& m) {
         return Case{"logits_sum", {m.X(), m.Each(-1, 1), m.Ids()}, {m.Row(), m.Row()}};
       },
       [](Dtype, int64_t width) { return SumBound(width, 8) * static_cast<double>(width); }},
      {"token_loss", Width::kModel,
       [](M& m) {
         return Case{"token_loss", {m.Each(-1, 1), m.Each(1, 2), m.Each(-1, 1), m.Ids()}, {m.F32({}), m.F32({})}};
       },
       sum_of(6, 4)},
      {"cross_entropy_grad", Width::kVocab,
       [](M& m) {
         return Case{"cross_entropy_grad", {m.X(), m.Each(-1, 1), m.Each(1, 2), m.Ids()}, {m.Y()}};
       },
       sum_of(4, 8)},
      {"cross_entropy", Width::kVocab,
       [](M& m) {
         return Case{"cross_entropy", {m.X(), m.Ids()}, {m.Row(), m.Row(), m.Row(), m.Y()}};
       },
       [](Dtype, int64_t width) { return SumBound(width, 8) * static_cast<double>(width); }},
      {"cast to f32", Width::kModel,
       [](M& m) {
         return Case{"cast", {m.X()}, {OwnedTensor(kF32, m.Rows())}};
       },
       none},
      {"cast from f32", Width::kModel,
       [](M& m) {
         return Case{"cast", {m.F32(m.Rows())}, {m.Y()}};
       },
       none},
      {"accumulate", Width::kModel,
       [](M& m) {
         return Case{"accumulate", {m.F32(m.Rows())}, {m.F32(m.Rows())}, {}, true};
       },
       sum_of(2, 1)},
      {"sum_squares", Width::kModel,
       [](M& m) {
         return Case{"sum_squares", {m.F32(m.Rows())}, {m.F32({})}};
       },
       none},
      {"slice", Width::kModel,
       [](M& m) {
         return Case{"slice",
                     {m.Real({m.lead[0], m.lead[1], m.width + 8})},
                     {OwnedTensor(m.type, {1, m.lead[1] - 1, m.width}, {m.lead[0] - 1, 1, 3})}};
       },
       none},
      {"pad", Width::kModel,
       [](M& m) {
         return Case{"pad",
                     {m.random.Real(m.type, {1, m.lead[1] - 1, m.width}, -1, 1, {m.lead[0] - 1, 1, 3})},
                     {OwnedTensor(m.type, {m.lead[0], m.lead[1], m.width + 8})}};
       },
       none},
  };
}

}  // namespace espalier::testing
