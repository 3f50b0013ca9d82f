// Schedules as files: what is written is read back, PyTorch's format is read, and what is no schedule is refused with
// its place.
#include "espalier/schedule/schedule_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Schedule, chunks per stage.
const std::vector<std::pair<ScheduleKind, int>> kWritten = {{ScheduleKind::k1F1B, 1},
                                                            {ScheduleKind::kGPipe, 1},
                                                            {ScheduleKind::kInterleaved, 3},
                                                            {ScheduleKind::kZeroBubbleH1, 1},
                                                            {ScheduleKind::kZeroBubbleInterleaved, 2},
                                                            {ScheduleKind::kZeroBubbleV, 2},
                                                            {ScheduleKind::kDualPipeV, 2}};

TEST(ScheduleFile, EveryScheduleComesBackWithItsTraits) {
  for (const auto& [kind, chunks] : kWritten)
    for (const SteadyState steady : {SteadyState::kAlternating, SteadyState::kJoint})
      for (int p : {1, 2, 4}) {
        const ScheduleTraits& traits = TraitsOf(kind);
        const Schedule made = MakeSchedule(traits, p, chunks, 2 * p + 1, steady);
        const auto file = ParseSchedule(ToCsv(made), "x.csv");
        const std::string name = fmt::format("{} p {} {}", Name(kind), p, steady == SteadyState::kJoint);
        EXPECT_EQ(file->schedule.jobs, made.jobs) << name;
        EXPECT_EQ(file->schedule.stage_of_chunk, made.stage_of_chunk) << name;
        EXPECT_EQ(file->schedule.microbatches, 2 * p + 1) << name;
        EXPECT_EQ(file->traits.DefersW(), traits.DefersW()) << name;
        const bool joint = std::ranges::any_of(made.jobs, [](const std::vector<Job>& jobs) {
          return std::ranges::any_of(jobs, [](const Job& job) { return job.parts.size() == 3; });
        });
        EXPECT_EQ(file->traits.has_joint_jobs, joint) << name;
        EXPECT_EQ(file->traits.PlaceChunks(p, chunks), made.stage_of_chunk) << name;
        EXPECT_EQ(MakeSchedule(file->traits, p, chunks, 2 * p + 1).jobs, made.jobs) << name;
      }
}

// As PyTorch writes it: idle cells, lines that end with "\r\n", lists of unequal length.
TEST(ScheduleFile, PyTorchsFormat) {
  const auto file = ParseSchedule("0F0,0F1,,,0B0,,0B1\r\n,1F0, 1I0,1F1,1W0,1B1,,\r\n\r\n", "x.csv");
  EXPECT_EQ(ToString(file->schedule, 0), "F0 F1 BW0 BW1");
  EXPECT_EQ(ToString(file->schedule, 1), "F0 B0 F1 W0 BW1");
  EXPECT_EQ(file->schedule.kind, ScheduleKind::kFile);
  EXPECT_FALSE(file->traits.DefersW());  // most W run with their B
}

TEST(ScheduleFile, AnyPlacement) {
  const auto file = ParseSchedule("0F0,1F0,1B0,0B0\n2F0,3F0,3B0,2B0\n", "x.csv");
  EXPECT_THAT(file->schedule.stage_of_chunk, ElementsAre(0, 0, 1, 1));
}

std::string RefusedFile(std::string_view text) try {
  ParseSchedule(text, "x.csv");
  return "";
} catch (const UserError& error) {
  EXPECT_EQ(error.status(), ExitStatus::kDeck);
  return fmt::format("{}", fmt::join(error.messages(), "\n"));
}

TEST(ScheduleFile, RefusesWithLineAndCell) {
  using ::testing::StartsWith;
  EXPECT_THAT(RefusedFile(""), StartsWith("x.csv: has no line"));
  EXPECT_THAT(RefusedFile("0F0,,0X0\n1SEND_F0\n"), AllOf(StartsWith("x.csv:1, cell 3 (0X0): is no action (allowed: "),
                                                         HasSubstr("\nx.csv:2, cell 1 (1SEND_F0): is no action")));
  for (const char* cell :
       {"F0", "0F", "0F0x", "-1F0", "0F-1", "99999999999F0", "(0F0;0B0)OVERLAP_F_B", "(0F1;0F0)OVERLAP_F_B",
        "(0F1;0I0)OVERLAP_F_B", "(0F1)OVERLAP_F_B", "(0F1;0B0)", "0UNSHARD", "0B"})
    EXPECT_THAT(RefusedFile(cell), StartsWith(fmt::format("x.csv:1, cell 1 ({}): is no action", cell)));
  EXPECT_THAT(RefusedFile("0F0,0B0\n2F0,2B0"), StartsWith("x.csv: no cell has stage 1, but there is a stage 2"));
  EXPECT_THAT(RefusedFile("0F0,0B0,1F0,1B0\n2F0,2B0"), StartsWith("x.csv:2: has 1 stages, but x.csv:1 has 2"));
  EXPECT_THAT(RefusedFile("0F0,0B0\n\n1F0,1B0"), StartsWith("x.csv:2: has 0 stages"));
  EXPECT_THAT(RefusedFile("0F0,0B0,,0B0\n1F0,1B0"),
              StartsWith("x.csv:1, cell 4 (0B0): B of chunk 0, microbatch 0 runs twice (needed: "));
  EXPECT_THAT(RefusedFile("0F0,0B0,0I0\n1F0,1B0"), HasSubstr("cell 3 (0I0): B of chunk 0, microbatch 0 runs twice"));
  EXPECT_THAT(RefusedFile("0F0,0B0\n1F0,0W0,1B0"), StartsWith("x.csv:2, cell 2 (0W0): chunk 0 is on stage 0"));
  EXPECT_THAT(RefusedFile("0F1,0F0,0B0,0B1"),
              HasSubstr("x.csv:1, cell 1 (0F1): F of chunk 0 is out of microbatch order"));
  EXPECT_THAT(RefusedFile("0F0,0B0\n1F0,1I0"), StartsWith("x.csv:2: W of chunk 1, microbatch 0 is missing"));
  EXPECT_THAT(RefusedFile("0F0,0B0\n1B0,1F0"), StartsWith("x.csv:1: deadlock by dependency: stage 0 waits in job 1"));
}

}  // namespace
}  // namespace espalier
