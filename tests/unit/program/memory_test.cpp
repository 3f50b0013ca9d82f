// Memory: peaks, states and activations against closed forms.
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <span>

#include "espalier/graph/columns.hpp"
#include "espalier/program/compile.hpp"
#include "program_testing.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

/// By space: the end of the highest byte that the program touches.
BySpace<int64_t> HighestBytes(const Program& program) {
  BySpace<int64_t> top{};
  const auto note = [&](const Operand& o) {
    int64_t& highest = top[program.SpaceOf(o)];
    highest = std::max(highest, (o.offset + o.bytes + kAlignment - 1) / kAlignment * kAlignment);
  };
  for (const PersistentBuffer& b : program.persistent) note(b.place);
  for (const Instruction& i : program.instructions) {
    for (const Operand& o : i.inputs) note(o);
    for (const Operand& o : i.outputs) note(o);
    note(i.workspace);
  }
  return top;
}

int64_t Sum(const ByMemoryClass<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

TEST(Program, PeakIsTheHighestByteTouched) {
  for (const Case& layout : AllCases()) {
    const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    for (const Program& program : AllPrograms(c)) {
      EXPECT_EQ(HighestBytes(program)[Space::kDevice], program.arena_bytes) << testing::PrintToString(layout);
      EXPECT_EQ(program.host_bytes, 0);
      const int64_t live = Sum(program.peak_by_class);
      EXPECT_LE(live, program.arena_bytes);
      EXPECT_GT(live, program.arena_bytes * 7 / 10)
          << testing::PrintToString(layout) << ": holes take more than they should";
    }
  }
}

TEST(Program, PeaksOfBothArenasAreTheHighestBytesTouched) {
  for (Case layout : AllCases())
    for (const char* share :
         {"offload.optimizer=0.5", "offload.optimizer=all", "offload.parameters=all", "offload.gradients=all"}) {
      layout.overrides.insert(layout.overrides.end(), {share, "offload.chunk_bytes=2000"});
      const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
      for (const Program& program : AllPrograms(c)) {
        const BySpace<int64_t> top = HighestBytes(program);
        EXPECT_EQ(top[Space::kDevice], program.arena_bytes) << testing::PrintToString(layout);
        EXPECT_EQ(top[Space::kHost], program.host_bytes) << testing::PrintToString(layout);
        EXPECT_EQ(Sum(program.host_by_class), program.host_bytes) << "states alone are there";
        EXPECT_GT(program.host_bytes, 0);
      }
    }
}

/// Expects that the operands are adjacent in memory, in order, from the one with index `first` on.
void ExpectNeighbours(const OperandList& operands, size_t first = 0) {
  for (size_t i = first + 1; i < operands.size(); ++i)
    EXPECT_EQ(operands[i].offset, operands[i - 1].offset + operands[i - 1].bytes);
}

TEST(Program, WeightsOfAJoinedMatmulAreNeighbours) {
  for (Case layout : AllCases()) {
    layout.overrides.emplace_back("fusion.join_matmuls=always");
    const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    for (const Program& program : AllPrograms(c)) {
      std::map<std::string, int> joined;  // by spec
      for (const Instruction& i : program.instructions) {
        const Op& op = c.graph->op(i.op);
        if (op.kind != OpKind::kMatmul || !op.attributes.texts.contains(kColumns)) continue;
        ++joined[op.attributes.Text("spec")];
        if (i.outputs.size() > 1)
          ExpectNeighbours(i.outputs);
        else
          ExpectNeighbours(i.inputs, 1);
      }
      const bool has_gates = SmallDeck(layout.overrides).model.family == Family::kLlama;
      for (const char* spec : {"bsk,nk->bsn", "bsn,nk->bsk", "bsn,bsk->nk"})
        EXPECT_EQ(joined[spec] > 0, has_gates) << spec << ": " << testing::PrintToString(layout);
    }
  }
}

TEST(Program, JoinedMatmulsLeaveStatesWhereTheyAre) {
  const auto states = [](const char* choice, Purpose purpose) {
    const Compilation c =
        Compile(SmallDeck({std::string("fusion.join_matmuls=") + choice, "precision.compute=fp32"}), 1, purpose);
    const Program program = MakeProgram(c, {});
    std::map<std::string, int64_t> offsets;
    for (const PersistentBuffer& b : program.persistent)
      if (c.graph->value(b.value).kind == ValueKind::kState) offsets[c.graph->value(b.value).name] = b.place.offset;
    return offsets;
  };
  EXPECT_EQ(states("always", Purpose::kTrain), states("never", Purpose::kTrain));
  EXPECT_EQ(states("always", Purpose::kEvaluate), states("never", Purpose::kEvaluate));
}

/// Bytes of a class that are live during the whole step.
int64_t PersistentBytes(const Program& program, MemoryClass memory_class) {
  int64_t bytes = 0;
  for (const PersistentBuffer& buffer : program.persistent)
    if (buffer.memory_class == memory_class) bytes += Aligned(buffer.place.bytes);
  return bytes;
}

TEST(Program, TheCourseOfMemoryHasThePeak) {
  for (const Case& layout : AllCases()) {
    const Compilation c = Compile(SmallDeck(layout.overrides), layout.ranks, Purpose::kTrain);
    const ProgramMaker maker(c);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      MemoryTimeline course;
      const Program program = maker.Make(c.mesh.CoordinateOf(rank), {}, &course);
      EXPECT_EQ(Print(program), Print(maker.Make(c.mesh.CoordinateOf(rank)))) << "looking changes nothing";
      ASSERT_EQ(course.allocated.size(), program.instructions.size());
      ASSERT_GE(course.peak, 0);
      EXPECT_EQ(course.allocated[static_cast<size_t>(course.peak)], program.peak_by_class);
      for (size_t i = 0; i < course.allocated.size(); ++i) {
        const ByMemoryClass<int64_t>& bytes = course.allocated[i];
        EXPECT_LE(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}), program.arena_bytes);
        for (const MemoryClass k : {MemoryClass::kParameters, MemoryClass::kGradients, MemoryClass::kOptimizer})
          EXPECT_GE(bytes[k], PersistentBytes(program, k));
        const Operand& workspace = program.instructions[i].workspace;
        EXPECT_GE(bytes[MemoryClass::kCommunication] + bytes[MemoryClass::kWorkspace], workspace.bytes);
      }
    }
  }
}

TEST(Program, StateTakesTheBytesOfTheClosedForm) {
  // Per parameter and rank: fp32 master, moments and accumulators, and bf16 copy, over tp and dp_shard.
  for (const char* compute : {"fp32", "bf16"}) {
    const Compilation c =
        Compile(SmallDeck({"parallel.dp_shard=2", "parallel.tp=2", std::string("precision.compute=") + compute}), 4,
                Purpose::kTrain);
    const Program program = MakeProgram(c, {});
    std::array<int64_t, kMemoryClassCount> bytes{};
    for (const PersistentBuffer& b : program.persistent) bytes[static_cast<size_t>(b.memory_class)] += b.place.bytes;
    int64_t matrices = 0, vectors = 0;
    for (const Value& v : c.graph->values)
      if (v.kind == ValueKind::kState && v.name.starts_with("parameters/"))
        (v.type.shape.size() > 1 ? matrices : vectors) += Volume(v.type.shape);
    const int64_t weight = c.deck.precision.compute == Dtype::kBf16 ? 4 + 2 : 4;
    EXPECT_EQ(bytes[static_cast<size_t>(MemoryClass::kParameters)], weight * (matrices / 4 + vectors / 2)) << compute;
    EXPECT_EQ(bytes[static_cast<size_t>(MemoryClass::kOptimizer)], 8 * (matrices / 4 + vectors / 2)) << compute;
    EXPECT_EQ(bytes[static_cast<size_t>(MemoryClass::kGradients)], 4 * (matrices / 4 + vectors / 2) + 8)
        << compute << ": with loss and count";
  }
}

/// Activation bytes at the peak of one microbatch of one sequence.
int64_t ActivationBytes(const std::string& mode, int layers, int tp) {
  const Compilation c =
      Compile(SmallDeck({"recompute.mode=" + mode, fmt::format("model.layers={}", layers),
                         fmt::format("parallel.tp={}", tp), "batch.global=1", "model.dim=64", "model.ffn_dim=192",
                         "model.heads=8", "model.kv_heads=2", "model.seq_len=64", "precision.compute=bf16"}),
              tp, Purpose::kTrain);
  return MakeProgram(c, {}).peak_by_class[static_cast<size_t>(MemoryClass::kActivations)];
}

TEST(Program, ALayerKeepsTheBytesOfTheClosedForm) {
  // Korthikanti et al. 2022, for this layer in bf16 with fp32 statistics, per token and over tp: the stream before and
  // between its halves, the inputs and outputs of attention and the feed-forward network, the log of the softmax
  // denominators; recomputed: norms with their statistics, q, k and v, swiglu (selective); all but the input (full).
  constexpr int64_t kTokens = 64, h = 64, g = 16, f = 192, a = 8;
  for (int tp : {1, 2}) {
    const auto kept = [&](const char* mode) {
      return (ActivationBytes(mode, 5, tp) - ActivationBytes(mode, 2, tp)) / 3;
    };
    EXPECT_EQ(kept("none"), kTokens * (12 * h + 4 * g + 6 * f + 4 * a + 8) / tp) << tp;
    EXPECT_EQ(kept("selective"), kTokens * (6 * h + 4 * f + 4 * a) / tp) << tp;
    EXPECT_EQ(kept("full"), kTokens * 2 * h / tp) << tp;
    EXPECT_LT(ActivationBytes("selective", 5, tp), ActivationBytes("none", 5, tp));
    EXPECT_LT(ActivationBytes("full", 5, tp), ActivationBytes("selective", 5, tp));
  }
}

TEST(Program, EvaluationKeepsStatesWhereTrainingHasThem) {
  const Deck deck = SmallDeck(DegreesOf("212"));
  const Coordinate coordinate = {1, 0, 0, 0, 1};
  const Program training = MakeProgram(Compile(deck, 4, Purpose::kTrain), coordinate);
  const Program evaluation = MakeProgram(Compile(deck, 4, Purpose::kEvaluate), coordinate, StateBytes(training));
  for (const PersistentBuffer& b : evaluation.persistent) {
    const Value& v = evaluation.graph->values[static_cast<size_t>(b.value)];
    if (v.kind == ValueKind::kState)
      EXPECT_EQ(b.place.offset, training.Find(v.name).offset) << v.name;
    else
      EXPECT_GE(b.place.offset, StateBytes(training)[Space::kDevice]) << v.name;
  }
}

// Training, evaluation, proof and the program that makes them share the copies of master weights.
TEST(Program, CopiesOfWeightsHaveOnePlace) {
  for (const char* optimizer : {"adamw", "muon"})
    for (const char* zero : {"1", "3"}) {
      std::vector<std::string> overrides = DegreesOf("222");
      overrides.insert(overrides.end(),
                       {"precision.compute=bf16", "model.tie_embeddings=true", std::string("parallel.zero=") + zero,
                        std::string("optimizer.name=") + optimizer});
      const Deck deck = SmallDeck(overrides);
      for (const Coordinate& coordinate : {Coordinate{0, 0, 0, 0, 1}, Coordinate{1, 0, 1, 0, 0}}) {
        const Program training = MakeProgram(Compile(deck, 8, Purpose::kTrain), coordinate);
        std::map<std::string, int64_t> copies, parameters;  // bytes
        for (const PersistentBuffer& b : training.persistent) {
          const Value& v = training.graph->value(b.value);
          if (v.kind == ValueKind::kCache) copies[v.name] = b.place.bytes;
          if (v.name.starts_with("parameters/")) parameters[v.name.substr(11)] = b.place.bytes / 2;
        }
        EXPECT_EQ(copies, parameters);
        for (const Instruction& i : training.instructions) {
          const Op& op = training.graph->op(i.op);
          EXPECT_FALSE(op.kind == OpKind::kCast && op.role == Role::kP);
        }
        for (Purpose purpose : {Purpose::kEvaluate, Purpose::kProof, Purpose::kCopies}) {
          const Program other = MakeProgram(Compile(deck, 8, purpose), coordinate, StateBytes(training));
          size_t shared = 0;
          for (const PersistentBuffer& b : other.persistent) {
            const Value& v = other.graph->value(b.value);
            if (!IsKept(v.kind)) continue;
            EXPECT_EQ(b.place.offset, training.Find(v.name).offset) << v.name;
            ++shared;
          }
          EXPECT_EQ(shared, 2 * copies.size());
          if (purpose == Purpose::kCopies) EXPECT_EQ(other.instructions.size(), copies.size());
          EXPECT_LE(other.arena_bytes, training.arena_bytes);
        }
      }
    }
}

/// Bytes that one more layer adds at the peak, for gradients and messages.
int64_t GradientBytesOfALayer(int64_t microbatches, const std::string& more) {
  const auto bytes = [&](int layers) {
    const Compilation c =
        Compile(SmallDeck({"parallel.dp_shard=4", "parallel.zero=3", "parallel.reduce=microbatch", more, "model.dim=96",
                           "model.seq_len=8", fmt::format("model.layers={}", layers), "batch.micro=1",
                           fmt::format("batch.global={}", 4 * microbatches)}),
                4, Purpose::kTrain);
    const Program program = MakeProgram(c, {});
    return program.peak_by_class[static_cast<size_t>(MemoryClass::kGradients)] +
           program.peak_by_class[static_cast<size_t>(MemoryClass::kCommunication)];
  };
  return (bytes(9) - bytes(5)) / 4;
}

TEST(Program, WholeGradientsDoNotPileUpWithOneMicrobatch) {
  for (const char* more : {"overlap.gradients=true", "parallel.reduce_dtype=bf16"})
    EXPECT_LE(GradientBytesOfALayer(1, more), GradientBytesOfALayer(2, more)) << more;
}

TEST(Program, ASchedulePutsWOffAtLittleMemory) {
  // zb-h1 holds p microbatches on every stage, zbv two halves of p on every stage: as much as 1f1b holds on its first
  // stage. The gradients that W needs replace the values that B needed, as long as W gathers again.
  const auto activations = [](const PipelineCase& pipeline) {
    std::vector<std::string> overrides =
        PipelineDeck(pipeline, 4, 12, {"parallel.tp=2", "model.vocab=256", "precision.compute=bf16"});
    overrides.push_back("model.layers=24");
    const Compilation c = Compile(SmallDeck(overrides), 8, Purpose::kTrain);
    int64_t most = 0;
    for (const Program& program : AllPrograms(c))
      most = std::max(most, program.peak_by_class[static_cast<size_t>(MemoryClass::kActivations)]);
    return static_cast<double>(most);
  };
  const double one_f_one_b = activations({"1f1b", 1});
  EXPECT_LT(activations({"zbv", 2}), 1.3 * one_f_one_b);
  EXPECT_LT(activations({"zb-h1", 1}), 1.5 * one_f_one_b)
      << "the last stage keeps the logits' adjoints of p - 1 microbatches";
}

TEST(Program, EvaluationWithChunksKeepsStatesWhereTrainingHasThem) {
  for (const PipelineCase& pipeline : kPipelines) {
    const Deck deck = SmallDeck(PipelineDeck(pipeline, 2, 8));
    for (int stage : {0, 1}) {
      const Program training = MakeProgram(Compile(deck, 2, Purpose::kTrain), {stage, 0, 0, 0, 0});
      const Program evaluation =
          MakeProgram(Compile(deck, 2, Purpose::kEvaluate), {stage, 0, 0, 0, 0}, StateBytes(training));
      for (const PersistentBuffer& b : evaluation.persistent) {
        const Value& v = evaluation.graph->values[static_cast<size_t>(b.value)];
        if (v.kind != ValueKind::kState) continue;
        EXPECT_EQ(b.place.offset, training.Find(v.name).offset) << pipeline.schedule << " " << v.name;
      }
    }
  }
}

}  // namespace
}  // namespace espalier
