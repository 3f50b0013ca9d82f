// The shares of one save: the boxes that each rank writes, and the MANIFEST that lists them all. Checkpoints and copies
// in memory have the same.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/format/shard.hpp"
#include "checkpoint/transfer/pieces.hpp"
#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

class Shards {
 public:
  /// Arguments as for Save; they must outlive this.
  Shards(const Metadata& metadata, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
         const Mesh& mesh, World& world);

  /// The boxes that this rank writes, in the order of its report.
  std::vector<ShardPiece> Own() const;

  /// Rank 0: tensors and shard files, from the packed ShardReport of each rank, by rank. A report without boxes is one
  /// of a rank that writes no file.
  Manifest Assemble(const std::string& id, const std::vector<std::string>& reports) const;

 private:
  void AddShards(const std::vector<std::string>& packed, const std::vector<size_t>& stored, Manifest& manifest) const;

  const Metadata& metadata_;
  const std::vector<StateTensor>& tensors_;
  const Mesh& mesh_;
  const int rank_;
  const std::vector<Piece> pieces_;
  std::map<std::string, const LocalTensor*> local_;
};

}  // namespace espalier
