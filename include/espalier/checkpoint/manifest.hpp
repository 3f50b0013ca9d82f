// MANIFEST: the table of contents of a checkpoint, as text. It lists every file and every stored box of every tensor,
// with offset and checksum. The loader trusts nothing else. The format: doc/checkpoint.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/graph/type.hpp"

namespace espalier {

class Tokenizer;

/// The loss of one fixed microbatch with the saved weights, computed when they were saved. A load computes it again and
/// compares.
struct Proof {
  float loss = 0;           ///< finite
  std::string compute;      ///< precision.compute: "fp32" or "bf16"
  uint32_t conditions = 0;  ///< hash of everything that may change the last bits: program, processor, threads, layout
  bool operator==(const Proof&) const = default;
};

/// The training data of a run at its start: equal values mean equal data (within the limits of doc/data.md).
struct DataSeen {
  int64_t tokens = 0;
  uint64_t fingerprint = 0;
  bool operator==(const DataSeen&) const = default;
};

/// Loss and gradient norm of a step.
struct StepSeen {
  float loss = 0, norm = 0;
  bool operator==(const StepSeen&) const = default;
};

/// Where a checkpoint comes from. Retention and restarts follow it.
struct Lineage {
  std::string parent;  ///< id of the checkpoint that the run loaded or saved before this one; empty: none
  std::string branch;  ///< id of the checkpoint given with -r DIR; empty: none
  bool operator==(const Lineage&) const = default;
};

/// The metadata of the run that a checkpoint records besides its tensors.
struct Metadata {
  int64_t step = 0;                     ///< steps done
  int64_t samples = 0;                  ///< samples consumed: where the data continue, in any layout
  std::string version;                  ///< version of the program that wrote it
  std::string git_hash;                 ///< commit of the program that wrote it
  std::vector<double> losses;           ///< losses of the last steps, oldest first; for people and checks
  std::string deck;                     ///< effective deck, TOML; stored next to the MANIFEST as deck.toml
  std::optional<Proof> proof = {};      ///< none in checkpoints of version 0.1
  std::optional<DataSeen> data = {};    ///< none in checkpoints before 0.3.1
  std::optional<Lineage> lineage = {};  ///< none in format 1, which versions before 0.3.1 wrote
  std::vector<StepSeen> window = {};  ///< steps with which the guard compares the next one, oldest first; only format 3
  std::shared_ptr<const Tokenizer> tokenizer = {};  ///< stored as files; null: none. Only ReadTokenizer reads it
};

/// One file of a checkpoint.
struct ManifestFile {
  std::string name;  ///< such as "deck.toml" or "shard-00000.h5" (IsCheckpointFile); in the checkpoint's own directory
  int64_t bytes = 0;
  uint32_t crc = 0;  ///< CRC-32C of the whole file
};

/// A stored box of a tensor: dense, row-major and little-endian at one offset of a shard file.
struct ManifestPiece {
  int file = 0;        ///< index into Manifest::files
  Box box;             ///< global indices; never empty
  int64_t offset = 0;  ///< bytes from the start of the file
  uint32_t crc = 0;    ///< CRC-32C of the box's bytes

  int64_t Elements() const { return Volume(ExtentsOf(box)); }
};

/// A whole tensor: its stored boxes tile it exactly (TilingError). Elements are fp32; the optimizer's moments may be
/// bf16.
struct ManifestTensor {
  std::string name;  ///< "parameters/<name>", "optimizer/exp_avg/<name>", "optimizer/exp_avg_sq/<name>"
  Shape shape;       ///< global; 1 to 8 dims
  std::vector<ManifestPiece> pieces;
  Dtype dtype = Dtype::kF32;

  /// Bytes of one of its stored boxes.
  int64_t BytesOf(const ManifestPiece& piece) const { return piece.Elements() * SizeOf(dtype); }
};

struct Manifest {
  std::string id;     ///< 32 hex digits, drawn for each save
  Metadata metadata;  ///< without the deck, which is a separate file
  int ranks = 1;
  std::string mesh;  ///< Mesh::ToString() of the run that saved
  std::vector<ManifestFile> files;
  std::vector<ManifestTensor> tensors;  ///< in model order
  bool in_memory = false;  ///< a generation in memory: the shard files are no HDF5 files, and there is no master.h5

  const ManifestTensor* Find(std::string_view tensor) const;  ///< nullptr if there is none
  const ManifestFile* FindFile(std::string_view file) const;  ///< nullptr if there is none
  int64_t Bytes() const;                                      ///< size of all files without the MANIFEST
  int64_t Parameters() const;                                 ///< elements of "parameters/..."
  int Format() const;  ///< the oldest format that can hold all of it, so that older programs read the files that they
                       ///< understand
};

/// The text; its last line has the CRC-32C of all lines before. ParseManifest(Print(m)) prints the same text.
std::string Print(const Manifest& manifest);

/// The first lines of a MANIFEST.
struct ManifestHead {
  std::string id;
  int64_t step = 0;
  std::optional<Lineage> lineage;
};

/// Parses the header only and checks no checksum. `text` is at least kMaxHeadBytes long or the whole file. Throws like
/// ParseManifest.
ManifestHead ParseManifestHead(std::string_view text, std::string_view where);
inline constexpr int64_t kMaxHeadBytes = 256;

/// True for 32 hex digits.
bool IsCheckpointId(std::string_view text);

/// True for the names of files in a checkpoint: MANIFEST, deck.toml, master.h5, shard-NNNNN.h5, tokenizer.json,
/// tokenizer.model, companions of a tokenizer.
bool IsCheckpointFile(std::string_view name);

/// True for the names under which a checkpoint keeps its tokenizer.
bool IsTokenizerFile(std::string_view name);

/// Parses a MANIFEST strictly: checksum first; every number has bounds, every name a pattern; stored boxes tile their
/// tensors and do not overlap in their files. Throws UserError (kData): "WHERE:LINE: what".
Manifest ParseManifest(std::string_view text, std::string_view where);

/// "[0:128,64:96]".
std::string ToString(const Box& box);

/// Why the boxes `pieces` do not tile a tensor of `shape` exactly; empty if they do. They must form a grid (each
/// dim is split at the same indices everywhere), or grids one below the other along dim 0.
std::string TilingError(const Shape& shape, const std::vector<Box>& pieces);

}  // namespace espalier
