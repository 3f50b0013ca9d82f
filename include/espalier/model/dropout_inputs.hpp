// Inputs of a training program with dropout: the number of each token in the batch of a step, seq_len for each
// sequence, i32[b,s]. The masks depend only on these numbers (src/kernels/dropout.hpp), not on the layout.
#pragma once

#include <string_view>

namespace espalier {

inline constexpr std::string_view kStreamNumbers = "stream_numbers";  ///< token numbers of the residual stream
inline constexpr std::string_view kQueryNumbers = "query_numbers";    ///< token numbers of attention's queries

}  // namespace espalier
