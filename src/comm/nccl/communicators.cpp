#include "communicators.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <thread>

#include "espalier/comm/pack.hpp"
#include "espalier/util/error.hpp"
#include "nccl_call.hpp"

namespace espalier::cuda {
namespace {

using std::chrono::steady_clock;

/// Thousands of ranks take a minute; a missing rank must not be waited for all night.
constexpr auto kConnectTimeout = std::chrono::minutes(5);

/// The kernels of all lanes stay on the GPU while they wait for peers. They must fit on it together, and leave most of
/// its multiprocessors (at least 108) to compute kernels: 16 + 8 + 8 + 2 x 4. Compute waits for tp, so tp gets what
/// NVLink needs. Messages between stages are small, and a receive waits long.
int CtasOf(Lane lane) { return lane == Lane::kTp ? 16 : lane == Lane::kPpSend ? 4 : 8; }

/// Calls block until they are issued, which their order on the stream needs; a nonblocking communicator would start a
/// thread for each. Resources are not shared with the parent: communicators that share them run one at a time.
ncclConfig_t ConfigOf(Lane lane) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = CtasOf(lane);
  config.splitShare = 0;
  return config;
}

/// Polls a communicator under construction, with a time limit in case a peer never comes.
void AwaitMade(ncclComm_t comm) {
  const steady_clock::time_point end = steady_clock::now() + kConnectTimeout;
  ncclResult_t state = ncclInProgress;
  while (true) {
    NCCL_CALL(ncclCommGetAsyncError(comm, &state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) FailNccl(__FILE__, __LINE__, "making a communicator", state, comm);
    CHECK(steady_clock::now() < end,
          "a communicator was not made within {} minutes: do all ranks run, and does the network between them work "
          "(NCCL_DEBUG=INFO)?",
          kConnectTimeout.count());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// Before the first communicator. Variables that the user has set keep their values.
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

Communicators::Communicators(World& world, const Mesh& mesh, const std::vector<Channel>& channels, bool alone)
    : world_(world), mesh_(mesh), alone_(alone), exceptions_at_start_(std::uncaught_exceptions()) {
  SetEnvironment();
  if (!alone) world_comm_ = MakeWorld();
  for (const Channel& channel : channels)
    if (channel.route == Route::kGroup) groups_[channel] = alone ? MakeAlone(channel.lane) : MakeGroup(channel);
}

Communicators::~Communicators() {
  if (std::uncaught_exceptions() > exceptions_at_start_) Abort();
  for (auto comm = made_.rbegin(); comm != made_.rend(); ++comm) ncclCommDestroy(*comm);
}

void Communicators::MakePairs(const std::vector<Pair>& mine) {
  for (const Pair& stages : PairsOfAllRanks(mine))
    if (pairs_.count(stages) == 0) pairs_[stages] = alone_ ? MakeAlone(Lane::kPpSend) : MakePair(stages);
}

/// All pairs that any rank names, on every rank.
std::vector<Communicators::Pair> Communicators::PairsOfAllRanks(const std::vector<Pair>& mine) {
  std::vector<Pair> all = mine;
  if (!alone_) {
    all.clear();
    for (const std::string& packed : world_.Gather(Pack(mine)))
      for (const Pair& pair : Unpack<std::vector<Pair>>(packed)) all.push_back(pair);
  }
  Distinct(all);
  return alone_ ? all : Unpack<std::vector<Pair>>(world_.Broadcast(Pack(all)));
}

/// Ranks find each other by the unique id that rank 0 makes and broadcasts.
ncclComm_t Communicators::MakeWorld() {
  ncclUniqueId id{};
  if (world_.Rank() == 0) NCCL_CALL(ncclGetUniqueId(&id));
  const std::string bytes = world_.Broadcast(std::string(id.internal, sizeof id.internal));
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  NCCL_CALL(ncclCommInitRankConfig(&comm, world_.Size(), id, world_.Rank(), &config));
  Keep(comm);
  AwaitMade(comm);
  return comm;
}

ncclComm_t Communicators::MakeAlone(Lane lane) {
  ncclUniqueId id{};
  NCCL_CALL(ncclGetUniqueId(&id));
  ncclConfig_t config = ConfigOf(lane);
  ncclComm_t comm = nullptr;
  NCCL_CALL(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
  return Keep(comm);
}

ncclComm_t Communicators::MakeGroup(const Channel& channel) {
  const Coordinate here = mesh_.CoordinateOf(world_.Rank());
  return Split(mesh_.RankOf(mesh_.GroupMember(channel.axes, here, 0)), mesh_.IndexInGroup(channel.axes, here),
               channel.lane);
}

ncclComm_t Communicators::MakePair(Pair stages) {
  const Coordinate here = mesh_.CoordinateOf(world_.Rank());
  const int stage = here[Axis::kPp], pipeline = mesh_.RankOf(mesh_.GroupMember({Axis::kPp}, here, 0));
  const bool mine = stage == stages.first || stage == stages.second;
  return Split(mine ? pipeline : NCCL_SPLIT_NOCOLOR, stage == stages.second, Lane::kPpSend);
}

/// Null for a rank without a color, which is not a member.
ncclComm_t Communicators::Split(int color, int key, Lane lane) {
  ncclConfig_t config = ConfigOf(lane);
  ncclComm_t comm = nullptr;
  NCCL_CALL(ncclCommSplit(world_comm_, color, key, &comm, &config));
  AwaitMade(world_comm_);
  if (comm == nullptr) return nullptr;
  Keep(comm);
  AwaitMade(comm);
  return comm;
}

ncclComm_t Communicators::Keep(ncclComm_t comm) { return made_.emplace_back(comm); }

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
