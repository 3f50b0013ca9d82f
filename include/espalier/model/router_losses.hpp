// The losses and loads of the routers of a model with experts: each layer has a value of each, named after the layer,
// such as "model.layers.3.mlp.gate.balance_loss".
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// The value that counts how often each expert of a router is chosen in a step; a router is called after its weight,
/// "model.layers.3.mlp.gate".
inline constexpr std::string_view kLoadSuffix = ".load";
inline std::string LoadName(std::string_view router) { return std::string(router) + std::string(kLoadSuffix); }
inline std::string RouterOfBias(std::string_view bias) { return std::string(bias.substr(0, bias.rfind('.'))); }

/// The result with the highest load of each layer with experts.
inline constexpr std::string_view kLargestLoads = "largest_loads";

inline constexpr std::string_view kBalanceLoss = "balance_loss", kRouterZLoss = "router_z_loss";

}  // namespace espalier
