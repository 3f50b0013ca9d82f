#include "commands/run/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

/// Position of the first op that writes `value`.
size_t FirstWriter(const Graph& graph, std::string_view name) {
  const int value = graph.Find(name);
  const auto writes = [&](const Op& op) { return std::ranges::count(op.outputs, value) > 0; };
  return static_cast<size_t>(std::ranges::find_if(graph.ops, writes) - graph.ops.begin());
}

/// This rank's first one, "order rank words" with numbers of fixed width; empty if there is none.
std::string OwnFirst(const Programs& programs, int rank) {
  std::string first;
  for (const NamedTensor& sum : programs.train().executor->All(ValueKind::kAccumulator)) {
    if (sum.tensor.dtype != Dtype::kF32) continue;
    const float* data = sum.tensor.As<float>();
    const int64_t size = Volume(sum.tensor.shape);
    const int64_t bad = std::count_if(data, data + size, [](float x) { return !std::isfinite(x); });
    if (bad == 0) continue;
    std::string mine = fmt::format("{:010} {:08} {} on rank {}: {} of its {} elements there", FirstWriter(*programs.train().program.graph, sum.name),
                                   rank, sum.name, rank, bad, size);
    if (first.empty() || mine < first) first = std::move(mine);
  }
  return first;
}

}  // namespace

Guard::Verdict Guard::Judge(float loss, float norm) {
  if (std::isfinite(loss) && std::isfinite(norm)) {
    skips_ = 0;
    return Verdict::kFinite;
  }
  if (deck_.guard.on_nonfinite == "skip") return ++skips_ > deck_.guard.max_skips ? Verdict::kStop : Verdict::kSkip;
  if (deck_.guard.on_nonfinite == "rollback") return ++rollbacks_ > deck_.guard.max_rollbacks ? Verdict::kStop : Verdict::kRollBack;
  return Verdict::kStop;
}

std::string Guard::Limit() const {
  if (skips_ > deck_.guard.max_skips) return fmt::format(" (guard.max_skips = {} steps in a row were skipped)", deck_.guard.max_skips);
  if (rollbacks_ > deck_.guard.max_rollbacks) return fmt::format(" (guard.max_rollbacks = {} times it was rolled back)", deck_.guard.max_rollbacks);
  return "";
}

std::string FirstNonFinite(const Programs& programs, World& world) {
  std::string first;
  for (const std::string& text : world.Gather(OwnFirst(programs, world.Rank())))
    if (!text.empty() && (first.empty() || text < first)) first = text;
  first = world.Broadcast(first);
  if (first.empty()) return "every sum is finite, but the squares of the gradients overflow";
  constexpr size_t kNumbers = 20;  // "order rank "
  return "first not finite: " + first.substr(kNumbers);
}

}  // namespace espalier
