// Which attention calls use cuDNN, and as how many cuDNN calls; the kernels' tests check the results.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "fused_attention_calls.hpp"
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/prepare.hpp"
#include "kernels/cuda/runtime/workspace.hpp"
#include "switches.hpp"
#include "unit/kernel_cases.hpp"

namespace espalier::testing {
namespace {

int64_t CallsOf(const Case& c) {
  const int64_t before = emulation::FusedAttentionCalls();
  c.Tested();
  return emulation::FusedAttentionCalls() - before;
}

/// The backward of `forward`. o and lse are not its results, which would only matter for the numbers.
Case GradOf(Random& random, const Case& forward) {
  const Dtype type = forward.inputs[0].dtype();
  Case c{"attention_grad", forward.inputs, {}, forward.attributes};
  c.inputs.insert(c.inputs.end(),
                  {random.Real(type, forward.outputs[0].shape()), random.Real(kF32, forward.outputs[1].shape()),
                   random.Real(type, forward.outputs[0].shape())});
  for (int i = 0; i < 3; ++i) c.outputs.emplace_back(forward.outputs[0].dtype(), forward.inputs[i].shape());
  return c;
}

/// Number of calls in forward; backward has the same number.
int64_t CallsOf(Dtype type, const Heads& h) {
  Random random;
  const Case forward = AttentionCase(random, type, h);
  const int64_t calls = CallsOf(forward);
  EXPECT_EQ(CallsOf(GradOf(random, forward)), calls);
  return calls;
}

/// One call for a hop of a ring. Gathered keys: one for the rank's own shard, one for each earlier one, one for all
/// later ones. Whole sequences: one for each shard's own, and two for each border between shards.
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

/// The build runs this on several GPUs.
TEST(AttentionInBlocks, OnlyForwardTakesWideHeadsOnOtherGpusThanHopper) {
  Random random;
  const Case forward = AttentionCase(random, kBf16, {1, 16, 16, 2, 1, 136});
  EXPECT_EQ(CallsOf(forward), 1);
  EXPECT_EQ(CallsOf(GradOf(random, forward)), emulation::Capability() == 90 ? 1 : 0);
}

/// dq, dk and dv of a call by `method`, one after the other, in a workspace of the planned size.
std::vector<double> GradientsBy(const BackwardMethod& method, const AttentionShape& x) {
  Random random;
  const Shape queries = {x.batch, x.queries, x.heads * x.head_dim}, keys = {x.batch, x.keys, x.kv_heads * x.head_dim};
  const OwnedTensor q = random.Real(kBf16, queries), k = random.Real(kBf16, keys), v = random.Real(kBf16, keys),
                    o = random.Real(kBf16, queries), d_o = random.Real(kBf16, queries),
                    lse = random.Real(kF32, {x.batch, x.heads, x.queries}, 3, 4);
  const OwnedTensor dq(kBf16, queries), dk(kBf16, keys), dv(kBf16, keys);
  const AttentionInBlocks call{x, AttentionBlocksOf(x), kBf16, kBf16, method};
  const int64_t bytes = AttentionGradBytes(call);
  std::vector<std::byte> memory(static_cast<size_t>(bytes + cuda::kWorkspaceAlignment));
  size_t space = memory.size();
  void* workspace = memory.data();
  std::align(cuda::kWorkspaceAlignment, static_cast<size_t>(bytes), workspace, space);
  const cuda::LaunchContext context{nullptr, workspace, bytes};
  const auto array = [](const OwnedTensor& of) { return Array{of.View().data, kBf16}; };
  cuda::AttentionGrad({.shape = x,
                       .first_keys = nullptr,
                       .q = array(q),
                       .k = array(k),
                       .v = array(v),
                       .o = array(o),
                       .lse = lse.View().As<float>(),
                       .d_o = array(d_o),
                       .dq = array(dq),
                       .dk = array(dk),
                       .dv = array(dv),
                       .backward = method},
                      context);
  CUDA_CALL(cudaStreamSynchronize(nullptr));
  std::vector<double> made;
  for (const OwnedTensor* gradient : {&dq, &dk, &dv})
    for (int64_t i = 0; i < gradient->Count(); ++i) made.push_back((*gradient)[i]);
  return made;
}

TEST(AttentionBackward, PartsAndStreamsChangeNoBit) {
  setenv("ESPALIER_EMULATED_VERSIONS", "cuDNN=9.25", 1);  // the first with `ordered`
  constexpr int64_t kHeadOfKeys = 2 * 128 * 128 * 2;      // scores of two query heads in tiles
  const AttentionShape shape{3, 65, 65, 6, 3, 16, true};
  const std::vector<double> whole = GradientsBy({}, shape);
  ASSERT_GT(std::ranges::count_if(whole, [](double x) { return x != 0; }), 9 * std::ssize(whole) / 10);
  for (int64_t scores : {kHeadOfKeys, 3 * kHeadOfKeys, 6 * kHeadOfKeys})
    for (int64_t streams : {1, 2}) {
      ASSERT_LT(PartsIn(shape, PartOfBackward(shape, {scores, streams})), 10);
      ASSERT_GT(PartsIn(shape, PartOfBackward(shape, {scores, streams})), 1);
      EXPECT_EQ(GradientsBy({scores, streams}, shape), whole) << scores << " bytes, " << streams << " streams";
    }
  for (std::string_view method : {"ordered", "unordered"})
    EXPECT_EQ(GradientsBy(BackwardMethodOf(method), shape), whole) << method;
  unsetenv("ESPALIER_EMULATED_VERSIONS");
}

}  // namespace
}  // namespace espalier::testing
