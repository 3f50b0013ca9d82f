#include "comm/lowering/reduce.hpp"

#include <algorithm>
#include <array>

#include "comm/lowering/combine.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kBlock = 1024;  // elements: sums of this many stay in the L1 cache while all sources are added

template <typename T, typename Combine>
void ReduceElements(T* to, std::span<const std::byte* const> sources, int64_t count, Combine combine) {
  using Sum = decltype(Widen(T{}));
  std::array<Sum, kBlock> sums;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    const T* first = reinterpret_cast<const T*>(sources[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sums[static_cast<size_t>(i)] = Widen(first[i]);
    for (const std::byte* source : sources.subspan(1)) {
      const T* next = reinterpret_cast<const T*>(source) + begin;
      for (int64_t i = 0; i < n; ++i)
        sums[static_cast<size_t>(i)] = combine(sums[static_cast<size_t>(i)], Widen(next[i]));
    }
    for (int64_t i = 0; i < n; ++i) Narrow(sums[static_cast<size_t>(i)], to[begin + i]);
  }
}

template <typename T>
void ReduceTyped(Reduce how, std::byte* to, std::span<const std::byte* const> sources, int64_t count) {
  T* typed = reinterpret_cast<T*>(to);
  if (how == Reduce::kSum)
    ReduceElements(typed, sources, count, Add{});
  else
    ReduceElements(typed, sources, count, Max{});
}

}  // namespace

void ReduceRun(Dtype dtype, Reduce how, std::byte* to, std::span<const std::byte* const> sources, int64_t count) {
  CHECK(!sources.empty(), "nothing to reduce");
  switch (dtype) {
    case Dtype::kF32:
      return ReduceTyped<float>(how, to, sources, count);
    case Dtype::kBf16:
      return ReduceTyped<Bf16>(how, to, sources, count);
    case Dtype::kI32:
      return ReduceTyped<int32_t>(how, to, sources, count);
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2:
    case Dtype::kF8E8M0:
      CHECK(false, "fp8 is not reduced");
  }
}

void Run(const Reduction& reduction) {
  std::vector<const std::byte*> sources(reduction.sources.size());
  const int64_t count = reduction.own.run_bytes / SizeOf(reduction.dtype);
  ForEachRun(reduction.own, [&](int64_t to, int64_t from) {
    for (size_t i = 0; i < sources.size(); ++i)
      sources[i] = i == reduction.own_index ? reduction.own.from + from : reduction.sources[i] + to;
    ReduceRun(reduction.dtype, reduction.how, reduction.own.to + to, sources, count);
  });
}

}  // namespace espalier
