#include "train/reporting/measured_costs.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// limit of timed steps in one start of a run: more add little to a median, and take memory
constexpr int64_t kMaxTimed = 9;
constexpr int64_t kLargeBytes = int64_t{32} << 20;
constexpr int64_t kSkippedSteps = 2;  ///< skipped if there are more steps

struct Sums {
  std::vector<KernelSum> kernels;
  auto Fields() { return std::tie(kernels); }
};

}  // namespace

MeasuredCosts::MeasuredCosts(const Deck& deck, const Programs& programs, World& world, const MpiWorld* mpi)
    : programs_(programs), file_(deck.report.costs), last_(deck.run.steps), mpi_(mpi) {
  if (file_.empty() || deck.run.device == RunDevice::kSleep) return;
  bool found = false;
  OnAllRanks(world, [&] {
    if (world.Rank() != 0) return;
    if (const fs::path folder = fs::absolute(file_).parent_path(); !fs::is_directory(folder))
      throw UserError(ExitStatus::kDeck,
                      fmt::format("report.costs = \"{}\": there is no folder {}", file_, folder.string()));
    found = LoadForMachine(file_, KeyOfMachine(programs.device(), mpi)).has_value();
  });
  if (world.Max(found ? 1 : 0) == 0) {
    machine_ = DescribeMachine(programs.device(), world, mpi);
    machine_->path = file_;
  }
  transfers_.emplace(programs, world);
}

bool MeasuredCosts::Times(int64_t step) const {
  if (!transfers_) return false;
  const int64_t warm_up = std::min(kSkippedSteps, last_ - first_), steps = last_ - first_ + 1 - warm_up;
  const int64_t stride = std::max<int64_t>(1, steps / kMaxTimed), at = step - first_ - warm_up;
  return at >= 0 && at % stride == 0 && at / stride < kMaxTimed;
}

void MeasuredCosts::Before(int64_t step) {
  if (!Times(step)) return;
  transfers_->Before();
  programs_.TrainingOf(step).executor().TimeNextStep();
}

void MeasuredCosts::After(int64_t step, const StepTimes& times) {
  if (!Times(step)) return;
  const Training& training = programs_.TrainingOf(step);
  KernelTimes& kernels = times_.try_emplace(&training, training.program(), programs_.coordinate()).first->second;
  kernels.Add(training.executor().instruction_ms(), GapUs(programs_.device(), times, kernels.calls()));
  transfers_->Add(training);
}

void MeasuredCosts::Write(World& world) const {
  if (!transfers_) return;
  Sums sums;
  for (const auto& [training, times] : times_) {
    const std::vector<KernelSum> more = times.Sums();
    sums.kernels.insert(sums.kernels.end(), more.begin(), more.end());
  }
  std::vector<std::vector<KernelSum>> of_ranks;
  for (Sums& of_rank : Gathered(world, sums)) of_ranks.push_back(std::move(of_rank.kernels));
  const CostTable added{RowsOf(of_ranks), transfers_->Rows(KeyOfMachine(programs_.device(), mpi_).ranks_per_node)};
  if (world.Rank() != 0) return;
  try {
    AddRows(added);
  } catch (const UserError& error) {
    spdlog::warn("report.costs: nothing is added: {}", error.what());
  }
}

/// Reads the file again: another run may have added rows meanwhile.
void MeasuredCosts::AddRows(const CostTable& added) const {
  std::optional<Cluster> cluster = LoadForMachine(file_, KeyOfMachine(programs_.device(), mpi_));
  if (!cluster) {
    cluster = machine_;
    if (double& rate = cluster->compute.memory_bytes_per_us; rate == 0)
      for (const auto& [training, times] : times_) rate = std::max(rate, times.BestBytesPerUs(kLargeBytes));
    RequireRates(*cluster);
  }
  const size_t before = cluster->table.kernels.size();
  cluster->table.Merge(added);
  WriteRows(*cluster);
  int64_t transfers = 0, steps = 0;
  for (const auto& [training, times] : times_) steps += times.steps();
  for (const auto& [key, points] : added.collectives) transfers += std::ssize(points);
  spdlog::info("{}: times of {} kernels, {} of them new, and of {} transfers, from {} steps", file_,
               added.kernels.size(), cluster->table.kernels.size() - before, transfers, steps);
}

}  // namespace espalier
