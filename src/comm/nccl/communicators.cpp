#include "communicators.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/error.hpp"
#include "nccl_call.hpp"

namespace espalier::cuda {
namespace {

/// Connecting thousands of ranks takes a minute; a missing rank must not block the job all night.
constexpr auto kConnectTimeout = std::chrono::minutes(5);

/// Calls block until they are issued, which their order on the stream needs; a nonblocking communicator would start a
/// thread for each.
ncclConfig_t ConfigOf(int most_ctas) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = most_ctas;
  return config;
}

/// Ends the job if this object lives too long: NCCL waits for peers without a limit.
class ConnectLimit {
 public:
  explicit ConnectLimit(World& world) : world_(world), thread_([this] { Watch(); }) {}
  ~ConnectLimit() {
    {
      const std::lock_guard lock(mutex_);
      made_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ConnectLimit(const ConnectLimit&) = delete;
  ConnectLimit& operator=(const ConnectLimit&) = delete;

 private:
  void Watch() {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kConnectTimeout, [this] { return made_; })) return;
    world_.Fail(
        fmt::format("the communicators of NCCL were not made within {} minutes: do all ranks run, and does the network "
                    "between them work (NCCL_DEBUG=INFO)?",
                    kConnectTimeout.count()));
  }

  World& world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool made_ = false;
  std::thread thread_;
};

/// The id of a communicator.
struct NumberedId {
  int number = 0, first = 0;  ///< Group
  std::string bytes;
  auto Fields() { return std::tie(number, first, bytes); }
};

std::string NewId() {
  ncclUniqueId id{};
  NCCL_CALL(ncclGetUniqueId(&id));
  return std::string(id.internal, sizeof id.internal);
}

/// Called before the first communicator. Variables that the user has set keep their values.
void SetEnvironment() {
  // The kernels of all communicators start in the order in which the host issues them. CheckWorld proves that these
  // orders are consistent on all ranks.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  // A communicator is never used inside and outside of a graph at the same time; support for that costs every launch.
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 0);
  // Otherwise peers map the arena for a graph, and unmap it only when communicators end: after it is freed.
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

void Distinct(std::vector<Communicators::Pair>& pairs) {
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
}

}  // namespace

Communicators::Communicators(World& world, const Mesh& mesh, const std::vector<Channel>& channels,
                             const NcclOptions& options)
    : world_(world), mesh_(mesh), options_(options), exceptions_at_start_(std::uncaught_exceptions()) {
  SetEnvironment();
  std::vector<Channel> of_groups;
  std::vector<Group> groups;
  for (const Channel& channel : channels) {
    if (channel.route != Route::kGroup) continue;
    groups.push_back(GroupOf(channel));
    groups.back().number = static_cast<int>(of_groups.size());
    of_groups.push_back(channel);
  }
  const std::vector<ncclComm_t> made = Make(groups);
  for (size_t i = 0; i < made.size(); ++i) groups_[of_groups[i]] = made[i];
}

Communicators::~Communicators() {
  if (std::uncaught_exceptions() > exceptions_at_start_) Abort();
  for (auto comm = made_.rbegin(); comm != made_.rend(); ++comm) ncclCommDestroy(*comm);
}

void Communicators::MakePairs(const std::vector<Pair>& mine) {
  const int stage = mesh_.CoordinateOf(world_.Rank())[Axis::kPp];
  std::vector<Pair> fresh;
  std::vector<Group> groups;
  int number = 0;
  for (const Pair& stages : PairsOfAllRanks(mine)) {
    ++number;
    if (pairs_.contains(stages) || (!alone() && stage != stages.first && stage != stages.second)) continue;
    groups.push_back(GroupOf(stages));
    groups.back().number = number;
    fresh.push_back(stages);
  }
  const std::vector<ncclComm_t> made = Make(groups);
  for (size_t i = 0; i < made.size(); ++i) pairs_[fresh[i]] = made[i];
}

/// All pairs that any rank names, on every rank.
std::vector<Communicators::Pair> Communicators::PairsOfAllRanks(const std::vector<Pair>& mine) {
  std::vector<Pair> all = alone() ? mine : OfAllRanks(world_, mine);
  Distinct(all);
  return all;
}

Communicators::Group Communicators::GroupOf(const Channel& channel) const {
  if (alone()) return {.first = world_.Rank(), .lane = channel.lane};
  const Coordinate here = mesh_.CoordinateOf(world_.Rank());
  return {.first = mesh_.RankOf(mesh_.GroupMember(channel.axes, here, 0)),
          .members = mesh_.GroupSize(channel.axes),
          .self = mesh_.IndexInGroup(channel.axes, here),
          .lane = channel.lane};
}

Communicators::Group Communicators::GroupOf(Pair stages) const {
  if (alone()) return {.first = world_.Rank(), .lane = Lane::kPpSend};
  Coordinate sender = mesh_.CoordinateOf(world_.Rank());
  const bool receives = sender[Axis::kPp] == stages.second;
  sender[Axis::kPp] = stages.first;
  return {.first = mesh_.RankOf(sender), .members = 2, .self = receives ? 1 : 0, .lane = Lane::kPpSend};
}

/// Ranks join communicators in the order of the numbers, so no cycle of waiting ranks can form.
std::vector<ncclComm_t> Communicators::Make(const std::vector<Group>& groups) {
  const std::vector<ncclUniqueId> ids = ShareIds(groups);
  const ConnectLimit limit(world_);
  std::vector<ncclComm_t> made;
  for (size_t i = 0; i < groups.size(); ++i) {
    ncclConfig_t config = ConfigOf(options_.ctas[groups[i].lane]);
    NCCL_CALL(ncclCommInitRankConfig(&made.emplace_back(), groups[i].members, ids[i], groups[i].self, &config));
    made_.push_back(made.back());
  }
  return made;
}

std::vector<ncclUniqueId> Communicators::ShareIds(const std::vector<Group>& groups) {
  std::vector<NumberedId> all;
  for (const Group& group : groups)
    if (group.self == 0) all.push_back({group.number, group.first, NewId()});
  if (!alone()) all = OfAllRanks(world_, all);
  std::map<std::pair<int, int>, const std::string*> bytes_of;
  for (const NumberedId& id : all) bytes_of[{id.number, id.first}] = &id.bytes;
  std::vector<ncclUniqueId> ids;
  for (const Group& group : groups) {
    const auto found = bytes_of.find({group.number, group.first});
    CHECK(found != bytes_of.end(), "rank {} made no id for communicator {}", group.first, group.number);
    std::memcpy(ids.emplace_back().internal, found->second->data(), sizeof(ncclUniqueId::internal));
  }
  return ids;
}

ncclComm_t Communicators::Of(const Channel& channel) const {
  const auto comm = groups_.find(channel);
  CHECK(comm != groups_.end(), "no communicator was made for group {} on lane {}", Name(channel.axes),
        Name(channel.lane));
  return comm->second;
}

ncclComm_t Communicators::Of(Pair stages) const {
  const auto comm = pairs_.find(stages);
  CHECK(comm != pairs_.end(), "no communicator was made from stage {} to stage {}", stages.first, stages.second);
  return comm->second;
}

void Communicators::CheckErrors() const {
  for (ncclComm_t comm : made_) {
    ncclResult_t state = ncclSuccess;
    NCCL_CALL(ncclCommGetAsyncError(comm, &state));
    if (state != ncclSuccess && state != ncclInProgress)
      FailNccl(__FILE__, __LINE__, "an operation under way", state, comm);
  }
}

void Communicators::Abort() {
  for (auto comm = made_.rbegin(); comm != made_.rend(); ++comm) ncclCommAbort(*comm);
  made_.clear();
}

}  // namespace espalier::cuda
