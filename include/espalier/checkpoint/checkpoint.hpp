// Checkpoints: save, find, load, verify. Any layout loads any layout. A checkpoint is a directory that appears whole,
// by one rename; what is in it says doc/checkpoint.md.
#pragma once

#include <cstdint>
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
/// coordinate[pp] == stage, else nothing.
struct StateTensor {
  std::string name;  ///< "parameters/model.norm.weight", "optimizer/exp_avg/model.norm.weight", ...
  Type type;         ///< fp32; global shape, placements over the mesh; never partial
  int stage = 0;     ///< pp coordinate that holds it
  /// Stored with others under one name; unset: by itself, under its own. The parts of a tensor fill it as a grid.
  std::optional<StoredPart> part = std::nullopt;

  const std::string& StoredName() const { return part ? part->name : name; }
  const Shape& StoredShape() const { return part ? part->shape : type.shape; }
  /// What the rank at `coordinate` holds, as indices of the stored tensor.
  Box StoredBox(const Mesh& mesh, const Coordinate& coordinate) const {
    const Box box = LocalBox(type, mesh, coordinate);
    return part ? part->Place(box) : box;
  }
};

/// This rank's piece of a tensor in memory: dense, row-major.
struct LocalTensor {
  const StateTensor* tensor = nullptr;
  void* data = nullptr;
  Arena* arena = nullptr;  ///< that `data` lies in; null: plain memory of the host

  bool OnHost() const { return arena == nullptr || arena->OnHost(); }
};

struct SaveResult {
  std::string dir;                    ///< the committed directory
  std::string id;                     ///< of its MANIFEST
  int64_t bytes = 0;                  ///< of all its files
  double blocked_ms = 0;              ///< how long this rank was kept from training
  double committed_ms = 0;            ///< from the call to the commit
  std::vector<std::string> warnings;  ///< what went wrong after the commit: `latest` or old ones not renewed
};

/// Call before any other thread starts: keeps HDF5 from locking files (this room owns its directories) and from
/// touching half-written files at exit. Done by the first save if it was not called.
void InitializeStorage();

/// Saves as `checkpoints_dir`/step-NNNNNNNN and keeps the newest `keep` (>= 1) of this one and those that it came from.
/// Collective: every rank passes all `tensors` of all stages in the same order, and its own pieces, which lie on the
/// host. Each element is written once. Throws the same UserError (kFault) on every rank if any rank fails; then nothing
/// was committed and older checkpoints are untouched.
SaveResult Save(const std::string& checkpoints_dir, const Metadata& metadata, const std::vector<StateTensor>& tensors,
                const std::vector<LocalTensor>& local, const Mesh& mesh, World& world, int64_t keep);

/// Whether a load must want every tensor of the checkpoint (training) or may leave some (sampling needs no optimizer).
enum class Coverage : uint8_t { kAll, kSome };

/// The checkpoint is whole, but not what this run can go on from: an older one would be refused too.
class RefusedForGood : public AgreedError {
 public:
  using AgreedError::AgreedError;
};

/// Fills every rank's pieces, wherever they lie, from a checkpoint saved in any layout. Collective, as Save. Reads by
/// MANIFEST alone, never through HDF5; the ranks together check every byte of every file; needs 4 MiB beside the pieces
/// (12 on a device). Throws the same UserError (kData) on every rank, listing what is missing, extra or damaged (tensor
/// and file); RefusedForGood if names or shapes are not the deck's (both values).
Metadata Load(const std::string& dir, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
              const Mesh& mesh, World& world, Coverage coverage = Coverage::kAll);

/// Refuses as Load does a checkpoint whose names or shapes are not those of `tensors`; reads the MANIFEST alone.
void RequireFit(const std::string& dir, const std::vector<StateTensor>& tensors, Coverage coverage);

/// Ends what a dead run began in a run's directory of checkpoints and removes what it left. One process that owns the
/// directory.
void SettleCheckpoints(const std::string& checkpoints_dir);

/// "step-00001200".
std::string StepName(int64_t step);

/// Committed checkpoints, best first, as paths: the latest, then those that it came from, newest first; never one of
/// another branch. The latest is what `latest` names; without a usable one, the last of the only branch there is.
/// Throws UserError (kData) if there are several then.
std::vector<std::string> FindCheckpoints(const std::string& checkpoints_dir);

/// The checkpoint `id` of the directory and those that it came from, newest first, as paths; none if it is not there.
std::vector<std::string> FindLine(const std::string& checkpoints_dir, const std::string& id);

/// The committed checkpoints that `id` did not come from, smallest step first, as paths.
std::vector<std::string> FindAbandoned(const std::string& checkpoints_dir, const std::string& id);

/// The directory that `latest` names if that is one of a step but holds no MANIFEST: a checkpoint that lost it.
std::optional<std::string> LatestWithoutManifest(const std::string& checkpoints_dir);

/// The first of FindCheckpoints.
std::optional<std::string> FindLatest(const std::string& checkpoints_dir);

/// The directory that the user means: "latest" in `checkpoints_dir`, a checkpoint, a directory of checkpoints or a run
/// (their latest). Throws UserError (kData) if there is none.
std::string Resolve(const std::string& restart, const std::string& checkpoints_dir);

/// Reads and checks `dir`/MANIFEST. Throws UserError (kData).
Manifest ReadManifest(const std::string& dir);

/// What a checkpoint says of its run, with its deck. Throws UserError (kData).
Metadata ReadMetadata(const std::string& dir);

struct VerifyReport {
  int64_t bytes = 0;  ///< read
  double seconds = 0;
  std::vector<std::string> damage;  ///< one line each, naming file and tensor; empty: whole
};

/// Reads every byte of a checkpoint against its checksums. Throws UserError (kData) if there is no usable MANIFEST.
VerifyReport VerifyCheckpoint(const std::string& dir);

/// What Describe tells beside step, samples, layout and sizes.
struct Details {
  bool tensors = false;  ///< files and tensors
  bool deck = false;
};

/// A checkpoint in words; nothing in it that a terminal would take for a command.
std::string Describe(const std::string& dir, const Details& details);

}  // namespace espalier
