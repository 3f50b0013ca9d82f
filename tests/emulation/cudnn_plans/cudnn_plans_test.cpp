// Asks the real cuDNN, without a GPU, for a plan of every attention of the decks in inputs/ and bench/, by the
// program's own graphs: whether it has one on GPUs of three capabilities, as WhyNotFused says, and what workspace the
// plan wants, of which the memory plan reserves so much and no more. driver.cpp says why this works. Values and times
// cannot be had this way.
#include <cudnn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "espalier/deck/parse.hpp"
#include "espalier/device_memory/workspace.hpp"
#include "espalier/kernels/cuda/fallbacks.hpp"
#include "espalier/program/compile.hpp"
#include "kernels/cuda/attention/fused_attention.hpp"
#include "kernels/cuda/attention/planned_gpu.hpp"
#include "kernels/cuda/runtime/workspace.hpp"
#include "source_tree.hpp"

extern "C" int cuInit(unsigned flags);

namespace espalier {
namespace cuda {
namespace {

PlannedGpu described;

}  // namespace

PlannedGpu GetPlannedGpu() { return described; }

}  // namespace cuda

namespace {

using cuda::AskFusedAttention;
using cuda::FusedCall;
using cuda::Offer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// From 9.11 on the front end vouches for plans of described GPUs.
constexpr size_t kFirstVersion = 91100;

/// Properties of a GPU, from NVIDIA's data sheets.
struct Gpu {
  const char* name;
  int capability, units;
  int64_t shared_bytes, cache_bytes, bytes;
};
constexpr Gpu kA100{"A100", 80, 108, 166912, 41943040, 85000000000},
    kH200{"H200", 90, 132, 232448, 62914560, 150000000000}, kB200{"B200", 100, 148, 232448, 132644864, 190000000000};
constexpr Gpu kGpus[] = {kA100, kH200, kB200};

/// Lets cuDNN plan for a GPU from now on.
void PlanFor(const Gpu& gpu) {
  const nlohmann::json description = {{"deviceVer", 10 * gpu.capability},
                                      {"deviceName", gpu.name},
                                      {"multiProcessorCount", gpu.units},
                                      {"maxSharedMemoryPerBlockOptin", gpu.shared_bytes},
                                      {"l2CacheSize", gpu.cache_bytes},
                                      {"totalGlobalMem", gpu.bytes},
                                      {"warpSize", 32},
                                      {"maxSharedMemoryPerBlock", 49152},
                                      {"reservedSharedMemoryPerBlock", 1024},
                                      {"maxRegistersPerSM", 65536},
                                      {"regsPerBlock", 65536},
                                      {"maxCtasPerSM", 32},
                                      {"maxThreadsPerBlock", 1024},
                                      {"maxThreadsPerSM", 2048},
                                      {"maxBlockSize", {1024, 1024, 64}},
                                      {"maxGridSize", {2147483647, 65535, 65535}},
                                      {"smClockRateKHz", 1980000},
                                      {"memClockRateKHz", 2619000},
                                      {"supportCoopLaunch", 1},
                                      {"pciDeviceId", 0},
                                      {"isTccDriver", 0},
                                      {"cudaDeviceId", 0},
                                      {"driverVer", 13000}};
  cuda::described = {gpu.capability, description.dump()};
}

std::string ToString(const AttentionInBlocks& call) {
  const AttentionShape& x = call.whole;
  std::string text = fmt::format("[{},{},{} x {}] queries, {} keys, {} kv heads of {} and {}, window {}, row {}, to {}",
                                 x.batch, x.queries, x.heads, x.head_dim, x.keys, x.kv_heads, x.head_dim, x.ValueDim(),
                                 x.window, x.joined_row, Name(call.results));
  for (const AttentionBlock& block : call.blocks)
    text += fmt::format(", {}+{} x {}+{}{}", block.query, block.queries, block.key, block.keys,
                        block.causal ? " causal" : "");
  return text;
}

/// bench/8b-4k.toml: the plan computes two of its 4 x 8 heads of keys at once.
constexpr AttentionShape kLong{4, 4096, 4096, 32, 8, 128, true};

/// By description, so that each is asked once.
using Calls = std::map<std::string, AttentionInBlocks>;

void Add(const AttentionInBlocks& call, Calls& calls) { calls.insert({ToString(call), call}); }

void AddCallsOf(const std::string& deck, std::vector<std::string> overrides, Calls& calls) {
  overrides.insert(overrides.end(), {"run.device=cuda", "precision.compute=bf16", "recompute.mode=none"});
  LoadedDeck loaded = LoadDeck(deck, overrides);
  const int ranks = SmallestRanks(loaded.deck);
  ResolveMesh(loaded, ranks);
  const Compilation c = Compile(loaded.deck, ranks, Purpose::kTrain, {}, Verification::kAtTheEnd);
  for (const Op& op : c.graph->ops)
    if (op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad)
      for (int64_t rank = 0; rank < loaded.deck.parallel.cp; ++rank)
        Add(AttentionOfRank(LocalOpOf(*c.graph, op, c.mesh, c.mesh.CoordinateOf(0)), rank), calls);
}

const Calls& CallsOfDecks() {
  static const Calls calls = [] {
    Calls made;
    for (const char* folder : {"inputs", "bench"})
      for (const auto& entry : std::filesystem::recursive_directory_iterator(InTree(folder))) {
        const std::filesystem::path& path = entry.path();
        if (path.extension() == ".toml" && path.parent_path().filename() != "clusters" &&
            path.filename() != "base.toml")
          AddCallsOf(path, {}, made);
      }
    for (const char* context : {"ring", "all_gather", "all_to_all"})
      for (const char* cp : {"2", "4"})
        AddCallsOf(InTree("bench/8b-4k.toml"),
                   {fmt::format("parallel.context={}", context), fmt::format("parallel.cp={}", cp)}, made);
    return made;
  }();
  return calls;
}

/// Extents that no deck has. The last four are the batches of bench/gpu on an H200.
Calls FurtherCalls() {
  const std::vector<AttentionShape> shapes = {{2, 1, 1, 4, 2, 16},           {2, 17, 17, 4, 2, 16},
                                              {3, 300, 300, 6, 2, 64},       {8, 1001, 1001, 32, 8, 128},
                                              {2, 128, 128, 4, 2, 8},        {2, 128, 128, 4, 2, 40},
                                              {2, 128, 128, 4, 4, 72},       {2, 256, 256, 4, 2, 136},
                                              {2, 256, 256, 4, 2, 192},      {4, 2048, 2048, 8, 2, 256},
                                              {2, 256, 256, 4, 2, 264},      {2, 64, 128, 4, 2, 64},
                                              {2, 300, 300, 4, 2, 64},       {32, 1024, 1024, 12, 12, 64},
                                              {24, 2048, 2048, 16, 16, 128}, kLong,
                                              {2, 8192, 8192, 32, 8, 128}};
  Calls calls;
  for (AttentionShape x : shapes)
    for (int64_t value_dim : {x.head_dim, int64_t{128}})
      for (int64_t window : {0, 1, 100}) {
        x.causal = x.queries == x.keys, x.value_dim = value_dim, x.window = x.causal ? window : 0;
        Add({x, AttentionBlocksOf(x), Dtype::kBf16, Dtype::kBf16}, calls);
      }
  return calls;
}

/// The calls, and those of one block with the rows of joined matmuls.
Calls AllCalls() {
  Calls calls = CallsOfDecks();
  calls.merge(FurtherCalls());
  Calls joined;
  for (auto [text, call] : calls) {
    if (!call.IsOneCall()) continue;
    AttentionShape& x = call.whole;
    x.joined_row = (x.heads + x.kv_heads) * x.head_dim + x.kv_heads * x.ValueDim();
    Add(call, joined);
  }
  calls.merge(joined);
  return calls;
}

constexpr int64_t kSlack = int64_t{2} << 20;  ///< 1 MiB is planned on top
constexpr int64_t kWidestPlain = 256;         ///< no backward takes wider heads, so the program asks for none

struct Way {
  AttentionDirection direction;
  std::string_view method;
};
constexpr Way kWays[] = {{AttentionDirection::kForward, "parts"},
                         {AttentionDirection::kBackward, "parts"},
                         {AttentionDirection::kBackward, "large_parts"},
                         {AttentionDirection::kBackward, "two_streams"},
                         {AttentionDirection::kBackward, "unordered"}};

std::string ToString(const Way& way) {
  return way.direction == AttentionDirection::kForward ? "forward" : fmt::format("backward, {}", way.method);
}

AttentionInBlocks By(std::string_view method, AttentionInBlocks call) {
  call.backward = BackwardMethodOf(method);
  return call;
}

/// One of the library's calls in a call, and the part of it that the plan expects to be computed at once.
struct Piece {
  FusedCall call;
  AttentionPart part;
  int64_t planned;  ///< bytes
};

std::vector<Piece> PiecesOf(const AttentionInBlocks& call, const Way& way) {
  const BackwardMethod method = BackwardMethodOf(way.method);
  std::vector<Piece> pieces;
  for (const AttentionBlock& block : call.blocks) {
    const AttentionShape x = call.ShapeOf(block);
    if (way.direction == AttentionDirection::kForward) {
      pieces.push_back({{x, call.whole.queries, call.whole.keys}, {x.batch, x.kv_heads}, FusedAttentionBytes(x)});
    } else {
      const AttentionPart part = PartOfBackward(x, method);
      pieces.push_back({{x, call.whole.queries, call.whole.keys, method}, part, BackwardPartBytes(x, part, method)});
    }
  }
  return pieces;
}

/// The answer of cuDNN on a GPU; each question is asked once.
Offer Ask(const Gpu& gpu, const Piece& piece, AttentionDirection direction) {
  const AttentionShape& x = piece.call.shape;
  static std::map<std::vector<int64_t>, Offer> answers;
  const std::vector<int64_t> question = {gpu.capability,
                                         x.batch,
                                         x.queries,
                                         x.keys,
                                         x.heads,
                                         x.kv_heads,
                                         x.head_dim,
                                         x.ValueDim(),
                                         x.causal,
                                         x.window,
                                         x.joined_row,
                                         piece.call.query_rows,
                                         piece.call.key_rows,
                                         piece.part.batch,
                                         piece.part.kv_heads,
                                         direction == AttentionDirection::kBackward,
                                         piece.call.backward.deterministic};
  const auto [at, is_new] = answers.insert({question, {}});
  if (is_new) {
    PlanFor(gpu);
    at->second = AskFusedAttention(piece.call, direction, piece.part);
  }
  return at->second;
}

TEST(CudnnPlans, TheDriverIsTheStandIn) { EXPECT_EQ(cuInit(0), 100) << "no device"; }

TEST(CudnnPlans, AreThereWhereTheProgramExpectsThem) {
  int64_t taken = 0, refused = 0;
  for (auto& [text, call] : AllCalls())
    for (const Way& way : kWays) {
      if (way.direction == AttentionDirection::kForward && call.whole.head_dim > kWidestPlain) continue;
      for (const Gpu& gpu : kGpus) {
        const std::string why = WhyNotFused(By(way.method, call), way.direction, gpu.capability / 10);
        for (const Piece& piece : PiecesOf(call, way)) {
          const Offer offer = Ask(gpu, piece, way.direction);
          ++(offer.refusal.empty() ? taken : refused);
          EXPECT_EQ(offer.refusal.empty(), why.empty()) << gpu.name << ", " << ToString(way) << ": " << text
                                                        << "\nexpected: " << why << "\nasked: " << offer.refusal;
        }
      }
    }
  EXPECT_GT(taken, 1000);
  EXPECT_GT(refused, 100);
}

TEST(CudnnPlans, WantTheWorkspaceThatIsPlanned) {
  for (const auto& [text, call] : AllCalls())
    for (const Way& way : kWays)
      for (const Piece& piece : PiecesOf(call, way)) {
        int64_t most = -1;
        for (const Gpu& gpu : kGpus) {
          if (!FusedAttentionTakes(By(way.method, call), way.direction, gpu.capability / 10)) continue;
          const int64_t bytes = Ask(gpu, piece, way.direction).bytes;
          EXPECT_LE(bytes, piece.planned) << gpu.name << ", " << ToString(way) << ": " << text;
          most = std::max(most, bytes);
        }
        if (most >= 0 && way.direction == AttentionDirection::kBackward) {
          EXPECT_LE(piece.planned, most + most / 8 + kSlack) << ToString(way) << ": " << text;
        }
      }
}

TEST(CudnnPlans, PartsAreLargerWhereNoScoresAreStored) {
  const AttentionPart planned = PartOfBackward(kLong, {});
  const FusedCall call{kLong, kLong.queries, kLong.keys, {}};
  for (const Gpu& gpu : kGpus) {
    PlanFor(gpu);
    const auto ask = [&](AttentionPart part) { return AskFusedAttention(call, AttentionDirection::kBackward, part); };
    const std::optional<AttentionPart> part =
        cuda::ChoosePart(kLong, planned, FusedAttentionGradBytes(kLong, {}), ask, "8b-4k");
    ASSERT_TRUE(part.has_value()) << gpu.name;
    EXPECT_EQ(part->Size(), gpu.capability == kB200.capability ? 8 * planned.Size() : planned.Size()) << gpu.name;
  }
  EXPECT_THAT(cuda::TakeFallbacks(), IsEmpty());
}

/// The workspace is asked before a plan is compiled, which must keep to it.
TEST(CudnnPlans, CompiledPlansWantWhatWasAsked) {
  for (const auto& [gpu, x] : {std::pair{kA100, AttentionShape{1, 2048, 2048, 16, 16, 64, true}},
                               {kH200, kLong},
                               {kB200, {1, 1024, 1024, 4, 4, 192, true, {}, {}, 0, 0, 128}}}) {
    PlanFor(gpu);
    const FusedCall call{x, x.queries, x.keys, {}};
    const auto bytes = [&](AttentionDirection direction, AttentionPart part) {
      return AskFusedAttention(call, direction, part).bytes + cuda::kWorkspaceSlack;
    };
    EXPECT_TRUE(PrepareFusedAttention(call, bytes(AttentionDirection::kForward, {x.batch, x.kv_heads}))) << gpu.name;
    EXPECT_TRUE(PrepareFusedAttentionGrad(call, bytes(AttentionDirection::kBackward, PartOfBackward(x, {}))))
        << gpu.name;
    EXPECT_THAT(cuda::TakeFallbacks(), IsEmpty());
  }
}

TEST(CudnnPlans, ForwardIsNotCutIntoParts) {
  PlanFor(kH200);
  const AttentionShape x{2, 512, 512, 4, 4, 64, true};
  EXPECT_FALSE(PrepareFusedAttention(FusedCall{x, x.queries, x.keys}, cuda::kWorkspaceSlack + 1));
  EXPECT_THAT(cuda::TakeFallbacks(), ElementsAre(HasSubstr("forward is one call, which wants 256 bytes of 1")));
}

}  // namespace
}  // namespace espalier

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  if (cudnnGetVersion() < espalier::kFirstVersion) {
    fmt::print("skipped: cuDNN {} plans for no GPU that is only described\n", cudnnGetVersion());
    return 77;
  }
  return RUN_ALL_TESTS();
}
