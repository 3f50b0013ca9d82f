// Tensors that are separate in the graph but stored as one: q, k and v of GPT-2, which Hugging Face stores in c_attn.
// tp shards each by its heads; names, shapes and initial bits of the stored tensor do not depend on tp.
#pragma once

#include <string>

#include "espalier/graph/type.hpp"

namespace espalier {

struct StoredPart {
  std::string name;  ///< name of the stored tensor
  Shape shape;       ///< shape of the stored tensor
  Shape start;       ///< global index of the part's first element in the stored tensor

  /// A box of the part in indices of the stored tensor.
  Box Place(Box box) const {
    for (size_t d = 0; d < box.size(); ++d) {
      box[d].begin += start[d];
      box[d].end += start[d];
    }
    return box;
  }
};

}  // namespace espalier
