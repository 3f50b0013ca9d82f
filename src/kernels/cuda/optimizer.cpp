#include "optimizer.hpp"

#include "../partials.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// g f32[...] -> f32[]
void SumSquares(const KernelCall& call) {
  const int64_t n = Volume(call.inputs[0].shape);
  LaunchSumSquares(call.inputs[0].As<float>(), n, call.outputs[0].As<float>(), WorkspaceOf<double>(call, SumSquaresBytes(n)), StreamOf(call));
}

// loss, count, squares of each tensor f32[] -> mean loss, norm, scale, apply, first f32[]
void Clip(const KernelCall& call) {
  auto* found = WorkspaceOf<ClipSquares>(call, kClipBytes);
  const auto squares = call.inputs.subspan(2);
  size_t i = 0;
  do {
    Scalars scalars{};
    scalars.first = static_cast<int>(i);
    for (; i < squares.size() && scalars.count < kMostScalars; ++i) scalars.pointers[scalars.count++] = squares[i].As<float>();
    LaunchAddScalars(scalars, found, StreamOf(call));
  } while (i < squares.size());
  const auto out = [&](size_t o) { return call.outputs[o].As<float>(); };
  LaunchClip({call.inputs[0].As<float>(), call.inputs[1].As<float>(), out(0), out(1), out(2), out(3), out(4)}, found,
             call.attributes->Number("clip_norm"), StreamOf(call));
}

// master, exp_avg, exp_avg_sq, g f32[...], lr, step, scale, apply f32[] -> master, exp_avg, exp_avg_sq in place
void Adamw(const KernelCall& call) {
  const Attributes& a = *call.attributes;
  const auto in = [&](size_t i) { return call.inputs[i].As<float>(); };
  const auto out = [&](size_t o) { return call.outputs[o].As<float>(); };
  LaunchAdamw({in(0), in(1), in(2), in(3), out(0), out(1), out(2), Volume(call.outputs[0].shape), in(4), in(5), in(6), in(7)},
              {a.Number("beta1"), a.Number("beta2"), a.Number("eps"), a.Number("weight_decay")}, StreamOf(call));
}

}  // namespace espalier::cuda
