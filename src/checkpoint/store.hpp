// The directory that holds a run's checkpoints: temporary ones, the commit by rename, `latest`, and the end of old
// ones.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/files.hpp"

namespace espalier {

inline constexpr const char* kManifestName = "MANIFEST";
inline constexpr const char* kDeckName = "deck.toml";

/// Steps of the committed checkpoints in `checkpoints_dir`, largest first. Those without a MANIFEST do not count.
std::vector<int64_t> CommittedSteps(const std::string& checkpoints_dir);

/// Ends what a dead run began: `latest` is renewed if that was all a commit lacked, a checkpoint taken away for one that
/// never came goes back, and what unfinished saves and removals left is removed. The caller owns the directory.
void Settle(const Directory& checkpoints);

/// Throws UserError unless the file system has room for 1.1 x `bytes`.
void RequireSpace(const std::string& dir, int64_t bytes);

/// 32 random hex digits.
std::string DrawId();

/// "tmp-00001200-ID".
std::string TemporaryName(int64_t step, const std::string& id);

/// Turns the complete temporary directory into the checkpoint of `step`, by one rename or exchange, and says so in
/// `latest`. An older checkpoint of the same step makes way only then. Returns warnings about what failed after the
/// commit.
std::vector<std::string> Commit(const Directory& checkpoints, int64_t step, const std::string& id);

/// Removes committed checkpoints before `step` beyond the newest `keep`, this one included. Later steps are another
/// attempt's and stay. Returns warnings.
std::vector<std::string> Prune(const Directory& checkpoints, int64_t step, int64_t keep, const std::string& id);

}  // namespace espalier
