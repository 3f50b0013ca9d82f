// The losses of the routers of a model with experts: each layer has a value of each, named after the layer, such as
// "model.layers.3.mlp.gate.balance_loss".
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// The value that counts how often each expert is chosen in a step, by the name of the bias that follows it.
inline std::string LoadName(std::string_view bias) { return std::string(bias) + ".load"; }

inline constexpr std::string_view kBalanceLoss = "balance_loss", kRouterZLoss = "router_z_loss";

}  // namespace espalier
