// The directory of a run's checkpoints: temporary ones, the commit by rename, `latest`, and the removal of old ones.
// Only entries with one of our exact names and our MANIFEST are removed or replaced.
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

/// The step of "step-00001200"; nullopt for any name that StepName does not make.
std::optional<int64_t> StepOf(std::string_view name);

/// Completes or undoes the work of a killed run: renews `latest` if only that is missing from a commit, restores a
/// checkpoint that was moved aside for one that was never committed, and removes the rest of unfinished saves and
/// removals. The caller owns the directory. Returns warnings.
std::vector<std::string> Settle(const Directory& checkpoints);

/// Throws UserError unless the file system has room for 1.1 x `bytes`.
void RequireSpace(const std::string& dir, int64_t bytes);

/// 32 random hex digits.
std::string DrawId();

/// "tmp-00001200-ID".
std::string TemporaryName(int64_t step, const std::string& id);

/// Commits the complete temporary directory as the checkpoint of `step`, by one rename or exchange, and renews
/// `latest`. Only then an older checkpoint of the same step is removed; anything else of that name is moved aside.
/// Returns warnings about failures after the commit.
std::vector<std::string> Commit(const Directory& checkpoints, int64_t step, const std::string& id);

/// Removes all but the newest `keep` of the checkpoint `id` and its ancestors. Other branches stay, and so do
/// directories with other files in them. Returns warnings.
std::vector<std::string> Prune(const Directory& checkpoints, const std::string& id, int64_t keep);

/// Removes the files of a checkpoint, complete or not, and its directory; throws UserError if the directory holds
/// anything else.
void RemoveCheckpointFiles(const std::string& dir);

}  // namespace espalier
