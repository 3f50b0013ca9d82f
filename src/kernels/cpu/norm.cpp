// RMSNorm as Hugging Face's LlamaRMSNorm (Zhang and Sennrich 2019, eq. 4): fp32 inside, xhat = x rstd is rounded to the
// compute type before the weight multiplies it. A row stays in the first-level cache between its two passes.
#include "addend.hpp"
#include "column_sums.hpp"

namespace espalier::cpu {
namespace {

template <typename T>
void ForwardRow(const Summands<T>& in, const T* w, float eps, int64_t width, T* y, float* rstd) {
  F16 squares{};
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    const F16 v = in.Load(c, lanes);
    squares += v * v;
  });
  const T* x = in.Loaded();
  *rstd = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + eps);
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    Store(y + c, Load(w + c, lanes) * Rounded<T>(Load(x + c, lanes) * *rstd), lanes);
  });
}

// dx = rstd (w dy - xhat mean(w dy xhat)), plus the addend
template <typename T>
void BackwardRow(const T* x, const T* w, float rstd, const T* dy, const T* addend, int64_t width, T* dx) {
  F16 sum{};
  ForLanes(0, width,
           [&](int64_t c, auto lanes) { sum += Load(w + c, lanes) * Load(dy + c, lanes) * Load(x + c, lanes); });
  const float factor = Sum(sum) / static_cast<float>(width) * rstd * rstd;  // mean(w dy xhat) rstd, applied to x
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    StoreWith(addend, dx, c, rstd * (Load(w + c, lanes) * Load(dy + c, lanes) - Load(x + c, lanes) * factor), lanes);
  });
}

/// Sixteen columns of dw.
template <typename T, typename Lanes>
F16 WeightColumns(const KernelCall& call, int64_t c, Lanes lanes) {
  const T *x = call.inputs[0].As<T>(), *dy = call.inputs[2].As<T>();
  const float* rstd = call.inputs[1].As<float>();
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  return SumOverRows(rows, [=](int64_t r) {
    return Load(dy + r * width + c, lanes) * Rounded<T>(Load(x + r * width + c, lanes) * rstd[r]);
  });
}

}  // namespace

// x T[b,s,d], w T[d] -> y T[b,s,d], rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void RmsNorm(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x);
  const auto eps = static_cast<float>(call.attributes->Number("eps"));
  ForElementType(x.dtype, [&]<typename T>(T) {
    const Summands<T> in{x.As<T>(), DataOrNull<T>(call.inputs, 2), DataOrNull<T>(call.outputs, 2)};
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        ForwardRow(in.Row(r * width), call.inputs[1].As<T>(), eps, width, call.outputs[0].As<T>() + r * width,
                   call.outputs[1].As<float>() + r);
      }
    });
  });
}

// x, w, rstd, dy -> dx; with an addend: dx + addend
void RmsNormGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x);
  ForElementType(x.dtype, [&]<typename T>(T) {
    const T* addend = DataOrNull<T>(call.inputs, 4);
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BackwardRow(x.As<T>() + r * width, call.inputs[1].As<T>(), call.inputs[2].As<float>()[r],
                    call.inputs[3].As<T>() + r * width, addend == nullptr ? nullptr : addend + r * width, width,
                    call.outputs[0].As<T>() + r * width);
      }
    });
  });
}

// x, rstd, dy -> dw f32[d]. Threads own columns.
void RmsNormWeightGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  float* dw = call.outputs[0].As<float>();
  ForElementType(x.dtype, [&]<typename T>(T) {
    ForColumns(RowsOf(x), ColumnsOf(x), [&](int64_t c, auto lanes) {
      PutColumns(dw + c, WeightColumns<T>(call, c, lanes), call.accumulate, lanes);
    });
  });
}

}  // namespace espalier::cpu
