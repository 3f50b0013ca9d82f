#include "train/state/compare_computation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "espalier/comm/agreement.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/philox.hpp"
#include "train/state/proof.hpp"

namespace espalier {
namespace {

constexpr AxisSet kExpertAxis = {Axis::kEp};
/// Ranks that differ in them alone compute the same if they have the same samples: experts are on ranks of ep.
constexpr AxisSet kPeers = kBatchAxes - kExpertAxis;

/// The results of a rank.
struct Computed {
  std::string host;
  std::vector<uint32_t> checksums;  ///< by accumulator, in program order

  auto Fields() { return std::tie(host, checksums); }
};

/// Computes the microbatch that all peers have, and returns the checksums by accumulator, in program order.
std::vector<uint32_t> Compute(const Deck& deck, const Programs& programs, int64_t step) {
  const Runnable& gradients = *programs.gradients();
  BatchLayout layout = programs.layout();
  const int64_t rows = layout.rows.Extent(),
                first = programs.compilation().mesh.IndexInGroup(kExpertAxis, programs.coordinate()) * rows;
  layout.microbatches = 1;
  layout.rows = {first, first + rows};
  FixedTokens tokens(deck.model, layout.Global(), StreamKey(static_cast<uint64_t>(step), "recompute"));
  Batch batch;
  LoadBatch(tokens, {0, Order::kSequential}, layout, 0, batch);
  gradients.Fill(batch, layout.positions);
  gradients.FillStep(step);
  gradients.executor->RunStep();
  std::vector<uint32_t> checksums;
  for (const NamedTensor& sum : gradients.executor->All(ValueKind::kAccumulator))
    checksums.push_back(
        ChecksumOf({nullptr, sum.tensor.data, sum.arena}, Volume(sum.tensor.shape) * SizeOf(sum.tensor.dtype)));
  return checksums;
}

/// The ranks that computed other bits the second time are to blame, if there are some among those that differ.
void BlameUnsteady(const std::vector<bool>& changed, Corruption& found) {
  std::vector<int> unsteady;
  for (const int rank : found.ranks)
    if (changed[static_cast<size_t>(rank)]) unsteady.push_back(rank);
  if (unsteady.empty()) return;
  found.text += fmt::format("; computed again, other bits than before on rank {}", fmt::join(unsteady, ", "));
  found.ranks = std::move(unsteady);
}

}  // namespace

std::optional<Corruption> CompareComputation(const Deck& deck, const Programs& programs, World& world, int64_t step) {
  CHECK(programs.gradients() != nullptr, "a comparison of gradients without their program");
  const Mesh& mesh = programs.compilation().mesh;
  const Computed mine{HostName(), Compute(deck, programs, step)};
  std::vector<std::string> hosts;
  std::map<SharedValue, Holders> values;
  for (const Computed& computed : Gathered(world, mine)) {
    const auto rank = static_cast<int>(hosts.size());
    const int first = mesh.RankOf(mesh.GroupMember(kPeers, mesh.CoordinateOf(rank), 0));
    hosts.push_back(computed.host);
    for (size_t i = 0; i < computed.checksums.size(); ++i)
      values[{static_cast<int>(i), first}][computed.checksums[i]].push_back(rank);
  }
  const bool differ = std::ranges::any_of(values, [](const auto& value) { return value.second.size() > 1; });
  if (world.Max(differ ? 1 : 0) == 0) return std::nullopt;
  const std::vector<bool> changed = Gathered(world, Compute(deck, programs, step) != mine.checksums);
  std::vector<std::string> names;
  for (const NamedTensor& sum : programs.gradients()->executor->All(ValueKind::kAccumulator))
    names.emplace_back(sum.name);
  const std::vector<std::vector<std::string>> of_ranks = Gathered(world, names);
  return OnRankZero(world, [&] {
    const auto name = [&](SharedValue value) {
      return of_ranks[static_cast<size_t>(value.second)].at(static_cast<size_t>(value.first));
    };
    Corruption found = JudgeHolders(values, name, hosts);
    found.text += ", computed from the same microbatch";
    BlameUnsteady(changed, found);
    return found;
  });
}

}  // namespace espalier
