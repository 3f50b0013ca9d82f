// Inputs of a training program with dropout: the number of each token in the batch of a step, seq_len for each
// sequence, i32[b,s]. From them follow the masks (src/kernels/dropout.hpp), whatever the layout.
#pragma once

#include <string_view>

namespace espalier {

inline constexpr std::string_view kStreamNumbers = "stream_numbers";  ///< token numbers of the residual stream
inline constexpr std::string_view kQueryNumbers = "query_numbers";    ///< token numbers of attention's queries

}  // namespace espalier
