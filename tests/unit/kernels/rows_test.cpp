// Every row-wise kernel on rows of any width and alignment, every kernel on empty shards, and the table of kernels.
#include <array>

#include "espalier/graph/op_list.hpp"
#include "fixture.hpp"
#include "row_kernels.hpp"

namespace espalier::testing {

// Instantiates the tests of all files.
INSTANTIATE_TEST_SUITE_P(, Kernels, ::testing::Values(kF32, kBf16),
                         [](const auto& type) { return std::string(Name(type.param)); });

namespace {

// Rows that are whole packs of 16 bytes, and others; tensors at multiples of 16 bytes, and one element after them.
TEST_P(Kernels, RowsOfAnyWidthAnywhere) {
  for (int64_t width : {1, 7, 33, 64, 1025, 1032}) {
    for (const RowKernel& kernel : RowKernels()) {
      RowMaker maker{random_, T(), {2, 3}, width, 2, 5};
      const Case c = kernel.make(maker);
      const double absolute = kernel.absolute(T(), width);
      Check(c, absolute);
      Case shifted = c;
      for (std::vector<OwnedTensor>* tensors : {&shifted.inputs, &shifted.outputs})
        for (OwnedTensor& x : *tensors) x = x.Shifted(1);
      Check(shifted, absolute);
      shifted.inputs[0] = c.inputs[0];  // shift only one tensor that may have packs
      Check(shifted, absolute);
      if (HasFatalFailure()) return;
    }
  }
}

// Empty shards are legal: nothing is read or written out of bounds, empty sums are 0.
TEST_P(Kernels, EmptyExtents) {
  const auto spec = [](const char* text) { return Attributes{{}, {{"spec", text}}}; };
  const Attributes head{{{"head_dim", 4}, {"causal", 1}, {"inverse", 0}, {"eps", 1e-5}, {"theta", 1e4}}, {}};
  const auto ids = [&](Shape s) { return random_.Integer(s, 0, 3); };
  for (const auto& [b, s, v, d] :
       {std::array<int64_t, 4>{0, 3, 4, 8}, {2, 0, 4, 8}, {2, 3, 0, 8}, {2, 3, 4, 0}, {0, 0, 0, 0}}) {
    const OwnedTensor x = Real({b, s, d}), y = Empty(T(), {b, s, d}), w = Real({d});
    const OwnedTensor row = F32({b, s}), logits = Real({b, s, v});
    Check({"embedding", {ids({b, s}), Real({v, d})}, {y}}, 0);
    Check({"embedding_grad", {ids({b, s}), x}, {F32({v, d})}}, SumBound(6, 1));
    if (d > 0) Check({"rms_norm", {x, w}, {y, row}, head}, SumBound(d, 4));
    if (d > 0) Check({"rms_norm_grad", {x, w, row, x}, {y}}, SumBound(d, 4));
    if (d > 0) Check({"rms_norm", {x, w, x}, {y, row, y}, head}, SumBound(d, 8));
    if (d > 0) Check({"rms_norm_grad", {x, w, row, x, x}, {y}}, SumBound(d, 4));
    Check({"rms_norm_weight_grad", {x, row, x}, {F32({d})}}, SumBound(6, 1) + 0.1);
    const Attributes whole{{{"eps", 1e-5}, {"width", 8}}, {}};
    const OwnedTensor squares = F32({b, s}, 1, 2);
    Check({"row_squares", {x}, {row}}, SumBound(d, 1));
    Check({"row_squares_grad", {row, x}, {y}}, SumBound(2, 2));
    Check({"row_norm", {x, w, squares}, {y}, whole}, SumBound(4, 4));
    Check({"row_norm_grad", {x, w, squares}, {y}, whole}, SumBound(4, 4));
    Check({"row_norm_squares_grad", {x, x, w, squares}, {row}, whole}, SumBound(d, 32));
    Check({"row_norm_weight_grad", {x, x, squares}, {F32({d})}, whole}, SumBound(6, 4) + 0.1);
    Check({"matmul", {x, Real({v, d})}, {logits}, spec("bsk,nk->bsn")}, SumBound(8, 1), false);
    Check({"matmul", {logits, Real({v, d})}, {y}, spec("bsn,nk->bsk")}, SumBound(8, 1), false);
    Check({"matmul", {logits, x}, {F32({v, d})}, spec("bsn,bsk->nk")}, SumBound(8, 1), false);
    Check({"matmul", {logits, x}, {F32({v, d})}, spec("bsn,bsk->nk"), true}, SumBound(8, 1), false);
    Check({"matmul", {x, Real({d, v})}, {logits}, spec("bsk,kn->bsn")}, SumBound(8, 1), false);
    if (d > 0) Check({"layer_norm", {x, w, w}, {y, row, row}, head}, SumBound(d, 400));
    if (d > 0) Check({"layer_norm_grad", {x, w, row, row, x}, {y}}, SumBound(d, 8));
    if (d > 0) Check({"layer_norm", {x, w, w, x}, {y, row, row, y}, head}, SumBound(d, 400));
    if (d > 0) Check({"layer_norm_grad", {x, w, row, row, x, x}, {y}}, SumBound(d, 8));
    Check({"layer_norm_weight_grad", {x, row, row, x}, {F32({d}), F32({d})}}, SumBound(6, 4));
    if (d > 0) Check({"rms_norm_backward", {x, w, row, x, x}, {y, F32({d})}}, SumBound(d, 4) + SumBound(6, 1) + 0.1);
    if (d > 0) Check({"layer_norm_backward", {x, w, row, row, x}, {y, F32({d}), F32({d})}}, SumBound(d + 6, 8));
    const OwnedTensor positions = random_.Integer({s}, 0, 4);
    Check({"position_embedding", {x, positions, Real({5, d})}, {y}}, SumBound(2, 1));
    Check({"position_embedding_grad", {positions, x}, {F32({5, d})}}, SumBound(6, 1));
    Check({"add_bias", {x, w}, {y}}, SumBound(2, 1));
    Check({"bias_grad", {x}, {F32({d})}}, SumBound(6, 1));
    Check({"gelu", {x}, {y}}, SumBound(8, 1));
    Check({"gelu_grad", {x, x}, {y}}, SumBound(8, 1));
    const Attributes dropout{{{"rate", 0.1}}, {{"key", "0123456789abcdef"}}};
    Check({"dropout", {x, ids({b, s}), F32({}, 9, 9)}, {y}, dropout}, 0);
    Check({"rope", {x, F32({s, 4})}, {y}, head}, SumBound(2, 1));
    Check({"add", {x, x}, {y}}, 0);
    Check({"swiglu", {x, x}, {y}}, SumBound(8, 1));
    Check({"swiglu_grad", {x, x, x}, {y, y}}, SumBound(8, 1));
    Check({"logits_max", {logits}, {row}}, 0);
    Check({"logits_sum", {logits, row, ids({b, s})}, {row, row}}, SumBound(64, 1));
    Check({"token_loss", {row, F32({b, s}, 1, 2), row, ids({b, s})}, {F32({}), F32({})}}, SumBound(6, 1));
    Check({"cross_entropy_grad", {logits, row, F32({b, s}, 1, 2), ids({b, s})}, {logits}}, SumBound(4, 8));
    Check({"cross_entropy", {logits, ids({b, s})}, {row, row, row, logits}}, SumBound(64, 8));
    Check({"cast", {x}, {F32({b, s, d})}}, 0);
    Check({"sum_squares", {F32({b, s, d})}, {F32({})}}, 0);
    Check({"accumulate", {F32({b, s, d})}, {F32({b, s, d})}}, 0);
    Check({"slice", {x}, {y}}, 0);
    Check({"pad", {x}, {y}}, 0);
    Check({"take_rows", {x}, {y}}, 0);
    Check({"put_rows", {x}, {y}}, 0);
    const Case attention{"attention", {x, Real({b, v, d}), Real({b, v, d})}, {y, F32({b, d / 4, s})}, head};
    Check(attention, 0.02);
    Check(AttentionGradCase(random_, attention), 0.05);
    Check(AdamwCase({0, 0}, 1), 0);
  }
  Check({"rope_table", {ids({0})}, {Empty(kF32, {0, 4})}, head}, 0);
}

TEST(KernelsTable, EveryOpHasAKernel) {
#define ESPALIER_NAME(name, function) name,
  for (const char* op : {ESPALIER_KERNELS(ESPALIER_NAME)}) EXPECT_TRUE(IsTested(op)) << op;
#undef ESPALIER_NAME
  EXPECT_FALSE(IsTested("no_such_op"));
}

}  // namespace
}  // namespace espalier::testing
