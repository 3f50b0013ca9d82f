// The lattice of ranks. A rank is a coordinate; a group is the ranks that differ only in the named axes. What the rest
// of the program knows about an axis is its row in axes.hpp.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/mesh/axes.hpp"

namespace espalier {

/// The position of a rank on each axis.
using Coordinate = EnumArray<Axis, int, kAxisCount>;

class Mesh {
 public:
  Mesh() { degrees_.fill(1); }
  /// A degree of 0 (not given) is 1.
  explicit Mesh(EnumArray<Axis, int, kAxisCount> degrees) : degrees_(degrees) {
    for (int& degree : degrees_)
      if (degree == 0) degree = 1;
  }

  int Degree(Axis axis) const { return degrees_[axis]; }
  int Ranks() const;

  Coordinate CoordinateOf(int rank) const;
  int RankOf(const Coordinate& coordinate) const;

  /// Number of ranks in a group over `axes`.
  int GroupSize(AxisSet axes) const;
  /// Position of a coordinate in its group: row-major over the named axes, outermost first.
  int IndexInGroup(AxisSet axes, const Coordinate& coordinate) const;
  /// The ranks of the group that contains `coordinate`, by their index in the group.
  std::vector<int> GroupRanks(AxisSet axes, const Coordinate& coordinate) const;
  /// `coordinate` with the named axes set to those of member `index` of its group.
  Coordinate GroupMember(AxisSet axes, const Coordinate& coordinate, int index) const;

  /// `axes` without those of degree 1, which cost nothing.
  AxisSet Real(AxisSet axes) const;

  /// The degrees that a deck names, outermost first: the products over the factors of each of its axes.
  std::vector<std::pair<std::string_view, int>> DeckDegrees() const;
  /// "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2".
  std::string ToString() const;

 private:
  EnumArray<Axis, int, kAxisCount> degrees_;
};

}  // namespace espalier
