#include "train/startup/measured_gemms.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <chrono>

#include "espalier/comm/agreement.hpp"
#include "espalier/executor/demands.hpp"
#include "espalier/util/clock.hpp"
#include "train/startup/measurements.hpp"

namespace espalier {
namespace {

constexpr std::string_view kGemmPlansAreAuto = "run.gemm_plans = \"auto\"";

/// Plans without algorithms, as a text for other ranks.
std::string TextOf(const Platform& here, const std::vector<GemmDemand>& demands) {
  GemmPlans plans{here, {}};
  for (const GemmDemand& demand : demands)
    plans.entries.push_back({.gemm = demand.gemm, .algorithm = "", .workspace_bytes = demand.workspace_bytes});
  return plans.Text();
}

/// On rank 0: the plans of all demands.
GemmPlans KnownOrMeasured(CudaModule& module, const Platform& here, const std::vector<GemmDemand>& demands) {
  const auto began = std::chrono::steady_clock::now();
  const std::string path = FileOfMeasurements("gemms", here);
  GemmPlans plans = PlansFor(ReadMeasurements<GemmPlan>(path, here, kGemmPlansAreAuto), demands);
  const size_t known = plans.entries.size();
  std::vector<GemmDemand> missing;
  for (const GemmDemand& demand : demands)
    if (plans.Find(demand.gemm) == nullptr) missing.push_back(demand);
  if (!missing.empty()) {
    const GemmPlans measured = module.MeasureGemms(missing, [](const GemmPlan&) {});
    AddMeasurements(path, kGemmPlansAreAuto, measured);
    plans.entries.insert(plans.entries.end(), measured.entries.begin(), measured.entries.end());
  }
  spdlog::info("matmul algorithms: {} known, {} measured in {:.1f} s, {}", known, missing.size(),
               MillisecondsSince(began) * 1e-3, path);
  return plans;
}

}  // namespace

GemmPlans PlansFor(const GemmPlans& known, const std::vector<GemmDemand>& demands) {
  GemmPlans plans{known.platform, {}};
  for (const GemmDemand& demand : demands)
    if (const GemmPlan* plan = known.Find(demand.gemm);
        plan != nullptr && plan->workspace_bytes <= demand.workspace_bytes)
      plans.entries.push_back(*plan);
  return plans;
}

void UseMeasuredGemms(CudaModule& module, const std::vector<GemmDemand>& demands, World& world) {
  const Platform here = module.MeasureGemms({}, [](const GemmPlan&) {}).platform;
  const std::vector<std::string> all = world.Gather(TextOf(here, demands));
  const std::string text = OnRankZero(world, [&]() -> std::string {
    std::vector<GemmDemand> of_all;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const GemmPlans of_rank = GemmPlans::Parse(all[rank], fmt::format("the matmuls of rank {}", rank));
      if (of_rank.platform != here) {
        spdlog::warn("{}: rank 0 computes on {} with {}, rank {} on {} with {}: all take the library's first choice",
                     kGemmPlansAreAuto, here.gpu, here.library, rank, of_rank.platform.gpu, of_rank.platform.library);
        return "";
      }
      for (const GemmPlan& plan : of_rank.entries) of_all.push_back({plan.gemm, plan.workspace_bytes});
    }
    return KnownOrMeasured(module, here, Distinct(std::move(of_all))).Text();
  });
  if (!text.empty()) module.UseGemmPlans(GemmPlans::Parse(text, "the plans of rank 0"));
}

}  // namespace espalier
