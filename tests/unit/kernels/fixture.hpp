// The kernels of a backend against the reference on random input of odd sizes, in both element types. The backend is
// the one that the binary is linked with (tested_kernels.hpp): the cpu's, the emulated or the real cuda one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "kernel_cases.hpp"

namespace espalier::testing {

class Kernels : public ::testing::TestWithParam<Dtype> {
 protected:
  Dtype T() const { return GetParam(); }
  OwnedTensor Empty(Dtype dtype, Shape shape, Shape start = {}) { return OwnedTensor(dtype, shape, start); }
  OwnedTensor Real(Shape shape, double low = -1, double high = 1) { return random_.Real(T(), shape, low, high); }
  OwnedTensor F32(Shape shape, double low = -1, double high = 1) { return random_.Real(kF32, shape, low, high); }
  Random random_;
};

}  // namespace espalier::testing
