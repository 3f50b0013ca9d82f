// Ranks and links that are persistently slower than their peers. Ranks of the same pipeline stage do the same work, so
// the one whose kernels take longer keeps the others waiting. Groups of the same axis exchange the same messages: a
// group takes as long as its rank that communicates the shortest, since the others also wait for that one.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/comm/world.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// A rank that took longer than its peers in a number of steps.
struct Straggler {
  int rank = 0;
  double ms = 0;        ///< mean time in kernels per step
  double peers_ms = 0;  ///< median of the other ranks of its stage
  std::string host;

  bool operator==(const Straggler&) const = default;
};

/// Ranks whose messages over an axis took longer than the messages of other groups of that axis.
struct SlowLink {
  CommAxis axis{};
  std::vector<int> ranks;
  double ms = 0;                   ///< mean time of these messages per step
  double peers_ms = 0;             ///< median of the other groups
  std::vector<std::string> hosts;  ///< of the ranks, each once

  bool operator==(const SlowLink&) const = default;
};

/// Ranks that are slower than the median of their peers by more than a fifth. `ms`: by rank.
std::vector<Straggler> FindStragglers(const std::vector<double>& ms, const Mesh& mesh);

/// Groups whose messages take more than 1.5 times the median of their peers: of groups of the same axis and stage; with
/// pp, of all pipelines. Differences below a twentieth of `step_ms` do not count. `ms`: by rank, exposed and hidden.
std::vector<SlowLink> FindSlowLinks(const std::vector<ByCommAxis<double>>& ms, const Mesh& mesh, double step_ms);

/// The ranks and links that have now been slow for so long.
struct SlowParts {
  std::vector<Straggler> ranks;
  std::vector<SlowLink> links;
};

class Stragglers {
 public:
  static constexpr int64_t kWindow = 20;  ///< steps whose means are compared
  static constexpr int kPatience = 3;     ///< windows in a row before a rank or link is named

  /// The arguments must outlive this.
  Stragglers(const Mesh& mesh, World& world) : mesh_(mesh), world_(world) {}

  /// Call it after each step with its time and the times that this rank spent in kernels and in messages; without the
  /// last (a device that does not know it in every step) no link is named. Returns on rank 0 what has now been slow for
  /// so long; each is named once until it has been as fast as its peers again. Collective.
  SlowParts After(double step_ms, double compute_ms, const std::optional<CommTimes>& comm);

 private:
  struct Window;
  SlowParts Judge(const std::vector<Window>& ranks);

  const Mesh& mesh_;
  World& world_;
  int64_t steps_ = 0;
  double sum_ms_ = 0, compute_ms_ = 0;
  ByCommAxis<double> comm_ms_{};
  std::map<int, int> slow_ranks_;                       ///< rank 0: windows in a row in which a rank was slow
  std::map<std::pair<CommAxis, int>, int> slow_links_;  ///< the same by axis and first rank
};

}  // namespace espalier
