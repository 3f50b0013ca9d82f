// The axes of the mesh: one table, from which orders, sets, shards, lanes and reports follow. A new axis is an
// enumerator, a row, and its degree (src/deck/resolve_mesh.cpp).
//
// An axis of a deck may be split into factors, which the user never sees: their degrees multiply to the deck's.
//   tp        with more ranks than kv heads: tp, of kv_heads ranks, and inside it kv_replicate, whose ranks share a kv
//             head
//   dp_shard  with parallel.regather_group = G: regather, of G ranks, and dp_shard, of the others. Whatever they shard
//             is sharded by regather first. But ranks that differ in regather alone are neighbours: in rank numbers
//             regather varies faster than dp_shard.
//             With parallel.ep: ep, of the ranks that share experts, and dp_shard, of the others. Ranks that differ in
//             ep alone are neighbours, too.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/util/enum_array.hpp"

namespace espalier {

enum class Axis : uint8_t { kPp, kDpReplicate, kDpShard, kCp, kTp, kKvReplicate, kRegather, kEp };
inline constexpr int kAxisCount = 8;

/// The kinds of communication, as lanes carry them and reports name them: between ranks, and copies to and from the
/// memory of the host.
enum class CommAxis : uint8_t { kTp, kCp, kEp, kDp, kPp, kHost };
inline constexpr int kCommAxisCount = 6;
template <typename T>
using ByCommAxis = EnumArray<CommAxis, T, kCommAxisCount>;
inline constexpr ByCommAxis<CommAxis> kAllCommAxes = {CommAxis::kTp, CommAxis::kCp, CommAxis::kEp,
                                                      CommAxis::kDp, CommAxis::kPp, CommAxis::kHost};
/// The axes between ranks.
inline constexpr std::array kCommAxes = {CommAxis::kTp, CommAxis::kCp, CommAxis::kEp, CommAxis::kDp, CommAxis::kPp};
std::string_view Name(CommAxis axis);  ///< "tp", "cp", "ep", "dp", "pp" or "host"

/// Which tensor keeps an axis where the inputs of an op disagree (src/passes/partition.cpp).
enum class Winner : uint8_t { kBatch, kWeight };
/// A factor shards what the axes before it have left, or makes the shards that the whole axis of the deck would make,
/// so that the split changes no sum.
enum class Division : uint8_t { kOfRest, kOfWhole };
enum class States : uint8_t { kWhole, kSharded };  ///< what ZeRO does with optimizer states over the axis
enum class Distance : uint8_t { kNear, kFar };     ///< groups are taken to be within a node, or not

struct AxisRow {
  Axis axis;
  std::string_view name;
  Axis whole;            ///< the axis of the deck that it is a factor of, or itself
  int rank_place;        ///< its place in rank numbers; the axis in place 0 varies slowest
  CommAxis activations;  ///< carries activations over it
  CommAxis others;       ///< carries parameters, their gradients and scalars over it
  Winner winner;
  Division division;
  States states;
  Distance distance;
  /// Its ranks repeat the work on dims with too few elements for all of them, and sums over it may wait.
  bool replicates;
};

/// Outermost first: the order of members in a group.
inline constexpr std::array<AxisRow, kAxisCount> kAxisTable = [] {
  using enum Axis;
  using enum Winner;
  using enum Division;
  using enum States;
  using enum Distance;
  constexpr CommAxis tp = CommAxis::kTp, cp = CommAxis::kCp, ep = CommAxis::kEp, dp = CommAxis::kDp, pp = CommAxis::kPp;
  // kv heads are sharded over tp alone, since there are fewer of them than ranks of tp and kv_replicate. So these two
  // factors are kOfRest.
  // clang-format off
  return std::array<AxisRow, kAxisCount>{{
      {kPp,          "pp",           kPp,          0, pp, dp, kBatch,  kOfRest,  kWhole,   kFar,  false},
      {kDpReplicate, "dp_replicate", kDpReplicate, 1, dp, dp, kBatch,  kOfRest,  kWhole,   kFar,  false},
      {kEp,          "ep",           kDpShard,     4, ep, dp, kBatch,  kOfRest,  kSharded, kNear, false},
      {kRegather,    "regather",     kDpShard,     3, dp, dp, kBatch,  kOfWhole, kSharded, kFar,  false},
      {kDpShard,     "dp_shard",     kDpShard,     2, dp, dp, kBatch,  kOfWhole, kSharded, kFar,  false},
      {kCp,          "cp",           kCp,          5, cp, dp, kBatch,  kOfRest,  kSharded, kNear, false},
      {kTp,          "tp",           kTp,          6, tp, tp, kWeight, kOfRest,  kWhole,   kNear, false},
      {kKvReplicate, "kv_replicate", kTp,          7, tp, tp, kWeight, kOfRest,  kWhole,   kNear, true},
  }};
  // clang-format on
}();

inline constexpr EnumArray<Axis, size_t, kAxisCount> kRowNumbers = [] {
  EnumArray<Axis, size_t, kAxisCount> numbers{};
  for (size_t i = 0; i < kAxisTable.size(); ++i) numbers[kAxisTable[i].axis] = i;
  return numbers;
}();
constexpr const AxisRow& RowOf(Axis axis) { return kAxisTable[kRowNumbers[axis]]; }
/// "pp", "dp_replicate", "dp_shard", "cp", "tp", "kv_replicate", "regather" or "ep".
constexpr std::string_view Name(Axis axis) { return RowOf(axis).name; }

/// Outermost first: the order of members in a group.
inline constexpr std::array<Axis, kAxisCount> kAxes = [] {
  std::array<Axis, kAxisCount> axes{};
  std::ranges::transform(kAxisTable, axes.begin(), &AxisRow::axis);
  return axes;
}();
/// Outermost first: the order of rank numbers.
inline constexpr std::array<Axis, kAxisCount> kAxesOfRanks = [] {
  std::array<Axis, kAxisCount> axes{};
  for (const AxisRow& row : kAxisTable) axes[static_cast<size_t>(row.rank_place)] = row.axis;
  return axes;
}();

/// A set of axes, iterated outermost first.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis a : axes) Add(a);
  }
  constexpr void Add(Axis a) { bits_ |= Bit(a); }
  constexpr void Remove(Axis a) { bits_ &= ~Bit(a); }
  constexpr bool Has(Axis a) const { return (bits_ & Bit(a)) != 0; }
  constexpr bool Empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet o) const { return FromBits(bits_ | o.bits_); }
  constexpr AxisSet operator&(AxisSet o) const { return FromBits(bits_ & o.bits_); }
  constexpr AxisSet operator-(AxisSet o) const { return FromBits(bits_ & ~o.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr auto operator<=>(const AxisSet&) const = default;
  constexpr uint32_t bits() const { return bits_; }
  static constexpr AxisSet FromBits(uint32_t bits) {
    AxisSet s;
    s.bits_ = bits;
    return s;
  }
  std::vector<Axis> List() const;  ///< outermost first

 private:
  static_assert(kAxisCount <= 32);
  static constexpr uint32_t Bit(Axis a) { return uint32_t{1} << static_cast<int>(a); }
  uint32_t bits_ = 0;
};

/// "tp" or "dp_replicate+dp_shard"; "none" if empty.
std::string Name(AxisSet axes);
/// The set that Name prints so; CHECKs that it is one.
AxisSet ParseAxisSet(std::string_view text);

/// The axes whose rows have `value` in a column.
template <typename T>
constexpr AxisSet AxesWith(T AxisRow::*column, T value) {
  AxisSet axes;
  for (const AxisRow& row : kAxisTable)
    if (row.*column == value) axes.Add(row.axis);
  return axes;
}

/// The factors of an axis of the deck.
constexpr AxisSet FactorsOf(Axis whole) { return AxesWith(&AxisRow::whole, whole); }
/// The factors of the same whole that are inside `axis`.
constexpr AxisSet FactorsInside(Axis axis) {
  AxisSet factors;
  for (size_t i = kRowNumbers[axis] + 1; i < kAxisTable.size(); ++i)
    if (kAxisTable[i].whole == RowOf(axis).whole) factors.Add(kAxisTable[i].axis);
  return factors;
}

/// Carries what moves over `axes`, by a column of their rows. Where they differ, the row of ep says it: such
/// activations go to ranks that share experts.
constexpr CommAxis CarrierOf(AxisSet axes, CommAxis AxisRow::*column) {
  for (const CommAxis carrier : kCommAxes)
    if ((axes - AxesWith(column, carrier)).Empty()) return carrier;
  return RowOf(Axis::kEp).*column;
}

inline constexpr AxisSet kTensorAxes = FactorsOf(Axis::kTp);
inline constexpr AxisSet kShardAxes = FactorsOf(Axis::kDpShard);
/// The axes of data parallelism: ranks that differ in them have different samples.
inline constexpr AxisSet kBatchAxes = FactorsOf(Axis::kDpReplicate) | FactorsOf(Axis::kDpShard);
/// Ranks that differ in them have different tokens; with equal ones they have the same.
inline constexpr AxisSet kTokenAxes = kBatchAxes | AxesWith(&AxisRow::activations, CommAxis::kCp);
inline constexpr AxisSet kAxesOfStage = kTokenAxes | kTensorAxes;  ///< all but pp
inline constexpr AxisSet kStateAxes = AxesWith(&AxisRow::states, States::kSharded);
inline constexpr AxisSet kReplicatingAxes = AxesWith(&AxisRow::replicates, true);
inline constexpr AxisSet kNearAxes = AxesWith(&AxisRow::distance, Distance::kNear);

}  // namespace espalier
