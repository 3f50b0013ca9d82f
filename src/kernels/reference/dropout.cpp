// Dropout (Srivastava et al. 2014), element by element.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void Dropout(const DropoutArgs& a) {
  const uint32_t step = a.mask.Step();
  for (int64_t i = 0; i < a.rows * a.width; ++i) {
    const int64_t token = a.mask.tokens[i / a.width], feature = a.mask.first + i % a.width;
    const uint32_t word = WordOf(RandomBlock(a.mask.key, token, feature / 4, step), feature);
    Set(a.y, i, word < a.mask.threshold ? 0 : Get(a.x, i) * a.mask.scale);
  }
}

}  // namespace espalier::reference
