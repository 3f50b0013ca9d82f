// Which ops run on the compute lane while messages travel.
#include <gtest/gtest.h>

#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/ops/strip.hpp"
#include "espalier/program/compile.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

/// The compute lane's ops between the issue of a collective and the first reader of its results.
struct Window {
  const Op* collective = nullptr;
  int products[2] = {0, 0};  ///< matmuls of F or B, and of W
  bool waits = false;        ///< some instruction of the window waits for the collective
};

std::vector<Window> Windows(const Program& program, Lane lane) {
  std::vector<Window> windows;
  int ordinal = 0;
  const auto op_of = [&](const Instruction& i) -> const Op& { return program.graph->ops[static_cast<size_t>(i.op)]; };
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& issue = program.instructions[i];
    if (issue.lane != lane) continue;
    ++ordinal;
    Window window{&op_of(issue)};
    for (size_t k = i + 1; k < program.instructions.size(); ++k) {
      const Instruction& next = program.instructions[k];
      const auto reads = [&](const Operand& o) {
        return std::any_of(issue.outputs.begin(), issue.outputs.end(),
                           [&](const Operand& made) { return made.value == o.value; });
      };
      const bool same_rows =
          !StripOf(op_of(issue)) || !StripOf(op_of(next)) || StripOf(op_of(issue)) == StripOf(op_of(next));
      const bool same_microbatch = issue.microbatch < 0 || next.microbatch == issue.microbatch;
      if (same_microbatch && same_rows && std::any_of(next.inputs.begin(), next.inputs.end(), reads)) break;
      if (next.lane != Lane::kCompute) continue;
      if (op_of(next).kind == OpKind::kMatmul) ++window.products[op_of(next).role == Role::kW];
      window.waits |= std::any_of(next.waits.begin(), next.waits.end(),
                                  [&](const Wait& w) { return w.lane == lane && w.count >= ordinal; });
    }
    windows.push_back(window);
  }
  return windows;
}

Program WithOverlap(const std::vector<std::string>& overrides, int ranks) {
  return MakeProgram(Compile(SmallDeck(overrides), ranks, Purpose::kTrain), {});
}

TEST(Program, ParametersOfALayerTravelUnderTheLayerBefore) {
  for (const char* mode : {"none", "full"})
    for (int ahead : {0, 1, 2}) {
      const Program program =
          WithOverlap({"parallel.dp_shard=2", "parallel.reduce=step", fmt::format("overlap.prefetch={}", ahead),
                       std::string("recompute.mode=") + mode},
                      2);
      int gathers = 0;
      for (const Window& w : Windows(program, Lane::kDp)) {
        // Layers with `ahead` transformer layers before them, in the order of forward or backward.
        const bool forward = w.collective->role == Role::kF;
        const int layer = w.collective->layer;
        if (w.collective->kind != OpKind::kAllGather || (forward ? layer <= ahead : layer > 4 - ahead)) continue;
        ++gathers;
        EXPECT_FALSE(w.waits) << "layer " << layer << ", " << ahead << " ahead";
        EXPECT_GE(w.products[0], 7 * ahead) << "layer " << layer << ", " << ahead << " ahead";
        EXPECT_TRUE(ahead > 0 || w.products[0] == 0) << "layer " << layer;
      }
      EXPECT_EQ(gathers, 4 * (5 - ahead + 4 - ahead)) << "of every microbatch";
    }
}

TEST(Program, ParametersGatheredOncePerStepTravelUnderTheFirstForward) {
  for (const char* global : {"batch.global=4", "batch.global=8"}) {
    const Program program =
        WithOverlap({"parallel.dp_shard=2", "parallel.zero=1", "parallel.reduce=step", "batch.micro=2", global}, 2);
    int gathers = 0;
    for (const Window& w : Windows(program, Lane::kDp)) {
      if (w.collective->role != Role::kP) continue;
      ++gathers;
      EXPECT_TRUE(!w.waits || w.collective->layer == 5) << "layer " << w.collective->layer << ", " << global;
      EXPECT_GE(w.products[0], 7 * (w.collective->layer - 1)) << "layer " << w.collective->layer << ", " << global;
    }
    EXPECT_EQ(gathers, 6) << "of four layers, the embedding and the head";
  }
}

TEST(Program, GradientsOfTheOnlyMicrobatchTravelUnderTheLayerAfter) {
  for (const char* tp : {"parallel.tp=1", "parallel.tp=2"}) {
    const Program program = WithOverlap({"parallel.dp_shard=2", tp, "parallel.reduce=microbatch", "batch.global=4",
                                         "batch.micro=2", "recompute.mode=full"},
                                        tp == std::string("parallel.tp=1") ? 2 : 4);
    std::map<Lane, int> issued;
    std::map<int, int> number;  // of each layer's reduction of shards: its number on lane dp
    for (size_t k = 0; k < program.instructions.size(); ++k) {
      const Instruction i = program.instructions[k];
      const Op& op = program.graph->ops[static_cast<size_t>(i.op)];
      // The layer below must not wait; the one below that may.
      const auto above = number.find(op.layer + 1);
      if (above != number.end() && (op.role == Role::kB || op.role == Role::kW) && !number.contains(op.layer))
        for (const Wait& wait : i.waits)
          EXPECT_FALSE(wait.lane == Lane::kDp && i.lane != Lane::kDp && wait.count >= above->second)
              << Describe(program, static_cast<int>(k)) << ", " << tp;
      ++issued[i.lane];
      if (i.lane == Lane::kDp && op.kind == OpKind::kReduceScatter && op.role == Role::kW)
        number[op.layer] = issued[Lane::kDp];
    }
    EXPECT_EQ(number.size(), 6u) << "of four layers, the embedding and the head";
  }
}

TEST(Program, TensorCollectivesOfBackwardRunUnderWeightGradients) {
  for (const char* mode : {"none", "full"})
    for (bool overlap : {true, false}) {
      const Program program = WithOverlap(
          {"parallel.tp=2", fmt::format("overlap.tensor={}", overlap), std::string("recompute.mode=") + mode}, 2);
      int covered = 0, scatters = 0;
      for (const Window& w : Windows(program, Lane::kTp)) {
        if (w.collective->role != Role::kB || w.collective->kind != OpKind::kReduceScatter) continue;
        ++scatters;
        if (w.products[1] > 0 && !w.waits) ++covered;
      }
      EXPECT_GE(scatters, 8 * (2 * 4 + 1)) << "two of every layer and one of the head, of every microbatch";
      EXPECT_GE(covered, overlap ? 8 * (2 * 4 + 1) : 0) << mode;
      EXPECT_TRUE(overlap || covered == 0) << mode;
    }
}

/// Windows of the tp collectives of a role, except gathers for weight gradients, and how many of them are covered.
struct Covered {
  int covered = 0, all = 0;
};
Covered CoveredByMatmuls(const Program& program, Role role) {
  Covered covered;
  for (const Window& w : Windows(program, Lane::kTp)) {
    if (w.collective->role != role || !StripOf(*w.collective)) continue;
    ++covered.all;
    if (w.products[0] + w.products[1] > 0 && !w.waits) ++covered.covered;
  }
  return covered;
}

TEST(Program, StripsOfTensorCollectivesRunUnderMatmulsOfOtherStrips) {
  const std::vector<std::vector<std::string>> modes = {{},
                                                       {"recompute.mode=full"},
                                                       {"recompute.mode=selective", "batch.micro=3", "batch.global=12"},
                                                       {"parallel.sequence_parallel=false"},
                                                       {"model.family=gpt2", "model.kv_heads=32"}};
  for (const std::vector<std::string>& mode : modes)
    for (Role role : {Role::kF, Role::kB}) {
      // Sizes at which a message takes about as long as a matmul.
      std::vector<std::string> overrides = {"parallel.tp=2",      "overlap.tensor_strips=3", "model.dim=4096",
                                            "model.heads=32",     "model.kv_heads=8",        "model.ffn_dim=14336",
                                            "model.seq_len=4096", "precision.compute=bf16"};
      overrides.insert(overrides.end(), mode.begin(), mode.end());
      const Covered strips = CoveredByMatmuls(WithOverlap(overrides, 2), role);
      overrides[1] = "overlap.tensor_strips=1";
      EXPECT_EQ(CoveredByMatmuls(WithOverlap(overrides, 2), role).all, 0);
      // Not covered: the first strips of a region that begins with a gather, and the last ones before attention.
      EXPECT_GT(strips.all, 0);
      EXPECT_GE(strips.covered, strips.all / 2) << Name(role) << " " << testing::PrintToString(mode);
    }
}

TEST(Program, StripsSendTheSameBytesAndComputeTheSameFlops) {
  for (const char* layout : {"112", "114", "122"})
    for (const char* micro : {"batch.micro=1", "batch.micro=2"}) {
      std::vector<std::string> overrides = DegreesOf(layout);
      overrides.insert(overrides.end(), {micro, "overlap.tensor_strips=1"});
      const auto totals = [&] {
        const Program program = WithOverlap(overrides, RanksOf(layout));
        const Coordinate last = program.mesh.CoordinateOf(0);
        double flops = 0;
        for (const Instruction& i : program.instructions) {
          const Op& op = program.graph->op(i.op);
          if (i.lane == Lane::kCompute && Define(op.kind).kernel.work.flops != nullptr)
            flops += Define(op.kind).kernel.work.flops(LocalOpOf(*program.graph, op, program.mesh, last));
        }
        int64_t bytes = 0;
        for (const auto& [lane, count] : CountMessages(program, last)) bytes += count.bytes;
        return std::pair(bytes, flops);
      };
      const auto whole = totals();
      overrides.back() = "overlap.tensor_strips=4";
      EXPECT_EQ(totals(), whole) << layout << " " << micro;
    }
}

/// The ops of each microbatch in program order, except P, S and U.
std::map<int, std::vector<int>> OpsByMicrobatch(const Program& program) {
  std::map<int, std::vector<int>> ops;
  for (const Instruction& i : program.instructions)
    if (i.microbatch >= 0 && i.lane != Lane::kPpRecv) ops[i.microbatch].push_back(i.op);
  return ops;
}

TEST(Program, AJointJobRunsEachMessageUnderMatmulsOfAnotherMicrobatch) {
  for (const PipelineCase& pipeline :
       {PipelineCase{"1f1b", 1}, PipelineCase{"interleaved", 2}, PipelineCase{"dualpipev", 2}}) {
    std::vector<std::string> overrides =
        PipelineDeck(pipeline, 2, 12,
                     {"parallel.tp=2", "model.dim=4096", "model.heads=32", "model.kv_heads=8", "model.ffn_dim=14336",
                      "model.seq_len=4096", "precision.compute=bf16", "overlap.gradients=false"});
    overrides.push_back("overlap.interleave=true");
    const Program together = WithOverlap(overrides, 4);
    overrides.back() = "overlap.interleave=false";
    const Program apart = WithOverlap(overrides, 4);
    EXPECT_TRUE(OpsByMicrobatch(together) == OpsByMicrobatch(apart)) << pipeline.schedule;
    const auto covered = [](const Program& program) {
      int all = 0, with_matmul = 0;
      for (const Window& w : Windows(program, Lane::kTp)) {
        if (w.collective->role != Role::kF) continue;
        ++all;
        if (w.products[0] + w.products[1] > 0 && !w.waits) ++with_matmul;
      }
      return std::pair(with_matmul, all);
    };
    EXPECT_EQ(covered(apart).first, 0) << pipeline.schedule << ": its reader is the next op";
    const auto [with_matmul, all] = covered(together);
    // Except in the warm-up and the last layers, where backward is over or waits for a message, too.
    EXPECT_GE(with_matmul, all / 4) << pipeline.schedule << " of " << all;
  }
}

TEST(Program, GradientsReducedEachMicrobatchAreWholeForOneLayerOnly) {
  const std::vector<std::string> each = {"parallel.dp_shard=2", "parallel.reduce=microbatch"};
  const auto with = [&](const char* zero) {
    std::vector<std::string> overrides = each;
    overrides.push_back(zero);
    return WithOverlap(overrides, 2);
  };
  const auto accumulators = [](const Program& p) {
    int64_t bytes = 0;
    for (const PersistentBuffer& b : p.persistent)
      bytes += b.memory_class == MemoryClass::kGradients ? b.place.bytes : 0;
    return bytes;
  };
  const Program whole = with("parallel.zero=1"), sharded = with("parallel.zero=2");
  EXPECT_EQ(accumulators(whole) - 8, 2 * (accumulators(sharded) - 8)) << "but for loss and count";
  for (const Program* program : {&whole, &sharded}) {
    std::map<int, int> messages;        // by layer
    std::map<int, int64_t> made, live;  // bytes of one microbatch's gradients by layer, and the peak of live bytes
    int64_t now = 0, most = 0, largest = 0;
    for (const Instruction& i : program->instructions) {
      const Op& op = program->graph->ops[static_cast<size_t>(i.op)];
      if (i.microbatch != 3) continue;
      if (i.lane == Lane::kCompute && op.kind != OpKind::kAccumulate) {
        for (const Operand& o : i.outputs)
          if (program->graph->value(o.value).name.starts_with("gradients/")) made[op.layer] += o.bytes, now += o.bytes;
        most = std::max(most, now);
      } else if (i.lane == Lane::kDp && op.role == Role::kW) {
        ++messages[op.layer];
        for (const Operand& o : i.inputs) now -= o.bytes;
      }
    }
    for (const auto& [layer, bytes] : made) largest = std::max(largest, bytes);
    EXPECT_EQ(now, 0);
    EXPECT_EQ(most, largest);
    EXPECT_EQ(messages, (std::map<int, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
  }
}

/// A hop travels while a block is computed: no kernel between its issue and the first reader of its result waits for
/// it.
TEST(Program, HopsOfARingTravelUnderBlocks) {
  for (int cp : {2, 4}) {
    const Compilation c =
        Compile(SmallDeck({fmt::format("parallel.cp={}", cp), "batch.global=2"}), cp, Purpose::kTrain);
    const Program program = MakeProgram(c, {});
    int issued = 0, covered = 0;  // on lane cp; hops under a block
    for (size_t p = 0; p < program.instructions.size(); ++p) {
      const Instruction& shift = program.instructions[p];
      if (shift.lane == Lane::kCp) ++issued;
      if (c.graph->ops[static_cast<size_t>(shift.op)].kind != OpKind::kRingShift) continue;
      const auto reads = [&](const Instruction& i) {
        return i.microbatch == shift.microbatch &&
               std::any_of(i.inputs.begin(), i.inputs.end(),
                           [&](const Operand& input) { return input.value == shift.outputs[0].value; });
      };
      bool block = false;
      for (size_t i = p + 1; i < program.instructions.size(); ++i) {
        const Instruction& kernel = program.instructions[i];
        if (kernel.lane != Lane::kCompute) continue;
        if (reads(kernel)) break;
        for (const Wait& wait : kernel.waits)
          EXPECT_FALSE(wait.lane == Lane::kCp && wait.count >= issued) << "instruction " << i << " waits for hop " << p;
        block = block || Name(c.graph->op(kernel.op).kind).starts_with("attention");
      }
      covered += block;
    }
    // All but the last hop of the gradients: cp - 1 forward, 2 cp - 3 backward.
    EXPECT_EQ(covered, 4 * 2 * (3 * cp - 4));
  }
}

// Nothing but its memory ties a receive to kernels. It is free before the job that runs when the receive is posted.
TEST(Program, ReceivesDoNotWaitForMemoryOfTheJobThatRuns) {
  const Program program =
      WithOverlap({"parallel.pp=2", "pipeline.schedule=interleaved", "pipeline.chunks=2", "batch.global=8"}, 2);
  const auto job_of = [&](size_t kernel) {
    const Instruction instruction = program.instructions[kernel];
    return std::pair(instruction.microbatch, program.graph->op(instruction.op).chunk);
  };
  std::vector<size_t> kernels;  // instructions of the compute lane
  size_t before = 0, receives = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction instruction = program.instructions[i];
    if (instruction.lane == Lane::kCompute) kernels.push_back(i);
    if (instruction.lane != Lane::kPpRecv || instruction.microbatch < 0) continue;
    for (const Wait& wait : instruction.waits) {
      if (wait.lane != Lane::kCompute || wait.count == 0) continue;
      const size_t awaited = kernels[static_cast<size_t>(wait.count) - 1];
      EXPECT_TRUE(awaited < before || job_of(awaited) != job_of(kernels.back()))
          << Describe(program, static_cast<int>(i)) << " waits for " << Describe(program, static_cast<int>(awaited));
    }
    before = i;
    ++receives;
  }
  EXPECT_GT(receives, 16u);
}

/// The messages of a lane, role and kind: how many run under at least one matmul, and how many there are.
Covered CoveredTransfers(const Program& program, Lane lane, Role role, OpKind kind) {
  Covered covered;
  for (const Window& w : Windows(program, lane)) {
    if (w.collective->role != role || w.collective->kind != kind) continue;
    ++covered.all;
    if (w.products[0] + w.products[1] > 0 && !w.waits) ++covered.covered;
  }
  return covered;
}

TEST(Program, ContextTransfersRunUnderTheMatmulsBeforeAttention) {
  struct Row {
    const char* way;
    OpKind kind;
    Role role;
    int covered;  // number in a layer and microbatch
  };
  // In forward nothing covers the last of the three all-to-alls before attention, and the one after it; in backward the
  // first of the three after attention.
  const Row rows[] = {{"all_gather", OpKind::kAllGather, Role::kF, 1},
                      {"all_gather", OpKind::kAllGather, Role::kB, 1},
                      {"all_gather", OpKind::kReduceScatter, Role::kB, 1},
                      {"all_to_all", OpKind::kAllToAll, Role::kF, 2},
                      {"all_to_all", OpKind::kAllToAll, Role::kB, 2}};
  for (const char* recompute : {"none", "selective", "full"})
    for (const Row& row : rows)
      for (bool on : {true, false}) {
        // Sizes at which a message takes about as long as a matmul, with an odd number of sequences.
        const Program program = WithOverlap(
            {"parallel.cp=4", fmt::format("parallel.context={}", row.way), fmt::format("overlap.context={}", on),
             fmt::format("recompute.mode={}", recompute), "model.dim=4096", "model.heads=32", "model.kv_heads=8",
             "model.ffn_dim=14336", "model.seq_len=8192", "precision.compute=bf16", "batch.global=3"},
            4);
        const Covered transfers = CoveredTransfers(program, Lane::kCp, row.role, row.kind);
        const std::string what = fmt::format("{} {} {} {}", row.way, Name(row.kind), Name(row.role), recompute);
        EXPECT_GT(transfers.all, 0) << what;
        if (on) EXPECT_GE(transfers.covered, 3 * 4 * row.covered) << what << " of " << transfers.all;
        if (!on && row.role == Role::kF) EXPECT_EQ(transfers.covered, 0) << what;
      }
}

// The shared network covers the sums of forward in the order of the model already. In backward its gradients, and those
// of weights, cover the gather of the gradients of tokens.
TEST(Program, ExpertTransfersRunUnderMatmulsThatDoNotNeedThem) {
  for (const char* recompute : {"none", "selective"})
    for (bool on : {true, false}) {
      const Program program = WithOverlap(
          {"parallel.dp_shard=4", "parallel.ep=4", "experts.count=8", "experts.per_token=2", "experts.ffn_dim=1024",
           "experts.shared_ffn_dim=8192", fmt::format("overlap.experts={}", on),
           fmt::format("recompute.mode={}", recompute), "model.dim=4096", "model.heads=32", "model.kv_heads=8",
           "model.ffn_dim=14336", "model.seq_len=4096", "precision.compute=bf16", "batch.global=4"},
          4);
      const Covered sums = CoveredTransfers(program, Lane::kEp, Role::kF, OpKind::kReduceScatter),
                    gathers = CoveredTransfers(program, Lane::kEp, Role::kB, OpKind::kAllGather);
      EXPECT_EQ(sums.covered, 4) << recompute;
      EXPECT_GE(gathers.all, 4) << recompute;
      if (on) EXPECT_GE(gathers.covered, 4) << recompute << " of " << gathers.all;
      if (!on) EXPECT_EQ(gathers.covered, 0) << recompute << " of " << gathers.all;
    }
}

}  // namespace
}  // namespace espalier
