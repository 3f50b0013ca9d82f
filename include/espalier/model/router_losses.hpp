// The losses of the routers of a model with experts: each layer has a value of each, named after the layer, such as
// "model.layers.3.mlp.balance_loss".
#pragma once

#include <string_view>

namespace espalier {

inline constexpr std::string_view kBalanceLoss = "balance_loss", kRouterZLoss = "router_z_loss";

}  // namespace espalier
