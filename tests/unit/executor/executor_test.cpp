#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "espalier/executor/cpu_executor.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- a handwritten program: one line per value, one line per instruction
// -------------------------------------------------------------

/// Places every value at the next free offset; all of them are persistent, so that the test can look at them.
class Builder {
 public:
  explicit Builder(Mesh mesh = Mesh(), Coordinate coordinate = {}) : coordinate_(coordinate) {
    program_.mesh = mesh;
    program_.stage_of_chunk = {0};
  }

  int Add(const std::string& name, const std::string& type, ValueKind kind = ValueKind::kActivation,
          int microbatch = -1) {
    const int known = graph_.FindOrNone(name);
    const int id =
        known >= 0 ? known : graph_.AddValue({name, ParseType(type), kind, Frequency::kStep, kAllChunks, -1, ""});
    const Type& t = graph_.values[static_cast<size_t>(id)].type;
    const int64_t bytes = Volume(LocalShape(t, program_.mesh, coordinate_)) * SizeOf(t.dtype);
    program_.persistent.push_back({id, microbatch, {id, end_, bytes}, MemoryClass::kActivations});
    end_ += (bytes + 63) / 64 * 64;
    return id;
  }

  /// An instruction with its lists.
  struct Made {
    int op, microbatch;
    Lane lane;
    std::vector<Operand> inputs, outputs;
    std::vector<Wait> waits;
    bool accumulate = false;
    Operand workspace = {};
  };
  /// The instruction may be changed until the next one.
  Made& Run(const std::string& kind, std::vector<int> inputs, std::vector<int> outputs, int microbatch = -1,
            Lane lane = Lane::kCompute, std::vector<Wait> waits = {}) {
    Op op{OpKindOf(kind), inputs, outputs, {}, Role::kF, 3, 0};
    op.attributes.numbers["axes"] = AxisSet{Axis::kTp}.bits();
    Made& made = made_.emplace_back(Made{graph_.AddOp(op), microbatch, lane, {}, {}, std::move(waits)});
    for (int v : inputs) made.inputs.push_back(Place(v, microbatch));
    for (int v : outputs) made.outputs.push_back(Place(v, microbatch));
    return made;
  }

  Operand Workspace(int64_t bytes) {
    const Operand place{-1, end_, bytes};
    end_ += (bytes + 63) / 64 * 64;
    return place;
  }

  Program Take() {
    for (const Made& made : made_)
      program_.instructions.Add({.op = made.op,
                                 .microbatch = made.microbatch,
                                 .lane = made.lane,
                                 .accumulate = made.accumulate,
                                 .inputs = made.inputs,
                                 .outputs = made.outputs,
                                 .workspace = made.workspace,
                                 .waits = made.waits});
    made_.clear();
    program_.graph = std::make_shared<const Graph>(graph_);
    program_.arena_bytes = end_;
    return program_;
  }

 private:
  Operand Place(int value, int microbatch) const {
    for (const PersistentBuffer& b : program_.persistent)
      if (b.value == value && (b.microbatch == microbatch || b.microbatch == -1)) return b.place;
    return {};
  }

  Coordinate coordinate_;
  Graph graph_;
  Program program_;
  std::vector<Made> made_;
  int64_t end_ = 0;
};

// ---- fake kernels
// ---------------------------------------------------------------------------------------------------------------

void Double(const KernelCall& call) {
  for (int64_t i = 0; i < Volume(call.outputs[0].shape); ++i) {
    float& to = call.outputs[0].As<float>()[i];
    to = (call.accumulate ? to : 0) + 2 * call.inputs[0].As<float>()[i];
  }
}
/// Writes the position of each element in the whole tensor: row * 100 + column.
void WriteIndices(const KernelCall& call) {
  const Tensor& out = call.outputs[0];
  for (int64_t r = 0; r < out.shape[0]; ++r)
    for (int64_t c = 0; c < out.shape[1]; ++c)
      out.As<float>()[r * out.shape[1] + c] = static_cast<float>((out.start[0] + r) * 100 + out.start[1] + c);
}
void UseWorkspace(const KernelCall& call) {
  auto* scratch = static_cast<float*>(call.workspace);
  for (int64_t i = 0; i < call.workspace_bytes / 4; ++i) scratch[i] = 7;
  call.outputs[0].As<float>()[0] = scratch[0] + static_cast<float>(call.attributes->Number("axes"));
}
void Break(const KernelCall& call) { CHECK(call.inputs.empty(), "input is broken"); }
void Nothing(const KernelCall&) {}

/// The ops of these programs run kernels of this test, under names of the op table.
Kernel FindFake(std::string_view op) {
  if (op == "gelu") return Double;
  if (op == "rope_table") return WriteIndices;
  if (op == "clip") return UseWorkspace;
  if (op == "cast") return Break;
  if (op == "add") return Nothing;
  return nullptr;
}

// ---- fake communication
// -----------------------------------------------------------------------------------------------------------

struct FakePrepared : PreparedComm {
  std::vector<CommInstruction> instructions;
};

/// "Communicates" by slowly adding 100, in a thread per lane.
class FakeCommunication : public Communication {
 public:
  std::string fail_with;
  std::vector<std::string> labels;

  ~FakeCommunication() override { Join(); }

  std::unique_ptr<PreparedComm> Prepare(const Program&, const Coordinate&,
                                        std::vector<CommInstruction> instructions) override {
    auto prepared = std::make_unique<FakePrepared>();
    prepared->instructions = std::move(instructions);
    for (const CommInstruction& i : prepared->instructions) labels.push_back(i.label);
    return prepared;
  }
  void Start(PreparedComm& prepared, LaneCounts& lanes) override {
    auto& fake = dynamic_cast<FakePrepared&>(prepared);
    for (Lane lane : {Lane::kTp, Lane::kDp})
      threads_.emplace_back([this, &fake, &lanes, lane] { RunLane(fake, lanes, lane); });
  }
  void Finish() override {
    Join();
    if (!fail_with.empty()) throw std::runtime_error(fail_with);
  }

 private:
  void RunLane(FakePrepared& prepared, LaneCounts& lanes, Lane lane) {
    try {
      for (const CommInstruction& i : prepared.instructions) {
        if (i.instruction.lane != lane) continue;
        for (const Wait& wait : i.instruction.waits) lanes.Await(wait);
        if (i.before) i.before();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        CHECK(fail_with.empty(), "as told");
        for (int64_t e = 0; e < Volume(i.inputs[0].shape); ++e)
          i.outputs[0].As<float>()[e] = i.inputs[0].As<float>()[e] + 100;
        if (i.after) i.after();
        lanes.Raise(lane);
      }
    } catch (const std::exception&) {
      lanes.Fail();
    }
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  std::vector<std::thread> threads_;
};

std::vector<float> Floats(const Tensor& t) { return {t.As<float>(), t.As<float>() + Volume(t.shape)}; }

std::string MessageOf(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no exception";
}

// ---- the arena
// -----------------------------------------------------------------------------------------------------------------

TEST(Arena, IsZeroedAndAligned) {
  HostArena arena(3'000'001);
  EXPECT_EQ(arena.bytes(), 3'000'001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.At(0, 1)) % 64, 0u);
  for (int64_t at : {0, 4095, 4096, 3'000'000}) EXPECT_EQ(*arena.At(at, 1), std::byte{0});
  EXPECT_EQ(arena.HighWater(), 0);
}

TEST(Arena, RefusesWhatIsOutside) {
  HostArena arena(100);
  EXPECT_NO_THROW(arena.At(100, 0));
  EXPECT_THROW(arena.At(97, 4), InvariantError);
  EXPECT_THROW(arena.At(-1, 1), InvariantError);
}

TEST(Arena, HighWaterIsInWholeLines) {
  HostArena arena(1000);
  arena.Use(65);
  EXPECT_EQ(arena.HighWater(), 128);
  arena.Use(3);
  EXPECT_EQ(arena.HighWater(), 128);
}

TEST(Arena, TooLargeIsTheUsersError) {
  try {
    HostArena arena(int64_t{1} << 60);
    FAIL() << "an exbibyte was given";
  } catch (const UserError& e) {
    EXPECT_EQ(e.status(), ExitStatus::kDoesNotFit);
    EXPECT_THAT(e.what(), HasSubstr("gives no 1.15e+06 TB of memory"));
  }
}

// ---- lanes
// ---------------------------------------------------------------------------------------------------------------------

TEST(LaneCounts, ACopyWakesTheThreadOfMessages) {
  LaneCounts lanes;
  lanes.Reset();
  EXPECT_FALSE(lanes.AwaitComputeOrCopy(1, lanes.Copies(), std::chrono::milliseconds(1)));
  const int copies = lanes.Copies();
  bool woken = false;
  std::thread messages([&] { woken = lanes.AwaitComputeOrCopy(1, copies, std::chrono::minutes(10)); });
  lanes.Raise(Lane::kCopyIn);
  messages.join();
  EXPECT_TRUE(woken);
  EXPECT_EQ(lanes.Copies(), copies + 1);
  lanes.Raise(Lane::kCompute);
  EXPECT_TRUE(lanes.AwaitComputeOrCopy(1, lanes.Copies(), std::chrono::minutes(10)));
}

TEST(LaneCounts, WaiterSeesWhatTheRaiserWrote) {
  LaneCounts lanes;
  std::vector<int> written;
  for (int step = 0; step < 20; ++step) {
    lanes.Reset();
    int cell = 0;
    std::thread other([&] {
      for (int i = 1; i <= 100; ++i) {
        lanes.Await({Lane::kCompute, i});
        cell += i;
        lanes.Raise(Lane::kTp);
      }
    });
    for (int i = 1; i <= 100; ++i) {
      lanes.Raise(Lane::kCompute);
      lanes.Await({Lane::kTp, i});
      if (i == 100) written.push_back(cell);
    }
    other.join();
  }
  EXPECT_EQ(written, std::vector<int>(20, 5050));
}

TEST(LaneCounts, MetLooksAtEveryWait) {
  LaneCounts lanes;
  lanes.Raise(Lane::kDp);
  lanes.Raise(Lane::kDp);
  const std::vector<Wait> both = {{Lane::kDp, 2}, {Lane::kTp, 1}};
  EXPECT_TRUE(lanes.Met(both[0]));
  EXPECT_FALSE(lanes.Met(both));
  lanes.Raise(Lane::kTp);
  EXPECT_TRUE(lanes.Met(both));
}

TEST(LaneCounts, AwaitForGivesUp) {
  LaneCounts lanes;
  lanes.Raise(Lane::kTp);
  EXPECT_FALSE(lanes.AwaitFor({Lane::kTp, 2}, std::chrono::milliseconds(1)));
  EXPECT_TRUE(lanes.AwaitFor({Lane::kTp, 1}, std::chrono::milliseconds(1)));
}

TEST(LaneCounts, FailureEndsEveryWait) {
  LaneCounts lanes;
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    lanes.Fail();
  });
  EXPECT_THROW(lanes.Await({Lane::kTp, 1}), InvariantError);
  EXPECT_THROW(lanes.AwaitFor({Lane::kDp, 1}, std::chrono::hours(1)), InvariantError);
  other.join();
  lanes.Reset();
  EXPECT_FALSE(lanes.Failed());
}

// ---- programs
// ------------------------------------------------------------------------------------------------------------------

TEST(Executor, RunsInstructionsInOrderOnTheirMicrobatches) {
  Builder b;
  const int x = b.Add("x", "f32[3]", ValueKind::kInput, 0);
  b.Add("x", "f32[3]", ValueKind::kInput, 1);
  const int sum = b.Add("sum", "f32[3]", ValueKind::kAccumulator);
  b.Run("gelu", {x}, {sum}, 0);
  b.Run("gelu", {x}, {sum}, 1).accumulate = true;
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  CpuExecutor executor(program, {}, arena, nullptr, FindFake);
  for (int i = 0; i < 3; ++i) {
    executor.At("x", 0).As<float>()[i] = static_cast<float>(i);
    executor.At("x", 1).As<float>()[i] = 10;
  }
  for (int step = 0; step < 2; ++step) {
    executor.RunStep();
    EXPECT_THAT(Floats(executor.At("sum")), ElementsAre(20, 22, 24)) << "step " << step;
  }
  EXPECT_EQ(executor.CurrentInstruction(), -1);
  EXPECT_EQ(executor.All(ValueKind::kInput).size(), 2u);
  EXPECT_EQ(executor.All(ValueKind::kInput)[1].microbatch, 1);
  EXPECT_EQ(executor.All(ValueKind::kAccumulator)[0].name, "sum");
  EXPECT_THAT(MessageOf([&] { executor.At("x", 2); }), HasSubstr("x"));
}

TEST(Executor, PiecesKnowWhereTheyLie) {
  // 5 rows over 2 give 3 and 2; 7 columns over 3 give 3, 3 and 1.
  const Mesh mesh({1, 1, 2, 1, 3});
  const Coordinate coordinate = {0, 0, 1, 0, 2};
  Builder b(mesh, coordinate);
  b.Run("rope_table", {}, {b.Add("y", "f32[5{dp_shard},7{tp}]", ValueKind::kState)});
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  CpuExecutor executor(program, coordinate, arena, nullptr, FindFake);
  executor.RunStep();
  const Tensor y = executor.At("y");
  EXPECT_THAT(y.shape, ElementsAre(2, 1));
  EXPECT_THAT(y.start, ElementsAre(3, 6));
  EXPECT_THAT(Floats(y), ElementsAre(306, 406));
  EXPECT_EQ(executor.All(ValueKind::kState)[0].type->shape, Shape({5, 7}));
}

TEST(Executor, GivesWorkspaceAndAttributes) {
  Builder b;
  const int y = b.Add("y", "f32[]");
  b.Run("clip", {}, {y}).workspace = b.Workspace(12);
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  CpuExecutor executor(program, {}, arena, nullptr, FindFake);
  executor.RunStep();
  EXPECT_EQ(executor.GetScalar("y"), 7 + AxisSet{Axis::kTp}.bits());
  executor.SetScalar("y", 1.5f);
  EXPECT_EQ(executor.GetScalar("y"), 1.5f);
}

TEST(Executor, HighWaterIsWhatThePlanSays) {
  Builder b;
  const int x = b.Add("x", "f32[33]");
  const int y = b.Add("y", "f32[33]");
  b.Run("gelu", {x}, {y}).workspace = b.Workspace(1000);
  const Program program = b.Take();
  HostArena arena(program.arena_bytes + 4096);
  CpuExecutor executor(program, {}, arena, nullptr, FindFake);
  EXPECT_EQ(arena.HighWater(), 0);
  executor.RunStep();
  EXPECT_EQ(arena.HighWater(), program.arena_bytes);
  EXPECT_EQ(arena.HighWater(), 3 * 64 + 3 * 64 + 1024);
}

/// x -> gelu -> a -(tp)-> b -> gelu -> c -(dp)-> d -> gelu -> e
Program Chain(int links) {
  Builder b(Mesh({1, 1, 2, 1, 2}));
  int last = b.Add("v0", "f32[2]", ValueKind::kInput);
  std::array<int, kLaneCount> counts{};
  for (int i = 1; i <= links; ++i) {
    const Lane lane = i % 2 == 1 ? Lane::kCompute : i % 4 == 2 ? Lane::kTp : Lane::kDp;
    const Lane before = i % 2 == 0 ? Lane::kCompute : i % 4 == 3 ? Lane::kTp : Lane::kDp;
    const int next = b.Add("v" + std::to_string(i), "f32[2]");
    std::vector<Wait> waits;
    if (i > 1) waits.push_back({before, counts[static_cast<size_t>(before)]});
    b.Run(lane == Lane::kCompute ? "gelu" : "all_reduce", {last}, {next}, -1, lane, waits);
    ++counts[static_cast<size_t>(lane)];
    last = next;
  }
  return b.Take();
}

TEST(Executor, WaitsOrderTheLanes) {
  const Program program = Chain(9);
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  CpuExecutor executor(program, {}, arena, &communication, FindFake);
  EXPECT_EQ(communication.labels[0], "instruction 1 (all_reduce, role F, layer 3)");
  for (int step = 0; step < 3; ++step) {
    const auto start = static_cast<float>(step);
    executor.At("v0").As<float>()[0] = start;
    executor.At("v0").As<float>()[1] = -start;
    const StepTimes times = executor.RunStep();
    // ((((2 x + 100) 2 + 100) 2 + 100) 2 + 100) 2 = 32 x + 3000
    EXPECT_THAT(Floats(executor.At("v9")), ElementsAre(32 * start + 3000, -32 * start + 3000));
    EXPECT_GT(times.exposed_comm_ms, 0);
    EXPECT_GE(times.idle_ms, 0);
    EXPECT_GE(times.step_ms, times.exposed_comm_ms + times.compute_ms);
  }
}

TEST(Executor, EveryStepTellsCommunicationByAxis) {
  // compute: a -> tp: b (2 ms) -> compute: c, in parallel with dp: d (2 ms). The compute lane waits for tp only.
  Builder b;
  const int x = b.Add("x", "f32[2]", ValueKind::kInput), a = b.Add("a", "f32[2]"), y = b.Add("y", "f32[2]");
  const int c = b.Add("c", "f32[2]"), d = b.Add("d", "f32[2]");
  b.Run("gelu", {x}, {a});
  b.Run("all_reduce", {x}, {d}, -1, Lane::kDp);
  b.Run("all_reduce", {a}, {y}, -1, Lane::kTp, {{Lane::kCompute, 1}});
  b.Run("gelu", {y}, {c}, -1, Lane::kCompute, {{Lane::kTp, 1}});
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  CpuExecutor executor(program, {}, arena, &communication, FindFake);
  bool exposes = false, hides = false;  // some step, however the system schedules the threads
  for (int step = 0; step < 100 && !(exposes && hides); ++step) {
    const StepTimes times = executor.RunStep();
    ASSERT_TRUE(times.comm);
    exposes |= times.comm->exposed_ms[CommAxis::kTp] >= 1;
    hides |= times.comm->hidden_ms[CommAxis::kDp] > 1;
    EXPECT_EQ(times.comm->exposed_ms[CommAxis::kCp], 0);
    EXPECT_EQ(times.comm->hidden_ms[CommAxis::kPp], 0);
    EXPECT_GE(times.comm->exposed_ms[CommAxis::kDp] + times.comm->hidden_ms[CommAxis::kDp], 2);
    EXPECT_DOUBLE_EQ(times.comm->ExposedMs(), times.exposed_comm_ms);
    EXPECT_NEAR(times.compute_ms + times.exposed_comm_ms + times.idle_ms, times.step_ms, 1e-9);
  }
  EXPECT_TRUE(exposes);
  EXPECT_TRUE(hides);
}

TEST(Executor, WaitsForCommunicationThatNobodyReads) {
  const Program program = Chain(4);  // ends with a communication
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  CpuExecutor executor(program, {}, arena, &communication, FindFake);
  executor.RunStep();
  EXPECT_THAT(Floats(executor.At("v4")), ElementsAre(300, 300));
}

// ---- refusals and failures
// -----------------------------------------------------------------------------------------------------------

TEST(Executor, TimesEveryInstructionOfOneStep) {
  // compute: a -> tp: b (2 ms) -> compute: c, in parallel with dp: d (2 ms).
  Builder b;
  const int x = b.Add("x", "f32[2]", ValueKind::kInput), a = b.Add("a", "f32[2]"), y = b.Add("y", "f32[2]");
  const int c = b.Add("c", "f32[2]"), d = b.Add("d", "f32[2]");
  b.Run("gelu", {x}, {a});
  b.Run("all_reduce", {a}, {y}, -1, Lane::kTp, {{Lane::kCompute, 1}});
  b.Run("all_reduce", {x}, {d}, -1, Lane::kDp);
  b.Run("gelu", {y}, {c}, -1, Lane::kCompute, {{Lane::kTp, 1}});
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  CpuExecutor executor(program, {}, arena, &communication, FindFake);
  executor.RunStep();
  EXPECT_TRUE(executor.spans().empty()) << "no step was timed";
  const double before_us = SteadyMicroseconds();
  executor.TimeNextStep();
  executor.RunStep();
  const std::vector<Span> spans = executor.spans();
  ASSERT_EQ(spans.size(), 4);
  const double step_us = SteadyMicroseconds() - executor.TimedStepBegan();
  EXPECT_GE(executor.TimedStepBegan(), before_us);
  for (int i = 0; i < 4; ++i) {
    const Span& span = spans[static_cast<size_t>(i)];
    EXPECT_EQ(span.instruction, i);
    EXPECT_LE(0, span.ready_us);
    EXPECT_LE(span.ready_us, span.begin_us);
    EXPECT_LE(span.begin_us, span.end_us);
    EXPECT_LE(span.end_us, step_us);
    EXPECT_EQ(executor.instruction_ms()[static_cast<size_t>(i)], (span.end_us - span.ready_us) / 1e3);
  }
  EXPECT_GE(spans[1].ready_us, spans[0].end_us) << "waits for the kernel";
  EXPECT_GE(spans[3].ready_us, spans[1].end_us) << "waits for tp";
  EXPECT_GE(spans[1].end_us - spans[1].begin_us, 2000) << "the transfer takes 2 ms";
  executor.RunStep();
  EXPECT_EQ(executor.spans()[3].end_us, spans[3].end_us) << "the next step is not timed";
}

TEST(Executor, RefusesLanesThatWaitForEachOther) {
  Builder b(Mesh({1, 1, 1, 1, 2}));
  const int x = b.Add("x", "f32[2]"), y = b.Add("y", "f32[2]"), z = b.Add("z", "f32[2]");
  b.Run("all_reduce", {x}, {y}, -1, Lane::kTp, {{Lane::kCompute, 1}});
  b.Run("gelu", {y}, {z}, -1, Lane::kCompute, {{Lane::kTp, 1}});
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  EXPECT_THAT(MessageOf([&] { CpuExecutor(program, {}, arena, &communication, FindFake); }),
              HasSubstr("deadlock: gelu on lane compute waits for 1 instructions of lane tp"));
}

TEST(Executor, RefusesWhatItCannotRun) {
  Builder b(Mesh({1, 1, 1, 1, 2}));
  const int x = b.Add("x", "f32[2]");
  b.Run("embedding", {x}, {x});
  const Program unknown = b.Take();
  HostArena arena(unknown.arena_bytes), small(63);
  EXPECT_THAT(MessageOf([&] { CpuExecutor(unknown, {}, arena, nullptr, FindFake); }),
              HasSubstr("no kernel for instruction 0 (embedding, role F, layer 3)"));
  EXPECT_THAT(MessageOf([&] { CpuExecutor(unknown, {}, small, nullptr, FindFake); }), HasSubstr("in an arena of 63"));
  const Program lonely = Chain(2);
  HostArena enough(lonely.arena_bytes);
  EXPECT_THAT(MessageOf([&] { CpuExecutor(lonely, {}, enough, nullptr, FindFake); }),
              HasSubstr("nothing to communicate with"));
}

TEST(Executor, RefusesABufferThatIsTooSmall) {
  Builder b;
  const int x = b.Add("x", "f32[4]");
  b.Run("add", {x}, {}).inputs[0].bytes = 15;
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  EXPECT_THAT(MessageOf([&] { CpuExecutor(program, {}, arena, nullptr, FindFake); }),
              HasSubstr("x has 16 bytes, 15 are planned"));
}

TEST(Executor, AKernelThatFailsEndsTheJobWithItsPlace) {
  Builder b;
  const int x = b.Add("x", "f32[2]");
  b.Run("add", {}, {});
  b.Run("cast", {x}, {}, 2);
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  std::vector<std::string> told;
  CpuExecutor executor(program, {}, arena, nullptr, FindFake,
                       [&](const std::string& message) { told.push_back(message); });
  EXPECT_THROW(executor.RunStep(), InvariantError);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_THAT(told[0], HasSubstr("instruction 1 (cast, role F, microbatch 2, layer 3): "));
  EXPECT_THAT(told[0], HasSubstr("input is broken"));
}

TEST(Executor, AKernelThatFailsFreesTheCommunication) {
  Builder b(Mesh({1, 1, 1, 1, 2}));
  const int x = b.Add("x", "f32[2]"), y = b.Add("y", "f32[2]");
  b.Run("cast", {x}, {y});
  b.Run("all_reduce", {y}, {x}, -1, Lane::kTp, {{Lane::kCompute, 1}});
  const Program program = b.Take();
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  CpuExecutor executor(program, {}, arena, &communication, FindFake,
                       [](const std::string& message) { throw std::runtime_error("ended: " + message); });
  EXPECT_THAT(MessageOf([&] { executor.RunStep(); }), HasSubstr("ended: instruction 0 (cast"));
}

TEST(Executor, CommunicationThatFailsEndsTheStep) {
  const Program program = Chain(5);
  HostArena arena(program.arena_bytes);
  FakeCommunication communication;
  communication.fail_with = "the wire is cut";
  bool told = false;
  CpuExecutor executor(program, {}, arena, &communication, FindFake, [&](const std::string&) { told = true; });
  EXPECT_EQ(MessageOf([&] { executor.RunStep(); }), "the wire is cut");
  EXPECT_FALSE(told) << "communication tells its own";
}

TEST(ForEachGlobalRun, VisitsEveryElementOnce) {
  const Shape whole = {4, 5, 6};
  const Tensor piece{nullptr, Dtype::kF32, {2, 3, 4}, {1, 2, 2}};
  std::vector<std::array<int64_t, 3>> runs;
  ForEachGlobalRun(piece, whole, [&](int64_t global, int64_t local, int64_t n) { runs.push_back({global, local, n}); });
  ASSERT_EQ(runs.size(), 6u);
  EXPECT_THAT(runs[0], ElementsAre(1 * 30 + 2 * 6 + 2, 0, 4));
  EXPECT_THAT(runs[1], ElementsAre(1 * 30 + 3 * 6 + 2, 4, 4));
  EXPECT_THAT(runs[5], ElementsAre(2 * 30 + 4 * 6 + 2, 20, 4));
  int scalars = 0;
  ForEachGlobalRun(Tensor{nullptr, Dtype::kF32, {}, {}}, {},
                   [&](int64_t g, int64_t l, int64_t n) { scalars += g == 0 && l == 0 && n == 1; });
  EXPECT_EQ(scalars, 1);
}

}  // namespace
}  // namespace espalier
