#include "train/state/compare_computation.hpp"

#include <fmt/format.h>

#include <tuple>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/pack.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/philox.hpp"
#include "train/state/proof.hpp"

namespace espalier {
namespace {

constexpr AxisSet kExpertAxis = {Axis::kEp};
/// Ranks that differ in them alone compute the same if they have the same samples: experts are on ranks of ep.
constexpr AxisSet kPeers = kBatchAxes - kExpertAxis;

/// What a rank has computed.
struct Computed {
  std::string host;
  std::vector<uint32_t> checksums;  ///< by accumulator, in program order

  auto Fields() { return std::tie(host, checksums); }
};

/// The same microbatch for all peers.
void Fill(const Deck& deck, const Programs& programs, const Coordinate& coordinate, int64_t step) {
  BatchLayout layout = programs.layout();
  const int64_t rows = layout.rows.Extent(),
                first = programs.compilation().mesh.IndexInGroup(kExpertAxis, coordinate) * rows;
  layout.microbatches = 1;
  layout.rows = {first, first + rows};
  FixedTokens tokens(deck.model, layout.Global(), StreamKey(static_cast<uint64_t>(step), "recompute"));
  Batch batch;
  LoadBatch(tokens, {0, Order::kSequential}, layout, 0, batch);
  programs.gradients()->Fill(batch, layout.positions);
  programs.gradients()->FillStep(step);
}

}  // namespace

std::optional<Corruption> CompareComputation(const Deck& deck, const Programs& programs, World& world, int64_t step) {
  CHECK(programs.gradients() != nullptr, "a comparison of gradients without their program");
  const Mesh& mesh = programs.compilation().mesh;
  Fill(deck, programs, programs.coordinate(), step);
  Executor& executor = *programs.gradients()->executor;
  executor.RunStep();
  Computed mine{HostName(), {}};
  std::vector<std::string> names;
  for (const NamedTensor& sum : executor.All(ValueKind::kAccumulator)) {
    mine.checksums.push_back(
        ChecksumOf({nullptr, sum.tensor.data, sum.arena}, Volume(sum.tensor.shape) * SizeOf(sum.tensor.dtype)));
    names.emplace_back(sum.name);
  }
  std::vector<std::string> hosts;
  std::map<SharedValue, Holders> values;
  for (const std::string& packed : world.Gather(Pack(mine))) {
    const auto rank = static_cast<int>(hosts.size());
    const auto computed = Unpack<Computed>(packed);
    const int first = mesh.RankOf(mesh.GroupMember(kPeers, mesh.CoordinateOf(rank), 0));
    hosts.push_back(computed.host);
    for (size_t i = 0; i < computed.checksums.size(); ++i)
      values[{static_cast<int>(i), first}][computed.checksums[i]].push_back(rank);
  }
  const bool differ = std::ranges::any_of(values, [](const auto& value) { return value.second.size() > 1; });
  if (world.Max(differ ? 1 : 0) == 0) return std::nullopt;
  std::vector<std::vector<std::string>> of_ranks;  // names, on rank 0
  for (const std::string& packed : world.Gather(Pack(names)))
    of_ranks.push_back(Unpack<std::vector<std::string>>(packed));
  return Unpack<Corruption>(OnRankZero(world, [&] {
    Corruption found = JudgeHolders(
        values,
        [&](SharedValue value) {
          return of_ranks[static_cast<size_t>(value.second)][static_cast<size_t>(value.first)];
        },
        hosts);
    found.text += ", computed from the same microbatch";
    return Pack(found);
  }));
}

}  // namespace espalier
