#include "espalier/costs/order.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "espalier/costs/costs.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/schedule/schedule_file.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Keys of [software] that say what other stacks run in place of our ops make no difference.
class TimesOfFile : public OpTimes {
 public:
  TimesOfFile(const Cluster& cluster, const JobFacts& job, std::string origin)
      : costs_(cluster, {}, job), origin_(std::move(origin)) {}

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

/// Adds the key to the messages of an error.
template <typename Work>
void NamingKey(const char* key, const Work& work) try {
  work();
} catch (const UserError& error) {
  std::vector<std::string> messages = error.messages();
  for (std::string& message : messages) message = fmt::format("{}: {}", key, message);
  throw UserError(error.status(), std::move(messages));
}

}  // namespace

std::shared_ptr<const OpTimes> TimesOf(const Cluster& cluster, const std::string& path, const Deck& deck) {
  const std::string text = ToText(cluster);
  // The number of ranks makes no difference: it gives all kernels one factor, which Costs::Kernel leaves out.
  return std::make_shared<TimesOfFile>(cluster, JobOf(deck, 1),
                                       fmt::format("{} (checksum {:08x})", path, Crc32c(text.data(), text.size())));
}

void ReadCosts(Deck& deck) {
  deck.times = nullptr;
  if (deck.run.costs.empty()) return;
  NamingKey("run.costs", [&] { deck.times = TimesOf(LoadCluster(deck.run.costs), deck.run.costs, deck); });
}

void ReadSchedule(Deck& deck) {
  deck.pipeline.of_file = nullptr;
  if (deck.pipeline.schedule != ScheduleKind::kFile) return;
  NamingKey("pipeline.file", [&] { deck.pipeline.of_file = ReadScheduleFile(deck.pipeline.file); });
}

void ReadOrder(Deck& deck) {
  ReadCosts(deck);
  ReadSchedule(deck);
}

std::string OriginOfSchedule(const Deck& deck) {
  return deck.pipeline.of_file == nullptr ? "" : deck.pipeline.of_file->origin;
}

std::string DescribeSchedule(const Deck& deck) {
  const std::string origin = OriginOfSchedule(deck);
  return origin.empty() ? std::string(Name(deck.pipeline.schedule)) : origin;
}

std::string DescribeOrder(const Deck& deck) {
  if (!FollowsTimes(deck)) return "";
  if (deck.times != nullptr) return fmt::format("of overlapping work by the times of {}", deck.times->Origin());
  return "of overlapping work by rough times, tp and cp within a node (run.costs = FILE: by those of a cluster)";
}

}  // namespace espalier
