// Whether a start continues from a copy in memory.
#include "train/startup/memory_start.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "espalier/deck/parse.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class MemoryStart : public testing::Test {
 protected:
  std::string WhyNot(const MemoryGeneration& generation, const DiskLine& disk) const {
    return WhyNotFromMemory(generation, disk, deck_);
  }
  static MemoryGeneration Generation(int64_t step, std::string parent = "", std::string branch = "") {
    return {step, "id", std::move(parent), std::move(branch), {}, {}};
  }

 private:
  const Deck deck_ = LoadDeck(InTree("tests/decks/small.toml"), {"run.steps=50"}).deck;
};

TEST_F(MemoryStart, TheNewerIsTaken) {
  EXPECT_THAT(WhyNot(Generation(20), {-1, "", {}}), IsEmpty()) << "no checkpoint";
  EXPECT_THAT(WhyNot(Generation(20, "a"), {10, "", {"a"}}), IsEmpty());
  EXPECT_THAT(WhyNot(Generation(20, "a"), {20, "", {"b", "a"}}), IsEmpty()) << "equal states: memory is faster";
  EXPECT_THAT(WhyNot(Generation(20, "a"), {21, "", {"b", "a"}}), HasSubstr("older than the checkpoint of step 21"));
}

TEST_F(MemoryStart, OnlyOfThisLine) {
  EXPECT_THAT(WhyNot(Generation(20, "x"), {10, "", {"b", "a"}}), HasSubstr("not among those to continue from"));
  EXPECT_THAT(WhyNot(Generation(20, "a", "a"), {10, "a", {"a"}}), IsEmpty());
  EXPECT_THAT(WhyNot(Generation(20, "a"), {10, "a", {"a"}}),
              HasSubstr("did not begin at the checkpoint that -r names"));
}

TEST_F(MemoryStart, NotBeyondTheRun) {
  EXPECT_THAT(WhyNot(Generation(50), {-1, "", {}}), IsEmpty());
  EXPECT_THAT(WhyNot(Generation(51), {-1, "", {}}), HasSubstr("beyond run.steps = 50"));
}

}  // namespace
}  // namespace espalier
