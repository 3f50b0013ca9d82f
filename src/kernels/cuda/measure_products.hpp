// What `espalier calibrate` times on the device.
#pragma once

#include <functional>
#include <span>

#include "espalier/kernels/product_plans.hpp"

namespace espalier::cuda {

/// Times the library's best candidates for each product on the current device, by turns, on random operands, and keeps
/// the quickest; its first choice unless another is quicker by a hundredth. All are deterministic. `measured` is told
/// of each.
ProductPlans MeasureProducts(std::span<const ProductDemand> demands,
                             const std::function<void(const ProductPlan&)>& measured);

}  // namespace espalier::cuda
