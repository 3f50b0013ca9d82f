#include "checkpoint/store.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStepPrefix = "step-", kTemporaryPrefix = "tmp-", kRemovalPrefix = "del-";
// `latest` is renewed by renaming "latest-ID", written before the commit. If a run ends between the two renames, the id
// tells that the directory named there is the one that was committed.
constexpr std::string_view kPendingPrefix = "latest-";

std::optional<int64_t> StepOf(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  name.remove_prefix(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || name.size() < 8) return std::nullopt;
  return step;
}

std::vector<std::string> Entries(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto it = fs::directory_iterator(dir, error); !error && it != fs::directory_iterator(); it.increment(error))
    names.push_back(it->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool IsCommitted(const std::string& checkpoints_dir, std::string_view name) {
  std::error_code error;
  return StepOf(name) && fs::is_regular_file(fs::path(checkpoints_dir) / name / kManifestName, error);
}

/// The one word in a `latest` file; empty if it cannot be read.
std::string WordIn(const std::string& checkpoints_dir, const std::string& file) {
  try {
    std::string name = Directory(checkpoints_dir).ReadText(file, 100);
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) name.pop_back();
    return name;
  } catch (const UserError&) {
    return "";
  }
}

/// The directory's name in a `latest` file; empty if it names no committed checkpoint.
std::string NamedBy(const std::string& checkpoints_dir, const std::string& file) {
  const std::string name = WordIn(checkpoints_dir, file);
  return IsCommitted(checkpoints_dir, name) ? name : "";
}

/// The file "latest-ID" of a commit whose run ended before `latest` was renewed; empty if there is none.
std::string AnnouncementOf(const std::string& checkpoints_dir) {
  for (const std::string& file : Entries(checkpoints_dir)) {
    if (!file.starts_with(kPendingPrefix)) continue;
    const std::string name = NamedBy(checkpoints_dir, file);
    try {
      if (!name.empty() && ReadManifest(checkpoints_dir + "/" + name).id == file.substr(kPendingPrefix.size()))
        return file;
    } catch (const UserError&) {
      // It is damaged; what `latest` names is better.
    }
  }
  return "";
}

/// What a commit announced whose run ended before `latest` was renewed; empty if there is none.
std::string Announced(const std::string& checkpoints_dir) {
  const std::string file = AnnouncementOf(checkpoints_dir);
  return file.empty() ? "" : NamedBy(checkpoints_dir, file);
}

std::string RemovalName(int64_t step, const std::string& id) { return fmt::format("{}{:08}-{}", kRemovalPrefix, step, id); }

/// "del-00001200-ID" beside "tmp-00001200-ID" without "step-00001200": a run ended between the two renames of a
/// replacement (ReplaceInTwoSteps), so what was committed goes back to its name.
void PutBack(const Directory& checkpoints, const std::string& removal) {
  const size_t dash = removal.find('-', kRemovalPrefix.size());
  if (!removal.starts_with(kRemovalPrefix) || dash == std::string::npos) return;
  const std::string rest = removal.substr(kRemovalPrefix.size());
  const std::string name = std::string(kStepPrefix) + removal.substr(kRemovalPrefix.size(), dash - kRemovalPrefix.size());
  if (StepOf(name) && !checkpoints.Has(name) && checkpoints.Has(std::string(kTemporaryPrefix) + rest) &&
      fs::is_regular_file(fs::path(checkpoints.path()) / removal / kManifestName))
    checkpoints.Rename(removal, name);
}

/// Runs what must not undo a commit; returns its failure as a warning.
std::vector<std::string> Warn(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return {error.what()};
  }
  return {};
}

/// Renames first: a half-removed checkpoint must not look like one.
void Remove(const Directory& checkpoints, const std::string& name, const std::string& removal) {
  FaultPoint("retention", name);
  if (name != removal) checkpoints.Rename(name, removal);
  FaultPoint("remove", removal);
  fs::remove_all(checkpoints.path() + "/" + removal);
}

/// Where entries cannot be exchanged, the step is without a checkpoint between two renames.
void ReplaceInTwoSteps(const Directory& checkpoints, const std::string& name, const std::string& temporary,
                       const std::string& removal) {
  checkpoints.Rename(name, removal);
  try {
    checkpoints.Rename(temporary, name);
  } catch (const UserError&) {
    checkpoints.Rename(removal, name);
    throw;
  }
}

}  // namespace

std::string StepName(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::vector<int64_t> CommittedSteps(const std::string& checkpoints_dir) {
  std::vector<int64_t> steps;
  for (const std::string& name : Entries(checkpoints_dir))
    if (IsCommitted(checkpoints_dir, name)) steps.push_back(*StepOf(name));
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<std::string> FindCheckpoints(const std::string& checkpoints_dir) {
  const std::vector<int64_t> steps = CommittedSteps(checkpoints_dir);
  if (steps.empty()) return {};
  std::string latest = Announced(checkpoints_dir);
  if (latest.empty()) latest = NamedBy(checkpoints_dir, "latest");
  if (latest.empty()) latest = StepName(steps.front());
  std::vector<std::string> found = {checkpoints_dir + "/" + latest};
  for (int64_t step : steps)
    if (step < *StepOf(latest)) found.push_back(checkpoints_dir + "/" + StepName(step));
  return found;
}

std::optional<std::string> LatestWithoutManifest(const std::string& checkpoints_dir) {
  const std::string name = WordIn(checkpoints_dir, "latest");
  std::error_code error;
  if (!StepOf(name) || IsCommitted(checkpoints_dir, name) || !fs::is_directory(fs::path(checkpoints_dir) / name, error))
    return std::nullopt;
  return checkpoints_dir + "/" + name;
}

std::optional<std::string> FindLatest(const std::string& checkpoints_dir) {
  const std::vector<std::string> found = FindCheckpoints(checkpoints_dir);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

std::string Resolve(const std::string& restart, const std::string& checkpoints_dir) {
  std::error_code error;
  if (restart != "latest" && fs::is_regular_file(fs::path(restart) / kManifestName, error)) return restart;
  // The file `latest` in a directory of checkpoints stands for what it names.
  if (restart.ends_with("/latest") && fs::is_regular_file(restart, error))
    return Resolve("latest", fs::path(restart).parent_path().string());
  const std::vector<std::string> places =
      restart == "latest" ? std::vector{checkpoints_dir} : std::vector{restart, restart + "/checkpoints"};
  for (const std::string& place : places)
    if (const auto latest = FindLatest(place)) return *latest;
  throw UserError(
      ExitStatus::kData,
      restart == "latest"
          ? fmt::format("{}: no committed checkpoint (a directory step-NNNNNNNN with a MANIFEST)", checkpoints_dir)
          : fmt::format("{}: no checkpoint, no directory of checkpoints and no run with one", restart));
}

void Settle(const Directory& checkpoints) {
  const std::vector<std::string> names = Entries(checkpoints.path());
  for (const std::string& name : names) PutBack(checkpoints, name);
  const std::string announced = AnnouncementOf(checkpoints.path());
  if (!announced.empty()) checkpoints.Rename(announced, "latest");
  for (const std::string& name : names) {
    std::error_code ignored;  // what cannot go now goes another time
    if (name.starts_with(kTemporaryPrefix) || name.starts_with(kRemovalPrefix) || name.starts_with(kPendingPrefix))
      fs::remove_all(checkpoints.path() + "/" + name, ignored);
  }
}

void SettleCheckpoints(const std::string& checkpoints_dir) {
  std::error_code error;
  if (fs::is_directory(checkpoints_dir, error)) Settle(Directory(checkpoints_dir));
}

void RequireSpace(const std::string& dir, int64_t bytes) {
  struct statvfs status {};
  if (::statvfs(dir.c_str(), &status) != 0) return;  // the file system does not say; writing will
  const auto free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  const int64_t need = bytes + bytes / 10;
  if (free < need)
    throw UserError(ExitStatus::kFault,
                    fmt::format("{}: {} bytes are needed for a checkpoint, {} are free", dir, need, free));
}

std::string DrawId() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

std::string TemporaryName(int64_t step, const std::string& id) {
  return fmt::format("{}{:08}-{}", kTemporaryPrefix, step, id);
}

std::vector<std::string> Commit(const Directory& checkpoints, int64_t step, const std::string& id) {
  const std::string name = StepName(step), temporary = TemporaryName(step, id), removal = RemovalName(step, id);
  const std::string pending = std::string(kPendingPrefix) + id;
  FaultPoint("announce", pending);
  checkpoints.WriteText(pending, name + "\n");
  FaultPoint("rename", temporary);
  const bool replaces = checkpoints.Has(name);
  const bool exchanged = replaces && checkpoints.Exchange(temporary, name);
  if (replaces && !exchanged) {
    ReplaceInTwoSteps(checkpoints, name, temporary, removal);
  } else if (!replaces) {
    checkpoints.Rename(temporary, name);
  }
  return Warn([&] {
    FaultPoint("commit", name);
    checkpoints.Sync();
    FaultPoint("latest", pending);
    checkpoints.Rename(pending, "latest");
    checkpoints.Sync();
    FaultPoint("settled", name);
    if (replaces) Remove(checkpoints, exchanged ? temporary : removal, removal);
  });
}

std::vector<std::string> Prune(const Directory& checkpoints, int64_t step, int64_t keep, const std::string& id) {
  return Warn([&] {
    int64_t kept = 1;
    for (int64_t other : CommittedSteps(checkpoints.path()))
      if (other < step && ++kept > keep) Remove(checkpoints, StepName(other), RemovalName(other, id));
  });
}

}  // namespace espalier
