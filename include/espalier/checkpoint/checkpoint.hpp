// Checkpoints: save, find, load, verify. Any layout loads any layout. A checkpoint is a directory that appears
// complete, by one rename. Its format: doc/checkpoint.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/checkpoint/manifest.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/executor/arena.hpp"
#include "espalier/graph/type.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/model/stored_part.hpp"
#include "espalier/util/agreed_error.hpp"

namespace espalier {

/// A persistent tensor of the run. The rank at `coordinate` holds LocalBox(type, mesh, coordinate) of it if
/// coordinate[pp] == stage; other ranks hold nothing.
struct StateTensor {
  std::string name;  ///< "parameters/model.norm.weight", "optimizer/exp_avg/model.norm.weight", ...
  Type type;         ///< fp32 (moments and weights of sampling also bf16); global shape, placements; never partial
  int stage = 0;     ///< pp coordinate that holds it
  /// Stored as a part of a larger tensor; not set: stored separately. The parts of a stored tensor fill it as a grid.
  std::optional<StoredPart> part = std::nullopt;

  const std::string& StoredName() const { return part ? part->name : name; }
  const Shape& StoredShape() const { return part ? part->shape : type.shape; }
  /// The shard of the rank at `coordinate`, in indices of the stored tensor.
  Box StoredBox(const Mesh& mesh, const Coordinate& coordinate) const {
    const Box box = LocalBox(type, mesh, coordinate);
    return part ? part->Place(box) : box;
  }
};

/// This rank's shard of a tensor in memory: dense, row-major.
struct LocalTensor {
  const StateTensor* tensor = nullptr;
  void* data = nullptr;
  Arena* arena = nullptr;  ///< the arena of `data`; null: plain host memory
  /// For a synchronous save, in place of `data`: elements [first, first + count) of the shard.
  std::function<void(int64_t first, int64_t count, float* out)> read = {};
  /// For a save: the CRC-32C that the data must have when they are written; not set: any.
  std::optional<uint32_t> crc = std::nullopt;

  bool OnHost() const { return arena == nullptr || arena->OnHost(); }
};

struct SaveResult {
  std::string dir;                    ///< the committed directory
  std::string id;                     ///< the id in its MANIFEST
  int64_t bytes = 0;                  ///< size of all its files
  double blocked_ms = 0;              ///< how long training of this rank was blocked
  double committed_ms = 0;            ///< from the call to the commit
  std::vector<std::string> warnings;  ///< failures after the commit: `latest` not renewed, old ones not removed
};

/// Call before any other thread starts. Stops HDF5 from locking files (this module owns its directories) and from
/// touching partly written files at exit. The first save calls it unless it was called before.
void InitializeStorage();

/// Saves as `checkpoints_dir`/step-NNNNNNNN, and keeps the newest `keep` (>= 1) of this checkpoint and its ancestors.
/// Collective: every rank passes all `tensors` of all stages in the same order, and its own shards in host memory. Each
/// element is written once. Throws the same UserError (kFault) on every rank if any rank fails; then nothing
/// was committed and older checkpoints are untouched.
SaveResult Save(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                const std::vector<LocalTensor>& local, const Mesh& mesh, World& world, int64_t keep);

/// Whether a load needs every tensor of the checkpoint (training) or only some (sampling needs no optimizer state).
enum class Coverage : uint8_t { kAll, kSome };

/// The checkpoint is intact, but this run cannot continue from it: an older one would be refused too.
class RefusedForGood : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

/// Fills the shards of every rank, on host or device, from a checkpoint saved in any layout. Collective, like Save.
/// Reads by the MANIFEST alone, never through HDF5. The ranks together check every byte of every file. Needs 4 MiB
/// besides the shards (12 on a device). Moments of another type than the checkpoint's are converted, to bf16 by
/// rounding to nearest. Throws the same UserError (kData) on every rank, listing what is missing, extra or damaged
/// (tensor and file); RefusedForGood if names or shapes differ from the deck (both values). A checkpoint of step 0 may
/// lack the optimizer's states: then they are zero.
Metadata Load(const std::string& dir, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
              const Mesh& mesh, World& world, Coverage coverage = Coverage::kAll);

/// Refuses, like Load, a checkpoint whose names or shapes differ from `tensors`; reads only the MANIFEST.
void RequireFit(const std::string& dir, const std::vector<StateTensor>& tensors, Coverage coverage);

/// Completes an interrupted commit in a directory of checkpoints, and removes temporary files. For one process that
/// owns the directory.
void SettleCheckpoints(const std::string& checkpoints_dir);

/// "step-00001200".
std::string StepName(int64_t step);

/// Committed checkpoints, best first, as paths: the latest, then its ancestors, newest first; none of another branch.
/// The latest is the one that `latest` names. If that is not usable, it is the last one of the only branch; with
/// several branches throws UserError (kData).
std::vector<std::string> FindCheckpoints(const std::string& checkpoints_dir);

/// The checkpoint `id` of the directory and its ancestors, newest first, as paths; none if it does not exist.
std::vector<std::string> FindLine(const std::string& checkpoints_dir, const std::string& id);

/// The committed checkpoints that are not ancestors of `id`, smallest step first, as paths.
std::vector<std::string> FindAbandoned(const std::string& checkpoints_dir, const std::string& id);

/// The directory that `latest` names if it has the name of a step but no MANIFEST: a checkpoint that lost it.
std::optional<std::string> LatestWithoutManifest(const std::string& checkpoints_dir);

/// The first of FindCheckpoints.
std::optional<std::string> FindLatest(const std::string& checkpoints_dir);

/// The checkpoint that the user means: "latest" in `checkpoints_dir`, a checkpoint, a directory of checkpoints or a run
/// (the latest of either). Throws UserError (kData) if there is none.
std::string Resolve(const std::string& restart, const std::string& checkpoints_dir);

/// Reads and checks `dir`/MANIFEST. Throws UserError (kData).
Manifest ReadManifest(const std::string& dir);

/// The metadata of a checkpoint, with its deck. Throws UserError (kData).
Metadata ReadMetadata(const std::string& dir);

/// The tokenizer of a checkpoint; null if it has none. Throws UserError (kData).
std::shared_ptr<const Tokenizer> ReadTokenizer(const std::string& dir);

struct VerifyReport {
  int64_t bytes = 0;  ///< read
  double seconds = 0;
  std::vector<std::string> damage;  ///< one line each, naming file and tensor; empty: intact
};

/// Reads every byte of a checkpoint against its checksums. Throws UserError (kData) if there is no usable MANIFEST.
VerifyReport VerifyCheckpoint(const std::string& dir);

/// Optional parts of a description; step, samples, layout and sizes are always printed.
struct Details {
  bool tensors = false;  ///< files and tensors
  bool deck = false;
};

/// A description of a checkpoint, without control characters.
std::string Describe(const std::string& dir, const Details& details);

}  // namespace espalier
