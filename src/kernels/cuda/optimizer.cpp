#include "optimizer.hpp"

#include <algorithm>

#include "espalier/device_memory/partial_sums.hpp"
#include "kernels.hpp"

namespace espalier::cuda {

// g f32[...] -> f32[]
void SumSquares(const KernelCall& call) {
  const int64_t n = Volume(call.inputs[0].shape);
  LaunchSumSquares(call.inputs[0].As<float>(), n, call.outputs[0].As<float>(),
                   WorkspaceOf<double>(call, SumSquaresBytes(n)), StreamOf(call));
}

// loss, count, squares of each tensor f32[] -> mean loss, norm, scale, apply, first f32[]
void Clip(const KernelCall& call) {
  auto* found = WorkspaceOf<ClipSquares>(call, kClipBytes);
  const auto squares = call.inputs.subspan(2);
  size_t i = 0;
  do {
    Scalars scalars{};
    scalars.first = static_cast<int>(i);
    for (; i < squares.size() && scalars.count < kMostScalars; ++i)
      scalars.pointers[scalars.count++] = squares[i].As<float>();
    LaunchAddScalars(scalars, found, StreamOf(call));
  } while (i < squares.size());
  const auto out = [&](size_t o) { return call.outputs[o].As<float>(); };
  LaunchClip({call.inputs[0].As<float>(), call.inputs[1].As<float>(), out(0), out(1), out(2), out(3), out(4)}, found,
             call.attributes->Number("clip_norm"), StreamOf(call));
}

// lr, step, scale, apply f32[], master, exp_avg, exp_avg_sq, g f32[...] of each tensor -> master, exp_avg, exp_avg_sq
// of each, in place
void Adamw(const KernelCall& call) {
  const Attributes& a = *call.attributes;
  const auto in = [&](int i) { return call.inputs[static_cast<size_t>(i)].As<float>(); };
  const auto out = [&](int o) { return call.outputs[static_cast<size_t>(o)].As<float>(); };
  const int tensors = static_cast<int>(call.outputs.size() / 3), decaying = static_cast<int>(a.Number("decaying"));
  AdamwTable table;
  table.constants = {a.Number("beta1"), a.Number("beta2"), a.Number("eps"), a.Number("weight_decay")};
  table.lr = in(0), table.step = in(1), table.scale = in(2), table.apply = in(3);
  for (int first = 0; first < tensors; first += table.count) {
    table.count = std::min(tensors - first, AdamwTable::kMost);
    table.decaying = std::clamp(decaying - first, 0, table.count);
    for (int i = 0, t = first; i < table.count; ++i, ++t)
      table.tensors[i] = {out(3 * t), out(3 * t + 1), out(3 * t + 2), in(4 + 4 * t + 3),
                          Volume(call.outputs[static_cast<size_t>(3 * t)].shape)};
    LaunchAdamw(table, StreamOf(call));
  }
}

}  // namespace espalier::cuda
