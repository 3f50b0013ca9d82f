// The directory that holds a run's checkpoints: temporary ones, the commit by rename, `latest`, and the end of old
// ones. Only what has one of our exact names, and is ours by its MANIFEST, is removed or replaced.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/directory/files.hpp"

namespace espalier {

inline constexpr const char* kManifestName = "MANIFEST";
inline constexpr const char* kDeckName = "deck.toml";

inline constexpr const char* kLatestName = "latest";

/// The step of "step-00001200"; nothing for any name that StepName does not make.
std::optional<int64_t> StepOf(std::string_view name);

/// Ends what a dead run began: `latest` is renewed if that was all a commit lacked, a checkpoint taken away for one
/// that never came goes back, and what unfinished saves and removals left is removed. The caller owns the directory.
/// Returns warnings.
std::vector<std::string> Settle(const Directory& checkpoints);

/// Throws UserError unless the file system has room for 1.1 x `bytes`.
void RequireSpace(const std::string& dir, int64_t bytes);

/// 32 random hex digits.
std::string DrawId();

/// "tmp-00001200-ID".
std::string TemporaryName(int64_t step, const std::string& id);

/// Turns the complete temporary directory into the checkpoint of `step`, by one rename or exchange, and says so in
/// `latest`. An older checkpoint of the same step makes way only then; anything else of that name is moved aside.
/// Returns warnings about what failed after the commit.
std::vector<std::string> Commit(const Directory& checkpoints, int64_t step, const std::string& id);

/// Of the checkpoint `id` and those that it came from, removes all but the newest `keep`. Other branches stay, and so
/// does a directory that holds anything else. Returns warnings.
std::vector<std::string> Prune(const Directory& checkpoints, const std::string& id, int64_t keep);

/// Removes the files of a checkpoint, whole or not, and its directory; throws UserError if anything else is in it.
void RemoveCheckpointFiles(const std::string& dir);

}  // namespace espalier
