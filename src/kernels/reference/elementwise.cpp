// Addition, the SwiGLU gate (Shazeer 2020, eq. 6), casts, slices, pads, sums over microbatches.
#include <cstring>

#include "../fill.hpp"
#include "access.hpp"

namespace espalier::reference {

// x_0, x_1, ... -> their sum, in order
void Add(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (const Tensor& x : call.inputs) sum += Get(x, i);
    Set(call.outputs[0], i, sum);
  }
}

// g, u -> silu(g) u
void Swiglu(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) {
    const double g = Get(call.inputs[0], i);
    Set(call.outputs[0], i, g / (1 + std::exp(-g)) * Get(call.inputs[1], i));
  }
}

// g, u, dy -> dg, du; with s = sigmoid(g): dg = dy u s (1 + g (1 - s)), du = dy g s. Outputs may alias inputs.
void SwigluGrad(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) {
    const double g = Get(call.inputs[0], i), u = Get(call.inputs[1], i), dy = Get(call.inputs[2], i);
    const double s = 1 / (1 + std::exp(-g));
    Set(call.outputs[0], i, dy * u * s * (1 + g * (1 - s)));
    Set(call.outputs[1], i, dy * g * s);
  }
}

// x -> y, or y + x
void Accumulate(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) Put(call, 0, i, Get(call.inputs[0], i));
}

// x -> the same numbers in another type
void Cast(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  for (int64_t i = 0; i < n; ++i) Set(call.outputs[0], i, Get(call.inputs[0], i));
}

// x -> the box of x that y names by its start and extents
void Slice(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  const int64_t size = SizeOf(x.dtype);
  ForRunsOfSlice(x, y, [&](int64_t source, int64_t target, int64_t count) {
    std::memcpy(y.As<char>() + target * size, x.As<char>() + source * size, static_cast<size_t>(count * size));
  });
}

void Pad(const KernelCall& call) {
  const Tensor &x = call.inputs[0], &y = call.outputs[0];
  const int64_t size = SizeOf(x.dtype);
  call.attributes->NumberOr("max", 0) != 0 ? FillLowest(y) : FillZero(y);
  ForRunsOfSlice(y, x, [&](int64_t target, int64_t source, int64_t count) {
    std::memcpy(y.As<char>() + target * size, x.As<char>() + source * size, static_cast<size_t>(count * size));
  });
}

}  // namespace espalier::reference
