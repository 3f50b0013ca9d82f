// Random routing of tokens to experts.
#pragma once

#include <algorithm>
#include <vector>

#include "fixture.hpp"

namespace espalier::testing {

inline constexpr Dtype kI32 = Dtype::kI32;

/// Which experts have rows: all, by chance; the first ones have all; every other one.
enum class Routing : uint8_t { kAny, kFirst, kEven };
inline constexpr Routing kRoutings[] = {Routing::kAny, Routing::kFirst, Routing::kEven};

/// Different experts for each token, i32[b,s,k].
inline OwnedTensor ChosenExperts(Random& random, Shape shape, int64_t experts, Routing routing) {
  const int64_t per_token = shape.at(2), step = routing == Routing::kEven && 2 * per_token <= experts ? 2 : 1;
  OwnedTensor chosen(kI32, shape);
  const OwnedTensor draws = random.Integer({chosen.Count()}, 0, 1 << 30);
  std::vector<int64_t> all;
  for (int64_t e = 0; e < experts; e += step) all.push_back(e);
  for (int64_t i = 0; i < chosen.Count(); ++i) {
    const int64_t at = i % per_token, left = routing == Routing::kFirst ? per_token - at : std::ssize(all) - at;
    std::swap(all[size_t(at)], all[size_t(at + int64_t(draws[i]) % left)]);
    chosen.Set(i, double(all[size_t(at)]));
  }
  return chosen;
}

/// The same case with all tensors one element after a multiple of 16 bytes.
inline Case Shifted(Case c) {
  for (std::vector<OwnedTensor>* tensors : {&c.inputs, &c.outputs})
    for (OwnedTensor& x : *tensors) x = x.Shifted(1);
  return c;
}

struct Tokens {
  int64_t b, s, experts, per_token, width;
};

}  // namespace espalier::testing
