// Keys and values of multi-head latent attention: copies, and in the gradient a sum over the heads, in fp32.
#include <algorithm>

#include "kernels/cpu/runtime/kernels.hpp"

namespace espalier::cpu::inline ESPALIER_CPU_LEVEL {

void LatentKeys(const LatentKeysArgs& a) {
  ForElementType(a.kv.dtype, [&]<typename T>(T) {
    ForRows(a.rows, a.heads * (a.nope + a.value), [&](int64_t r) {
      const T *kv = a.kv.As<T>() + r * a.heads * (a.nope + a.value), *shared = a.shared.As<T>() + r * a.rope;
      T *k = a.k.As<T>() + r * a.heads * (a.nope + a.rope), *v = a.v.As<T>() + r * a.heads * a.value;
      for (int64_t h = 0; h < a.heads; ++h) {
        k = std::copy_n(kv, a.nope, k);
        k = std::copy_n(shared, a.rope, k);
        v = std::copy_n(kv + a.nope, a.value, v);
        kv += a.nope + a.value;
      }
    });
  });
}

void LatentKeysGrad(const LatentKeysGradArgs& a) {
  ForElementType(a.dk.dtype, [&]<typename T>(T) {
    ForRows(a.rows, a.heads * (a.nope + a.value), [&](int64_t r) {
      const T *dk = a.dk.As<T>() + r * a.heads * (a.nope + a.rope), *dv = a.dv.As<T>() + r * a.heads * a.value;
      T *dkv = a.dkv.As<T>() + r * a.heads * (a.nope + a.value), *dshared = a.dshared.As<T>() + r * a.rope;
      ForLanes(0, a.rope, [&](int64_t c, auto lanes) {
        Floats sum{};
        for (int64_t h = 0; h < a.heads; ++h) sum += Load(dk + h * (a.nope + a.rope) + a.nope + c, lanes);
        Store(dshared + c, sum, lanes);
      });
      for (int64_t h = 0; h < a.heads; ++h) {
        dkv = std::copy_n(dk, a.nope, dkv);
        dkv = std::copy_n(dv, a.value, dkv);
        dk += a.nope + a.rope;
        dv += a.value;
      }
    });
  });
}

}  // namespace espalier::cpu::inline ESPALIER_CPU_LEVEL
