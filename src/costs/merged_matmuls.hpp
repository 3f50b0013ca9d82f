// Stacks that compute the projections of one input as one matmul (q, k and v; gate and up), where our programs have
// separate matmuls:
//
//   q = x Wq   k = x Wk   v = x Wv      ->  [q k v] = x [Wq Wk Wv]                    n is the sum
//   dx = dq Wq' + dk Wk' + dv Wv'       ->  dx = [dq dk dv] [Wq Wk Wv]'               k is the sum, and no addition
//   dWq = x' dq   dWk = x' dk   ...     ->  d[Wq Wk Wv] = x' [dq dk dv]               n is the sum
#pragma once

#include <map>
#include <vector>

#include "espalier/program/instruction.hpp"
#include "formulas/formulas.hpp"

namespace espalier {

/// Matmuls of a program that a stack runs as one, and the dim that is concatenated.
struct MergedMatmul {
  std::vector<const Op*> parts;
  int64_t MatmulShape::*dim = &MatmulShape::n;
};

class MergedMatmuls {
 public:
  explicit MergedMatmuls(const Program& program);
  /// The group of a matmul; null if it is alone.
  const MergedMatmul* Find(const Op& op) const;
  /// True if the merged matmul already computes this addition of results.
  bool IsNeedless(const Op& op) const { return sums_.contains(&op); }

 private:
  void Add(MergedMatmul group);

  std::vector<MergedMatmul> groups_;
  std::map<const Op*, size_t> group_of_;
  std::map<const Op*, size_t> sums_;
};

}  // namespace espalier
