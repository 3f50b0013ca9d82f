// The GEMMs and attention_grad calls of a program, to be timed on a GPU.
#pragma once

#include <vector>

#include "espalier/executor/cuda_module.hpp"
#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Every GEMM that the rank at `coordinate` computes in a step, once, in order; empty ones left out.
std::vector<GemmDemand> GemmsOf(const Program& program, const Coordinate& coordinate);

/// Sorted, without duplicates.
std::vector<GemmDemand> Distinct(std::vector<GemmDemand> demands);

/// Adds the attention_grad calls that the rank at `coordinate` makes in a step, except over isolated documents. A call
/// that is already listed is not added again; its number is the largest of any rank.
void AddAttentionGradsOf(const Program& program, const Coordinate& coordinate, std::vector<AttentionDemand>& demands);

/// Adds one call of a rank, by the same rule.
void AddDemand(const AttentionDemand& demand, std::vector<AttentionDemand>& demands);

}  // namespace espalier
