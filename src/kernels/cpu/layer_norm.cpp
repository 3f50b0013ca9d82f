// LayerNorm as torch.nn.LayerNorm (Ba et al. 2016, eq. 4): fp32 inside, rounded once. The variance is the mean square
// of what is left after the mean is taken away; a row stays in the first-level cache between its passes.
#include "addend.hpp"
#include "column_sums.hpp"

namespace espalier::cpu {
namespace {

template <typename T>
void ForwardRow(const Summands<T>& in, const T* w, const T* bias, float eps, int64_t width, T* y, float* mean,
                float* rstd) {
  F16 sum{}, squares{};
  ForLanes(0, width, [&](int64_t c, auto lanes) { sum += in.Load(c, lanes); });
  const T* x = in.Loaded();
  const float m = Sum(sum) / static_cast<float>(width);
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    const F16 v = KeepFirst(Load(x + c, lanes) - m, lanes);
    squares += v * v;
  });
  const float r = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(width) + eps);
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    Store(y + c, Load(w + c, lanes) * ((Load(x + c, lanes) - m) * r) + Load(bias + c, lanes), lanes);
  });
  *mean = m;
  *rstd = r;
}

// dx = rstd (w dy - mean(w dy) - xhat mean(w dy xhat)), plus the addend
template <typename T>
void BackwardRow(const T* x, const T* w, float mean, float rstd, const T* dy, const T* addend, int64_t width, T* dx) {
  F16 plain{}, projected{};
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    const F16 g = Load(w + c, lanes) * Load(dy + c, lanes);
    plain += g;
    projected += g * (Load(x + c, lanes) - mean);
  });
  const float shift = Sum(plain) / static_cast<float>(width);
  const float factor =
      Sum(projected) / static_cast<float>(width) * rstd * rstd;  // mean(w dy xhat) rstd, applied to x - mean
  ForLanes(0, width, [&](int64_t c, auto lanes) {
    const F16 g = Load(w + c, lanes) * Load(dy + c, lanes);
    StoreWith(addend, dx, c, rstd * (g - shift - (Load(x + c, lanes) - mean) * factor), lanes);
  });
}

}  // namespace

// x T[b,s,d], w, bias T[d] -> y T[b,s,d], mean, rstd f32[b,s]; with an addend T[b,s,d]: and the sum
void LayerNorm(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x);
  const auto eps = static_cast<float>(call.attributes->Number("eps"));
  ForElementType(x.dtype, [&]<typename T>(T) {
    const Summands<T> in{x.As<T>(), DataOrNull<T>(call.inputs, 3), DataOrNull<T>(call.outputs, 3)};
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        ForwardRow(in.Row(r * width), call.inputs[1].As<T>(), call.inputs[2].As<T>(), eps, width,
                   call.outputs[0].As<T>() + r * width, call.outputs[1].As<float>() + r,
                   call.outputs[2].As<float>() + r);
      }
    });
  });
}

// x, w, mean, rstd, dy -> dx; with an addend: dx + addend
void LayerNormGrad(const KernelCall& call) {
  const Tensor& x = call.inputs[0];
  const int64_t width = ColumnsOf(x);
  ForElementType(x.dtype, [&]<typename T>(T) {
    const T* addend = DataOrNull<T>(call.inputs, 5);
    ParallelRanges(RowsOf(x), RowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        BackwardRow(x.As<T>() + r * width, call.inputs[1].As<T>(), call.inputs[2].As<float>()[r],
                    call.inputs[3].As<float>()[r], call.inputs[4].As<T>() + r * width,
                    addend == nullptr ? nullptr : addend + r * width, width, call.outputs[0].As<T>() + r * width);
      }
    });
  });
}

// x, mean, rstd, dy -> dw, dbias f32[d]
void LayerNormWeightGrad(const KernelCall& call) {
  const int64_t rows = RowsOf(call.inputs[0]), width = ColumnsOf(call.inputs[0]);
  const float *mean = call.inputs[1].As<float>(), *rstd = call.inputs[2].As<float>();
  float *dw = call.outputs[0].As<float>(), *dbias = call.outputs[1].As<float>();
  ForElementType(call.inputs[0].dtype, [&]<typename T>(T) {
    ForColumns(rows, width, [&](int64_t c, auto lanes) {
      const T *x = call.inputs[0].As<T>() + c, *dy = call.inputs[3].As<T>() + c;
      const F16 weight = SumOverRows(rows, [=](int64_t r) {
        return Load(dy + r * width, lanes) * ((Load(x + r * width, lanes) - mean[r]) * rstd[r]);
      });
      const F16 bias = SumOverRows(rows, [=](int64_t r) { return Load(dy + r * width, lanes); });
      PutColumns(dw + c, weight, call.accumulate, lanes);
      PutColumns(dbias + c, bias, call.accumulate, lanes);
    });
  });
}

}  // namespace espalier::cpu
