// When gradients are reduced, and how much of them is unsharded: parallel.zero, parallel.reduce and overlap.gradients.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "espalier/program/compile.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

std::vector<std::string> With(std::vector<std::string> overrides, const std::vector<std::string>& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

Program ProgramOf(const std::vector<std::string>& overrides, int ranks, int stage = 0) {
  return MakeProgram(Compile(SmallDeck(overrides), ranks, Purpose::kTrain), {stage, 0, 0, 0, 0});
}

const Op& OpOf(const Program& program, size_t i) { return program.graph->op(program.instructions[i].op); }

/// A message of role S that reduces gradients, not scalars.
bool ReducesGradients(const Program& program, size_t i) {
  const Op& op = OpOf(program, i);
  return op.role == Role::kS && IsCollective(op.kind) && !program.graph->value(op.outputs[0]).type.shape.empty();
}

/// The last instruction of a microbatch's backward on the compute lane.
size_t EndOfBackward(const Program& program) {
  size_t end = 0;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].microbatch >= 0 && program.instructions[i].lane == Lane::kCompute) end = i;
  return end;
}

struct Reduction {
  size_t instruction;
  int chunk, layer;
};

std::vector<Reduction> Reductions(const Program& program) {
  std::vector<Reduction> found;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (ReducesGradients(program, i)) found.push_back({i, OpOf(program, i).chunk, OpOf(program, i).layer});
  return found;
}

/// Every reduction follows the last microbatch's last addition to its gradients; within a chunk the last layer comes
/// first.
void ExpectInOrder(const Program& program, const std::vector<Reduction>& reductions) {
  std::map<int, size_t> written;  // by accumulator
  std::map<int, int> layer_of_chunk;
  for (size_t i = 0; i < program.instructions.size(); ++i)
    for (const Operand& o : program.instructions[i].outputs)
      if (program.graph->value(o.value).kind == ValueKind::kAccumulator) written[o.value] = i;
  for (const Reduction& r : reductions) {
    for (const Operand& o : program.instructions[r.instruction].inputs)
      if (const auto it = written.find(o.value); it != written.end()) EXPECT_LT(it->second, r.instruction);
    const auto [it, first] = layer_of_chunk.try_emplace(r.chunk, r.layer);
    EXPECT_TRUE(first || r.layer <= it->second) << "layer " << r.layer << " after " << it->second;
    it->second = r.layer;
  }
}

TEST(Gradients, AreReducedWhileBackwardGoesOn) {
  for (const PipelineCase& pipeline : kPipelines)
    for (int stages : {1, 2, 4})
      for (const char* dp : {"dp_shard", "dp_replicate"})
        for (bool early : {true, false}) {
          if (stages == 1 && pipeline.chunks != 1) continue;
          const auto overrides = PipelineDeck(
              pipeline, stages, 16,
              {fmt::format("parallel.{}=2", dp), "parallel.zero=1", fmt::format("overlap.gradients={}", early)});
          const Compilation c = Compile(SmallDeck(With(overrides, {"model.layers=12"})), 2 * stages, Purpose::kTrain);
          SCOPED_TRACE(fmt::format("{} {} stages {} {}", pipeline.schedule, stages, dp, early));
          for (int stage = 0; stage < stages; ++stage) {
            const Program program = MakeProgram(c, {stage, 0, 0, 0, 0});
            const std::vector<Reduction> reductions = Reductions(program);
            const size_t end = EndOfBackward(program);
            std::set<std::pair<int, int>> layers, exposed;  // (chunk, layer)
            for (const Reduction& r : reductions) {
              layers.emplace(r.chunk, r.layer);
              if (r.instruction > end) exposed.emplace(r.chunk, r.layer);
            }
            if (early) {
              EXPECT_LE(exposed.size(), 1u) << "only the last layer's come after backward";
              EXPECT_GT(layers.size(), 1u);
              ExpectInOrder(program, reductions);
            } else {
              EXPECT_EQ(exposed.size(), layers.size());
            }
          }
        }
}

TEST(Gradients, KernelsOfBackwardDoNotWaitForTheirReduction) {
  for (const char* dp : {"dp_shard", "dp_replicate"})
    for (int tp : {1, 2}) {
      const Program program = ProgramOf({fmt::format("parallel.{}=2", dp), fmt::format("parallel.tp={}", tp),
                                         "parallel.zero=1", "model.layers=8", "model.dim=64", "run.device=cuda"},
                                        2 * tp);
      ByLane<int> issued{};
      std::map<Lane, int> first;  // reduction by lane
      const size_t end = EndOfBackward(program);
      for (size_t i = 0; i <= end; ++i) {
        const Instruction& instruction = program.instructions[i];
        ++issued[instruction.lane];
        if (ReducesGradients(program, i)) first.try_emplace(instruction.lane, issued[instruction.lane]);
        if (instruction.lane == Lane::kCompute)
          for (const Wait& wait : instruction.waits)
            EXPECT_TRUE(wait.lane == Lane::kTp || first.count(wait.lane) == 0 || wait.count < first.at(wait.lane))
                << Describe(program, static_cast<int>(i)) << ", " << dp << ", tp " << tp;
        if (instruction.lane == Lane::kTp)
          for (const Wait& wait : instruction.waits)
            EXPECT_TRUE(first.count(wait.lane) == 0 || wait.count < first.at(wait.lane))
                << Describe(program, static_cast<int>(i)) << ": activations wait for gradients";
      }
    }
}

/// Kernels of S come before it: squares of gradients.
bool MadeKernelsOfS(const Program& program, size_t end) {
  for (size_t i = 0; i < end; ++i)
    if (OpOf(program, i).kind == OpKind::kSumSquares) return true;
  return false;
}

TEST(Gradients, LastSumsOfAMicrobatchAreAddedInTheNextJob) {
  for (bool early : {true, false}) {
    const Program program = ProgramOf(
        {"parallel.dp_shard=2", "parallel.zero=2", "model.layers=6", fmt::format("overlap.gradients={}", early)}, 2);
    std::map<int, int>
        late;  // by microbatch: additions after the first op of another microbatch, or after the last job
    int newest = 0;
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& instruction = program.instructions[i];
      newest = std::max(newest, instruction.microbatch);
      if (OpOf(program, i).kind != OpKind::kAccumulate) continue;
      if (instruction.microbatch < newest || MadeKernelsOfS(program, i)) ++late[instruction.microbatch];
    }
    // The embedding has one gradient, a layer nine.
    for (int m = 0; m < 4; ++m) EXPECT_EQ(late[m], early ? 10 : 0) << "microbatch " << m;
  }
}

TEST(Gradients, EachLevelOfZeroIsAProgramOfItsOwn) {
  for (const char* pipeline : {"1f1b", "zb-h1", "interleaved", "zbv", "dualpipev"})
    for (int stages : {1, 2})
      for (int cp : {1, 2}) {
        const bool chunks = std::string_view(pipeline) != "1f1b" && std::string_view(pipeline) != "zb-h1";
        std::set<std::string> programs;
        for (int zero : {1, 2, 3})
          programs.insert(
              Print(ProgramOf(PipelineDeck({pipeline, chunks ? 2 : 1}, stages, 8,
                                           {fmt::format("parallel.zero={}", zero), fmt::format("parallel.cp={}", cp),
                                            fmt::format("parallel.dp_shard={}", 3 - cp)}),
                              2 * stages)));
        EXPECT_EQ(programs.size(), 3u) << pipeline << ", " << stages << " stages, cp " << cp;
      }
}

int64_t BytesOfGradients(const Program& program) {
  int64_t bytes = 0;
  for (const PersistentBuffer& b : program.persistent)
    if (b.memory_class == MemoryClass::kGradients) bytes += b.place.bytes;
  return bytes - 8;  // loss and count
}

int64_t BytesOfMasters(const Program& program) {
  int64_t bytes = 0;
  for (const PersistentBuffer& b : program.persistent) {
    const Value& v = program.graph->value(b.value);
    if (v.kind == ValueKind::kState && v.name.starts_with("parameters/")) bytes += b.place.bytes;
  }
  return bytes;
}

TEST(Gradients, AreWholeOrShardsAsZeroSays) {
  for (const char* batch : {"batch.global=8", "batch.global=4"})
    for (int zero : {1, 2, 3}) {
      const Program program = ProgramOf({"parallel.dp_shard=4", fmt::format("parallel.zero={}", zero), batch}, 4);
      EXPECT_EQ(BytesOfGradients(program), BytesOfMasters(program) * (zero == 1 ? 4 : 1)) << batch << ", zero " << zero;
    }
  const Program kept = ProgramOf({"parallel.dp_shard=4", "parallel.reduce=step"}, 4);
  EXPECT_EQ(BytesOfGradients(kept), 4 * BytesOfMasters(kept)) << "zero 3 that shards parameters only";
}

TEST(Gradients, OfOneMicrobatchAreNotAdded) {
  for (const char* dp : {"dp_shard", "dp_replicate"})
    for (const char* reduce : {"auto", "microbatch"}) {
      const Program program =
          ProgramOf({fmt::format("parallel.{}=2", dp), fmt::format("parallel.reduce={}", reduce), "batch.global=2"}, 2);
      for (size_t i = 0; i < program.instructions.size(); ++i) {
        EXPECT_NE(OpOf(program, i).kind, OpKind::kAccumulate) << dp << " " << reduce;
        EXPECT_FALSE(program.instructions[i].accumulate);
      }
    }
}

}  // namespace
}  // namespace espalier
