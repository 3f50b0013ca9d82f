// Ranks that are persistently slower than their peers: ranks of the same pipeline stage do the same work, so the one
// whose kernels take longer keeps the others waiting.
#pragma once

#include <string>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/mesh/mesh.hpp"

namespace espalier {

/// A rank that took longer than its peers in a number of steps.
struct Straggler {
  int rank = 0;
  double ms = 0;        ///< mean time in kernels per step
  double peers_ms = 0;  ///< median of the other ranks of its stage
  std::string host;

  bool operator==(const Straggler&) const = default;
};

/// Ranks that are slower than the median of their peers by more than a fifth. `ms`: by rank.
std::vector<Straggler> FindStragglers(const std::vector<double>& ms, const Mesh& mesh);

class Stragglers {
 public:
  static constexpr int64_t kWindow = 20;  ///< steps whose means are compared
  static constexpr int kPatience = 3;     ///< windows in a row before a rank is named

  /// The arguments must outlive this.
  Stragglers(const Mesh& mesh, World& world) : mesh_(mesh), world_(world) {}

  /// Call it after each step with the time that this rank spent in kernels. Returns on rank 0 the ranks that have now
  /// been slow for so long; each is named once until it has been as fast as its peers again. Collective.
  std::vector<Straggler> After(double compute_ms);

 private:
  std::vector<Straggler> Judge(const std::vector<std::string>& packed);

  const Mesh& mesh_;
  World& world_;
  int64_t steps_ = 0;
  double sum_ms_ = 0;
  std::vector<int> slow_;  ///< rank 0: by rank, windows in a row in which it was slow
};

}  // namespace espalier
