// Parameters by the names of their states.
#include "espalier/train/states.hpp"

#include <gtest/gtest.h>

#include "espalier/util/error.hpp"
#include "test_decks.hpp"

namespace espalier {
namespace {

TEST(ParameterIndex, FindsTheParameterOfWeightsAndMoments) {
  const Compilation compilation = Compile(SmallDeck(), 1, Purpose::kTrain, DeviceKind::kCpu);
  const ParameterIndex index(compilation);
  for (size_t i = 0; i < compilation.parameters.size(); ++i) {
    EXPECT_EQ(index.Of("parameters/" + compilation.parameters[i]), i);
    EXPECT_EQ(index.Of("optimizer/exp_avg_sq/" + compilation.parameters[i]), i);
  }
  EXPECT_THROW(index.Of("parameters/none"), InvariantError);
}

}  // namespace
}  // namespace espalier
