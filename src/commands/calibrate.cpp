// espalier calibrate --gemm-plans: times every GEMM of some decks on this machine's GPU and writes the quickest
// algorithm of each, for run.gemm_plans. The other measurements of `calibrate` are in src/train/measuring.
#include <fmt/core.h>

#include "commands.hpp"
#include "commands/calibrate/demands.hpp"
#include "commands/output_file.hpp"
#include "commands/refuse.hpp"
#include "espalier/executor/cuda_module.hpp"

namespace espalier {
namespace {

/// GEMMs of every rank of a deck.
std::vector<GemmDemand> DemandsOf(const std::string& deck, const CalibrateOptions& options) {
  const WorldPlan plan = PlanForGpus(deck, options.measure.overrides, options.ranks);
  std::vector<GemmDemand> demands;
  for (const auto& [rank, program] : plan.programs)
    for (const GemmDemand& demand : GemmsOf(program, plan.training.mesh.CoordinateOf(rank))) demands.push_back(demand);
  return demands;
}

void PrintMeasured(const GemmPlan& plan) {
  const GemmShape& s = plan.gemm.shape;
  const double operations = 2.0 * static_cast<double>(s.blocks) * static_cast<double>(s.m) * static_cast<double>(s.n) *
                            static_cast<double>(s.k);
  fmt::print("{:<60} {:>10.1f} us {:>8.1f} TFLOP/s, {:.3f} of the first choice's time\n", ToString(plan.gemm),
             plan.microseconds, operations / plan.microseconds / 1e6, plan.microseconds / plan.first_microseconds);
}

}  // namespace

void CheckCalibrateOptions(const CalibrateOptions& options) {
  const char* option = options.attention ? "--attention" : "--gemm-plans";
  if (options.measure.file.empty() && !options.OnOneGpu())
    Refuse("FILE is missing: a cluster file to write, --gemm-plans FILE, or --attention");
  if (!options.gemm_plans.empty() && options.attention)
    Refuse("--gemm-plans and --attention are commands of their own: give one of them");
  if (options.measure.decks.empty() && !options.measure.overrides.empty())
    Refuse(fmt::format("{} is a key of a deck, and there is none: --deck DECK", options.measure.overrides.front()));
  if (options.measure.decks.empty() && options.OnOneGpu()) Refuse(fmt::format("{} needs --deck DECK", option));
  if (!options.measure.file.empty() && options.OnOneGpu())
    Refuse(fmt::format("{} is a command of its own: leave FILE out, then calibrate FILE with run.{}", option,
                       options.attention ? "attention_backward" : "gemm_plans"));
  if (options.ranks > 0 && !options.OnOneGpu())
    Refuse("--ranks is for --gemm-plans and --attention: a cluster file is measured on the ranks that mpirun starts");
  if (options.measure.file.empty() && options.measure.steady_s > 0) Refuse("--steady is for a cluster file: give FILE");
  if (options.measure.decks.empty() && options.measure.steady_s > 0) Refuse("--steady needs --deck DECK");
  if (options.measure.decks.empty() && options.measure.shapes == Shapes::kNeighbours)
    Refuse("--neighbours needs --deck DECK");
}

int CalibrateGemms(const CalibrateOptions& options) {
  std::vector<GemmDemand> demands;
  for (const std::string& deck : options.measure.decks)
    for (const GemmDemand& demand : DemandsOf(deck, options)) demands.push_back(demand);
  demands = Distinct(std::move(demands));
  const GemmPlans plans = LoadCudaModule().MeasureGemms(demands, PrintMeasured);
  WriteOutput(options.gemm_plans, plans.Text());
  fmt::print("{} GEMMs on {} with {}: {}\n", plans.entries.size(), plans.platform.gpu, plans.platform.library,
             options.gemm_plans);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
