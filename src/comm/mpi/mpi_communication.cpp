#include "espalier/comm/mpi_communication.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>
#include <tuple>

#include "comm/mpi/lane_queue.hpp"
#include "comm/pause.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Numbers the instructions of a step with the same channel, lane and peer; both sides of a message get the same
/// number.
class MessageNumbers {
 public:
  int Next(const Program& program, const Instruction& instruction) {
    const Op& op = program.graph->ops[static_cast<size_t>(instruction.op)];
    const int peer = op.kind == OpKind::kSend ? op.Peer() : op.kind == OpKind::kRecv ? op.Peer() : -1;
    return next_[{ChannelOf(program, instruction), instruction.lane, peer}]++;
  }

 private:
  std::map<std::tuple<Channel, Lane, int>, int> next_;
};

class PreparedMpi final : public PreparedComm {
 public:
  std::array<std::vector<MpiInstruction>, kLaneCount> lanes;
  std::array<std::vector<std::byte>, kLaneCount> meetings;  ///< memory of the messages of meetings
  bool meets = false;                                       ///< the instructions are meetings
  int steps = 0;                                            ///< steps begun so far
};

std::string MessageOf(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

class MpiCommunication::Impl {
 public:
  Impl(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels, MpiCommunicationOptions options)
      : world_(world), mesh_(mesh), options_(std::move(options)) {
    CHECK(mesh.Ranks() == world.Size(), "the mesh {} has {} ranks, the job {}", mesh.ToString(), mesh.Ranks(),
          world.Size());
    if (!options_.abort) options_.abort = [&world](const std::string& message) { world.Fail(message); };
    for (const Channel& channel : channels) comms_.emplace(channel, Split(channel.axes));
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
    std::lock_guard lock(world_.state().mutex);
    comms_.clear();
  }

  std::unique_ptr<PreparedComm> Prepare(const Program& program, const Coordinate& coordinate,
                                        std::vector<CommInstruction> instructions) {
    auto prepared = std::make_unique<PreparedMpi>();
    MessageNumbers numbers;
    for (CommInstruction& i : instructions) {
      Exchange exchange = LowerInstruction(program, coordinate, i);
      const MPI_Comm comm = CommOf(exchange.channel);
      prepared->meets |= i.meeting.has_value();
      prepared->lanes[static_cast<size_t>(i.instruction.lane)].push_back({i.instruction,
                                                                          std::move(i.label),
                                                                          i.index,
                                                                          numbers.Next(program, i.instruction),
                                                                          std::move(exchange),
                                                                          comm,
                                                                          i.before,
                                                                          i.after,
                                                                          i.meeting,
                                                                          {}});
    }
    if (prepared->meets) PrepareMeetings(coordinate, *prepared);
    if (!instructions.empty() && !thread_.joinable()) thread_ = std::thread([this] { Serve(); });
    return prepared;
  }

  void Start(PreparedMpi& prepared, LaneCounts& counts) {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      CHECK(work_ == nullptr, "a step is running");
      failure_ = nullptr;
      counts_ = &counts;
      work_ = &prepared;
    }
    changed_.notify_all();
  }

  void Finish() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_ == nullptr; });
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  MpiComm Split(AxisSet axes) {
    std::lock_guard lock(world_.state().mutex);
    const Coordinate here = mesh_.CoordinateOf(world_.Rank());
    const int color = mesh_.RankOf(mesh_.GroupMember(axes, here, 0));
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_CALL(MPI_Comm_split(MPI_COMM_WORLD, color, mesh_.IndexInGroup(axes, here), &comm));
    return MpiComm(comm);
  }

  /// Clocks of several nodes differ, so that the last arrival is the moment at which this rank sees it.
  static auto ByOwnClock(decltype(Meeting::meet) meet) -> decltype(Meeting::meet) {
    return [meet = std::move(meet)](Arrival last) {
      last.at = std::chrono::steady_clock::now();
      return meet(last);
    };
  }

  /// Replaces the exchanges of meetings by their messages. The meetings of a lane share memory, since they run one
  /// after the other.
  void PrepareMeetings(const Coordinate& coordinate, PreparedMpi& prepared) const {
    for (size_t l = 0; l < kLaneCount; ++l) {
      int most = 1;
      for (const MpiInstruction& i : prepared.lanes[l]) most = std::max(most, mesh_.GroupSize(i.exchange.channel.axes));
      prepared.meetings[l].resize(static_cast<size_t>(MeetingMessages::BytesFor(most - 1)));
      for (MpiInstruction& i : prepared.lanes[l]) {
        if (!i.meeting) continue;
        if (world_.NodeRanks() < world_.Size()) i.meeting->meet = ByOwnClock(std::move(i.meeting->meet));
        const AxisSet axes = i.exchange.channel.axes;
        i.meeting_messages.emplace(
            MeetingPeersOf(i.exchange, mesh_.GroupSize(axes), mesh_.IndexInGroup(axes, coordinate)),
            prepared.meetings[l]);
        i.exchange.phases = {i.meeting_messages->ToPhase()};
      }
    }
  }

  /// MPI_COMM_NULL for a group of one, which has no messages.
  MPI_Comm CommOf(const Channel& channel) const {
    if (channel.axes.Empty()) return MPI_COMM_NULL;
    const auto comm = comms_.find(channel);
    CHECK(comm != comms_.end(), "no communicator was made for group {} on lane {}", Name(channel.axes),
          Name(channel.lane));
    return comm->second.Get();
  }

  void Serve() {
    // Sleeps of a few microseconds need a timer of that resolution.
    prctl(PR_SET_TIMERSLACK, 1000UL);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ending_ || work_ != nullptr; });
      if (work_ == nullptr) return;
      lock.unlock();
      std::exception_ptr failure = RunGuarded();
      lock.lock();
      failure_ = std::move(failure);
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  /// Runs the step. A failure ends the job through `abort`; if that returns, every thread that waits for a lane throws.
  std::exception_ptr RunGuarded() {
    working_on_ = nullptr;
    try {
      RunStep();
      return nullptr;
    } catch (...) {
      std::exception_ptr failure = std::current_exception();
      const std::string where = working_on_ != nullptr ? working_on_->label : std::string("communication");
      const std::string message = where + ": " + MessageOf(failure);
      const bool ours = !counts_->Failed();
      counts_->Fail();
      try {
        if (ours) options_.abort(message);
      } catch (...) {
        failure = std::current_exception();
      }
      return failure;
    }
  }

  void RunStep() {
    std::vector<LaneQueue> queues;
    for (size_t l = 0; l < kLaneCount; ++l)
      if (!work_->lanes[l].empty())
        queues.emplace_back(static_cast<Lane>(l), work_->lanes[l], *counts_,
                            Requests(world_.state(), options_.largest_part), work_->steps);
    ++work_->steps;
    Pause pause = work_->meets ? Pause(kLongestRestOfMeetings) : Pause(world_.SharesCores());
    bool awaited = false;
    while (true) {
      const Turn turn = AdvanceAll(queues);
      if (turn == Turn::kDone) return;
      CHECK(!counts_->Failed(), "the step has failed in another thread");
      if (turn == Turn::kMoved || awaited != counts_->CommAwaited()) pause.Reset();
      awaited = counts_->CommAwaited();
      if (turn == Turn::kPending) AwaitMessages(queues, pause, awaited);
      if (turn == Turn::kIdle) SleepUntilCompute(queues, kLongestSleep);
    }
  }

  /// Sleeps until messages may have arrived, a held lane is free, or the compute lane allows another head to start.
  void AwaitMessages(const std::vector<LaneQueue>& queues, Pause& pause, bool awaited) {
    const std::chrono::nanoseconds held = LeftOfHold(queues);
    if (std::none_of(queues.begin(), queues.end(), [](const LaneQueue& q) { return q.InFlight(); }))
      SleepUntilCompute(queues, std::min<std::chrono::nanoseconds>(held, kLongestSleep));
    else if (awaited)
      pause.Rest(held);
    else
      counts_->Doze(NeededComputeCount(queues), std::min(pause.Doze(LongestDoze(queues)), RoundUp(held)));
  }

  /// The time until the first held lane is free; the largest time if none is held.
  static std::chrono::nanoseconds LeftOfHold(const std::vector<LaneQueue>& queues) {
    auto left = std::chrono::nanoseconds::max();
    for (const LaneQueue& queue : queues)
      if (queue.held_until())
        left = std::min<std::chrono::nanoseconds>(left, *queue.held_until() - std::chrono::steady_clock::now());
    return std::max(left, std::chrono::nanoseconds(0));
  }
  static std::chrono::microseconds RoundUp(std::chrono::nanoseconds time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::min<std::chrono::nanoseconds>(time, kLongestSleep)) +
           std::chrono::microseconds(1);
  }

  static constexpr auto kLongestSleep = std::chrono::milliseconds(10);
  /// Messages of meetings carry the time of the last arrival, so polls need not be exact.
  static constexpr auto kLongestRestOfMeetings = std::chrono::milliseconds(1);

  static constexpr int kNever = std::numeric_limits<int>::max();
  static constexpr int kAfterACopy = kNever - 1;
  enum class Turn { kDone, kMoved, kPending, kIdle };

  Turn AdvanceAll(std::vector<LaneQueue>& queues) {
    bool moved = false, pending = false, done = true;
    for (LaneQueue& queue : queues) {
      if (!queue.Done()) working_on_ = &queue.Head();
      moved |= queue.Advance();
      pending |= queue.Pending();
      done &= queue.Done();
    }
    if (done) return Turn::kDone;
    if (moved) return Turn::kMoved;
    return pending ? Turn::kPending : Turn::kIdle;
  }

  /// The count of the compute lane at which some head can start: 0 if one can start now, kAfterACopy if heads wait for
  /// copies alone, kNever if none waits for either. The compute lane advances meanwhile, so its count is read once.
  int NeededComputeCount(const std::vector<LaneQueue>& queues) {
    const int reached = counts_->Count(Lane::kCompute);
    int needed = kNever;
    for (const LaneQueue& queue : queues) {
      if (queue.Done() || queue.Pending()) continue;
      working_on_ = &queue.Head();
      bool free = true;
      for (const Wait& wait : queue.Head().instruction.waits) {
        const bool compute = wait.lane == Lane::kCompute;
        if (compute ? reached >= wait.count : counts_->Met(wait)) continue;
        free = false;
        if (compute) needed = std::min(needed, wait.count);
        if (IsCopyLane(wait.lane)) needed = std::min(needed, kAfterACopy);
      }
      if (free) return 0;
    }
    return needed;
  }

  /// A receive that was posted early is polled rarely; more often if other ranks may wait for this one.
  static std::chrono::microseconds LongestDoze(const std::vector<LaneQueue>& queues) {
    const bool needed = std::any_of(queues.begin(), queues.end(), [](const LaneQueue& q) { return q.PeersWait(); });
    return std::chrono::microseconds(needed ? 200 : 1000);
  }

  /// No message is in flight, so only the compute lane or a copy can let a head start, or the end of a held lane
  /// (`limit`).
  void SleepUntilCompute(const std::vector<LaneQueue>& queues, std::chrono::nanoseconds limit) {
    const int copies = counts_->Copies();
    const int needed = NeededComputeCount(queues);
    CHECK(needed != kNever || std::any_of(queues.begin(), queues.end(), [](const LaneQueue& q) { return q.Pending(); }),
          "deadlock: communication lanes wait for each other");
    if (!counts_->AwaitComputeOrCopy(needed, copies, RoundUp(limit))) Progress();
  }

  /// MPI makes progress only inside calls, and a peer may still need this rank's reply to a message that is complete
  /// here.
  void Progress() {
    std::lock_guard lock(world_.state().mutex);
    int flag = 0;
    MPI_CALL(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
  }

  MpiWorld& world_;
  Mesh mesh_;
  MpiCommunicationOptions options_;
  std::map<Channel, MpiComm> comms_;

  std::thread thread_;
  const MpiInstruction* working_on_ = nullptr;  ///< written and read by the thread, for its messages

  std::mutex mutex_;
  std::condition_variable changed_;
  PreparedMpi* work_ = nullptr;  ///< the step to run; null when idle
  LaneCounts* counts_ = nullptr;
  std::exception_ptr failure_;
  bool ending_ = false;
};

MpiCommunication::MpiCommunication(MpiWorld& world, const Mesh& mesh, const std::vector<Channel>& channels,
                                   MpiCommunicationOptions options)
    : impl_(std::make_unique<Impl>(world, mesh, channels, std::move(options))) {}
MpiCommunication::~MpiCommunication() = default;

std::unique_ptr<PreparedComm> MpiCommunication::Prepare(const Program& program, const Coordinate& coordinate,
                                                        std::vector<CommInstruction> instructions) {
  return impl_->Prepare(program, coordinate, std::move(instructions));
}

void MpiCommunication::Start(PreparedComm& prepared, LaneCounts& lanes) {
  impl_->Start(dynamic_cast<PreparedMpi&>(prepared), lanes);
}

void MpiCommunication::Finish() { impl_->Finish(); }

}  // namespace espalier
