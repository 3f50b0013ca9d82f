#include "espalier/executor/sleep_executor.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <limits>

#include "copy_lanes.hpp"
#include "espalier/timeline/timeline.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/memory.hpp"

namespace espalier {
namespace {

using std::chrono::nanoseconds;

/// If an instruction starts at most this late, it counts from the time at which it could have started: clocks and
/// schedulers of a machine with more threads than cores are no more exact. A longer delay is the program's own.
constexpr auto kTolerance = std::chrono::milliseconds(5);
/// The interval at which a sleeping thread checks whether the step has failed, and shows that it is alive.
constexpr auto kLongestNap = std::chrono::milliseconds(200);

Kernel FindNoKernel(std::string_view) {
  return [](const KernelCall&) {};
}

nanoseconds Dilated(double us, double dilation) {
  constexpr double kMaxNs = 1e18;  // about thirty years
  return nanoseconds(static_cast<int64_t>(std::min(us * dilation * 1e3, kMaxNs)));
}

/// Returns early on a signal.
void SleepUntilOnce(std::chrono::steady_clock::time_point end) {
  const int64_t ns = std::chrono::duration_cast<nanoseconds>(end.time_since_epoch()).count();
  const timespec time{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  const int code = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr);
  CHECK(code == 0 || code == EINTR, "clock_nanosleep returns {}", code);
}

}  // namespace

ReservedArena::ReservedArena(int64_t bytes) : Arena(bytes), mapped_(static_cast<size_t>(std::max(bytes, int64_t{1}))) {
  void* memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw UserError(
        ExitStatus::kDoesNotFit,
        fmt::format("the system gives no {} of addresses (is there a limit, ulimit -v?)", Gigabytes(bytes)));
  base_ = static_cast<std::byte*>(memory);
}

ReservedArena::~ReservedArena() { munmap(base_, mapped_); }

void ReservedArena::Read(const void*, void*, int64_t) const { CHECK(false, "a device that only waits holds no data"); }
void ReservedArena::Write(void*, const void*, int64_t) { CHECK(false, "a device that only waits holds no data"); }

SleepExecutor::SleepExecutor(const Program& program, const Coordinate& coordinate, const Memory& memory,
                             Communication* communication, const std::vector<double>& costs_us, double dilation,
                             Abort abort)
    : Executor(program, coordinate, memory, FindNoKernel, std::move(abort)),
      communication_(communication),
      copy_lanes_(std::make_unique<CopyLanes>(copies_)),
      make_copy_([this](const HostCopy& copy) { Pass(copy.index); }),
      dilation_(dilation) {
  CHECK(exchanges_.empty() || communication != nullptr,
        "the program communicates, but there is nothing to communicate with");
  CHECK(costs_us.size() == program.instructions.size(), "{} costs of {} instructions", costs_us.size(),
        program.instructions.size());
  for (int i = 0; i < std::ssize(program.instructions); ++i) {
    std::vector<int>& lane = of_lane_[InstructionAt(i).lane];
    place_.push_back(static_cast<int>(lane.size()));
    lane.push_back(i);
    takes_.push_back(Dilated(costs_us[static_cast<size_t>(i)], dilation));
  }
  moments_.resize(program.instructions.size());
  MeetInsteadOfExchanging();
  if (!exchanges_.empty()) comm_ = communication->Prepare(program, coordinate, std::move(exchanges_));
}

SleepExecutor::~SleepExecutor() = default;

void SleepExecutor::MeetInsteadOfExchanging() {
  for (CommInstruction& exchange : exchanges_) {
    const auto index = static_cast<size_t>(exchange.index);
    if (ChannelOf(program_, exchange.instruction).axes.Empty()) takes_[index] = nanoseconds(0);  // a group of one rank
    exchange.meeting.emplace();
    exchange.meeting->arrive = [this, index] {
      Arrive(static_cast<int>(index));
      return Arrival{moments_[index].ready, takes_[index]};
    };
    exchange.meeting->meet = [this, index](const Arrival& last) {
      const Clock::time_point now = Clock::now();
      moments_[index].begin = std::clamp(last.at, now - kTolerance, now);
      moments_[index].late += std::max(moments_[index].begin - last.at, Clock::duration(0));
      return moments_[index].end = moments_[index].begin + last.takes;
    };
  }
}

/// The latest end among the instruction before it on its lane and the instructions of its waits. So oversleeping does
/// not accumulate.
SleepExecutor::Clock::time_point SleepExecutor::ReadyOf(int index) const {
  const Instruction instruction = InstructionAt(index);
  const auto end_of = [&](Lane lane, int place) {
    return moments_[static_cast<size_t>(of_lane_[lane].at(static_cast<size_t>(place)))].end;
  };
  Clock::time_point ready = began_;
  if (const int place = place_[static_cast<size_t>(index)]; place > 0)
    ready = std::max(ready, end_of(instruction.lane, place - 1));
  for (const Wait& wait : instruction.waits)
    if (wait.count > 0) ready = std::max(ready, end_of(wait.lane, wait.count - 1));
  return ready;
}

void SleepExecutor::Arrive(int index) {
  Moments& moments = moments_[static_cast<size_t>(index)];
  const Clock::time_point ready = ReadyOf(index);
  moments.ready = moments.begin = moments.end = std::max(ready, Clock::now() - kTolerance);
  moments.late = moments.ready - ready;
}

void SleepExecutor::Begin() {
  began_ = Clock::now();
  lanes_.Reset();
  UseMemory();
  if (comm_ != nullptr) communication_->Start(*comm_, lanes_);
  copy_lanes_->Start(lanes_, make_copy_);
  try {
    RunCalls();
    for (const Wait& wait : ends_) lanes_.Await(wait);
  } catch (const std::exception& error) {
    Fail(Describe(CurrentInstruction()) + ": " + error.what());
  }
  if (comm_ != nullptr) communication_->Finish();
  copy_lanes_->Finish();
  current_.store(-1, std::memory_order_relaxed);
  Report(Clock::now());
}

void SleepExecutor::RunCalls() {
  for (const Call& call : calls_) {
    current_.store(call.index, std::memory_order_relaxed);
    for (const Wait& wait : call.waits) lanes_.Await(wait);
    Pass(call.index);
    arena_.Use(call.end);
    lanes_.Raise(Lane::kCompute);
  }
}

void SleepExecutor::Pass(int index) {
  Moments& moments = moments_[static_cast<size_t>(index)];
  Arrive(index);
  if (FaultAtInstruction(index) == InstructionFault::kSkip) return;
  moments.end += takes_[static_cast<size_t>(index)];
  SleepUntil(moments.end);
}

void SleepExecutor::SleepUntil(Clock::time_point end) {
  for (Clock::time_point now = Clock::now(); now < end; now = Clock::now()) {
    CHECK(!lanes_.Failed(), "the step has failed in another thread");
    lanes_.progress().alive.fetch_add(1, std::memory_order_relaxed);
    SleepUntilOnce(std::min<Clock::time_point>(end, now + kLongestNap));
  }
}

double SleepExecutor::ClusterUs(Clock::duration time) const {
  return std::chrono::duration<double, std::micro>(time).count() / dilation_;
}

/// Reports the times of the step that has ended.
void SleepExecutor::Report(Clock::time_point now) {
  Track track;
  track.program = {std::shared_ptr<const Program>(), &program_};
  Clock::duration late{0};
  for (int i = 0; i < std::ssize(moments_); ++i) {
    const Moments& m = moments_[static_cast<size_t>(i)];
    late += m.late;
    track.spans.push_back({i, ClusterUs(m.ready - began_), ClusterUs(m.begin - began_), ClusterUs(m.end - began_)});
  }
  const double step_us = ClusterUs(now - began_);
  const Breakdown breakdown = BreakDown(track, step_us);
  times_ = {.step_ms = step_us * 1e-3, .compute_ms = breakdown.compute_us * 1e-3};
  times_.comm = CommTimesOf(breakdown);
  times_.exposed_comm_ms = times_.comm->ExposedMs();
  times_.idle_ms = breakdown.idle_us * 1e-3;
  times_.late_ms = ClusterUs(late) * 1e-3;
  if (!std::exchange(timed_, false)) return;
  spans_ = std::move(track.spans);
  timed_step_began_us_ = std::chrono::duration<double, std::micro>(began_.time_since_epoch()).count();
}

float SleepExecutor::GetScalar(std::string_view, int) const { return std::numeric_limits<float>::quiet_NaN(); }

void SleepExecutor::Abandon() {
  copy_lanes_->Finish();
  if (comm_ != nullptr) communication_->Finish();
}

}  // namespace espalier
