// The device that waits. Waiting only guarantees lower bounds: no test asserts that something is quick.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "espalier/executor/sleep_executor.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct FakePrepared : PreparedComm {
  std::vector<CommInstruction> instructions;
};

/// The peers of this rank arrive at every instruction `peers_after` it.
class FakeCommunication : public Communication {
 public:
  Clock::duration peers_after{0};
  bool fails = false;

  std::unique_ptr<PreparedComm> Prepare(const Program&, const Coordinate&,
                                        std::vector<CommInstruction> instructions) override {
    auto prepared = std::make_unique<FakePrepared>();
    prepared->instructions = std::move(instructions);
    return prepared;
  }
  void Start(PreparedComm& prepared, LaneCounts& lanes) override {
    auto& fake = dynamic_cast<FakePrepared&>(prepared);
    for (Lane lane : kLanes)
      if (lane != Lane::kCompute) threads_.emplace_back([this, &fake, &lanes, lane] { RunLane(fake, lanes, lane); });
  }
  void Finish() override { threads_.clear(); }

 private:
  void RunLane(FakePrepared& prepared, LaneCounts& lanes, Lane lane) try {
    for (const CommInstruction& i : prepared.instructions) {
      if (i.instruction.lane != lane) continue;
      for (const Wait& wait : i.instruction.waits) lanes.Await(wait);
      CHECK(!fails, "as told");
      Arrival last = i.meeting->arrive();
      last.at += peers_after;
      std::this_thread::sleep_until(last.at);
      std::this_thread::sleep_until(i.meeting->meet(last));
      lanes.Raise(lane);
    }
  } catch (const std::exception&) {
    lanes.Fail();
  }

  std::vector<std::jthread> threads_;
};

/// The program of rank 0, and costs that differ from one instruction to the next.
struct Sleeper {
  explicit Sleeper(const std::vector<std::string>& overrides, int ranks = 1, double dilation = 1)
      : program(MakeProgram(Compile(SmallDeck(overrides), ranks, Purpose::kTrain), {})), arena(program.arena_bytes) {
    for (size_t i = 0; i < program.instructions.size(); ++i) costs_us.push_back(5.0 * static_cast<double>(1 + i % 7));
    executor.emplace(program, Coordinate{}, arena, &communication, costs_us, dilation);
  }

  double LaneMs(Lane lane) const {
    double us = 0;
    for (size_t i = 0; i < costs_us.size(); ++i)
      if (program.instructions[i].lane == lane) us += costs_us[i];
    return us * 1e-3;
  }

  Program program;
  ReservedArena arena;
  FakeCommunication communication;
  std::vector<double> costs_us;
  std::optional<SleepExecutor> executor;
};

TEST(ReservedArena, HasAddressesForAnySize) {
  ReservedArena arena(int64_t{1} << 44);  // 16 TiB
  EXPECT_EQ(arena.At(arena.bytes(), 0) - arena.At(0, 0), arena.bytes());
  EXPECT_FALSE(arena.OnHost());
  float value = 0;
  EXPECT_THROW(arena.Read(arena.At(0, 4), &value, 4), InvariantError);
  EXPECT_THROW(arena.Write(arena.At(0, 4), &value, 4), InvariantError);
}

TEST(SleepExecutor, KernelsTakeTheirCosts) {
  Sleeper sleeper({});
  sleeper.executor->TimeNextStep();
  const StepTimes times = sleeper.executor->RunStep();
  EXPECT_NEAR(times.compute_ms, sleeper.LaneMs(Lane::kCompute), 1e-3);
  EXPECT_GE(times.step_ms, sleeper.LaneMs(Lane::kCompute));
  EXPECT_NEAR(times.compute_ms + times.exposed_comm_ms + times.idle_ms, times.step_ms, 1e-3);
  EXPECT_DOUBLE_EQ(times.comm.value().ExposedMs(), times.exposed_comm_ms);
  for (size_t i = 0; i < sleeper.costs_us.size(); ++i)
    EXPECT_NEAR(sleeper.executor->instruction_ms()[i], sleeper.costs_us[i] * 1e-3, 1e-5);
}

TEST(SleepExecutor, DilationLengthensWaitsAndNoReportedTime) {
  Sleeper sleeper({}, 1, 50);
  const Clock::time_point before = Clock::now();
  const StepTimes times = sleeper.executor->RunStep();
  const std::chrono::duration<double, std::milli> took = Clock::now() - before;
  EXPECT_GE(took.count(), 50 * sleeper.LaneMs(Lane::kCompute));
  EXPECT_NEAR(times.compute_ms, sleeper.LaneMs(Lane::kCompute), 1e-4);
}

TEST(SleepExecutor, TouchesNoMemoryAndGivesNoNumbers) {
  Sleeper sleeper({"parallel.tp=2"}, 2);  // an access to the arena ends the process
  const std::vector<int32_t> ids(64, 1);
  const Tensor tensor = sleeper.executor->At("ids", 0);
  sleeper.executor->SetInput("ids", 0, ids.data(), Volume(tensor.shape) * 4);
  sleeper.executor->SetScalar("lr", 1);
  sleeper.executor->RunStep();
  EXPECT_TRUE(std::isnan(sleeper.executor->GetScalar("mean_loss")));
  EXPECT_TRUE(std::isnan(sleeper.executor->GetScalar("norm")));
  EXPECT_EQ(sleeper.arena.HighWater(), sleeper.program.arena_bytes);
}

TEST(SleepExecutor, TransfersTakeTheirCostsOnceAllHaveArrived) {
  for (const char* deck : {"parallel.tp=2", "parallel.dp_shard=2", "parallel.pp=2"}) {
    Sleeper sleeper({deck}, 2, 20);
    sleeper.executor->TimeNextStep();
    const StepTimes times = sleeper.executor->RunStep();
    double longest = 0;
    for (Lane lane : kLanes) longest = std::max(longest, sleeper.LaneMs(lane));
    for (const auto& [lane, axis] : {std::pair{Lane::kTp, CommAxis::kTp}, std::pair{Lane::kDp, CommAxis::kDp}})
      EXPECT_NEAR(times.comm->exposed_ms[axis] + times.comm->hidden_ms[axis], sleeper.LaneMs(lane), 1e-3) << deck;
    EXPECT_GE(times.step_ms, longest) << deck;
    for (size_t i = 0; i < sleeper.costs_us.size(); ++i)
      EXPECT_GE(sleeper.executor->instruction_ms()[i], sleeper.costs_us[i] * 1e-3 - 1e-5) << deck << " " << i;
  }
}

TEST(SleepExecutor, WaitingForPeersIsIdleNotExposed) {
  Sleeper sleeper({"parallel.tp=2", "model.layers=1"}, 2);
  sleeper.communication.peers_after = std::chrono::milliseconds(2);
  const StepTimes times = sleeper.executor->RunStep();
  const auto transfers =
      std::ranges::count_if(sleeper.program.instructions, [](const Instruction& i) { return i.lane == Lane::kTp; });
  ASSERT_GT(transfers, 0);
  EXPECT_LE(times.exposed_comm_ms, sleeper.LaneMs(Lane::kTp) + sleeper.LaneMs(Lane::kDp) + 1e-3);
  EXPECT_GE(times.idle_ms, 2);
}

TEST(SleepExecutor, AFailureOfCommunicationEndsTheStep) {
  Sleeper sleeper({"parallel.tp=2"}, 2);
  sleeper.communication.fails = true;
  try {
    sleeper.executor->RunStep();
    FAIL() << "the step ended";
  } catch (const InvariantError& error) {
    EXPECT_THAT(error.what(), HasSubstr("failed in another thread"));
  }
}

TEST(Compile, TakesTheDeviceOfTheCluster) {
  const Deck deck = SmallDeck({"run.device=sleep", "run.cluster=any.toml", "parallel.pp=2"});
  EXPECT_THROW(Compile(deck, 2, Purpose::kTrain), InvariantError);
  for (const auto& [kind, name] : {std::pair(DeviceKind::kCpu, "cpu"), std::pair(DeviceKind::kCuda, "cuda")}) {
    const Deck named = SmallDeck({std::string("run.device=") + name, "parallel.pp=2"});
    EXPECT_EQ(Print(MakeProgram(Compile(deck, 2, Purpose::kTrain, kind), {})),
              Print(MakeProgram(Compile(named, 2, Purpose::kTrain), {})));
  }
}

}  // namespace
}  // namespace espalier
