// Which products a deck's programs consist of.
#pragma once

#include <vector>

#include "espalier/kernels/product_plans.hpp"
#include "espalier/program/instruction.hpp"

namespace espalier {

/// Every product that the rank at `coordinate` computes in a step, once, in order; empty ones left out.
std::vector<ProductDemand> ProductsOf(const Program& program, const Coordinate& coordinate);

/// Each of them once, in order.
std::vector<ProductDemand> Distinct(std::vector<ProductDemand> demands);

}  // namespace espalier
