// espalier calibrate --product-plans: times every GEMM of some decks on this machine's GPU and writes the quickest
// algorithm of each, for run.product_plans. What else `calibrate` measures is in src/train/measuring.
#include <fmt/core.h>

#include "commands.hpp"
#include "commands/calibrate/demands.hpp"
#include "commands/output_file.hpp"
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
  const double operations = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  fmt::print("{:<60} {:>10.1f} us {:>8.1f} TFLOP/s, {:.3f} of the first choice's time\n", ToString(plan.gemm),
             plan.microseconds, operations / plan.microseconds / 1e6, plan.microseconds / plan.first_microseconds);
}

}  // namespace

int CalibrateProducts(const CalibrateOptions& options) {
  std::vector<GemmDemand> demands;
  for (const std::string& deck : options.measure.decks)
    for (const GemmDemand& demand : DemandsOf(deck, options)) demands.push_back(demand);
  demands = Distinct(std::move(demands));
  const GemmPlans plans = LoadCudaModule().MeasureGemms(demands, PrintMeasured);
  WriteOutput(options.product_plans, ToText(plans));
  fmt::print("{} GEMMs on {} with {}: {}\n", plans.plans.size(), plans.gpu, plans.library, options.product_plans);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
