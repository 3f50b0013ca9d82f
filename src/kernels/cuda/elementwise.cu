// Outputs may be inputs: an element's inputs are read before its outputs are written.
#include "kernels/cuda/runtime/kernels.hpp"
#include "kernels/cuda/runtime/pack.cuh"
#include "kernels/cuda/runtime/quick.cuh"

namespace espalier::cuda {
namespace {

constexpr int kMaxTerms = 64;

/// The terms of a sum.
struct Terms {
  const void* pointers[kMaxTerms];
  int count;
};

template <typename T, int N>
__global__ void AddKernel(Terms terms, T* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) {
    auto sum = Load(static_cast<const T*>(terms.pointers[0]) + i, lanes);
    for (int t = 1; t < terms.count; ++t) {
      const auto x = Load(static_cast<const T*>(terms.pointers[t]) + i, lanes);
      sum = Each(lanes, [&](int k) { return sum[k] + x[k]; });
    }
    Store(y + i, sum);
  });
}

template <int N>
__global__ void AccumulateKernel(AccumulateArgs a) {
  ForElements<N>(a.n, [&](int64_t i, auto lanes) {
    const auto term = Load(a.x + i, lanes);
    if (!a.accumulate) return Store(a.y + i, term);
    const auto sum = Load(a.y + i, lanes);
    Store(a.y + i, Each(lanes, [&](int k) { return sum[k] + term[k]; }));
  });
}

/// Calls f(i, gate, lanes) for all elements of a dense tensor, with their place in rows of gates: if there are several
/// rows, each belongs to one block, and its width is a multiple of N.
template <int N, typename F>
__device__ void ForGates(const GateRows& shape, F f) {
  if (shape.rows == 1) return ForElements<N>(shape.width, [&](int64_t i, auto lanes) { f(i, i, lanes); });
  ForRows(shape.rows, [&](int64_t r) {
    ForColumns<N>(shape.width, [&](int64_t c, auto lanes) { f(r * shape.width + c, r * shape.stride + c, lanes); });
  });
}

template <typename T, int N>
__global__ void SwigluKernel(SwigluArgs a) {
  const T *gate = a.gate.As<T>(), *up = a.up.As<T>();
  T* y = a.y.As<T>();
  ForGates<N>(a.shape, [&](int64_t i, int64_t at, auto lanes) {
    const auto g = Load(gate + at, lanes), u = Load(up + at, lanes);
    Store(y + i, Each(lanes, [&](int k) { return SwigluOf(g[k], u[k], SigmoidFor<T>(g[k])); }));
  });
}

template <typename T, int N>
__global__ void SwigluGradKernel(SwigluGradArgs a) {
  const T *gate = a.gate.As<T>(), *up = a.up.As<T>(), *adjoint = a.dy.As<T>();
  T *dgate = a.dgate.As<T>(), *dup = a.dup.As<T>();
  ForGates<N>(a.shape, [&](int64_t i, int64_t at, auto lanes) {
    const auto g = Load(gate + at, lanes), u = Load(up + at, lanes), dy = Load(adjoint + i, lanes);
    const auto s = Each(lanes, [&](int k) { return SigmoidFor<T>(g[k]); });
    Store(dgate + at, Each(lanes, [&](int k) { return SwigluGradOf(g[k], u[k], dy[k], s[k]).gate; }));
    Store(dup + at, Each(lanes, [&](int k) { return SwigluGradOf(g[k], u[k], dy[k], s[k]).up; }));
  });
}

template <typename From, typename To, int N>
__global__ void CastKernel(const From* x, To* y, int64_t n) {
  ForElements<N>(n, [&](int64_t i, auto lanes) { Store(y + i, Load(x + i, lanes)); });
}

bool AreAligned(const Terms& terms) {
  for (int t = 0; t < terms.count; ++t)
    if (!cuda::AreAligned(terms.pointers[t])) return false;
  return true;
}

/// Every row begins at a multiple of 16 bytes, if the first does.
template <typename T>
bool HasPackedRows(const GateRows& shape) {
  return shape.rows == 1 || (shape.width % kPack<T> == 0 && shape.stride % kPack<T> == 0);
}
dim3 GateBlocks(const GateRows& shape, int lanes) {
  return shape.rows == 1 ? ElementBlocks(shape.width, lanes) : RowBlocks(shape.rows);
}
dim3 GateThreads(const GateRows& shape, int lanes) {
  return shape.rows == 1 ? dim3(kThreads) : RowThreads(shape.width, lanes);
}

}  // namespace

void Add(const AddArgs& a, const LaunchContext& context) {
  Require(a.terms.size() <= kMaxTerms, "add: more than 64 terms");
  if (a.n == 0) return;
  Terms terms{};
  for (const void* term : a.terms) terms.pointers[terms.count++] = term;
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(AreAligned(terms) && cuda::AreAligned(a.y.data), [&](auto lanes) {
      Launch(AddKernel<T, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, terms,
             a.y.As<T>(), a.n);
    });
  });
}

void Accumulate(const AccumulateArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForLanes<kPack<float>>(cuda::AreAligned(a.x, a.y), [&](auto lanes) {
    Launch(AccumulateKernel<lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream, a);
  });
}

void Swiglu(const SwigluArgs& a, const LaunchContext& context) {
  if (a.shape.rows * a.shape.width == 0) return;
  ForElementType(a.y.dtype, [&]<typename T>(T) {
    const bool packed = cuda::AreAligned(a.gate.data, a.up.data, a.y.data) && HasPackedRows<T>(a.shape);
    ForLanes<kPack<T>>(packed, [&](auto lanes) {
      Launch(SwigluKernel<T, lanes.value>, GateBlocks(a.shape, lanes), GateThreads(a.shape, lanes), 0, context.stream,
             a);
    });
  });
}

void SwigluGrad(const SwigluGradArgs& a, const LaunchContext& context) {
  if (a.shape.rows * a.shape.width == 0) return;
  const bool aligned = cuda::AreAligned(a.gate.data, a.up.data, a.dy.data, a.dgate.data, a.dup.data);
  ForElementType(a.dgate.dtype, [&]<typename T>(T) {
    ForLanes<kPack<T>>(aligned && HasPackedRows<T>(a.shape), [&](auto lanes) {
      Launch(SwigluGradKernel<T, lanes.value>, GateBlocks(a.shape, lanes), GateThreads(a.shape, lanes), 0,
             context.stream, a);
    });
  });
}

void Cast(const CastArgs& a, const LaunchContext& context) {
  if (a.n == 0) return;
  ForElementType(a.x.dtype, [&]<typename From>(From) {
    ForElementType(a.y.dtype, [&]<typename To>(To) {
      constexpr int kFromPack = kPack<From>, kToPack = kPack<To>;
      ForLanes<(kFromPack > kToPack ? kFromPack : kToPack)>(cuda::AreAligned(a.x.data, a.y.data), [&](auto lanes) {
        Launch(CastKernel<From, To, lanes.value>, ElementBlocks(a.n, lanes), dim3(kThreads), 0, context.stream,
               static_cast<const From*>(a.x.data), a.y.As<To>(), a.n);
      });
    });
  });
}

}  // namespace espalier::cuda
