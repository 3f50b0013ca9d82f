// Which GEMMs a deck's programs consist of.
#pragma once

#include <vector>

#include "espalier/kernels/gemm_plans.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Every GEMM that the rank at `coordinate` computes in a step, once, in order; empty ones left out.
std::vector<GemmDemand> GemmsOf(const Program& program, const Coordinate& coordinate);

/// Sorted, without duplicates.
std::vector<GemmDemand> Distinct(std::vector<GemmDemand> demands);

}  // namespace espalier
