// A batch without data, to measure or to check kernels with.
#pragma once

#include "espalier/data/batch_loader.hpp"

namespace espalier {

/// Tokens that are spread over the vocabulary, in one document per sequence; the same in every call.
Batch MadeUpBatch(const BatchLayout& layout, int64_t vocab);

}  // namespace espalier
