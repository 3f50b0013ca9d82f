#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/checksum.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/comm/agreement.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// The generations that one rank sees on its node.
struct Sight {
  std::vector<MemoryGeneration> generations;  ///< holders: this rank, for the files that it checked and found intact
  std::vector<std::string> damage;

  auto Fields() { return std::tie(generations, damage); }
};

std::vector<std::string> GenerationPaths(const std::string& dir) {
  std::vector<std::string> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir))
    if (StepOf(entry.path().filename().string())) paths.push_back(entry.path().string());
  std::ranges::sort(paths, std::greater());
  return paths;
}

/// Why a file is not as listed; empty if it is. A missing file is no damage.
std::string DamageOf(const Directory& directory, const ManifestFile& listed) {
  const File file = directory.Open(listed.name);
  if (file.Bytes() != listed.bytes)
    return fmt::format("{}: {} bytes, the MANIFEST says {}", file.path(), file.Bytes(), listed.bytes);
  if (ChecksumFile(file, {}).whole != listed.crc) return fmt::format("{}: its checksum differs", file.path());
  return "";
}

/// The members of a node take turns with the files.
MemoryGeneration Look(const MemoryNodes& nodes, const std::string& path, int rank, std::vector<std::string>& damage) {
  const Manifest manifest = ReadManifest(path);
  const Lineage lineage = manifest.metadata.lineage.value_or(Lineage{});
  MemoryGeneration seen{manifest.metadata.step, manifest.id, lineage.parent, lineage.branch, {}, {}};
  const Directory directory(path);
  for (size_t f = 0; f < manifest.files.size(); ++f) {
    const ManifestFile& listed = manifest.files[f];
    seen.files.push_back(listed.name);
    seen.holders.emplace_back();
    if (nodes.Members()[f % nodes.Members().size()] != rank || !directory.HasFile(listed.name)) continue;
    const std::string why = DamageOf(directory, listed);
    if (why.empty())
      seen.holders.back().push_back(rank);
    else
      damage.push_back(why);
  }
  return seen;
}

Sight LookAround(const MemoryNodes& nodes, int rank) {
  Sight sight;
  for (const std::string& path : GenerationPaths(nodes.dir())) try {
      sight.generations.push_back(Look(nodes, path, rank, sight.damage));
    } catch (const UserError& error) {
      if (nodes.Leads()) sight.damage.push_back(error.what());
    }
  return sight;
}

std::string Missing(const MemoryGeneration& generation) {
  std::vector<std::string> names;
  for (size_t f = 0; f < generation.files.size(); ++f)
    if (generation.holders[f].empty()) names.push_back(generation.files[f]);
  return names.empty() ? "" : fmt::format("step {} in memory lacks {}", generation.step, fmt::join(names, ", "));
}

struct Findings {
  std::vector<MemoryGeneration> newest;  ///< at most one
  std::vector<std::string> incomplete;

  auto Fields() { return std::tie(newest, incomplete); }
};

Findings Merge(std::vector<Sight> of_ranks) {
  std::map<std::string, MemoryGeneration> by_id;
  Findings findings;
  for (Sight& sight : of_ranks) {
    for (std::string& text : sight.damage) findings.incomplete.push_back(std::move(text));
    for (MemoryGeneration& seen : sight.generations) {
      const auto [place, fresh] = by_id.try_emplace(seen.id, seen);
      if (fresh) continue;
      for (size_t f = 0; f < seen.files.size(); ++f)
        for (const int rank : seen.holders[f]) place->second.holders.at(f).push_back(rank);
    }
  }
  std::vector<MemoryGeneration> generations;
  for (auto& [id, generation] : by_id) generations.push_back(std::move(generation));
  std::ranges::sort(generations, std::greater(), &MemoryGeneration::step);
  for (MemoryGeneration& generation : generations) {
    const std::string missing = Missing(generation);
    if (missing.empty()) {
      findings.newest.push_back(std::move(generation));
      break;
    }
    findings.incomplete.push_back(missing);
  }
  return findings;
}

}  // namespace

FoundInMemory FindInMemory(const MemoryNodes& nodes, World& world) {
  Sight sight;
  OnAllRanks(world, [&] { sight = LookAround(nodes, world.Rank()); });
  std::vector<Sight> of_ranks = Gathered(world, sight);
  Findings findings = OnRankZero(world, [&] { return Merge(std::move(of_ranks)); });
  FoundInMemory found{std::nullopt, std::move(findings.incomplete)};
  if (!findings.newest.empty()) found.newest = std::move(findings.newest.front());
  return found;
}

}  // namespace espalier
