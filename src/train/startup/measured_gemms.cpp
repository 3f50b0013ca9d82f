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
std::string TextOf(const GemmPlans& made_for, const std::vector<GemmDemand>& demands) {
  GemmPlans plans{made_for.gpu, made_for.library, {}};
  for (const GemmDemand& demand : demands)
    plans.plans.push_back({.gemm = demand.gemm, .algorithm = "", .workspace_bytes = demand.workspace_bytes});
  return ToText(plans);
}

GemmPlans KnownPlans(const std::string& path, const GemmPlans& made_for, std::string_view warned) {
  GemmPlans known{made_for.gpu, made_for.library, {}};
  ReadMeasurements(path, warned, [&] {
    GemmPlans read = ReadGemmPlans(path);
    CheckMadeFor(read, made_for.gpu, made_for.library, path);
    known = std::move(read);
  });
  return known;
}

/// Another run may have added others since; those that this one measured replace their like.
void AddToFile(const std::string& path, const GemmPlans& measured) {
  GemmPlans all = measured;
  for (const GemmPlan& plan : KnownPlans(path, measured, "").plans)
    if (measured.Find(plan.gemm) == nullptr) all.plans.push_back(plan);
  WriteMeasurements(path, kGemmPlansAreAuto, ToText(all));
}

/// On rank 0: the plans of all demands.
GemmPlans KnownOrMeasured(CudaModule& module, const GemmPlans& made_for, const std::vector<GemmDemand>& demands) {
  const auto began = std::chrono::steady_clock::now();
  const std::string path = FileOfMeasurements("gemms", made_for.gpu, made_for.library);
  GemmPlans plans = PlansFor(KnownPlans(path, made_for, kGemmPlansAreAuto), demands);
  const size_t known = plans.plans.size();
  std::vector<GemmDemand> missing;
  for (const GemmDemand& demand : demands)
    if (plans.Find(demand.gemm) == nullptr) missing.push_back(demand);
  if (!missing.empty()) {
    const GemmPlans measured = module.MeasureGemms(missing, [](const GemmPlan&) {});
    AddToFile(path, measured);
    plans.plans.insert(plans.plans.end(), measured.plans.begin(), measured.plans.end());
  }
  spdlog::info("matmul algorithms: {} known, {} measured in {:.1f} s, {}", known, missing.size(),
               MillisecondsSince(began) * 1e-3, path);
  return plans;
}

}  // namespace

GemmPlans PlansFor(const GemmPlans& known, const std::vector<GemmDemand>& demands) {
  GemmPlans plans{known.gpu, known.library, {}};
  for (const GemmDemand& demand : demands)
    if (const GemmPlan* plan = known.Find(demand.gemm);
        plan != nullptr && plan->workspace_bytes <= demand.workspace_bytes)
      plans.plans.push_back(*plan);
  return plans;
}

void UseMeasuredGemms(CudaModule& module, const std::vector<GemmDemand>& demands, World& world) {
  const GemmPlans here = module.MeasureGemms({}, [](const GemmPlan&) {});
  const std::vector<std::string> all = world.Gather(TextOf(here, demands));
  const std::string text = OnRankZero(world, [&]() -> std::string {
    std::vector<GemmDemand> of_all;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const GemmPlans of_rank = ParseGemmPlans(all[rank], fmt::format("the matmuls of rank {}", rank));
      if (of_rank.gpu != here.gpu || of_rank.library != here.library) {
        spdlog::warn("{}: rank 0 computes on {} with {}, rank {} on {} with {}: all take the library's first choice",
                     kGemmPlansAreAuto, here.gpu, here.library, rank, of_rank.gpu, of_rank.library);
        return "";
      }
      for (const GemmPlan& plan : of_rank.plans) of_all.push_back({plan.gemm, plan.workspace_bytes});
    }
    return ToText(KnownOrMeasured(module, here, Distinct(std::move(of_all))));
  });
  if (!text.empty()) module.UseGemmPlans(ParseGemmPlans(text, "the plans of rank 0"));
}

}  // namespace espalier
