#include "train/startup/memory_start.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "espalier/deck/epochs.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/write_whole.hpp"
#include "train/run_files.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr size_t kIdDigits = 32;

fs::path FileOfId(const Deck& deck) { return fs::path(deck.run.dir) / "memory-run"; }

}  // namespace

DiskLine ReadDiskLine(const std::vector<std::string>& checkpoints, const std::string& branch) {
  DiskLine line{-1, branch, {}};
  for (const std::string& dir : checkpoints) try {
      const Manifest manifest = ReadManifest(dir);
      if (line.ids.empty()) line.step = manifest.metadata.step;
      line.ids.push_back(manifest.id);
    } catch (const UserError&) {
      // Its own load says why.
    }
  return line;
}

std::string WhyNotFromMemory(const MemoryGeneration& generation, const DiskLine& disk, const Deck& deck) {
  if (generation.step < disk.step)
    return fmt::format("step {} in memory is older than the checkpoint of step {}", generation.step, disk.step);
  if (!AwaitsData(deck) && generation.step > deck.run.steps)
    return fmt::format("step {} in memory is beyond run.steps = {}", generation.step, deck.run.steps);
  if (!disk.branch.empty() && generation.branch != disk.branch)
    return fmt::format("step {} in memory did not begin at the checkpoint that -r names", generation.step);
  const bool known = generation.parent.empty() || std::ranges::count(disk.ids, generation.parent) > 0;
  if (!known)
    return fmt::format("step {} in memory follows a checkpoint that is not among those to continue from",
                       generation.step);
  return "";
}

std::string MemoryRunId(const Deck& deck) {
  const fs::path path = FileOfId(deck);
  if (fs::exists(path)) {
    std::string id(kIdDigits, '\0');
    InputFile(path.string(), {.symlinks = Symlinks::kRefuse}).ReadAt(0, id.data(), std::ssize(id));
    if (IsCheckpointId(id)) return id;
  }
  std::random_device device;
  const std::string id = fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
  WriteWhole(path.string(), id + "\n");
  return id;
}

void RemoveMemoryRunId(const Deck& deck) { RemoveFile(FileOfId(deck)); }

}  // namespace espalier
