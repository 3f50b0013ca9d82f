// The list of a program's instructions returns what was added, whatever its instructions have in common.
#include <gtest/gtest.h>

#include <random>

#include "espalier/program/instruction.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// An instruction with its lists.
struct Made {
  int op, microbatch;
  Lane lane;
  bool accumulate;
  std::vector<Operand> inputs, outputs;
  Operand workspace;
  std::vector<Wait> waits;

  Instruction View() const { return {op, microbatch, lane, accumulate, inputs, outputs, workspace, waits}; }
};

/// Few ops and values, so that most have another instruction's operands. In part of them the places are those of the
/// microbatch, in others any of three; microbatches come in any order.
std::vector<Made> RandomInstructions(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const bool regular = seed % 2 == 0;
  std::vector<Made> all(count);
  for (Made& made : all) {
    made = {.op = below(3),
            .microbatch = below(9) - 1,
            .lane = kLanes[static_cast<size_t>(below(3))],
            .accumulate = below(2) == 0,
            .inputs = {},
            .outputs = {},
            .workspace = {-1, 64 * below(2), 64 * below(2)},
            .waits = {}};
    const auto operands = [&](std::vector<Operand>& list, int most) {
      for (int i = below(most + 1); i > 0; --i) {
        const int value = below(4);
        const int64_t offset = regular && made.microbatch >= 0 ? 640 * made.microbatch + 64 * value : 64 * below(3);
        list.push_back({value, offset, 4 * value});
      }
    };
    operands(made.inputs, 3);
    operands(made.outputs, 2);
    for (int i = below(4); i > 0; --i) made.waits.push_back({kLanes[static_cast<size_t>(below(4))], below(50)});
  }
  return all;
}

void ExpectSame(const Instruction& is, const Made& wanted) {
  EXPECT_EQ(is.op, wanted.op);
  EXPECT_EQ(is.microbatch, wanted.microbatch);
  EXPECT_EQ(is.lane, wanted.lane);
  EXPECT_EQ(is.accumulate, wanted.accumulate);
  EXPECT_TRUE(std::ranges::equal(is.inputs, wanted.inputs));
  EXPECT_TRUE(std::ranges::equal(is.outputs, wanted.outputs));
  EXPECT_EQ(is.workspace, wanted.workspace);
  EXPECT_TRUE(std::ranges::equal(is.waits, wanted.waits,
                                 [](const Wait& a, const Wait& b) { return a.lane == b.lane && a.count == b.count; }));
}

TEST(Instructions, ReturnWhatWasAdded) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    const std::vector<Made> made = RandomInstructions(seed, 1 + seed % 71);
    Instructions list;
    if (seed % 3 == 0) list.Reserve(made.size(), 8);
    for (const Made& one : made) list.Add(one.View());
    const Instructions copy(std::vector<Instruction>(list.begin(), list.end()));
    ASSERT_EQ(copy.size(), made.size());
    for (size_t i = 0; i < made.size(); ++i) {
      ExpectSame(list[i], made[i]);
      ExpectSame(copy.at(i), made[i]);
    }
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(Instructions, GetOtherWaits) {
  std::vector<Made> made = RandomInstructions(7, 41);
  Instructions list;
  for (const Made& one : made) list.Add(one.View());
  std::vector<Wait> waits;
  std::vector<uint8_t> counts;
  for (size_t i = 0; i < made.size(); ++i) {
    made[i].waits.assign(i % 3, Wait{Lane::kTp, static_cast<int>(i)});
    waits.insert(waits.end(), made[i].waits.begin(), made[i].waits.end());
    counts.push_back(static_cast<uint8_t>(i % 3));
  }
  list.SetWaits(waits, counts);
  for (size_t i = 0; i < made.size(); ++i) ExpectSame(list[i], made[i]);
  counts.back() ^= 1;
  EXPECT_THROW(list.SetWaits(waits, counts), InvariantError);
  EXPECT_THROW(list.at(made.size()), InvariantError);
}

}  // namespace
}  // namespace espalier
