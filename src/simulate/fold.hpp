// Which ranks must have the same times.
#pragma once

#include <cstdint>
#include <vector>

#include "simulate/lane_items.hpp"

namespace espalier::simulate {

/// A colour for each rank. Colours are numbered by their lowest rank.
class Colours {
 public:
  /// All ranks have the same colour.
  explicit Colours(int ranks) : of_rank_(static_cast<size_t>(ranks), 0) {}
  /// Every rank has its own.
  static Colours Distinct(int ranks);

  int Of(int rank) const { return of_rank_[static_cast<size_t>(rank)]; }
  int Count() const { return count_; }
  const std::vector<int>& OfRanks() const { return of_rank_; }
  /// By colour: its lowest rank.
  std::vector<int> LowestRanks() const;

  /// Ranks keep a common colour only if key(rank), an integer >= -1, is the same.
  template <typename Key>
  void Split(Key key) {
    std::vector<int> keys(of_rank_.size());
    for (size_t rank = 0; rank < keys.size(); ++rank) keys[rank] = key(static_cast<int>(rank));
    SplitBy(keys);
  }

 private:
  void SplitBy(const std::vector<int>& keys);

  std::vector<int> of_rank_;
  int count_ = 1;
};

/// The mesh and its nodes: gives the ranks of a group as lowest rank plus offsets.
class Lattice {
 public:
  Lattice(const Mesh& mesh, int ranks_per_node);

  const Mesh& mesh() const { return mesh_; }
  int Ranks() const { return ranks_; }
  int NodeOf(int rank) const { return rank / ranks_per_node_; }
  int RanksPerNode() const { return ranks_per_node_; }
  /// The rank of another stage at the same other coordinates: pp is the outermost axis.
  int AtStage(int rank, int stage) const { return rank % ranks_per_stage_ + stage * ranks_per_stage_; }
  /// By index in the group: rank - lowest rank; ascending.
  std::vector<int> Offsets(AxisSet axes) const;
  /// By rank: the lowest rank of its group.
  std::vector<int> LowestOfGroup(AxisSet axes) const;

 private:
  Mesh mesh_;
  int ranks_, ranks_per_node_, ranks_per_stage_;
};

/// The programs of all ranks: `items[program[rank]]`.
struct Programs {
  std::vector<LaneItems> items;
  std::vector<int> of_rank;
  std::vector<Family> families;

  const LaneItems& Of(int rank) const { return items[static_cast<size_t>(of_rank[static_cast<size_t>(rank)])]; }
};

/// Ranks of one colour have equal programs, groups of equal places, peers at equal distances and equal coordinates on
/// the axes `by`, so equal costs.
Colours SplitByCosts(const Lattice& lattice, const Programs& programs, AxisSet by);

/// Refines colours until they are an equitable partition: ranks of one colour have groups with the same set of colours,
/// and peers of the same colour. Times of a rank follow from its own instructions and costs and from the latest or
/// slowest member of each transfer. A maximum depends on the set of colours alone, not on how many members have each,
/// nor on their order. So by induction over events all ranks of a colour have the same times.
Colours Fold(const Lattice& lattice, const Programs& programs, Colours colours);

}  // namespace espalier::simulate
