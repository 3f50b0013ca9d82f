// The GEMMs and attention_grad calls of a deck's programs.
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

/// Adds the attention_grad calls that the rank at `coordinate` makes in a step, except over isolated documents. A call
/// that is already listed is not added again; its number is the largest of any rank.
void AddAttentionGradsOf(const Program& program, const Coordinate& coordinate, std::vector<AttentionDemand>& demands);

}  // namespace espalier
