// Tests with a directory of checkpoints, and tests that inject faults into it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint_testing.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {

constexpr Degrees kOne = {1, 1, 1, 1, 1}, kTwo = {1, 1, 2, 1, 1}, kEight = {2, 2, 1, 1, 2};

/// A number from the environment, at least 1: repetitions of a test with random draws.
inline int CountFrom(const char* variable, int otherwise) {
  const char* text = std::getenv(variable);
  const int count = text == nullptr ? otherwise : std::atoi(text);
  CHECK(count >= 1, "{}={}: a number of at least 1 is expected", variable, text);
  return count;
}

class CheckpointTest : public ::testing::Test {
 protected:
  const std::string& Dir() const { return dir_.path(); }
  std::string Step(int64_t step) const { return Dir() + "/" + StepName(step); }
  void SaveAt(const Degrees& degrees, int64_t step, uint64_t salt, int64_t keep = 3) {
    ASSERT_THAT(SaveState(Dir(), degrees, step, salt, keep), ::testing::Each(::testing::StrEq("")));
  }

 private:
  TemporaryDirectory dir_;
};

/// Disarms ESPALIER_FAULT afterwards.
class Faults : public CheckpointTest {
 protected:
  ~Faults() override { ArmFault(""); }
};

}  // namespace espalier
