// The losses and loads of the routers of a model with experts: each layer has a value of each, named after the layer,
// such as "model.layers.3.mlp.gate.balance_loss".
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// The value that counts how often each expert of a router is chosen in a step. A router is called after its weight,
/// "model.layers.3.mlp.gate".
inline constexpr std::string_view kLoadSuffix = ".load";
inline std::string LoadName(std::string_view router) { return std::string(router) + std::string(kLoadSuffix); }
/// The router of one of its values.
inline std::string RouterOf(std::string_view value) { return std::string(value.substr(0, value.rfind('.'))); }

/// The value with the sum over tokens of the entropy of a router's scores.
inline constexpr std::string_view kEntropySuffix = ".entropy";

/// The result with the loads of each layer with experts and, after them, its entropy. Only the first stage has it.
inline constexpr std::string_view kRouterNumbers = "router_numbers";

inline constexpr std::string_view kBalanceLoss = "balance_loss", kRouterZLoss = "router_z_loss";

}  // namespace espalier
