#include "passes/placement/layout.hpp"

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/graph/local_range.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr std::string_view kStateSuffix = ";state";

/// The axes of one set, then of another.
std::vector<Axis> Chain(AxisSet outer, AxisSet inner) {
  std::vector<Axis> axes = outer.List();
  for (Axis a : inner.List()) axes.push_back(a);
  return axes;
}

/// Matrices of experts go to all ranks on which a matrix is left for each, first those that share experts.
std::vector<Axis> AxesOfMatrices(int64_t matrices, const Deck& deck, const Mesh& mesh) {
  const AxisSet experts = ExpertAxes(deck.parallel);
  std::vector<Axis> axes = Chain(experts, (kStateAxes | kTensorAxes) - experts);
  std::erase_if(axes, [&](Axis a) {
    const int64_t inside = RowOf(a).division == Division::kOfWhole ? mesh.GroupSize(FactorsInside(a)) : 1;
    if (mesh.Degree(a) * inside > matrices) return true;
    matrices /= mesh.Degree(a);
    return false;
  });
  return axes;
}

std::vector<Axis> AxesOf(std::string_view dim, const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  // Ranks that share experts have neighbouring samples, so that a gather brings them together.
  if (dim == "batch") return Chain(kBatchAxes - AxisSet{Axis::kEp}, {Axis::kEp});
  if (dim == "seq") return {Axis::kCp};
  if (dim == "stream") return ((p.sequence_parallel ? kTensorAxes : AxisSet{}) | AxisSet{Axis::kCp}).List();
  // For experts: tokens are spread over all ranks; those of ranks that share experts come together.
  if (dim == "rows") return (kTensorAxes | AxisSet{Axis::kCp}).List();
  if (dim == "experts") return ExpertAxes(p).List();
  if (dim == "expert_batch") return (kBatchAxes - ExpertAxes(p)).List();
  if (dim == "expert_rows") return ((kTensorAxes | AxisSet{Axis::kCp}) - ExpertAxes(p)).List();
  if (dim == "heads" || dim == "ffn" || dim == "vocab") return kTensorAxes.List();
  if (dim == "kv_heads") return (kTensorAxes - kReplicatingAxes).List();
  if (dim == "logits") return p.loss_parallel ? kTensorAxes.List() : std::vector<Axis>{};
  if (dim == "context_heads") return {Axis::kTp, Axis::kCp};
  if (dim == "all_axes") return Chain(kTensorAxes, kStateAxes);
  CHECK(dim == "embed" || dim == "head_dim" || dim == "position" || dim == "expert" || dim == "whole_seq" ||
            dim == "whole",
        "unknown logical dim {}", dim);
  return {};
}

}  // namespace

Placements LayoutPlacements(const Value& value, const Deck& deck, const Mesh& mesh) {
  std::string_view rest = value.layout;
  bool state = value.kind == ValueKind::kState;
  if (rest.ends_with(kStateSuffix)) {
    rest.remove_suffix(kStateSuffix.size());
    state = true;
  }
  Placements placements;
  while (!rest.empty()) {
    const size_t n = std::min(rest.find(','), rest.size());
    const AxisSet taken = placements.Sharded();  // of "all_axes" by matrices
    const auto axes = rest.starts_with("matrices") ? AxesOfMatrices(value.type.shape.at(0), deck, mesh)
                                                   : AxesOf(rest.substr(0, n), deck);
    std::vector<Axis>& dim = placements.dims.emplace_back();
    for (Axis a : axes)
      if (mesh.Degree(a) > 1 && !taken.Has(a)) dim.push_back(a);
    rest.remove_prefix(std::min(n + 1, rest.size()));
  }
  if (state && !placements.dims.empty()) {
    const Shape local = LocalShape({value.type.dtype, value.type.shape, placements}, mesh, {});
    const AxisSet axes = StateAxesOf(value.layout) - placements.Sharded();
    std::vector<Axis>& dim = placements.dims[StateDim(local, mesh.GroupSize(axes))];
    for (Axis a : axes.List())
      if (mesh.Degree(a) > 1) dim.push_back(a);
  }
  return placements;
}

}  // namespace espalier
