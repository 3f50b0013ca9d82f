#include "espalier/watch/watchdog.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "espalier/util/input_file.hpp"
#include "espalier/util/print.hpp"

namespace espalier {
namespace {

constexpr auto kMaxTick = std::chrono::milliseconds(500);
constexpr auto kHeadStart = std::chrono::seconds(3);
constexpr auto kQuietBeforeNeighbourCheck = std::chrono::seconds(1);
constexpr auto kQuietBeforeExitReport = std::chrono::seconds(5);
constexpr unsigned kTimeToEnd = 5;  // seconds
constexpr auto kTimeToReport = std::chrono::milliseconds(500);

/// Reads the state character in /proc/PID/stat. It follows the command's name, which may contain any character and ends
/// at the last bracket.
ProcessState StateOfProcess(int process) {
  const std::string text = ReadSystemFile(fmt::format("/proc/{}/stat", process));
  if (text.empty()) return kill(process, 0) != 0 && errno == ESRCH ? ProcessState::kGone : ProcessState::kUnknown;
  const size_t bracket = text.rfind(')');
  const char state = bracket != std::string::npos && bracket + 2 < text.size() ? text[bracket + 2] : '?';
  if (state == 'T' || state == 't') return ProcessState::kStopped;
  return state == 'Z' || state == 'X' ? ProcessState::kGone : ProcessState::kRunning;
}

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
}

/// Ends the process with the status of a hang if it still runs then. SIGALRM alone would give it one of its own.
void EndWithin(unsigned seconds) {
  std::signal(SIGALRM, [](int) { _exit(static_cast<int>(ExitStatus::kFault)); });
  alarm(seconds);
}

bool Stuck(const RankStatus& status) {
  return status.process == ProcessState::kStopped || status.process == ProcessState::kGone;
}

}  // namespace

Watchdog::Watchdog(Options options, HeartbeatFile& mine, CompilationFinder compilation_of, End end)
    : options_(std::move(options)),
      mine_(mine),
      compilation_of_(std::move(compilation_of)),
      end_(std::move(end)),
      node_(options_.heartbeats.NodeOf(mine.record().rank)) {
  FindNeighbours();
  thread_ = std::thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool Watchdog::Sleep(Clock::duration tick) {
  std::unique_lock lock(mutex_);
  return !changed_.wait_for(lock, tick, [this] { return ending_; });
}

/// Time without progress is counted in ticks, so that time in which the whole job was suspended does not count.
void Watchdog::Run() {
  const auto limit = Seconds(options_.limit_s);
  const auto tick = std::min<Clock::duration>(kMaxTick, limit / 10);
  Heartbeat last = Read(mine_.record());
  while (Sleep(tick)) {
    if (options_.refresh) options_.refresh();
    if (options_.recorder != nullptr) options_.recorder->Note();
    Publish();
    const Heartbeat now = Read(mine_.record());
    quiet_ = now.SamePlace(last) ? quiet_ + tick : Clock::duration{};
    last = now;
    if (quiet_ >= kQuietBeforeNeighbourCheck) EndIfNeighbourDied();
    if (quiet_ >= kQuietBeforeExitReport) ReportBeforeExit();
    if (quiet_ < limit / 2) before_.clear(), check_at_ = limit;
    if (quiet_ >= limit / 2 && before_.empty()) before_ = ReadStatuses();
    if (quiet_ < check_at_) continue;
    CheckForHang();
    check_at_ = quiet_ + limit / 2;
  }
}

void Watchdog::Publish() {
  if (mine_.Publish() || warned_) return;
  warned_ = true;
  spdlog::warn("rank {}: its heartbeat cannot be written: {}; if this rank hangs, other ranks cannot see where",
               mine_.record().rank, std::strerror(errno));
}

std::string Watchdog::Record(const std::string& reason) const {
  const std::string path = options_.recorder == nullptr ? "" : options_.recorder->Write(reason);
  return path.empty() ? "" : fmt::format("  its last instructions: {}\n", path);
}

Watchdog::Clock::duration Watchdog::LimitOf(Activity activity) const {
  const bool slow = activity == Activity::kStart || activity == Activity::kSaving || activity == Activity::kEnded;
  return Seconds(slow ? options_.slow_limit_s : options_.limit_s);
}

void Watchdog::FindNeighbours() {
  const Heartbeat mine = Read(mine_.record());
  for (const std::optional<Heartbeat>& beat : options_.heartbeats.Read(node_))
    if (beat && beat->rank != mine.rank && beat->SharesProcesses(mine)) neighbours_.push_back(*beat);
}

/// A rank that exits in an orderly way removes its heartbeat first.
bool Watchdog::Died(const Heartbeat& neighbour) const {
  if (StateOfProcess(neighbour.process) != ProcessState::kGone) return false;
  const auto left = options_.heartbeats.Read(neighbour.rank);
  return left && left->process == neighbour.process;
}

void Watchdog::EndIfNeighbourDied() {
  const auto dead = std::ranges::find_if(neighbours_, [this](const Heartbeat& n) { return Died(n); });
  if (dead != neighbours_.end()) EndAfter(options_.heartbeats.Read(dead->rank).value_or(*dead));
}

bool Watchdog::AlreadyReported() const {
  return std::ranges::any_of(options_.heartbeats.ReadAll(), [this](const std::optional<Heartbeat>& beat) {
    return beat && beat->rank != mine_.record().rank && beat->activity == Activity::kEndingJob;
  });
}

/// The lowest live rank of the host reports the reason, unless another rank already has: a launcher that ends a job
/// kills one rank after the other. If other hosts have ranks, the launcher is asked to end the job, with a limit of two
/// seconds.
void Watchdog::EndAfter(const Heartbeat& dead) {
  const int rank = mine_.record().rank;
  const auto reports = [&](const Heartbeat& n) {
    return n.rank < rank && StateOfProcess(n.process) != ProcessState::kStopped && !Died(n);
  };
  const bool silent = std::ranges::any_of(neighbours_, reports) || AlreadyReported();
  if (silent) {
    std::this_thread::sleep_for(kTimeToReport);
  } else {
    PrintError("espalier: watchdog of rank {}: rank {} is gone: its process ({} on {}) has ended, {}, step {}\n", rank,
               dead.rank, dead.process, dead.host, Name(dead.activity), dead.step);
    std::fflush(stderr);
  }
  mine_.Remove();
  EndWithin(2);  // storage may be what does not answer
  Record(fmt::format("rank {} is gone", dead.rank));
  if (!silent && OtherHosts()) end_();
  _exit(static_cast<int>(ExitStatus::kFault));
}

std::vector<RankStatus> Watchdog::ReadStatuses() const {
  std::vector<RankStatus> statuses;
  const Heartbeat mine = Read(mine_.record());
  const std::vector<std::optional<Heartbeat>> beats = options_.heartbeats.ReadAll();
  for (int rank = 0; rank < options_.heartbeats.Ranks(); ++rank) {
    const std::optional<Heartbeat>& beat = beats[static_cast<size_t>(rank)];
    RankStatus status;
    status.present = beat.has_value() || rank == mine.rank;
    // If a rank of this host has no heartbeat, its process is known from the start.
    const auto known = std::ranges::find(neighbours_, rank, &Heartbeat::rank);
    if (rank == mine.rank) {
      status.heartbeat = mine;
    } else if (beat) {
      status.heartbeat = *beat;
    } else if (known != neighbours_.end()) {
      status.heartbeat = *known;
    }
    if (status.heartbeat.SharesProcesses(mine)) status.process = StateOfProcess(status.heartbeat.process);
    statuses.push_back(std::move(status));
  }
  return statuses;
}

/// One rank per host reports; the launcher kills it one second after asking it to end.
void Watchdog::ReportBeforeExit() {
  if (reported_before_exit_ || !OtherHosts() || !options_.asked || !options_.asked()) return;
  reported_before_exit_ = true;
  const int rank = mine_.record().rank;
  if (rank != node_.front()) return;
  const Diagnosis diagnosis =
      Diagnose(ReadStatuses(), [this](int r, int64_t step) -> const Program& { return ProgramOf(r, step); });
  if (diagnosis.fault != Fault::kLost) return;
  fmt::print(stderr, "espalier: watchdog of rank {}: asked to end after {:.3g} s without progress\n{}\n", rank,
             std::chrono::duration<double>(quiet_).count(), diagnosis.text);
  std::fflush(stderr);
}

RankStatus Watchdog::Compare(RankStatus now, const RankStatus& before) const {
  // A stop, or a missing file, counts only if both readings show it.
  if (now.process == ProcessState::kStopped && before.process != ProcessState::kStopped)
    now.process = ProcessState::kRunning;
  if (!now.present && before.present) now.present = true, now.heartbeat = before.heartbeat;
  now.moving = !now.heartbeat.SamePlace(before.heartbeat);
  const bool silent = now.process == ProcessState::kUnknown && now.present && before.present &&
                      now.heartbeat.pulse == before.heartbeat.pulse;
  if (silent) now.process = ProcessState::kSilent;
  return now;
}

void Watchdog::CheckForHang() {
  const std::vector<RankStatus> there = ReadStatuses();
  std::vector<RankStatus> now;
  for (size_t rank = 0; rank < there.size(); ++rank) now.push_back(Compare(there[rank], before_[rank]));
  before_ = there;
  const bool stuck = std::any_of(now.begin(), now.end(), Stuck);
  if (!stuck && quiet_ < LimitOf(Read(mine_.record()).activity)) return;
  const Diagnosis diagnosis =
      Diagnose(now, [this](int rank, int64_t step) -> const Program& { return ProgramOf(rank, step); });
  const auto culprit = static_cast<size_t>(std::max(0, diagnosis.culprit));
  // A rank that is only slow gets more time.
  if (diagnosis.fault == Fault::kNotArrived &&
      (now[culprit].moving || quiet_ < LimitOf(now[culprit].heartbeat.activity)))
    return;
  const bool arrived =
      diagnosis.fault == Fault::kInKernel || diagnosis.fault == Fault::kLost || diagnosis.fault == Fault::kNobody;
  if (arrived && std::any_of(now.begin(), now.end(), [](const RankStatus& s) { return s.moving; })) return;
  EndJob(now, diagnosis);
}

/// The lowest rank that can report does; the others give it time. A rank that finds that the hang was reported ends the
/// job silently.
void Watchdog::EndJob(const std::vector<RankStatus>& statuses, const Diagnosis& diagnosis) {
  const int rank = mine_.record().rank;
  const double quiet_s = std::chrono::duration<double>(quiet_).count();
  const std::string reason = fmt::format("nothing has finished here for {:.3g} s", quiet_s);
  const auto reporter = std::find_if(statuses.begin(), statuses.end(),
                                     [](const RankStatus& s) { return s.present && !s.moving && !Stuck(s); });
  if (reporter - statuses.begin() != rank) {
    Record(reason);
    if (!Sleep(kHeadStart)) return;
  }
  if (!Read(mine_.record()).SamePlace(statuses[static_cast<size_t>(rank)].heartbeat)) return;
  EndWithin(kTimeToEnd);  // if the launcher hangs too, it ends the others when this process has ended
  const std::string record = Record(reason);
  if (!AlreadyReported()) {
    mine_.record().activity.store(Activity::kEndingJob, std::memory_order_relaxed);
    mine_.Publish();
    PrintError("espalier: watchdog of rank {}: nothing has finished here for {:.3g} s\n{}\n{}", rank, quiet_s,
               diagnosis.text, record);
    std::fflush(stderr);
    AwaitRecords(statuses);
    EndWithin(kTimeToEnd);
  }
  end_();
}

void Watchdog::AwaitRecords(const std::vector<RankStatus>& statuses) {
  constexpr auto kLongest = std::chrono::seconds(2);
  constexpr auto kPause = std::chrono::milliseconds(50);
  if (options_.recorder == nullptr) return;
  const auto until = Clock::now() + kLongest;
  const auto missing = [&](int rank) {
    const RankStatus& status = statuses[static_cast<size_t>(rank)];
    return rank != mine_.record().rank && status.present && !status.moving && !Stuck(status) &&
           !options_.recorder->HasRecord(rank, quiet_ + kLongest);
  };
  while (std::ranges::any_of(node_, missing) && Clock::now() < until && Sleep(kPause)) continue;
}

/// Ranks are in the same classes in all training programs.
const Program& Watchdog::ProgramOf(int rank, int64_t step) {
  const Compilation& compilation = compilation_of_(step);
  if (representative_.empty()) representative_ = ClassRepresentatives(compilation);
  const int representative = representative_[static_cast<size_t>(rank)];
  const std::pair key(&compilation, representative);
  if (const auto known = programs_.find(key); known != programs_.end()) return known->second;
  return programs_.emplace(key, MakeProgram(compilation, compilation.mesh.CoordinateOf(representative))).first->second;
}

}  // namespace espalier
