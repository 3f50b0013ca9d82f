#include "espalier/costs/order.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "espalier/costs/costs.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Keys of [software] that say what other stacks run in place of our ops make no difference.
class TimesOfFile : public OpTimes {
 public:
  TimesOfFile(Cluster cluster, std::string origin) : costs_(std::move(cluster)), origin_(std::move(origin)) {}

  double Of(const Graph& graph, const Op& op, const Mesh& mesh) const override {
    if (op.inputs.empty() || IsBetweenStages(op.kind)) return 0;
    const LocalOp local = LocalOpOf(graph, op, mesh, {});
    const Cluster& cluster = costs_.cluster();
    if (IsHostCopy(op.kind)) {
      int64_t bytes = 0;
      for (const Shape& shape : local.inputs) bytes += Volume(shape) * SizeOf(local.dtype);
      return costs_.HostCopy(op.kind, bytes, std::min(cluster.ranks_per_node, mesh.Ranks())).alone_us;
    }
    if (!IsCommunication(op.kind)) return costs_.Kernel(local, false).us;
    const GroupPlace place = PlaceOf(mesh, op.Axes(), {}, cluster.NearRanks());
    return costs_.Collective(op.kind, WireBytes(graph, op, mesh, {}), place).us + costs_.PackingUs(local);
  }
  double HostCopy(OpKind kind, int64_t bytes, int ranks) const override {
    return costs_.HostCopy(kind, bytes, std::min(costs_.cluster().ranks_per_node, ranks)).beside_us;
  }
  std::string Origin() const override { return origin_; }

 private:
  const Costs costs_;
  const std::string origin_;
};

}  // namespace

std::shared_ptr<const OpTimes> TimesOf(const Cluster& cluster, const std::string& path) {
  const std::string text = ToText(cluster);
  return std::make_shared<TimesOfFile>(cluster,
                                       fmt::format("{} (checksum {:08x})", path, Crc32c(text.data(), text.size())));
}

void ReadCosts(Deck& deck) {
  deck.times = nullptr;
  if (deck.run.costs.empty()) return;
  try {
    deck.times = TimesOf(LoadCluster(deck.run.costs), deck.run.costs);
  } catch (const UserError& error) {
    std::vector<std::string> messages = error.messages();
    for (std::string& message : messages) message = "run.costs: " + message;
    throw UserError(error.status(), std::move(messages));
  }
}

std::string DescribeOrder(const Deck& deck) {
  if (!FollowsTimes(deck)) return "";
  if (deck.times != nullptr) return fmt::format("of overlapping work by the times of {}", deck.times->Origin());
  return "of overlapping work by rough times, tp and cp within a node (run.costs = FILE: by those of a cluster)";
}

}  // namespace espalier
