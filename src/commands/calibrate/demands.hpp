// Which GEMMs and which attention_grad a deck's programs consist of.
#pragma once

#include <string>
#include <vector>

#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/program/instruction.hpp"
#include "espalier/program/plan.hpp"

namespace espalier {

/// A deck, with `run.device` set to GPUs, on `ranks` ranks; 0: the fewest that its degrees allow. Throws UserError.
WorldPlan PlanForGpus(const std::string& deck, std::vector<std::string> overrides, int ranks);

/// Every GEMM that the rank at `coordinate` computes in a step, once, in order; empty ones left out.
std::vector<GemmDemand> GemmsOf(const Program& program, const Coordinate& coordinate);

/// Sorted, without duplicates.
std::vector<GemmDemand> Distinct(std::vector<GemmDemand> demands);

/// Adds the attention_grad that the rank at `coordinate` computes in a step, but none over isolated documents. A call
/// that is there already is not added again; it counts as often as on the rank that makes it most often.
void AddAttentionGradsOf(const Program& program, const Coordinate& coordinate, std::vector<AttentionDemand>& demands);

}  // namespace espalier
