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

/// A pool of rows, and the weight of each expert.
struct Grouped {
  int64_t b, rows, experts, out, in;
};

/// Experts of the rows of a pool, by chance or of one expert alone, and as many rows without one at the end.
inline OwnedTensor ExpertsOfRows(Random& random, const Grouped& g, Routing routing, int64_t without) {
  OwnedTensor rows(kI32, {g.experts, g.b, g.rows});
  const OwnedTensor draws = random.Integer({rows.Count()}, 0, 1 << 30);
  const int64_t step = routing == Routing::kEven ? 2 : 1, some = routing == Routing::kFirst ? 1 : g.experts;
  std::vector<double> experts;
  for (int64_t r = 0; r < rows.Count() - without; ++r)
    experts.push_back(double(int64_t(draws[r]) % some / step * step));
  std::sort(experts.begin(), experts.end());
  experts.resize(size_t(rows.Count()), double(INT32_MAX));
  for (int64_t r = 0; r < rows.Count(); ++r) rows.Set(r, experts[size_t(r)]);
  return rows;
}

/// x with infinite elements in rows without an expert, which no kernel reads.
inline OwnedTensor Spoiled(OwnedTensor x, const OwnedTensor& of_rows) {
  const int64_t width = of_rows.Count() == 0 ? 0 : x.Count() / of_rows.Count();
  for (int64_t r = 0; r < of_rows.Count(); ++r)
    for (int64_t c = 0; of_rows[r] == double(INT32_MAX) && c < width; ++c) x.Set(r * width + c, kInfinity);
  return x;
}

/// Row r of [e,b,r,width].
inline OwnedTensor RowOf(const OwnedTensor& rows, int64_t r, int64_t experts) {
  const int64_t width = rows.shape().at(3);
  OwnedTensor row(rows.dtype(), {experts, 1, 1, width});
  for (int64_t c = 0; c < width; ++c) row.Set(c, rows[r * width + c]);
  return row;
}

}  // namespace espalier::testing
