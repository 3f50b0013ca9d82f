// Keys and values of multi-head latent attention.
#include "kernels/reference/runtime/access.hpp"

namespace espalier::reference {

void LatentKeys(const LatentKeysArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t head = r * a.heads + h, from = head * (a.nope + a.value), key = head * (a.nope + a.rope);
      for (int64_t c = 0; c < a.nope; ++c) Set(a.k, key + c, Get(a.kv, from + c));
      for (int64_t c = 0; c < a.rope; ++c) Set(a.k, key + a.nope + c, Get(a.shared, r * a.rope + c));
      for (int64_t c = 0; c < a.value; ++c) Set(a.v, head * a.value + c, Get(a.kv, from + a.nope + c));
    }
}

void LatentKeysGrad(const LatentKeysGradArgs& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t head = r * a.heads + h, to = head * (a.nope + a.value), key = head * (a.nope + a.rope);
      for (int64_t c = 0; c < a.nope; ++c) Set(a.dkv, to + c, Get(a.dk, key + c));
      for (int64_t c = 0; c < a.value; ++c) Set(a.dkv, to + a.nope + c, Get(a.dv, head * a.value + c));
    }
    for (int64_t c = 0; c < a.rope; ++c) {
      double sum = 0;
      for (int64_t h = 0; h < a.heads; ++h) sum += Get(a.dk, (r * a.heads + h) * (a.nope + a.rope) + a.nope + c);
      Set(a.dshared, r * a.rope + c, sum);
    }
  }
}

}  // namespace espalier::reference
