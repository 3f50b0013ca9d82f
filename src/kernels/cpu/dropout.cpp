// Dropout (Srivastava et al. 2014) of the rows of tokens.
#include "kernels/cpu/runtime/kernels.hpp"
#include "kernels/cpu/runtime/random_words.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void Dropout(const DropoutArgs& a) {
  if (a.rows * a.width == 0) return;
  const DropoutMask& mask = a.mask;
  const uint32_t step = mask.Step();
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    ForRows(a.rows, a.width, [&](int64_t r) {
      const T* x = a.x.As<T>() + r * a.width;
      T* y = a.y.As<T>() + r * a.width;
      ForRandomLanes({mask.key, mask.tokens[r], mask.first, a.width}, step, 0, a.width,
                     [&](int64_t c, auto lanes, Words words) {
                       const Floats scaled = Load(x + c, lanes) * mask.scale;
                       Store(y + c, words < mask.threshold ? Floats{} : scaled, lanes);
                     });
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
