// Addition, the SwiGLU gate (Shazeer 2020, eq. 6), casts, slices, pads, sums over microbatches. All lanes of an
// element's inputs are read before any of its outputs is written, so outputs may lie on inputs.
#include "../arithmetic.hpp"
#include "../fill.hpp"
#include "kernels.hpp"

namespace espalier::cpu {
namespace {

F16 Sigmoid(F16 x) { return 1.0f / (1.0f + Exp(-x)); }

template <typename T>
void AddOf(const KernelCall& call) {
  ForElements(Volume(call.outputs[0].shape), [&](int64_t i, auto lanes) {
    F16 sum = Load(call.inputs[0].As<T>() + i, lanes);
    for (const Tensor& x : call.inputs.subspan(1)) sum += Load(x.As<T>() + i, lanes);
    Store(call.outputs[0].As<T>() + i, sum, lanes);
  });
}

template <typename T>
void SwigluOf(const KernelCall& call) {
  const T *gate = call.inputs[0].As<T>(), *up = call.inputs[1].As<T>();
  T* y = call.outputs[0].As<T>();
  ForElements(Volume(call.outputs[0].shape), [=](int64_t i, auto lanes) {
    const F16 g = Load(gate + i, lanes);
    Store(y + i, espalier::SwigluOf(g, Load(up + i, lanes), Sigmoid(g)), lanes);
  });
}

template <typename T>
void SwigluGradOf(const KernelCall& call) {
  const T *gate = call.inputs[0].As<T>(), *up = call.inputs[1].As<T>(), *adjoint = call.inputs[2].As<T>();
  T *dg = call.outputs[0].As<T>(), *du = call.outputs[1].As<T>();
  ForElements(Volume(call.outputs[0].shape), [=](int64_t i, auto lanes) {
    const F16 g = Load(gate + i, lanes), u = Load(up + i, lanes), dy = Load(adjoint + i, lanes);
    const GateAndUp<F16> gradient = espalier::SwigluGradOf(g, u, dy, Sigmoid(g));
    Store(dg + i, gradient.gate, lanes);
    Store(du + i, gradient.up, lanes);
  });
}

}  // namespace

// x_0, x_1, ... -> their sum, in order, fp32 inside
void Add(const KernelCall& call) {
  for (const Tensor& x : call.inputs) CHECK(x.dtype == call.outputs[0].dtype, "add: types differ");
  ForElementType(call.outputs[0].dtype, [&]<typename T>(T) { AddOf<T>(call); });
}

// x -> y, or y + x
void Accumulate(const KernelCall& call) {
  CHECK(call.inputs[0].dtype == Dtype::kF32 && call.outputs[0].dtype == Dtype::kF32, "accumulate: only f32");
  const float* x = call.inputs[0].As<float>();
  float* y = call.outputs[0].As<float>();
  const bool adds = call.accumulate;
  ForElements(Volume(call.outputs[0].shape), [=](int64_t i, auto lanes) {
    const F16 term = Load(x + i, lanes);
    Store(y + i, adds ? Load(y + i, lanes) + term : term, lanes);
  });
}

// g, u -> silu(g) u
void Swiglu(const KernelCall& call) {
  ForElementType(call.outputs[0].dtype, [&]<typename T>(T) { SwigluOf<T>(call); });
}

// g, u, dy -> dg, du
void SwigluGrad(const KernelCall& call) {
  ForElementType(call.outputs[0].dtype, [&]<typename T>(T) { SwigluGradOf<T>(call); });
}

// x -> the same numbers in another type
void Cast(const KernelCall& call) {
  const int64_t n = Volume(call.outputs[0].shape);
  ForElementType(call.inputs[0].dtype, [&]<typename From>(From) {
    ForElementType(call.outputs[0].dtype, [&]<typename To>(To) {
      const From* x = call.inputs[0].As<From>();
      To* y = call.outputs[0].As<To>();
      ForElements(n, [=](int64_t i, auto lanes) { Store(y + i, Load(x + i, lanes), lanes); });
    });
  });
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

}  // namespace espalier::cpu
