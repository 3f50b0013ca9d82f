// Copies of the state in memory (checkpoint.memory_steps). A rank writes its shard into a directory in the memory of
// its node, and sends it to a rank of another node, which writes the same bytes there. All shards of one step are a
// generation. It has the form of a checkpoint, spread over the nodes, and the loader of checkpoints reads it. The
// protocol: doc/checkpoint.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"

namespace espalier {

/// The folder below checkpoint.memory_dir with the copies of the state of the run in `run_dir`, on each node.
std::string MemoryCopiesFolder(const std::string& memory_dir, const std::string& run_dir);

/// The directory in memory, `memory_dir`/espalier-UID-HASH with a hash of the absolute path of the run, and the nodes:
/// ranks that see the same directory are on one node.
class MemoryNodes {
 public:
  /// Makes the directory. `run_id` is drawn once per run directory: generations with another one are of a directory
  /// that was removed, and are removed too. Warns on rank 0 if the directory is not in memory, if several hosts share
  /// it, and if there is one node only. Throws AgreedError (kDeck) if a rank cannot use the directory. Collective.
  MemoryNodes(const std::string& memory_dir, const std::string& run_dir, const std::string& run_id, World& world);

  const std::string& dir() const { return dir_; }
  int Count() const { return static_cast<int>(members_.size()); }
  int NodeOf(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  const std::vector<int>& MembersOf(int node) const { return members_[static_cast<size_t>(node)]; }
  /// The ranks on this rank's node, ascending.
  const std::vector<int>& Members() const { return MembersOf(NodeOf(rank_)); }
  /// This rank is the first of its node.
  bool Leads() const { return Members().front() == rank_; }
  /// The rank on the next node that keeps the second copy of what `rank` writes; -1: there is one node only.
  int KeeperOf(int rank) const;
  /// Whether the plan has the shard of `writer` on this rank's node.
  bool Keeps(int writer) const;
  /// The most bytes that two generations take on this rank's node; `by_writer`: bytes that each rank writes.
  int64_t PlannedBytes(const std::vector<int64_t>& by_writer) const;
  /// Bytes of this rank's node that generations take now.
  int64_t BytesNow() const;

  /// Removes all generations on this rank's node but that of `step`; -1: all. Failures are warnings. Collective.
  void RemoveAllBut(int64_t step, World& world) const;
  /// Removes the directory, too. Collective.
  void RemoveAll(World& world) const;

 private:
  void FindNodes(World& world);
  void Warn(const std::string& memory_dir, World& world) const;

  std::string dir_;
  int rank_;
  std::vector<int> node_of_;               ///< by rank
  std::vector<std::vector<int>> members_;  ///< by node
};

/// A complete generation: some node has every file, intact.
struct MemoryGeneration {
  int64_t step = 0;
  std::string id, parent, branch;         ///< as in a MANIFEST; empty: none
  std::vector<std::string> files;         ///< as in its MANIFEST
  std::vector<std::vector<int>> holders;  ///< by file: ranks that see an intact copy, one per node

  auto Fields() { return std::tie(step, id, parent, branch, files, holders); }
};

struct FoundInMemory {
  std::optional<MemoryGeneration> newest;  ///< the newest complete one
  std::vector<std::string> incomplete;     ///< why newer ones are not taken, a line each
};

/// Reads every generation on every node, and checks every byte; the ranks of a node share the work. The same on every
/// rank. Collective.
FoundInMemory FindInMemory(const MemoryNodes& nodes, World& world);

/// Makes a generation readable on this rank's node, for a load with these arguments: what the node lacks comes from
/// another. Returns the directory, for Load. Throws AgreedError (kFault). Collective.
std::string BringGeneration(const MemoryNodes& nodes, const MemoryGeneration& generation,
                            const std::vector<LocalTensor>& local, const Mesh& mesh, World& world);

/// After the load: removes files that were only brought for it, and all other generations. Collective.
void SettleGeneration(const MemoryNodes& nodes, const MemoryGeneration& generation, World& world);

/// Saves a generation, which takes the place of the one before. Collective; arguments as for Save, with the state in
/// host memory. Throws the same UserError (kFault) on every rank if any rank fails; then the one before is untouched.
SaveResult SaveInMemory(const MemoryNodes& nodes, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                        const std::vector<LocalTensor>& local, const Mesh& mesh, World& world);

}  // namespace espalier
