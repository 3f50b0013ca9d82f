#include <algorithm>

#include "espalier/ops/op_times.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// The latency is about 6 us.
constexpr double kRoughLatency = 5e9;
constexpr double kPerMemoryByte = 200, kPerNodeByte = 2000, kPerNetworkByte = 10'000, kPerHostByte = 15'000;

double CollectiveTime(const LocalOp& local, const Mesh& mesh) {
  const AxisSet axes = local.op.Axes();
  const double per_byte = (axes - kNearAxes).Empty() ? kPerNodeByte : kPerNetworkByte;
  const double ranks = mesh.GroupSize(axes);
  const double share = local.op.kind == OpKind::kRingShift ? 1 : (ranks - 1) / ranks;
  const double phases = local.op.kind == OpKind::kAllReduce ? 2 : 1;
  return kRoughLatency + per_byte * phases * share * LargerSideBytes(local);
}

double RoughTime(const Graph& graph, const Op& op, const Mesh& mesh) {
  if (op.inputs.empty() || op.kind == OpKind::kSend || op.kind == OpKind::kRecv) return 0;
  const LocalOp local = LocalOpOf(graph, op, mesh, {});
  if (IsCommunication(op.kind)) return CollectiveTime(local, mesh);
  if (IsHostCopy(op.kind)) return kRoughLatency + kPerHostByte * LargerSideBytes(local);
  if (Define(op.kind).kernel.work.flops != nullptr) return Define(op.kind).kernel.work.flops(local);
  double bytes = 0;
  for (const std::vector<Shape>* shapes : {&local.inputs, &local.outputs})
    for (const Shape& shape : *shapes) bytes += double(Volume(shape) * SizeOf(local.dtype));
  return FilledShare(op.attributes) * kPerMemoryByte * bytes;
}

class Rough : public OpTimes {
 public:
  double Of(const Graph& graph, const Op& op, const Mesh& mesh) const override { return RoughTime(graph, op, mesh); }
  double HostCopy(OpKind, int64_t bytes, int) const override { return kRoughLatency + kPerHostByte * double(bytes); }
  std::string Origin() const override { return "rough times"; }
};

}  // namespace

const OpTimes& RoughTimes() {
  static const Rough rough;
  return rough;
}

const OpTimes& TimesOf(const Deck& deck) {
  CHECK(deck.run.costs.empty() == (deck.times == nullptr), "run.costs = \"{}\" has not been read", deck.run.costs);
  return deck.times == nullptr ? RoughTimes() : *deck.times;
}

}  // namespace espalier
