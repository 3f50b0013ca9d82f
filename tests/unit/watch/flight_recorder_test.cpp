// Records of what a rank did last: the table of a program and its counts, and the files.
#include "espalier/watch/flight_recorder.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "espalier/program/compile.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Rank 1 of two tp groups in two stages.
class FlightRecords : public testing::Test {
 protected:
  FlightRecords()
      : compilation_(Compile(SmallDeck({"parallel.tp=2", "parallel.pp=2"}), 4, Purpose::kTrain)),
        program_(MakeProgram(compilation_, compilation_.mesh.CoordinateOf(1))) {
    beat_.rank = 1;
    beat_.step = 3;
    beat_.activity = Activity::kStep;
  }
  ~FlightRecords() override { std::filesystem::remove_all(folder_); }

  /// Indices of a lane's instructions.
  std::vector<int> Of(Lane lane) const {
    std::vector<int> indices;
    for (int i = 0; i < std::ssize(program_.instructions); ++i)
      if (program_.instructions[static_cast<size_t>(i)].lane == lane) indices.push_back(i);
    return indices;
  }
  /// The lines of an instruction.
  static std::vector<std::string> LinesOf(const std::string& text, int index) {
    std::vector<std::string> found;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find(fmt::format(" {:>6} ", index)) != line.npos && !line.starts_with("communicator"))
        found.push_back(line);
    return found;
  }

  const std::string folder_ = testing::TempDir() + "flight." + std::to_string(getpid());
  Compilation compilation_;
  Program program_;
  Heartbeat beat_;
};

TEST_F(FlightRecords, CountCallsOfCommunicators) {
  const int calls = static_cast<int>(Of(Lane::kTp).size());
  beat_.done[static_cast<size_t>(Lane::kTp)] = 5;
  EXPECT_THAT(LastInstructions(program_, beat_),
              HasSubstr(fmt::format("communicator tp       {:>6} of {:<6} ranks 0,1\n", 5, calls)));
}

TEST_F(FlightRecords, TellWhatIsDoneNextAndWaiting) {
  const std::vector<int> kernels = Of(Lane::kCompute), messages = Of(Lane::kTp);
  int waiting = 0;  // the first message that waits for kernels
  const auto waits = [&](int place) {
    return program_.instructions[static_cast<size_t>(messages[static_cast<size_t>(place)])].waits;
  };
  while (waits(waiting).empty()) ++waiting;
  const Wait wait = waits(waiting).front();
  beat_.done[static_cast<size_t>(Lane::kTp)] = waiting;
  beat_.done[static_cast<size_t>(wait.lane)] = wait.count - 1;
  const std::string before = LastInstructions(program_, beat_);
  const int index = messages[static_cast<size_t>(waiting)];
  ASSERT_EQ(LinesOf(before, index).size(), 1U) << before;
  EXPECT_THAT(LinesOf(before, index)[0], HasSubstr(fmt::format("waits {}:{} ", Name(wait.lane), wait.count)));
  EXPECT_THAT(LinesOf(before, index)[0], HasSubstr("ranks 0,1"));

  for (const Wait& met : waits(waiting)) beat_.done[static_cast<size_t>(met.lane)] = met.count;
  const std::string after = LastInstructions(program_, beat_);
  EXPECT_THAT(LinesOf(after, index)[0], HasSubstr(" next "));
  const int kernel = kernels[static_cast<size_t>(wait.count - 1)];
  EXPECT_THAT(LinesOf(after, kernel)[0], HasSubstr("step 3       done "));
}

TEST_F(FlightRecords, GoBackToTheStepBefore) {
  const std::string text = LastInstructions(program_, beat_);
  EXPECT_THAT(LinesOf(text, Of(Lane::kCompute).back()).at(0), HasSubstr("step 2       done "));
  beat_.step = 1;
  EXPECT_THAT(LastInstructions(program_, beat_), Not(HasSubstr("done ")));
}

TEST_F(FlightRecords, AreWrittenOncePerPlace) {
  const HeartbeatTable table(folder_ + "/heartbeat", {0, 0, 0, 0});
  std::filesystem::create_directories(folder_ + "/heartbeat");
  table.MakeFile(0);
  HeartbeatFile mine(table, 1), other(table, 2);
  mine.record().step = 3;
  ASSERT_TRUE(other.Publish());
  FlightRecorder recorder(FlightFolder(folder_), mine.record(), table,
                          [this](int64_t) -> const Program& { return program_; });
  const auto content = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  recorder.Note();
  EXPECT_FALSE(recorder.HasRecord(1, std::chrono::minutes(1)));
  const std::string path = recorder.Write("the first reason");
  EXPECT_TRUE(recorder.HasRecord(1, std::chrono::minutes(1)));
  EXPECT_FALSE(recorder.HasRecord(2, std::chrono::minutes(1)));
  std::filesystem::last_write_time(path, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(2));
  EXPECT_FALSE(recorder.HasRecord(1, std::chrono::minutes(1))) << "it is of an earlier start";
  EXPECT_EQ(path, folder_ + "/flight/rank-00001.txt");
  EXPECT_THAT(content(path), HasSubstr("rank 1 of 4, process "));
  EXPECT_THAT(content(path), HasSubstr("the first reason\nstep 3, "));
  EXPECT_THAT(content(path), HasSubstr(" s before: step 3, "));
  EXPECT_THAT(content(path), HasSubstr("rank 2 on "));
  recorder.Write("a second one at the same place");
  EXPECT_THAT(content(path), HasSubstr("the first reason"));
  mine.record().training.done[0] = 1;
  recorder.Write("a third one, later");
  EXPECT_THAT(content(path), HasSubstr("a third one, later"));
  std::filesystem::remove_all(FlightFolder(folder_));
  std::ofstream(FlightFolder(folder_)) << "no folder";
  mine.record().training.done[0] = 2;
  EXPECT_EQ(recorder.Write("it cannot be written"), "");
}

}  // namespace
}  // namespace espalier
