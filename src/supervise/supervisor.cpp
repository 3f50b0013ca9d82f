#include "supervise/supervisor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <thread>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/deck/time_limit.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/watch/heartbeat.hpp"
#include "espalier/watch/watchdog.hpp"
#include "supervise/probe.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kLook = std::chrono::seconds(1);           // from one look at the launcher's children to the next
constexpr auto kMaxAlone = std::chrono::seconds(20);      // a launcher may outlive its ranks by this
constexpr auto kOrphanSaves = std::chrono::seconds(120);  // a run whose supervisor was killed saves and ends
constexpr auto kOrphanEnds = std::chrono::seconds(10);    // one that has not begun has nothing to save
constexpr auto kLockIsHeld = std::chrono::seconds(10);
constexpr auto kAnswersCome = std::chrono::seconds(1);  // of spares that are asked already: sooner than to ask anew
constexpr auto kRanksCome = std::chrono::seconds(30);   // until then a launcher may pass on no signal

template <typename... Values>
void Say(fmt::format_string<Values...> format, Values&&... values) {
  const std::string text = "supervise: " + fmt::format(format, std::forward<Values>(values)...) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);  // does not throw, unlike fmt::print
  std::fflush(stdout);
}

/// Seconds until rank 0 has a watchdog: run.watchdog_slow_s, which the run itself applies from then on.
double LongestStart(const Deck& deck) {
  return deck.run.watchdog_slow_s > 0 ? deck.run.watchdog_slow_s : DefaultSlowLimit(deck.run.watchdog_s);
}

double Rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

/// A failure after which the same command goes on from the last checkpoint.
bool MayGoOn(CauseKind kind) {
  return kind == CauseKind::kProcess || kind == CauseKind::kHost || kind == CauseKind::kHang;
}

/// Waits until `condition` holds; false if it does not in time.
template <typename Condition>
bool WaitUntil(Condition condition, Clock::duration patience) {
  const auto end = Clock::now() + patience;
  while (!condition()) {
    if (Clock::now() > end) return false;
    std::this_thread::sleep_for(kTick);
  }
  return true;
}

/// "host a, process 12, since ...": a.
std::string HostOfHolder(const std::string& holder) {
  constexpr std::string_view kHost = "host ";
  if (!holder.starts_with(kHost)) return "";
  return holder.substr(kHost.size(), holder.find(',') - kHost.size());
}

int64_t MemoryPerRank(const SuperviseSetup& setup) {
  if (setup.deck.run.device != RunDevice::kCpu) return 0;
  const int64_t available = AvailableMemory();
  return available == std::numeric_limits<int64_t>::max() ? 0 : available / setup.hosts.ranks_each;
}

/// Unless the user has set other values: Open MPI's daemons notice a host that is cut off after some 20 s, and end the
/// ranks of a failed start at once, which would else take two seconds.
std::vector<std::pair<std::string, std::string>> LaunchEnvironment(const std::string& run_dir) {
  std::vector<std::pair<std::string, std::string>> variables = {{kSupervised, run_dir}};
  for (const auto& [name, value] :
       {std::pair("OMPI_MCA_odls_base_sigkill_timeout", "0"), std::pair("OMPI_MCA_oob_tcp_keepalive_time", "10"),
        std::pair("OMPI_MCA_oob_tcp_keepalive_intvl", "3"), std::pair("OMPI_MCA_oob_tcp_keepalive_probes", "3")})
    if (std::getenv(name) == nullptr) variables.emplace_back(name, value);
  return variables;
}

}  // namespace

Supervisor::Supervisor(SuperviseSetup setup)
    : setup_(std::move(setup)),
      full_hosts_(setup_.hosts.names.size() - static_cast<size_t>(setup_.options.spares)),
      lock_(setup_.run_dir, kLockOfSupervisor),
      ledger_(setup_.run_dir),
      past_(ReadLedger(setup_.run_dir)),
      pool_(setup_.hosts.names, setup_.options.host_failures),
      fallbacks_({setup_.options.arguments, static_cast<int>(full_hosts_), setup_.hosts.ranks_each,
                  MemoryPerRank(setup_), setup_.costs}),
      began_at_(SecondsSinceEpoch()) {
  starts_ = past_.starts;
  for (const std::vector<std::string>& hosts : past_.failures) pool_.Failed(hosts);
  for (const std::string& host : past_.excluded) pool_.Exclude(host);
}

ExitStatus Supervisor::Run() {
  EndOrphan();
  while (true) {
    const std::optional<Placement> placement = Choose();
    if (!placement) return End(ExitStatus::kFault, "no layout fits the hosts that are left");
    AwaitDirectory();
    if (StopSignal() != 0) return End(ExitStatus::kStopped, "asked to stop between two starts");
    const Ended ended = Start(*placement);
    const auto status = static_cast<ExitStatus>(ended.status < 128 ? ended.status : 1);
    if (ended.cause.kind == CauseKind::kDone) return End(status, ended.cause.text);
    if (asked_) return End(MayGoOn(ended.cause.kind) ? ExitStatus::kStopped : status, ended.cause.text);
    if (ended.cause.kind == CauseKind::kStopped && !replacing_) return End(status, ended.cause.text);
    if (ended.cause.kind == CauseKind::kRefused) {
      if (status != ExitStatus::kDoesNotFit || placement->full) return End(status, ended.cause.text);
      fallbacks_.Refuse(static_cast<int>(placement->hosts.size()));
    }
    Judge(ended);
    if (idle_ >= setup_.options.tries)
      return End(ExitStatus::kFault, fmt::format("{} starts in a row made no further step", idle_));
  }
}

// Before a start.

void Supervisor::EndOrphan() {
  if (!past_.orphan) return;
  const auto& orphan = *past_.orphan;
  Say("a supervisor before this one was killed during start {} (launcher: process {} on {})", past_.starts,
      orphan.process, orphan.host);
  if (orphan.host == setup_.this_host && orphan.process > 0) {
    const auto runs = [&] { return StartTicks(orphan.process) == orphan.ticks && orphan.ticks != 0; };
    if (runs()) {
      Say("its ranks still run: they are asked to save and stop");
      ::kill(orphan.process, SIGUSR1);
      const bool has_begun = RunLock::HeldBy(setup_.run_dir).has_value();
      if (!WaitUntil([&] { return !runs(); }, has_begun ? kOrphanSaves : kOrphanEnds) && runs())
        ::kill(-orphan.process, SIGKILL);
    }
  } else {
    WaitUntil([&] { return !RunLock::HeldBy(setup_.run_dir); }, kOrphanSaves);
  }
  FindAnswers({});
  ledger_.Write({{"event", "failure"},
                 {"start", past_.starts},
                 {"cause", "supervisor"},
                 {"text", "the supervisor was killed"},
                 {"hosts", nlohmann::ordered_json::array()}});
}

/// As many hosts as the deck's layout wants, or else the layout for those that are left.
std::optional<Supervisor::Placement> Supervisor::Choose() {
  const DeckArguments& arguments = setup_.options.arguments;
  const int each = setup_.hosts.ranks_each;
  if (pool_.UsableCount() >= full_hosts_)
    return Placement{pool_.Choose(before_, full_hosts_), OwnLayout(arguments, static_cast<int>(full_hosts_) * each),
                     true};
  for (size_t hosts = pool_.UsableCount(); hosts >= 1; --hosts) {
    const std::optional<RunLayout> layout = fallbacks_.On(static_cast<int>(hosts));
    if (!layout) continue;
    const auto used = static_cast<size_t>((layout->ranks + each - 1) / each);
    return Placement{pool_.Choose(before_, used), *layout, false};
  }
  return std::nullopt;
}

void Supervisor::AwaitDirectory() {
  std::optional<std::string> holder;
  const auto is_free = [&] {
    holder = RunLock::HeldBy(setup_.run_dir);
    return !holder || (!HostOfHolder(*holder).empty() && !pool_.Answers(HostOfHolder(*holder)));
  };
  if (!WaitUntil(is_free, kLockIsHeld))
    throw UserError(ExitStatus::kFault, fmt::format("{}: another run is in this directory ({}): end it, or give this "
                                                    "run another run.dir",
                                                    setup_.run_dir, *holder));
  if (!holder) return;
  Say("run.lock is taken from a run on a host that does not answer ({}): if it comes back, it writes nothing more",
      *holder);
  RunLock::TakeAway(setup_.run_dir);
}

// A start.

std::vector<std::string> Supervisor::Command(const Placement& placement) const {
  std::vector<std::string> keys = placement.layout.keys;
  if (const std::string left = TimeLeft(); starts_ > past_.starts + 1 && !left.empty())
    keys.push_back("run.time_limit=" + left);
  std::vector<std::string> program = setup_.program;
  program.insert(program.end(), {"run", setup_.options.arguments.deck});
  for (const std::string& text : WithKeys(setup_.options.arguments.overrides, keys)) program.push_back(text);
  return RunWords(setup_.launcher, placement.hosts, placement.layout.ranks, setup_.hosts.ranks_each, program);
}

void Supervisor::Announce(const Placement& placement) {
  std::vector<std::string> spares;
  for (const std::string& host : pool_.names())
    if (pool_.Usable(host) && std::ranges::find(placement.hosts, host) == placement.hosts.end()) spares.push_back(host);
  Say("start {}: {} ranks on {}{}: {}", starts_, placement.layout.ranks, fmt::join(placement.hosts, ", "),
      spares.empty() ? "" : fmt::format(" (spare: {})", fmt::join(spares, ", ")), placement.layout.text);
  if (failures_ > 0 || past_.orphan) Say("promise: {}", placement.layout.promise);
}

Supervisor::Ended Supervisor::Start(const Placement& placement) {
  ++starts_;
  Announce(placement);
  replacing_ = false;
  const double started = SecondsSinceEpoch();
  MetricsTail metrics(setup_.run_dir);
  if (const std::string beats = HeartbeatFolder(setup_.run_dir); fs::exists(beats)) PrepareHeartbeatFolder(beats);
  ChildProcess launcher(Command(placement), Output::kErrorsSeen, LaunchEnvironment(setup_.run_dir));
  ledger_.Write({{"event", "start"},
                 {"start", starts_},
                 {"hosts", placement.hosts},
                 {"ranks", placement.layout.ranks},
                 {"layout", placement.layout.text},
                 {"keys", placement.layout.keys},
                 {"on", setup_.this_host},
                 {"launcher", launcher.id()},
                 {"launcher_ticks", StartTicks(launcher.id())}});
  const int status = Watch(launcher, metrics, placement);
  before_ = placement.hosts;
  std::error_code error;
  const bool done = setup_.launcher.kind != LauncherKind::kSrun || fs::exists(setup_.run_dir + "/done", error);
  Ended ended{
      .cause = FindCause({status, done, launcher.text(), placement.hosts, setup_.hosts.ranks_each, metrics.corrupt()}),
      .status = status,
      .launcher_killed = launcher.was_killed(),
      .last_step = metrics.last_step(),
      .last_time = metrics.last_step() ? metrics.last_time() : started,
      .saved = SavedStep(),
      .hosts = placement.hosts,
      .full = placement.full};
  if (never_begins_) ended.cause = {CauseKind::kHang, {}, {}, "the ranks have not begun"};
  if (replacing_ && ended.cause.kind == CauseKind::kStopped)
    ended.cause = FindCause({1, false, "", placement.hosts, setup_.hosts.ranks_each, metrics.corrupt()});
  return ended;
}

int Supervisor::Watch(ChildProcess& launcher, MetricsTail& metrics, const Placement& placement) {
  started_ = alone_since_ = looked_at_ = Clock::now();
  spares_unasked_ = true;
  begun_ = never_begins_ = false;
  answers_.reset();
  while (true) {
    const std::optional<int> status = launcher.Poll();
    if (metrics.Read()) RecordRecovery(metrics);
    for (const nlohmann::json& line : metrics.TakeSlow()) ledger_.Write(line);
    begun_ = begun_ || metrics.last_step();
    if (metrics.last_step() && std::exchange(spares_unasked_, false)) AskSpares(placement);
    if (status) return *status;
    ForwardSignal(launcher);
    if (Clock::now() - looked_at_ >= kLook) {
      looked_at_ = Clock::now();
      EndIfAlone(launcher);
      EndIfNeverBegins(launcher);
    }
    AnswerCorruption(launcher, metrics, placement);
    std::this_thread::sleep_for(kTick);
  }
}

/// A launcher that has no ranks yet may drop the signal, and the run would go on.
void Supervisor::ForwardSignal(const ChildProcess& launcher) {
  if (asked_ || StopSignal() == 0 || (!begun_ && Clock::now() - started_ < kRanksCome)) return;
  asked_ = true;
  Say("{}: the run is asked to save and stop", StopSignalName(StopSignal()));
  launcher.Signal(SIGUSR1);
}

void Supervisor::EndIfNeverBegins(ChildProcess& launcher) {
  if (begun_ || never_begins_ || setup_.deck.run.watchdog_s == 0) return;
  const auto watched = [&] {
    const std::optional<Heartbeat> first = HeartbeatTable(HeartbeatFolder(setup_.run_dir), {0}).Read(0);
    return first && first->pulse > 1;  // the first one is before its watchdog runs
  };
  begun_ = watched();
  const std::chrono::duration<double> limit(LongestStart(setup_.deck));
  if (begun_ || Clock::now() - started_ < limit) return;
  never_begins_ = true;
  Say("the ranks have not begun after {:g} s: the start is ended", limit.count());
  launcher.Signal(SIGKILL);
}

void Supervisor::EndIfAlone(ChildProcess& launcher) {
  const auto now = Clock::now();
  if (!launcher.IsAlone()) alone_since_ = now;
  if (now - alone_since_ < kMaxAlone || setup_.launcher.kind == LauncherKind::kNone) return;
  Say("the launcher has outlived its ranks by {} s: it is ended",
      std::chrono::duration_cast<std::chrono::seconds>(kMaxAlone).count());
  launcher.Signal(SIGKILL);
}

void Supervisor::AnswerCorruption(const ChildProcess& launcher, const MetricsTail& metrics,
                                  const Placement& placement) {
  if (replacing_ || asked_ || metrics.corrupt().empty()) return;
  const Cause cause = FindCause({1, false, "", placement.hosts, setup_.hosts.ranks_each, metrics.corrupt()});
  const bool spare = pool_.UsableCount() > placement.hosts.size();
  if (cause.hosts.size() != 1 || !spare) return;
  replacing_ = true;
  Say("{} on {}: the run is asked to save and stop, and goes on without that host", cause.text, cause.hosts[0]);
  launcher.Signal(SIGUSR1);
}

void Supervisor::RecordRecovery(const MetricsTail& metrics) {
  if (!lost_ || !metrics.last_step() || *metrics.last_step() < lost_->last_step.value_or(0)) return;
  const int64_t from = metrics.first_step().value_or(0);
  const int64_t steps = std::max<int64_t>(0, lost_->last_step.value_or(from) - from);
  const double seconds = SecondsSinceEpoch() - lost_->last_time;
  ledger_.Write({{"event", "recovered"},
                 {"start", starts_},
                 {"from", from},
                 {"steps_lost", steps},
                 {"seconds_lost", Rounded(seconds)},
                 {"seconds_to_first_step", Rounded(metrics.first_time() - lost_->last_time)}});
  Say("recovered: {} steps made again, {:.1f} s lost", steps, seconds);
  steps_lost_ += steps;
  seconds_lost_ += seconds;
  lost_.reset();
}

// After it.

/// A start that ended before it had made up for the one before costs what both have cost.
void Supervisor::Judge(const Ended& ended) {
  ++failures_;
  const Cause& cause = ended.cause;
  pool_.Failed(cause.hosts);
  std::vector<std::string> excluded;
  if (cause.kind == CauseKind::kCorrupt && cause.hosts.size() == 1) excluded = cause.hosts;
  for (const std::string& host : excluded) pool_.Exclude(host);
  for (const std::string& host : cause.hosts)
    if (pool_.Failures(host) == setup_.options.host_failures) excluded.push_back(host);
  Say("start {} failed at step {}: {}{}", starts_, ended.last_step ? std::to_string(*ended.last_step) : "none",
      cause.text, cause.hosts.empty() ? "" : fmt::format(" (blamed: {})", fmt::join(cause.hosts, ", ")));
  ledger_.Write({{"event", "failure"},
                 {"start", starts_},
                 {"cause", Name(cause.kind)},
                 {"text", cause.text},
                 {"status", ended.status},
                 {"hosts", cause.hosts},
                 {"ranks", cause.ranks},
                 {"excluded", excluded},
                 {"step", ended.last_step ? nlohmann::ordered_json(*ended.last_step) : nullptr},
                 {"saved", ended.saved}});
  for (const std::string& host : excluded) Say("{} is not used again", host);
  idle_ = HasProgressed(ended) ? 0 : idle_ + 1;
  if (!lost_ || (ended.last_step && *ended.last_step > lost_->last_step.value_or(-1))) lost_ = ended;
  FindAnswers(ended);
}

bool Supervisor::HasProgressed(const Ended& ended) {
  const int64_t reached = std::max(ended.last_step.value_or(-1), ended.saved);
  const bool further = reached > furthest_;
  furthest_ = std::max(furthest_, reached);
  return further;
}

/// A launcher that has ended by itself because a process has died was in touch with all its hosts: only those that it
/// did not use are asked.
void Supervisor::FindAnswers(const Ended& ended) {
  const bool in_touch = ended.cause.kind == CauseKind::kProcess && !ended.launcher_killed && !ended.cause.hosts.empty();
  std::vector<std::string> asked;
  for (const std::string& host : pool_.names())
    if (!in_touch || std::ranges::find(ended.hosts, host) == ended.hosts.end()) asked.push_back(host);
  const size_t others = pool_.names().size() - asked.size();
  const size_t enough = full_hosts_ > others ? full_hosts_ - others : 0;
  CleanHost(OnHost());
  if (asked.empty() || (in_touch && TakeAnswersOfSpares(asked))) return;
  const std::set<std::string> answered =
      Probe(asked, enough, {setup_.launcher, setup_.this_host, OnHost(), setup_.options.probe_s});
  for (const std::string& host : asked) {
    const bool answers = answered.contains(host);
    if (answers != pool_.Answers(host)) Say("{} {}", host, answers ? "answers again" : "does not answer");
    pool_.SetAnswers(host, answers);
  }
}

void Supervisor::AskSpares(const Placement& placement) {
  spares_ = pool_.names();
  std::erase_if(spares_, [&](const std::string& host) {
    return std::ranges::find(placement.hosts, host) != placement.hosts.end() || host == setup_.this_host;
  });
  if (spares_.empty() || setup_.launcher.kind == LauncherKind::kNone) return;
  answers_ = std::async(std::launch::async, [this, hosts = spares_] {
    return WhichAnswer(hosts, setup_.launcher, setup_.options.probe_s);
  });
}

bool Supervisor::TakeAnswersOfSpares(const std::vector<std::string>& hosts) {
  if (!answers_ || answers_->wait_for(kAnswersCome) != std::future_status::ready) return false;
  const std::set<std::string> answered = answers_->get();
  answers_.reset();
  for (const std::string& host : hosts) pool_.SetAnswers(host, answered.contains(host) || host == setup_.this_host);
  return true;
}

OnHostOptions Supervisor::OnHost() const { return {setup_.run_dir, "", std::floor(began_at_)}; }

/// The folder of copies of the state in memory (checkpoint.memory_steps); "" if the deck makes none.
std::string Supervisor::MemoryFolder() const {
  const Deck::Checkpoint& checkpoint = setup_.deck.checkpoint;
  return checkpoint.memory_steps == 0 ? "" : MemoryCopiesFolder(checkpoint.memory_dir, setup_.run_dir);
}

int64_t Supervisor::SavedStep() const try {
  const std::optional<std::string> latest = FindLatest(setup_.run_dir + "/checkpoints");
  if (!latest) return 0;
  return ReadMetadata(*latest).step;
} catch (const UserError&) {
  return 0;  // a start reports what is wrong with it
}

/// The rest of run.time_limit, which counts from the first start. "" if there is none.
std::string Supervisor::TimeLeft() const {
  const std::optional<int64_t> limit = TimeLimitSeconds(setup_.deck.run.time_limit);
  if (!limit) return "";
  const auto passed = static_cast<int64_t>(MillisecondsSince(began_) * 1e-3);
  return fmt::format("{}s", std::max<int64_t>(1, *limit - passed));
}

void Supervisor::CleanAll() {
  OnHostOptions on_host = OnHost();
  on_host.memory = MemoryFolder();
  if (failures_ == 0 && on_host.memory.empty()) return;
  Probe(setup_.hosts.names, setup_.hosts.names.size(),
        {setup_.launcher, setup_.this_host, on_host, setup_.options.probe_s});
}

ExitStatus Supervisor::End(ExitStatus status, const std::string& why) {
  CleanAll();
  ledger_.Write({{"event", "end"},
                 {"status", static_cast<int>(status)},
                 {"text", why},
                 {"failures", failures_},
                 {"steps_lost", steps_lost_},
                 {"seconds_lost", Rounded(seconds_lost_)}});
  Say("ended with {}: {}; {} starts, {} failures, {} steps and {:.1f} s lost ({})", static_cast<int>(status), why,
      starts_ - past_.starts, failures_, steps_lost_, seconds_lost_, LedgerFile(setup_.run_dir));
  return status;
}

}  // namespace espalier
