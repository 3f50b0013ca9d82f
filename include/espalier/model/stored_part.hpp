// Tensors that the graph knows apart and checkpoints know as one: GPT-2's q, k and v, which Hugging Face stores side by
// side in c_attn. tp shards each by its heads; names, shapes and initial bits of what is stored do not depend on that.
#pragma once

#include <string>

#include "espalier/graph/type.hpp"

namespace espalier {

struct StoredPart {
  std::string name;  ///< of the stored tensor
  Shape shape;       ///< of the stored tensor
  Shape start;       ///< global index in it of the part's first element

  /// A box of the part as indices of the stored tensor.
  Box Place(Box box) const {
    for (size_t d = 0; d < box.size(); ++d) {
      box[d].begin += start[d];
      box[d].end += start[d];
    }
    return box;
  }
};

}  // namespace espalier
