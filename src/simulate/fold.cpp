#include "simulate/fold.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "espalier/costs/costs.hpp"
#include "espalier/util/error.hpp"

namespace espalier::simulate {

Colours Colours::Distinct(int ranks) {
  Colours colours(ranks);
  for (int rank = 0; rank < ranks; ++rank) colours.of_rank_[static_cast<size_t>(rank)] = rank;
  colours.count_ = ranks;
  return colours;
}

std::vector<int> Colours::LowestRanks() const {
  std::vector<int> lowest;
  for (size_t rank = 0; rank < of_rank_.size(); ++rank)
    if (of_rank_[rank] == std::ssize(lowest)) lowest.push_back(static_cast<int>(rank));
  return lowest;
}

void Colours::SplitBy(const std::vector<int>& keys) {
  std::unordered_map<uint64_t, int> colour_of;
  uint64_t last = ~uint64_t{0};
  int colour = -1;
  for (size_t rank = 0; rank < keys.size(); ++rank) {
    const uint64_t pair = uint64_t{static_cast<uint32_t>(of_rank_[rank])} << 32 | static_cast<uint32_t>(keys[rank]);
    // Adjacent ranks often have equal pairs.
    if (pair != last) colour = colour_of.try_emplace(pair, static_cast<int>(colour_of.size())).first->second;
    last = pair;
    of_rank_[rank] = colour;
  }
  count_ = static_cast<int>(colour_of.size());
}

Lattice::Lattice(const Mesh& mesh, int ranks_per_node)
    : mesh_(mesh),
      ranks_(mesh.Ranks()),
      ranks_per_node_(ranks_per_node),
      ranks_per_stage_(ranks_ / mesh.Degree(Axis::kPp)) {
  CHECK(ranks_per_node > 0, "{} ranks per node", ranks_per_node);
}

std::vector<int> Lattice::Offsets(AxisSet axes) const {
  std::vector<int> offsets = mesh_.GroupRanks(axes, Coordinate{});
  std::sort(offsets.begin(), offsets.end());
  return offsets;
}

std::vector<int> Lattice::LowestOfGroup(AxisSet axes) const {
  // The groups of the lowest ranks, which differ in the other axes.
  AxisSet others;
  for (Axis axis : kAxes)
    if (!axes.Has(axis)) others.Add(axis);
  const std::vector<int> offsets = Offsets(axes);
  std::vector<int> lowest(static_cast<size_t>(ranks_));
  for (int base : Offsets(others))
    for (int offset : offsets) lowest[static_cast<size_t>(base + offset)] = base;
  return lowest;
}

namespace {

/// Numbers distinct elements from 0; equal elements have equal numbers.
template <typename T>
class Numbers {
 public:
  int Of(const T& element) { return numbers_.try_emplace(element, static_cast<int>(numbers_.size())).first->second; }

 private:
  std::map<T, int> numbers_;
};

/// Nodes of a group, as far as costs depend on them, as in PlaceOf.
GroupPlace PlaceFrom(int first_slot, const std::vector<int>& offsets, int ranks_per_node) {
  GroupPlace place{.ranks = static_cast<int>(offsets.size()), .nodes = 0, .ranks_per_node = 0};
  int node = -1, on_node = 0;
  for (int offset : offsets) {
    const int here = (first_slot + offset) / ranks_per_node;
    if (here != node) ++place.nodes, on_node = 0;
    node = here;
    place.ranks_per_node = std::max(place.ranks_per_node, ++on_node);
  }
  return place;
}

/// The axes of groups, each once, with the programs that use them.
std::map<AxisSet, uint32_t> AxesOf(const Programs& programs) {
  std::map<AxisSet, uint32_t> families;
  for (size_t f = 0; f < programs.families.size(); ++f) families[programs.families[f].axes] |= 1u << f;
  return families;
}

size_t MostPeers(const Programs& programs) {
  size_t most = 0;
  for (const LaneItems& items : programs.items) most = std::max(most, items.peers.size());
  return most;
}

/// The peer number `index` of a rank, or -1.
int PeerOf(const Lattice& lattice, const Programs& programs, int rank, size_t index) {
  const std::vector<int>& peers = programs.Of(rank).peers;
  return index < peers.size() ? lattice.AtStage(rank, peers[index]) : -1;
}

constexpr uint32_t kAnyProgram = ~0u;

/// Splits the ranks whose programs use one of `families`.
void SplitByPlace(const Lattice& lattice, const Programs& programs, AxisSet axes, uint32_t families, Colours& colours) {
  const std::vector<int> offsets = lattice.Offsets(axes), lowest = lattice.LowestOfGroup(axes);
  // The place depends only on the lowest rank's position on its node.
  Numbers<GroupPlace> numbers;
  std::vector<int> number_of_slot;
  const int slots = std::min(lattice.RanksPerNode(), lattice.Ranks());
  for (int slot = 0; slot < slots; ++slot)
    number_of_slot.push_back(numbers.Of(PlaceFrom(slot, offsets, lattice.RanksPerNode())));
  colours.Split([&](int rank) {
    if (families != kAnyProgram && (programs.Of(rank).families & families) == 0) return -1;
    return number_of_slot[static_cast<size_t>(lowest[static_cast<size_t>(rank)] % lattice.RanksPerNode())];
  });
}

/// By rank: the number of the set of colours in its group.
std::vector<int> SetsOfGroups(const Colours& colours, const std::vector<int>& offsets, const std::vector<int>& lowest) {
  Numbers<std::vector<int>> numbers;
  std::vector<int> set_of(lowest.size(), -1), set;
  for (size_t rank = 0; rank < lowest.size(); ++rank) {
    if (lowest[rank] != static_cast<int>(rank)) {
      set_of[rank] = set_of[static_cast<size_t>(lowest[rank])];
      continue;
    }
    set.clear();
    for (int offset : offsets) {
      const int colour = colours.Of(static_cast<int>(rank) + offset);
      if (set.empty() || set.back() != colour) set.push_back(colour);
    }
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    set_of[rank] = numbers.Of(set);
  }
  return set_of;
}

}  // namespace

Colours SplitByCosts(const Lattice& lattice, const Programs& programs, AxisSet by) {
  Colours colours(lattice.Ranks());
  colours.Split([&](int rank) { return programs.of_rank[static_cast<size_t>(rank)]; });
  for (Axis axis : kAxes)
    if (by.Has(axis)) colours.Split([&](int rank) { return lattice.mesh().CoordinateOf(rank)[axis]; });
  for (const auto& [axes, families] : AxesOf(programs)) SplitByPlace(lattice, programs, axes, families, colours);
  // A message may be split among the ranks of a tensor group.
  SplitByPlace(lattice, programs, kTensorAxes, kAnyProgram, colours);
  for (size_t i = 0; i < MostPeers(programs); ++i)
    colours.Split([&](int rank) {
      const int peer = PeerOf(lattice, programs, rank, i);
      return peer >= 0 && lattice.NodeOf(peer) == lattice.NodeOf(rank) ? 1 : 0;
    });
  return colours;
}

Colours Fold(const Lattice& lattice, const Programs& programs, Colours colours) {
  struct Groups {
    uint32_t families;
    std::vector<int> offsets, lowest;
  };
  std::vector<Groups> all;
  for (const auto& [axes, families] : AxesOf(programs))
    all.push_back({families, lattice.Offsets(axes), lattice.LowestOfGroup(axes)});
  const size_t peers = MostPeers(programs);
  for (int before = 0; before != colours.Count();) {
    before = colours.Count();
    for (const Groups& groups : all) {
      const std::vector<int> sets = SetsOfGroups(colours, groups.offsets, groups.lowest);
      colours.Split([&](int rank) {
        return (programs.Of(rank).families & groups.families) != 0 ? sets[static_cast<size_t>(rank)] : -1;
      });
    }
    for (size_t i = 0; i < peers; ++i) {
      const Colours& now = colours;
      colours.Split([&](int rank) {
        const int peer = PeerOf(lattice, programs, rank, i);
        return peer >= 0 ? now.Of(peer) : -1;
      });
    }
  }
  return colours;
}

}  // namespace espalier::simulate
