#include "communicators.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include "espalier/comm/agreement.hpp"
#include "espalier/kernels/cuda/cuda_call.hpp"
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

/// Numbers in memory of the device.
class DeviceInts {
 public:
  explicit DeviceInts(size_t count) { CUDA_CALL(cudaMalloc(&data_, std::max<size_t>(1, count) * sizeof(int32_t))); }
  ~DeviceInts() { cudaFree(data_); }
  DeviceInts(const DeviceInts&) = delete;
  DeviceInts& operator=(const DeviceInts&) = delete;

  int32_t* At(int index) const { return static_cast<int32_t*>(data_) + index; }
  void Write(const std::vector<int32_t>& values) const {
    CUDA_CALL(cudaMemcpy(data_, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice));
  }
  std::vector<int32_t> Read(size_t count) const {
    std::vector<int32_t> values(count);
    CUDA_CALL(cudaMemcpy(values.data(), data_, count * sizeof(int32_t), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
};

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
  for (const Pair& stages : PairsOfAllRanks(mine)) {
    if (pairs_.contains(stages) || (!alone() && stage != stages.first && stage != stages.second)) continue;
    groups.push_back(GroupOf(stages));
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
  if (alone()) return {.ranks = {world_.Rank()}, .lane = channel.lane};
  const Coordinate here = mesh_.CoordinateOf(world_.Rank());
  return {.ranks = mesh_.GroupRanks(channel.axes, here),
          .self = mesh_.IndexInGroup(channel.axes, here),
          .lane = channel.lane};
}

Communicators::Group Communicators::GroupOf(Pair stages) const {
  if (alone()) return {.ranks = {world_.Rank()}, .lane = Lane::kPpSend};
  Coordinate sender = mesh_.CoordinateOf(world_.Rank()), receiver = sender;
  const bool receives = sender[Axis::kPp] == stages.second;
  sender[Axis::kPp] = stages.first;
  receiver[Axis::kPp] = stages.second;
  return {.ranks = {mesh_.RankOf(sender), mesh_.RankOf(receiver)}, .self = receives ? 1 : 0, .lane = Lane::kPpSend};
}

/// Ranks join communicators in the order of a list that all share, so no cycle of waiting ranks can form.
std::vector<ncclComm_t> Communicators::Make(const std::vector<Group>& groups) {
  const std::vector<ncclUniqueId> ids = ShareIds(groups);
  const ConnectLimit limit(world_);
  std::vector<ncclComm_t> made;
  for (size_t i = 0; i < groups.size(); ++i) {
    ncclConfig_t config = ConfigOf(options_.ctas[groups[i].lane]);
    const ncclResult_t code = ncclCommInitRankConfig(&made.emplace_back(), static_cast<int>(groups[i].ranks.size()),
                                                     ids[i], groups[i].self, &config);
    if (code != ncclSuccess)
      FailNccl(__FILE__, __LINE__,
               fmt::format("making the communicator of ranks {} for {}", fmt::join(groups[i].ranks, ", "),
                           Name(groups[i].lane))
                   .c_str(),
               code);
    made_.push_back(made.back());
  }
  Connect(groups, made);
  return made;
}

std::vector<ncclUniqueId> Communicators::ShareIds(const std::vector<Group>& groups) {
  std::vector<ncclUniqueId> ids(groups.size());
  std::vector<Parcel> sends, receives;
  for (size_t i = 0; i < groups.size(); ++i) {
    const Group& group = groups[i];
    const Parcel id{group.ranks.front(), reinterpret_cast<std::byte*>(ids[i].internal), sizeof ids[i].internal};
    if (group.self > 0) {
      receives.push_back(id);
      continue;
    }
    NCCL_CALL(ncclGetUniqueId(&ids[i]));
    for (size_t member = 1; member < group.ranks.size(); ++member)
      sends.push_back({group.ranks[member], id.data, id.bytes});
  }
  if (!alone()) world_.Exchange(sends, receives);
  return ids;
}

void Communicators::Connect(const std::vector<Group>& groups, const std::vector<ncclComm_t>& made) const {
  size_t most = 0;
  for (const Group& group : groups) most = std::max(most, group.ranks.size());
  const DeviceInts places(most);
  for (size_t i = 0; i < groups.size(); ++i) {
    const std::vector<int>& ranks = groups[i].ranks;
    std::vector<int32_t> seen(ranks.size(), -1);
    seen[static_cast<size_t>(groups[i].self)] = world_.Rank();
    places.Write(seen);
    NCCL_CALL(ncclAllGather(places.At(groups[i].self), places.At(0), sizeof(int32_t), ncclInt8, made[i], nullptr));
    CUDA_CALL(cudaStreamSynchronize(nullptr));
    if (places.Read(ranks.size()) != std::vector<int32_t>(ranks.begin(), ranks.end()))
      throw std::runtime_error(fmt::format("the first call of the communicator of ranks {} brought ranks {}",
                                           fmt::join(ranks, ", "), fmt::join(places.Read(ranks.size()), ", ")));
  }
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
