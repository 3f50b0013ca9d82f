#include "train/reporting/measured_costs.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Of one start of a run. More steps add little to a median, and take memory.
constexpr int64_t kMostSteps = 9;
constexpr int64_t kManyBytes = int64_t{32} << 20;
constexpr int64_t kWarmUp = 2;  ///< if there are more steps

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
  times_.emplace(programs.train().program, programs.coordinate());
  transfers_.emplace(programs, world);
}

bool MeasuredCosts::Times(int64_t step) const {
  if (!times_) return false;
  const int64_t warm_up = std::min(kWarmUp, last_ - first_), steps = last_ - first_ + 1 - warm_up;
  const int64_t stride = std::max<int64_t>(1, steps / kMostSteps), at = step - first_ - warm_up;
  return at >= 0 && at % stride == 0 && at / stride < kMostSteps;
}

void MeasuredCosts::Before(int64_t step) {
  if (!Times(step)) return;
  transfers_->Before();
  programs_.train().executor->TimeNextStep();
}

void MeasuredCosts::After(int64_t step, const StepTimes& times) {
  if (!Times(step)) return;
  times_->Add(programs_.train().executor->instruction_ms(), GapUs(programs_.device(), times, times_->calls()));
  transfers_->Add();
}

void MeasuredCosts::Write(World& world) const {
  if (!times_) return;
  std::vector<std::vector<KernelSum>> of_ranks;
  for (const std::string& packed : world.Gather(Pack(Sums{times_->Sums()})))
    of_ranks.push_back(Unpack<Sums>(packed).kernels);
  const CostTable added{RowsOf(of_ranks), transfers_->Rows(KeyOfMachine(programs_.device(), mpi_).ranks_per_node)};
  if (world.Rank() != 0) return;
  try {
    AddRows(added);
  } catch (const UserError& error) {
    spdlog::warn("report.costs: nothing is added: {}", error.what());
  }
}

/// The file is read again: another run may have added rows meanwhile.
void MeasuredCosts::AddRows(const CostTable& added) const {
  std::optional<Cluster> cluster = LoadForMachine(file_, KeyOfMachine(programs_.device(), mpi_));
  if (!cluster) {
    cluster = machine_;
    if (cluster->compute.memory_bytes_per_us == 0)
      cluster->compute.memory_bytes_per_us = times_->BestBytesPerUs(kManyBytes);
    RequireRates(*cluster);
  }
  const size_t before = cluster->table.kernels.size();
  cluster->table.Merge(added);
  WriteRows(*cluster);
  int64_t transfers = 0;
  for (const auto& [key, points] : added.collectives) transfers += std::ssize(points);
  spdlog::info("{}: times of {} kernels, {} of them new, and of {} transfers, from {} steps", file_,
               added.kernels.size(), cluster->table.kernels.size() - before, transfers, times_->steps());
}

}  // namespace espalier
