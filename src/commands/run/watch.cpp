#include "commands/run/watch.hpp"

#include <unistd.h>

#include <filesystem>

#include "commands/run/together.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Heartbeats of a run that was killed would be taken for ours.
void MakeEmptyFolder(World& world, const std::string& folder) {
  Together(world, [&] {
    if (world.Rank() != 0) return;
    fs::remove_all(folder);
    fs::create_directories(folder);
  });
}

}  // namespace

Watch::Watch(const Deck& deck, const Programs& programs, World& world, MpiWorld* mpi) : folder_(HeartbeatFolder(deck.run.dir)) {
  if (deck.run.watchdog_s == 0) return;
  MakeEmptyFolder(world, folder_);
  Together(world, [&] { file_.emplace(folder_, world.Rank()); });
  programs.train().executor->Mirror(file_->record().training);
  programs.proof().executor->Mirror(file_->record().forward);
  if (programs.evaluate() != nullptr) programs.evaluate()->executor->Mirror(file_->record().forward);
  const bool elsewhere = mpi != nullptr && mpi->NodeRanks() < world.Size();
  if (elsewhere) file_->Publish();
  world.Barrier();
  const std::vector<int> here = mpi == nullptr ? std::vector<int>{} : mpi->NodeMembers();
  const auto refresh = [&training = *programs.train().executor] { training.ShowProgress(); };
  dog_.emplace(Watchdog::Options{folder_, deck.run.watchdog_s, here, elsewhere, refresh}, *file_, programs.compilation(), [mpi] {
    if (mpi != nullptr) mpi->Abort(static_cast<int>(ExitStatus::kFault));
    _exit(static_cast<int>(ExitStatus::kFault));
  });
}

Watch::~Watch() {
  dog_.reset();
  file_.reset();
  std::error_code others_are_there;
  fs::remove(folder_, others_are_there);
}

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
