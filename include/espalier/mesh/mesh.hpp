// The lattice of ranks. Axes, outermost first: pp, dp_replicate, dp_shard, cp, tp. A rank is a coordinate; a
// group is the ranks that differ only in the named axes. Rank numbers are row-major: tp varies fastest.
// If a deck has more tensor-parallel ranks than kv heads, its tp is two axes here: tp with a degree of kv_heads and,
// innermost, kv_replicate, whose ranks share a kv head. Users see one tp, the product of both degrees.
// With parallel.regather_group = G, dp_shard is two axes as well: regather, of degree G, and dp_shard, with the rest.
// Whatever they shard is sharded by regather first. But ranks that differ in regather alone are neighbours: in rank
// numbers regather varies faster than dp_shard.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/util/enum_array.hpp"

namespace espalier {

enum class Axis : uint8_t { kPp, kDpReplicate, kDpShard, kCp, kTp, kKvReplicate, kRegather };
inline constexpr int kAxisCount = 7;
/// Outermost first: the order of members in a group.
inline constexpr std::array<Axis, kAxisCount> kAxes = {Axis::kPp, Axis::kDpReplicate, Axis::kRegather,   Axis::kDpShard,
                                                       Axis::kCp, Axis::kTp,          Axis::kKvReplicate};
/// Outermost first: the order of rank numbers.
inline constexpr std::array<Axis, kAxisCount> kAxesOfRanks = {
    Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kRegather, Axis::kCp, Axis::kTp, Axis::kKvReplicate};

/// "pp", "dp_replicate", "dp_shard", "cp", "tp", "kv_replicate" or "regather".
std::string_view Name(Axis axis);

/// A set of axes, iterated outermost first.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis a : axes) Add(a);
  }
  constexpr void Add(Axis a) { bits_ |= Bit(a); }
  constexpr void Remove(Axis a) { bits_ &= static_cast<uint8_t>(~Bit(a)); }
  constexpr bool Has(Axis a) const { return (bits_ & Bit(a)) != 0; }
  constexpr bool Empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet o) const { return FromBits(bits_ | o.bits_); }
  constexpr AxisSet operator&(AxisSet o) const { return FromBits(bits_ & o.bits_); }
  constexpr AxisSet operator-(AxisSet o) const { return FromBits(bits_ & ~o.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr auto operator<=>(const AxisSet&) const = default;
  constexpr uint8_t bits() const { return bits_; }
  static constexpr AxisSet FromBits(int bits) {
    AxisSet s;
    s.bits_ = static_cast<uint8_t>(bits);
    return s;
  }
  std::vector<Axis> List() const;  ///< outermost first

 private:
  static constexpr uint8_t Bit(Axis a) { return static_cast<uint8_t>(1u << static_cast<int>(a)); }
  uint8_t bits_ = 0;
};

/// "tp" or "dp_replicate+dp_shard"; "none" if empty.
std::string Name(AxisSet axes);

/// Both axes of tensor parallelism.
inline constexpr AxisSet kTensorAxes = {Axis::kTp, Axis::kKvReplicate};

/// Both axes of a deck's dp_shard.
inline constexpr AxisSet kShardAxes = {Axis::kRegather, Axis::kDpShard};
/// The axes of data parallelism: ranks that differ in them have different samples.
inline constexpr AxisSet kBatchAxes = kShardAxes | AxisSet{Axis::kDpReplicate};

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

  /// The degrees that a deck names, outermost first; both tensor axes are its tp, both shard axes its dp_shard.
  std::vector<std::pair<std::string_view, int>> DeckDegrees() const;
  /// "pp 2 x dp_replicate 1 x dp_shard 2 x cp 1 x tp 2".
  std::string ToString() const;

 private:
  EnumArray<Axis, int, kAxisCount> degrees_;
};

}  // namespace espalier
