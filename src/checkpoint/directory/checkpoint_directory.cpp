#include "checkpoint/directory/checkpoint_directory.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <set>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kDirectoryStages = {"retention", "remove", "announce", "rename", "commit", "latest", "settled"};

namespace fs = std::filesystem;

// Each of our names has a step as in "step-00001200", an id of 32 hex digits, or both. Other names are not touched.
constexpr std::string_view kStepPrefix = "step-", kTemporaryPrefix = "tmp-", kRemovalPrefix = "del-";
// A foreign entry with a name that we need is moved to "kept-00001200-ID".
constexpr std::string_view kAsidePrefix = "kept-";
// `latest` is renewed by renaming "latest-ID", which is written before the commit. If a run ends between the two
// renames, the id shows that the directory named there was committed.
constexpr std::string_view kPendingPrefix = "latest-";
constexpr size_t kIdDigits = 32;

/// "00001200-ID" of "PREFIX00001200-ID"; empty for any other name.
std::string_view StepAndId(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix) || name.size() < prefix.size() + kIdDigits + 2) return "";
  const std::string_view rest = name.substr(prefix.size()), id = rest.substr(rest.size() - kIdDigits);
  const std::string_view step = rest.substr(0, rest.size() - kIdDigits - 1);
  const bool ours =
      IsCheckpointId(id) && rest[step.size()] == '-' && StepOf(std::string(kStepPrefix) + std::string(step));
  return ours ? rest : "";
}

/// The id of "latest-ID"; empty for any other name.
std::string_view PendingId(std::string_view name) {
  if (!name.starts_with(kPendingPrefix)) return "";
  name.remove_prefix(kPendingPrefix.size());
  return IsCheckpointId(name) ? name : "";
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

/// The word in a `latest` file; empty if it cannot be read.
std::string WordIn(const std::string& checkpoints_dir, const std::string& file) {
  try {
    std::string name = Directory(checkpoints_dir).ReadText(file, 100);
    while (!name.empty() && (name.back() == '\n' || name.back() == '\r' || name.back() == ' ')) name.pop_back();
    return name;
  } catch (const UserError&) {
    return "";
  }
}

/// The directory that a `latest` file names; empty if that is no committed checkpoint.
std::string NamedBy(const std::string& checkpoints_dir, const std::string& file) {
  const std::string name = WordIn(checkpoints_dir, file);
  return IsCommitted(checkpoints_dir, name) ? name : "";
}

/// The file "latest-ID" of a commit whose run ended before `latest` was renewed; empty if there is none.
std::string AnnouncementOf(const std::string& checkpoints_dir) {
  for (const std::string& file : Entries(checkpoints_dir)) {
    if (PendingId(file).empty()) continue;
    const std::string name = NamedBy(checkpoints_dir, file);
    try {
      if (!name.empty() && ReadManifest(checkpoints_dir + "/" + name).id == PendingId(file)) return file;
    } catch (const UserError&) {
      // It is damaged: use what `latest` names.
    }
  }
  return "";
}

/// The checkpoint of a commit whose run ended before `latest` was renewed; empty if there is none.
std::string Announced(const std::string& checkpoints_dir) {
  const std::string file = AnnouncementOf(checkpoints_dir);
  return file.empty() ? "" : NamedBy(checkpoints_dir, file);
}

/// The directory of the latest checkpoint; empty if it is not known.
std::string LatestIn(const std::string& checkpoints_dir) {
  const std::string announced = Announced(checkpoints_dir);
  return announced.empty() ? NamedBy(checkpoints_dir, kLatestName) : announced;
}

std::string NameWith(std::string_view prefix, int64_t step, const std::string& id) {
  return fmt::format("{}{:08}-{}", prefix, step, id);
}

// --- lineage

/// The checkpoints whose MANIFEST has a valid head with the step of their name, largest step first.
std::vector<ManifestHead> HeadsIn(const std::string& checkpoints_dir) {
  std::vector<ManifestHead> heads;
  for (const std::string& name : Entries(checkpoints_dir)) {
    if (!IsCommitted(checkpoints_dir, name)) continue;
    try {
      const std::string dir = checkpoints_dir + "/" + name;
      ManifestHead head = ParseManifestHead(Directory(dir).ReadStart(kManifestName, kMaxHeadBytes), dir);
      if (head.step == *StepOf(name)) heads.push_back(std::move(head));
    } catch (const UserError&) {
      // Not readable: it is in no lineage.
    }
  }
  std::ranges::sort(heads, std::greater<>(), &ManifestHead::step);
  return heads;
}

/// Checkpoints of format 1 have no parent entry: they form one line, by their steps. Steps decrease from child to
/// parent, so a chain ends.
const ManifestHead* ParentOf(const std::vector<ManifestHead>& heads, const ManifestHead& child) {
  const auto parent = std::ranges::find_if(heads, [&](const ManifestHead& head) {
    return head.step < child.step && (child.lineage ? head.id == child.lineage->parent : !head.lineage);
  });
  return parent == heads.end() ? nullptr : &*parent;
}

/// A checkpoint and its ancestors, newest first; empty if the id does not exist.
std::vector<ManifestHead> ChainOf(const std::vector<ManifestHead>& heads, std::string_view id) {
  std::vector<ManifestHead> chain;
  const auto tip = std::ranges::find(heads, id, &ManifestHead::id);
  for (const ManifestHead* head = tip == heads.end() ? nullptr : &*tip; head != nullptr; head = ParentOf(heads, *head))
    chain.push_back(*head);
  return chain;
}

/// Checkpoints that are not the parent of another.
std::vector<ManifestHead> TipsOf(const std::vector<ManifestHead>& heads) {
  std::set<std::string> parents;
  for (const ManifestHead& head : heads)
    if (const ManifestHead* parent = ParentOf(heads, head)) parents.insert(parent->id);
  std::vector<ManifestHead> tips;
  for (const ManifestHead& head : heads)
    if (!parents.contains(head.id)) tips.push_back(head);
  return tips;
}

/// The id of the last checkpoint before the step `lost`. Throws if `heads` have several lines, since the right one is
/// not known.
std::string OnlyTip(const std::string& checkpoints_dir, std::vector<ManifestHead> heads, std::optional<int64_t> lost) {
  if (lost) std::erase_if(heads, [&](const ManifestHead& head) { return !head.lineage && head.step >= *lost; });
  const std::vector<ManifestHead> tips = TipsOf(heads);
  if (tips.empty()) return "";
  if (tips.size() == 1 && (!lost || tips[0].step < *lost)) return tips[0].id;
  std::vector<std::string> names;
  for (const ManifestHead& tip : tips) names.push_back(StepName(tip.step));
  throw UserError(
      ExitStatus::kData,
      fmt::format("{}: {}, and there are checkpoints of several branches (their last: {}): name one to go on from "
                  "with -r {}/STEP",
                  checkpoints_dir,
                  lost ? StepName(*lost) + " is the latest and its MANIFEST cannot be read"
                       : std::string("`latest` names no checkpoint"),
                  fmt::join(names, ", "), checkpoints_dir));
}

std::vector<std::string> Paths(const std::string& checkpoints_dir, const std::vector<ManifestHead>& heads) {
  std::vector<std::string> paths;
  for (const ManifestHead& head : heads) paths.push_back(checkpoints_dir + "/" + StepName(head.step));
  return paths;
}

// --- ownership

/// Why the directory `name` is not a checkpoint that may be removed; empty if it is.
std::string WhyNotOurs(const Directory& checkpoints, const std::string& name) {
  const std::string path = checkpoints.path() + "/" + name;
  if (!checkpoints.HasDirectory(name)) return "it is not a directory";
  try {
    const Manifest manifest = ReadManifest(path);
    for (const std::string& entry : Entries(path))
      if (entry != kManifestName && manifest.FindFile(entry) == nullptr)
        return fmt::format("it holds {}, which is not part of it", entry);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// Runs work whose failure must not undo a commit; returns the failure as a warning.
std::vector<std::string> Warn(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return {error.what()};
  }
  return {};
}

/// Renames first, since a partly removed checkpoint must not look like one.
void Remove(const Directory& checkpoints, const std::string& name, const std::string& removal) {
  FaultPoint("retention", name);
  if (name != removal) checkpoints.Rename(name, removal);
  FaultPoint("remove", removal);
  RemoveCheckpointFiles(checkpoints.path() + "/" + removal);
}

/// For file systems that cannot exchange entries: between the two renames the step has no checkpoint.
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

/// If "del-00001200-ID" (or "kept-") and "tmp-00001200-ID" exist but "step-00001200" does not, a run ended between the
/// two renames of ReplaceInTwoSteps. Restores the old checkpoint.
void PutBack(const Directory& checkpoints, const std::string& removal) {
  for (std::string_view prefix : {kRemovalPrefix, kAsidePrefix}) {
    const std::string_view rest = StepAndId(removal, prefix);
    if (rest.empty()) continue;
    const std::string name = std::string(kStepPrefix) + std::string(rest.substr(0, rest.size() - kIdDigits - 1));
    const bool whole =
        prefix == kAsidePrefix || fs::is_regular_file(fs::path(checkpoints.path()) / removal / kManifestName);
    if (whole && !checkpoints.Has(name) && checkpoints.Has(std::string(kTemporaryPrefix) + std::string(rest)))
      checkpoints.Rename(removal, name);
  }
}

/// Renames "latest-ID" to `latest`. If `latest` is not a file it is moved aside, with a warning.
std::vector<std::string> RenewLatest(const Directory& checkpoints, const std::string& pending) {
  std::vector<std::string> warnings;
  if (checkpoints.Has(kLatestName) && !checkpoints.HasFile(kLatestName)) {
    const std::string aside = std::string(kAsidePrefix) + pending;
    checkpoints.Rename(kLatestName, aside);
    warnings.push_back(
        fmt::format("{}/latest was not a file of this program: it is now {}", checkpoints.path(), aside));
  }
  checkpoints.Rename(pending, kLatestName);
  return warnings;
}

void Append(std::vector<std::string>& all, std::vector<std::string> more) {
  for (std::string& one : more) all.push_back(std::move(one));
}

}  // namespace

std::string StepName(int64_t step) { return fmt::format("{}{:08}", kStepPrefix, step); }

std::optional<int64_t> StepOf(std::string_view name) {
  if (!name.starts_with(kStepPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kStepPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc{} || StepName(step) != name) return std::nullopt;
  return step;
}

std::vector<std::string> FindCheckpoints(const std::string& checkpoints_dir) {
  std::string latest;
  std::vector<ManifestHead> heads;
  do {  // repeat if the run has committed in between
    latest = LatestIn(checkpoints_dir);
    heads = HeadsIn(checkpoints_dir);
  } while (latest != LatestIn(checkpoints_dir));
  std::vector<std::string> found;
  std::string tip;
  if (!latest.empty()) {
    const auto head = std::ranges::find(heads, *StepOf(latest), &ManifestHead::step);
    if (head != heads.end()) {
      tip = head->id;
    } else {
      found.push_back(checkpoints_dir + "/" + latest);
      tip = OnlyTip(checkpoints_dir, heads, StepOf(latest));
    }
  } else {
    tip = OnlyTip(checkpoints_dir, heads, std::nullopt);
  }
  Append(found, Paths(checkpoints_dir, ChainOf(heads, tip)));
  return found;
}

std::vector<std::string> FindLine(const std::string& checkpoints_dir, const std::string& id) {
  return Paths(checkpoints_dir, ChainOf(HeadsIn(checkpoints_dir), id));
}

std::vector<std::string> FindAbandoned(const std::string& checkpoints_dir, const std::string& id) {
  const std::vector<ManifestHead> heads = HeadsIn(checkpoints_dir);
  const std::vector<ManifestHead> chain = ChainOf(heads, id);
  std::vector<ManifestHead> abandoned;
  std::ranges::copy_if(heads, std::back_inserter(abandoned), [&](const ManifestHead& head) {
    return std::ranges::find(chain, head.id, &ManifestHead::id) == chain.end();
  });
  std::ranges::reverse(abandoned);
  return Paths(checkpoints_dir, abandoned);
}

std::optional<std::string> LatestWithoutManifest(const std::string& checkpoints_dir) {
  const std::string name = WordIn(checkpoints_dir, kLatestName);
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
  // The file `latest` in a directory of checkpoints names one of them.
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

void RemoveCheckpointFiles(const std::string& dir) {
  for (const std::string& name : Entries(dir))
    if (const std::string path = dir + "/" + name;
        IsCheckpointFile(name) && !fs::is_directory(fs::symlink_status(path)))
      fs::remove(path);
  std::error_code error;
  if (!fs::remove(dir, error) && error)
    throw UserError(
        ExitStatus::kFault,
        fmt::format("{}: cannot be removed: {}", dir,
                    fs::is_empty(dir, error) ? "the system refuses" : "it holds files that are not this program's"));
}

std::vector<std::string> Settle(const Directory& checkpoints) {
  const std::vector<std::string> names = Entries(checkpoints.path());
  for (const std::string& name : names) PutBack(checkpoints, name);
  std::vector<std::string> warnings;
  if (const std::string announced = AnnouncementOf(checkpoints.path()); !announced.empty())
    warnings = RenewLatest(checkpoints, announced);
  for (const std::string& name : names) {
    const bool directory = !StepAndId(name, kTemporaryPrefix).empty() || !StepAndId(name, kRemovalPrefix).empty();
    // If it cannot be removed now, the next call tries again.
    if (directory && checkpoints.HasDirectory(name))
      Append(warnings, Warn([&] { RemoveCheckpointFiles(checkpoints.path() + "/" + name); }));
    std::error_code ignored;
    if (!PendingId(name).empty() && checkpoints.HasFile(name)) fs::remove(checkpoints.path() + "/" + name, ignored);
  }
  return warnings;
}

void SettleCheckpoints(const std::string& checkpoints_dir) {
  std::error_code error;
  if (!fs::is_directory(checkpoints_dir, error)) return;
  for (const std::string& warning : Settle(Directory(checkpoints_dir))) spdlog::warn("{}", warning);
}

void RequireSpace(const std::string& dir, int64_t bytes) {
  struct statvfs status {};
  if (::statvfs(dir.c_str(), &status) != 0) return;  // unknown; the write will fail if there is no room
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

std::string TemporaryName(int64_t step, const std::string& id) { return NameWith(kTemporaryPrefix, step, id); }

std::vector<std::string> Commit(const Directory& checkpoints, int64_t step, const std::string& id) {
  const std::string name = StepName(step), temporary = TemporaryName(step, id),
                    removal = NameWith(kRemovalPrefix, step, id);
  const std::string aside = NameWith(kAsidePrefix, step, id), pending = std::string(kPendingPrefix) + id;
  FaultPoint("announce", pending);
  checkpoints.WriteText(pending, name + "\n");
  FaultPoint("rename", temporary);
  const bool replaces = checkpoints.Has(name);
  const std::string not_ours = replaces ? WhyNotOurs(checkpoints, name) : "";
  const bool exchanged = replaces && not_ours.empty() && checkpoints.Exchange(temporary, name);
  if (!replaces)
    checkpoints.Rename(temporary, name);
  else if (!exchanged)
    ReplaceInTwoSteps(checkpoints, name, temporary, not_ours.empty() ? removal : aside);
  std::vector<std::string> warnings;
  if (!not_ours.empty())
    warnings.push_back(fmt::format("{}/{} is now {}: a checkpoint has taken its name ({})", checkpoints.path(), name,
                                   aside, not_ours));
  Append(warnings, Warn([&] {
           FaultPoint("commit", name);
           checkpoints.Sync();
           FaultPoint("latest", pending);
           Append(warnings, RenewLatest(checkpoints, pending));
           checkpoints.Sync();
           FaultPoint("settled", name);
           if (replaces && not_ours.empty()) Remove(checkpoints, exchanged ? temporary : removal, removal);
         }));
  return warnings;
}

std::vector<std::string> Prune(const Directory& checkpoints, const std::string& id, int64_t keep) {
  std::vector<std::string> warnings;
  const std::vector<ManifestHead> chain = ChainOf(HeadsIn(checkpoints.path()), id);
  for (size_t i = static_cast<size_t>(keep); i < chain.size(); ++i) {
    const std::string name = StepName(chain[i].step);
    if (const std::string why = WhyNotOurs(checkpoints, name); !why.empty())
      warnings.push_back(
          fmt::format("{}/{} is not removed although checkpoint.keep = {}: {}", checkpoints.path(), name, keep, why));
    else
      Append(warnings, Warn([&] { Remove(checkpoints, name, NameWith(kRemovalPrefix, chain[i].step, id)); }));
  }
  return warnings;
}

}  // namespace espalier
