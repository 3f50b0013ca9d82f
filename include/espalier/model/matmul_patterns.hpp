// Which matmuls precision.bf16_matmuls leaves in bf16 when precision.matmul = "fp8".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/model/model.hpp"

namespace espalier {

/// The name of the head's matmul in patterns, tied or not.
inline constexpr std::string_view kHeadMatmul = "lm_head.weight";

/// Whether the matmuls of a weight are to be in fp8.
bool IsInFp8(const Deck::Precision& precision, std::string_view weight);

/// The names that patterns may match, in model order: the weights, and kHeadMatmul.
std::vector<std::string> MatmulNames(const Model& model);

}  // namespace espalier
