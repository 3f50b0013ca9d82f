// Times of ops, by which passes and the emitter put ops in order. They come from the file that run.costs names
// (costs/order.hpp), or are rough ones. Predictions use costs/ instead.
#pragma once

#include <string>
#include <vector>

#include "espalier/deck/deck.hpp"
#include "espalier/ops/op.hpp"

namespace espalier {

class OpTimes {
 public:
  virtual ~OpTimes() = default;
  /// The time of a kernel or of a transfer on the first rank, alone, in one unit for all ops. 0 for an op without
  /// inputs, a send and a receive. Pure: all ranks must find the same order.
  virtual double Of(const Graph& graph, const Op& op, const Mesh& mesh) const = 0;
  /// In the same unit: a copy to or from the memory of the host while one goes the other way and all of `ranks` do so.
  virtual double HostCopy(OpKind kind, int64_t bytes, int ranks) const = 0;
  /// Where the times are from, for people and for comparing ranks: "h100-8x400g.toml, fingerprint 4c4b7c0d7c1f02a9".
  virtual std::string Origin() const = 0;
};

/// Times in floating-point operations of a matmul. On GPUs of 2020 to 2025 (A100, H100, B200) some 200 of them take as
/// long as a byte of memory, some 2000 as long as a byte from another GPU of the node, and 10,000 as long as one from
/// another node, and 15,000 as long as one from the host; a collective and a copy have a latency. Only tp and cp are
/// taken to be within a node.
const OpTimes& RoughTimes();

/// The times, and rough ones if they are others: by each a policy of lists may find the better order.
inline std::vector<const OpTimes*> WithRough(const OpTimes& times) {
  return &times == &RoughTimes() ? std::vector{&times} : std::vector{&times, &RoughTimes()};
}

/// Deck::times, or rough ones if run.costs is empty. CHECKs that the file has been read.
const OpTimes& TimesOf(const Deck& deck);

}  // namespace espalier
