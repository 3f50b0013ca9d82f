// Tests of values in fp8 and of their matmuls.
#pragma once

#include <cmath>
#include <string>

#include "fixture.hpp"

namespace espalier::testing {

inline Attributes QuantizeTo(Dtype format, const std::string& spec) {
  return {{}, {{"spec", spec}, {"to", std::string(Name(format))}}};
}

/// Values of many magnitudes.
inline OwnedTensor Spread(Random& random, const Shape& shape) {
  OwnedTensor x = random.Real(kBf16, shape, -1, 1);
  for (int64_t i = 0; i < x.Count(); ++i) x.Set(i, std::ldexp(x[i], static_cast<int>(i * 7 % 23) - 30));
  return x;
}

/// The bits of the reference.
inline void CheckBits(const Case& c) {
  Check(c, 0);
  const std::vector<OwnedTensor> tested = c.Tested(), reference = c.Reference();
  for (size_t o = 0; o < tested.size(); ++o)
    EXPECT_TRUE(tested[o].SameBits(reference[o])) << ToString(c.inputs[0].shape()) << " " << c.attributes.Text("spec");
}

/// Error of a sum of products of at most 1. Tensor cores of Hopper keep 14 bits of a sum of fp8 products (DeepSeek-V3,
/// section 3.3.2; seen on an H200), and no partial sum is above `depth`.
inline double Fp8SumBound(int64_t depth) {
  return SumBound(depth + 1, 2) + (RefusesOnTheDevice() ? static_cast<double>(depth) / (1 << 13) : 0);
}

}  // namespace espalier::testing
