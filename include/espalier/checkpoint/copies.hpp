// Equal copies of a state. Where a placement replicates, several ranks hold the same box of a tensor, and their copies
// are equal bitwise by design. One of these ranks writes the box. A copy that differs shows a fault of a machine: a
// flipped bit, or a kernel that is not deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

/// Copies that should be equal and are not.
struct Corruption {
  std::vector<int> ranks;  ///< ranks whose copies differ from the majority; all that differ if there is no majority;
                           ///< ascending
  std::string text;        ///< names these ranks, their hosts, the tensors and the boxes

  auto Fields() { return std::tie(ranks, text); }
};

/// CRC-32C of the first `bytes` of a tensor, read in pieces from a device.
uint32_t ChecksumOf(const LocalTensor& local, int64_t bytes);

/// Ranks that hold a value, by its checksum there.
using Holders = std::map<uint32_t, std::vector<int>>;

/// A value that several ranks should hold alike: a number, and the first of these ranks.
using SharedValue = std::pair<int, int>;

/// Names the ranks that differ from the other holders of a value; no ranks if none does. `hosts`: by rank.
Corruption JudgeHolders(const std::map<SharedValue, Holders>& values,
                        const std::function<std::string(SharedValue)>& name, const std::vector<std::string>& hosts);

/// By name of a tensor: CRC-32C of this rank's box.
using StateChecksums = std::map<std::string, uint32_t>;

/// Compares the copies of the state before a save. The order of the calls makes sure that the data which are written
/// were the same before the proof was computed (SumWritten, and the saver compares), and that all other copies equal
/// them after it (SumOthers).
class Copies {
 public:
  /// Collective; arguments as for Save. `tensors` and the memory of `local` must outlive this.
  Copies(const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local, const Mesh& mesh,
         World& world);

  /// Sums the boxes that this rank writes. Reads memory once.
  void SumWritten();
  /// Sums the boxes that this rank holds and another rank writes.
  void SumOthers();
  /// Call after both: returns what differs, or nothing if all copies are equal. The same on every rank. Collective.
  std::optional<Corruption> Compare();

  /// Sums all boxes that several ranks hold, and compares them. The same on every rank. Collective.
  std::optional<Corruption> CompareNow();

  /// Checksums of the boxes that this rank writes.
  const StateChecksums& written() const { return written_; }

 private:
  /// A box of this rank.
  struct Own {
    const LocalTensor* local;
    int tensor;  ///< index into the tensors
    int64_t bytes;
    int first;     ///< the first of the ranks that hold it
    bool shared;   ///< several ranks hold it
    bool written;  ///< this rank writes it
    uint32_t crc = 0;
  };

  void Sum(bool written);

  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  World& world_;
  const std::vector<LocalTensor> local_;
  std::vector<Own> own_;
  StateChecksums written_;
};

}  // namespace espalier
