#include "espalier/comm/mpi_communication.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <thread>
#include <tuple>

#include "comm/lowering/exchange.hpp"
#include "comm/mpi/mpi_state.hpp"
#include "comm/pause.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

/// One instruction, lowered, with its communicator.
struct MpiInstruction {
  const Instruction* instruction;
  std::string label;
  int index;
  int number;  ///< among instructions with the same channel, lane and peer (MessageNumbers)
  Exchange exchange;
  MPI_Comm comm;
  std::function<void()> before, after;
};

/// Numbers the instructions of a step with the same channel, lane and peer: both sides of a message count alike.
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
  int steps = 0;  ///< begun so far
};

/// The MPI requests of a phase.
class Requests {
 public:
  Requests(MpiState& state, int64_t largest_part) : state_(state), largest_part_(largest_part) {}

  /// Receives first, so that a message that arrives finds its buffer.
  void Post(const Phase& phase, int tag, MPI_Comm comm) {
    std::lock_guard lock(state_.mutex);
    for (const Message& m : phase.receives)
      ForEachPart(m, [&](std::byte* at, int bytes) {
        expected_.push_back(bytes);
        MPI_CALL(MPI_Irecv(at, bytes, MPI_BYTE, m.peer, tag, comm, Next()));
      });
    for (const Message& m : phase.sends)
      ForEachPart(
          m, [&](std::byte* at, int bytes) { MPI_CALL(MPI_Isend(at, bytes, MPI_BYTE, m.peer, tag, comm, Next())); });
    statuses_.resize(requests_.size());
  }

  bool Pending() const { return !requests_.empty(); }

  /// True once all requests are done; they are forgotten then.
  bool Test() {
    if (requests_.empty()) return true;
    int done = 0;
    {
      std::lock_guard lock(state_.mutex);
      const int code = MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, statuses_.data());
      if (code != MPI_SUCCESS) Fail(code);
    }
    if (done == 0) return false;
    CheckSizes();
    requests_.clear();
    expected_.clear();
    return true;
  }

 private:
  MPI_Request* Next() { return &requests_.emplace_back(MPI_REQUEST_NULL); }

  template <typename F>
  void ForEachPart(const Message& message, F f) {
    for (int64_t at = 0; at < message.bytes; at += largest_part_)
      f(message.data + at, static_cast<int>(std::min(largest_part_, message.bytes - at)));
  }

  void Fail(int code) const {
    for (const MPI_Status& status : statuses_)
      if (code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
        FailMpi("MPI_Testall", status.MPI_ERROR);
    FailMpi("MPI_Testall", code);
  }

  void CheckSizes() {
    for (size_t i = 0; i < expected_.size(); ++i) {
      int bytes = 0;
      MPI_CALL(MPI_Get_count(&statuses_[i], MPI_BYTE, &bytes));
      CHECK(bytes == expected_[i], "member {} sent {} bytes, {} are expected", statuses_[i].MPI_SOURCE, bytes,
            expected_[i]);
    }
  }

  MpiState& state_;
  int64_t largest_part_;
  std::vector<MPI_Request> requests_;
  std::vector<MPI_Status> statuses_;
  std::vector<int> expected_;  ///< bytes, by receive
};

/// The instructions of one lane in one step, one after the other.
class LaneQueue {
 public:
  /// Tags contain the number of the instruction and the low bits of the step. Order alone pairs messages, since lanes
  /// run in order on both sides; tags make sure that a message of another instruction is never taken for the expected
  /// one.
  LaneQueue(Lane lane, const std::vector<MpiInstruction>& instructions, LaneCounts& counts, Requests requests, int step)
      : lane_(lane), instructions_(instructions), counts_(counts), requests_(std::move(requests)), step_(step) {}

  bool Done() const { return head_ == instructions_.size(); }
  bool Pending() const { return requests_.Pending(); }
  /// Peers may wait for this rank: it has something to send now, or in a later phase.
  bool PeersWait() const {
    if (!Pending()) return false;
    const std::vector<Phase>& phases = Head().exchange.phases;
    return !phases[phase_].sends.empty() || phase_ + 1 < phases.size();
  }
  /// The next instruction to run, or the running one.
  const MpiInstruction& Head() const { return instructions_[head_]; }

  /// Makes what progress is possible now; false if there is none.
  bool Advance() {
    if (Done()) return false;
    const MpiInstruction& instruction = Head();
    if (!begun_ && !counts_.Met(instruction.instruction->waits)) return false;
    const WorkScope scope(instruction.label);
    if (!begun_ && FaultAtInstruction(instruction.index) == InstructionFault::kSkip) return Next(), true;
    if (begun_) {
      if (!requests_.Test()) return false;
      Close(instruction.exchange.phases[phase_++]);
    }
    if (!begun_ && instruction.before) instruction.before();
    begun_ = true;
    if (phase_ < instruction.exchange.phases.size())
      Open(instruction);
    else
      Complete(instruction);
    return true;
  }

 private:
  void Open(const MpiInstruction& instruction) {
    const Phase& phase = instruction.exchange.phases[phase_];
    for (const StridedCopy& copy : phase.packs) Run(copy);
    requests_.Post(phase, static_cast<int>((int64_t{instruction.number} * kStepsApart + step_ % kStepsApart) % kTags),
                   instruction.comm);
    for (const StridedCopy& copy : phase.own) Run(copy);
  }
  static void Close(const Phase& phase) {
    for (const StridedCopy& copy : phase.unpacks) Run(copy);
    for (const Reduction& reduction : phase.reductions) Run(reduction);
  }
  void Complete(const MpiInstruction& instruction) {
    if (instruction.after) instruction.after();
    Next();
  }
  void Next() {
    begun_ = false;
    phase_ = 0;
    ++head_;
    counts_.Raise(lane_);
  }

  static constexpr int kStepsApart = 4;
  static constexpr int kTags = 32768;  // every MPI library has at least this many

  Lane lane_;
  const std::vector<MpiInstruction>& instructions_;
  LaneCounts& counts_;
  Requests requests_;
  int step_;
  size_t head_ = 0;
  size_t phase_ = 0;
  bool begun_ = false;  ///< the messages of the head's phase are posted
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
      prepared->lanes[static_cast<size_t>(i.instruction->lane)].push_back(
          {i.instruction, std::move(i.label), i.index, numbers.Next(program, *i.instruction), std::move(exchange), comm,
           i.before, i.after});
    }
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
    Pause pause(world_.SharesCores());
    bool awaited = false;
    while (true) {
      const Turn turn = AdvanceAll(queues);
      if (turn == Turn::kDone) return;
      CHECK(!counts_->Failed(), "the step has failed in another thread");
      if (turn == Turn::kMoved || awaited != counts_->CommAwaited()) pause.Reset();
      awaited = counts_->CommAwaited();
      if (turn == Turn::kPending && awaited) pause.Rest();
      if (turn == Turn::kPending && !awaited)
        counts_->Doze(NeededComputeCount(queues), pause.Doze(LongestDoze(queues)));
      if (turn == Turn::kIdle) SleepUntilCompute(queues);
    }
  }

  static constexpr int kNever = std::numeric_limits<int>::max();
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

  /// The count of the compute lane at which some head can start: 0 if one can start now, kNever if none waits for the
  /// compute lane. The compute lane advances meanwhile, so its count is read once; the other lanes belong to this
  /// thread.
  int NeededComputeCount(const std::vector<LaneQueue>& queues) {
    const int reached = counts_->Count(Lane::kCompute);
    int needed = kNever;
    for (const LaneQueue& queue : queues) {
      if (queue.Done() || queue.Pending()) continue;
      working_on_ = &queue.Head();
      bool free = true;
      for (const Wait& wait : queue.Head().instruction->waits) {
        const bool compute = wait.lane == Lane::kCompute;
        if (compute ? reached >= wait.count : counts_->Met(wait)) continue;
        free = false;
        if (compute) needed = std::min(needed, wait.count);
      }
      if (free) return 0;
    }
    return needed;
  }

  /// A receive that was posted early is polled rarely; more often if other ranks may be waiting for this one.
  static std::chrono::microseconds LongestDoze(const std::vector<LaneQueue>& queues) {
    const bool needed = std::any_of(queues.begin(), queues.end(), [](const LaneQueue& q) { return q.PeersWait(); });
    return std::chrono::microseconds(needed ? 200 : 1000);
  }

  /// No message is in flight, so only the compute lane can let a head start.
  void SleepUntilCompute(const std::vector<LaneQueue>& queues) {
    const int needed = NeededComputeCount(queues);
    CHECK(needed != kNever, "deadlock: communication lanes wait for each other");
    if (!counts_->AwaitFor({Lane::kCompute, needed}, std::chrono::milliseconds(10))) Progress();
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
