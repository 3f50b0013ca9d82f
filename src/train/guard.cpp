#include "train/guard.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr const char* kOverflow = "every sum is finite, but the squares of the gradients overflow";

/// Position of the first op that writes `value`.
size_t FirstWriter(const Graph& graph, std::string_view name) {
  const int value = graph.Find(name);
  const auto writes = [&](const Op& op) { return std::ranges::count(op.outputs, value) > 0; };
  return static_cast<size_t>(std::ranges::find_if(graph.ops, writes) - graph.ops.begin());
}

/// Elements that are not finite. Reads the tensor in chunks, from host or device.
int64_t CountNonFinite(const Arena& arena, const Tensor& tensor) {
  constexpr int64_t kChunk = int64_t{1} << 20;
  std::vector<float> chunk;
  int64_t bad = 0;
  for (int64_t at = 0, n = Volume(tensor.shape); at < n; at += kChunk) {
    chunk.resize(static_cast<size_t>(std::min(kChunk, n - at)));
    arena.Read(tensor.As<float>() + at, chunk.data(), std::ssize(chunk) * int64_t{sizeof(float)});
    bad += std::ranges::count_if(chunk, [](float x) { return !std::isfinite(x); });
  }
  return bad;
}

/// This rank's first one as "order rank words", with numbers of fixed width so that texts compare; empty if none.
std::string OwnFirst(const Programs& programs, int rank) {
  std::string first;
  for (const NamedTensor& sum : programs.train().executor->All(ValueKind::kAccumulator)) {
    if (sum.tensor.dtype != Dtype::kF32) continue;
    const int64_t bad = CountNonFinite(programs.arena(), sum.tensor);
    if (bad == 0) continue;
    std::string mine = fmt::format("{:010} {:08} {} on rank {}: {} of its {} elements there",
                                   FirstWriter(*programs.train().program.graph, sum.name), rank, sum.name, rank, bad,
                                   Volume(sum.tensor.shape));
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
  if (deck_.guard.on_nonfinite == OnNonfinite::kSkip)
    return ++skips_ > deck_.guard.max_skips ? Verdict::kStop : Verdict::kSkip;
  if (deck_.guard.on_nonfinite == OnNonfinite::kRollback)
    return ++rollbacks_ > deck_.guard.max_rollbacks ? Verdict::kStop : Verdict::kRollBack;
  return Verdict::kStop;
}

std::string Guard::Limit() const {
  if (skips_ > deck_.guard.max_skips)
    return fmt::format(" (guard.max_skips = {} steps in a row were skipped)", deck_.guard.max_skips);
  if (rollbacks_ > deck_.guard.max_rollbacks)
    return fmt::format(" (guard.max_rollbacks = {} times it was rolled back)", deck_.guard.max_rollbacks);
  return "";
}

std::string FirstNonFinite(const Programs& programs, World& world) {
  std::string first;
  for (const std::string& text : world.Gather(OwnFirst(programs, world.Rank())))
    if (!text.empty() && (first.empty() || text < first)) first = text;
  first = world.Broadcast(first);
  if (first.empty()) return kOverflow;
  constexpr size_t kNumbers = 20;  // "order rank "
  return "first not finite: " + first.substr(kNumbers);
}

std::string FirstNonFiniteOfResults(const Programs& programs) {
  const Executor& executor = *programs.train().executor;
  const auto first = static_cast<int64_t>(executor.GetScalar("first"));
  if (first >= 0)
    return "first not finite: gradients/" + programs.compilation().parameters.at(static_cast<size_t>(first));
  return std::isfinite(executor.GetScalar("mean_loss")) ? kOverflow : "the gradients are finite, the loss is not";
}

}  // namespace espalier
