#include "train/watch.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <exception>
#include <filesystem>

#include "espalier/comm/agreement.hpp"
#include "espalier/train/stop_signals.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Assumes that storage writes at least 100 MB per second for all ranks together.
double SlowLimit(const Deck& deck, const Programs& programs) {
  if (deck.run.watchdog_slow_s > 0) return deck.run.watchdog_slow_s;
  constexpr double kBytesPerSecond = 1e8;
  double bytes = 0;
  for (const StateTensor& tensor : programs.tensors())
    bytes += static_cast<double>(Volume(tensor.type.shape)) * static_cast<double>(SizeOf(tensor.type.dtype));
  return DefaultSlowLimit(deck.run.watchdog_s) + bytes / kBytesPerSecond;
}

/// For each rank the lowest rank of its node. Collective.
std::vector<int> LeadersOfNodes(World& world, const MpiWorld* mpi) {
  return OfAllRanks(world, std::vector{mpi == nullptr ? 0 : mpi->NodeMembers().front()});
}

std::string end_is_late;  // the message of EndLate

/// A signal handler.
void EndLate(int) {
  const ssize_t ignored = write(STDERR_FILENO, end_is_late.data(), end_is_late.size());
  static_cast<void>(ignored);
  _exit(static_cast<int>(ExitStatus::kFault));
}

/// After the watch only MPI_Finalize remains, which waits for all ranks. An alarm limits that wait.
void LimitTheEnd(int rank, double seconds) {
  end_is_late = fmt::format(
      "espalier: rank {}: MPI has not ended for {:g} s: another rank or the network does not answer\n", rank, seconds);
  std::signal(SIGALRM, EndLate);
  alarm(static_cast<unsigned>(std::ceil(seconds)));
}

}  // namespace

Watch::Watch(const Deck& deck, const Programs& programs, World& world, MpiWorld* mpi)
    : programs_(programs),
      mpi_(mpi),
      exceptions_at_start_(std::uncaught_exceptions()),
      folder_(HeartbeatFolder(deck.run.dir)) {
  if (deck.run.watchdog_s == 0) return;
  OnAllRanks(world, [&] {
    if (world.Rank() == 0) PrepareHeartbeatFolder(folder_);
  });
  slow_limit_s_ = SlowLimit(deck, programs);
  const HeartbeatTable table(folder_, LeadersOfNodes(world, mpi));
  OnAllRanks(world, [&] {
    if (table.IsLeader(world.Rank())) table.MakeFile(world.Rank());
  });
  OnAllRanks(world, [&] { file_.emplace(table, world.Rank()); });
  for (const Training& training : programs.trainings()) training.executor().Mirror(file_->record().training);
  programs.proof().executor->Mirror(file_->record().forward);
  if (programs.evaluate() != nullptr) programs.evaluate()->executor->Mirror(file_->record().forward);
  if (programs.gradients() != nullptr) programs.gradients()->executor->Mirror(file_->record().forward);
  recorder_.emplace(FlightFolder(deck.run.dir), file_->record(), table,
                    [&programs](int64_t step) -> const Program& { return programs.TrainingOf(step).program(); });
  if (mpi != nullptr) mpi->BeforeAbort([this] { recorder_->Write("this rank ends the job"); });
  world.Barrier();
  const auto refresh = [this] { programs_.TrainingOf(StepSeen()).executor().ShowProgress(); };
  const auto asked = [] { return StopSignal() == SIGTERM; };
  dog_.emplace(
      Watchdog::Options{table, deck.run.watchdog_s, slow_limit_s_, asked, refresh, &*recorder_}, *file_,
      [&programs](int64_t step) -> const Compilation& {
        return programs.TrainingOf(std::max<int64_t>(1, step)).compilation;
      },
      [mpi] {
        if (mpi != nullptr) mpi->Abort(static_cast<int>(ExitStatus::kFault));
        _exit(static_cast<int>(ExitStatus::kFault));
      });
}

Watch::~Watch() {
  if (recorder_ && std::uncaught_exceptions() > exceptions_at_start_)
    recorder_->Write("an error ends the run: the last line of its output");
  End();
}

void Watch::End() {
  if (!file_) return;
  dog_.reset();
  if (mpi_ != nullptr) mpi_->BeforeAbort(nullptr);
  recorder_.reset();
  LimitTheEnd(file_->record().rank, slow_limit_s_);
  file_.reset();
  std::error_code others_are_there;
  fs::remove(folder_, others_are_there);
}

int64_t Watch::StepSeen() const { return std::max<int64_t>(1, file_->record().step.load(std::memory_order_relaxed)); }

void Watch::InStep(int64_t step) {
  if (file_) file_->record().step.store(step, std::memory_order_relaxed);
  if (!first_) Set(Activity::kStep);
}

void Watch::EndStep() {
  first_ = false;
  Set(Activity::kBetween);
}

void Watch::Set(Activity activity) {
  activity_ = activity;
  if (file_) file_->record().activity.store(activity, std::memory_order_relaxed);
}

}  // namespace espalier
