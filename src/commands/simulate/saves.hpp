// Times of checkpoints, from the deck's interval, the bytes of the state and the cluster's rates.
#pragma once

#include <cstdint>
#include <optional>

#include "commands/simulate/predict.hpp"

namespace espalier {

/// The checkpoints of a run. Assumed: every rank of a node writes at once, the node's storage rate is shared by its
/// ranks and the total rate by all nodes, and a copy runs at the full rate of the device's link to its host.
struct Saves {
  int64_t count = 0;       ///< number in the whole run, including the one at its end
  double every_steps = 0;  ///< steps between two saves: every_steps or every_s, whichever comes first; 0: only the end
  bool asynchronous = true;      ///< written while training continues
  bool staged = true;            ///< copied into the host's memory first: all asynchronous saves, and all saves of GPUs
  int64_t bytes = 0;             ///< bytes of one checkpoint, all ranks
  int64_t node_bytes = 0;        ///< bytes of the node that writes most
  int64_t rank_bytes = 0;        ///< bytes of the rank that writes most
  std::optional<double> copy_s;  ///< time to copy into the host's memory; nothing: the cluster file has no rate
  std::optional<double> write_s;  ///< time to write to storage; nothing: the cluster file has no rate
  /// Time that one save blocks training: for the copy; for the rest of the previous save, if that takes longer than the
  /// interval; and for writing, unless asynchronous. Nothing if a part of it is unknown.
  std::optional<double> blocked_s;
};

/// The copies in memory (checkpoint.memory_steps). Assumed: the second copies go over the network at the same time,
/// each node's at the rate of its link to other nodes, and a copy within the host's memory takes as long as one into
/// the staging buffer.
struct MemoryCopies {
  int64_t count = 0;  ///< in the whole run; 0: there are none
  int64_t every_steps = 0;
  int64_t host_bytes = 0;  ///< memory of the host that a rank takes at most: two generations, own and kept
  /// Time of one copy: into the staging buffer, into the file, to the other node, and there into the file. Nothing if a
  /// part of it is unknown.
  std::optional<double> copy_s;
  /// Time that one copy blocks training: the first part with checkpoint.asynchronous, otherwise all of it.
  std::optional<double> blocked_s;
};

Saves SavesOf(const Prediction& prediction);
MemoryCopies MemoryCopiesOf(const Prediction& prediction, const Saves& saves);

}  // namespace espalier
