// Combines two partial elements, in the same way on every device: their sum or their maximum, in fp32, rounded once at
// the end.
#pragma once

#include "espalier/util/types.hpp"

namespace espalier {

constexpr float Widen(float x) { return x; }
constexpr float Widen(Bf16 x) { return ToFloat(x); }
constexpr int32_t Widen(int32_t x) { return x; }

constexpr void Narrow(float x, float& to) { to = x; }
constexpr void Narrow(float x, Bf16& to) { to = ToBf16(x); }
constexpr void Narrow(int32_t x, int32_t& to) { to = x; }

struct Add {
  template <typename S>
  constexpr S operator()(S a, S b) const {
    return a + b;
  }
};

/// A NaN in either operand wins, so that it is not hidden.
struct Max {
  constexpr float operator()(float a, float b) const { return a > b || a != a ? a : b; }
  constexpr int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

}  // namespace espalier
