// Which calls of attention go to cuDNN, and as how many of its own; that the results are right is shown by the kernels'
// tests.
#include "fused_attention_calls.hpp"
#include "unit/kernel_cases.hpp"

namespace espalier::testing {
namespace {

int64_t CallsOf(const Case& c) {
  const int64_t before = emulation::FusedAttentionCalls();
  c.Tested();
  return emulation::FusedAttentionCalls() - before;
}

/// The adjoint of `forward`. o and lse are not the results of it, which only the numbers would show.
Case GradOf(Random& random, const Case& forward) {
  const Dtype type = forward.inputs[0].dtype();
  Case c{"attention_grad", forward.inputs, {}, forward.attributes};
  c.inputs.insert(c.inputs.end(),
                  {random.Real(type, forward.outputs[0].shape()), random.Real(kF32, forward.outputs[1].shape()),
                   random.Real(type, forward.outputs[0].shape())});
  for (int i = 0; i < 3; ++i) c.outputs.emplace_back(forward.outputs[0].dtype(), forward.inputs[i].shape());
  return c;
}

/// Forward, and the same number backward.
int64_t CallsOf(Dtype type, const Heads& h) {
  Random random;
  const Case forward = AttentionCase(random, type, h);
  const int64_t calls = CallsOf(forward);
  EXPECT_EQ(CallsOf(GradOf(random, forward)), calls);
  return calls;
}

/// One for a hop of a ring. Gathered keys: the rank's own shard, each earlier one, all later ones. Whole sequences:
/// each shard's own, and each border between shards twice.
int64_t ExpectedCalls(const Heads& h) {
  const int64_t rank = h.query_start / 256;
  if (h.hop >= 0) return 1;
  return h.queries == h.length ? 3 * h.cp - 2 : 1 + rank + (rank + 1 < h.cp);
}

TEST(AttentionInBlocks, ZigzagOrder) {
  for (const Heads& h : ZigzagHeads())
    EXPECT_EQ(CallsOf(kBf16, h), ExpectedCalls(h))
        << "cp " << h.cp << ", queries from " << h.query_start << ", hop " << h.hop;
}

TEST(AttentionInBlocks, TheOrderOfPositionsIsOne) {
  EXPECT_EQ(CallsOf(kBf16, {2, 65, 65, 4, 2, 16}), 1);
  EXPECT_EQ(CallsOf(kBf16, {1, 65, 129, 3, 1, 16, 0, 0, 0}), 1) << "no mask";
}

TEST(AttentionInBlocks, ThePlainKernelTakesTheRest) {
  EXPECT_EQ(CallsOf(kF32, {1, 256, 256, 2, 1, 8, 0, 0, 1, 2, 512, 0}), 0) << "fp32";
  EXPECT_EQ(CallsOf(kBf16, {1, 256, 256, 2, 1, 10, 0, 0, 1, 2, 512, 0}), 0) << "odd heads";
  EXPECT_EQ(CallsOf(kBf16, {1, 128, 128, 2, 1, 8, 0, 0, 1, 2, 256, 0}), 0) << "short chunks";
  EXPECT_EQ(CallsOf(kBf16, {1, 320, 320, 2, 1, 8, 0, 0, 1, 2, 640, 1}), 0) << "odd chunks";
}

}  // namespace
}  // namespace espalier::testing
