// Every node gets the files that its ranks read. Rank 0 decides which rank sends which file to which; then all files
// move at once, from memory to memory.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "checkpoint/directory/checkpoint_directory.hpp"
#include "checkpoint/format/shard.hpp"
#include "checkpoint/transfer/load.hpp"
#include "espalier/checkpoint/memory_copies.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kBringStages = {"memory-bring"};

namespace fs = std::filesystem;

/// A file goes from one rank to another.
struct Haul {
  int from = 0, to = 0, file = 0;

  auto Fields() { return std::tie(from, to, file); }
};

/// MANIFEST and deck.
struct Texts {
  std::string manifest, deck;

  auto Fields() { return std::tie(manifest, deck); }
};

class Bringing {
 public:
  Bringing(const MemoryNodes& nodes, const MemoryGeneration& generation, World& world)
      : nodes_(nodes), generation_(generation), world_(world), dir_(nodes.dir() + "/" + StepName(generation.step)) {}

  std::string Run(const std::vector<LocalTensor>& local, const Mesh& mesh) {
    const FailureRules rules = AnyFailureIs(ExitStatus::kFault);
    const Texts texts = ShareTexts();
    const Manifest manifest = ParseManifest(texts.manifest, dir_ + "/" + kManifestName);
    const std::vector<Haul> hauls = Plan(FilesToRead(manifest, local, mesh, world_));
    OnAllRanks(
        world_, [&] { MakeDirectory(texts); }, rules);
    std::vector<Mapping> files;
    std::vector<Parcel> sends, receives;
    OnAllRanks(
        world_,
        [&] {
          FaultPoint("memory-bring", dir_);
          for (const Haul& haul : hauls) {
            if (haul.from == world_.Rank())
              sends.push_back({haul.to, OpenToSend(manifest, haul, files), files.back().bytes()});
            if (haul.to == world_.Rank())
              receives.push_back({haul.from, MakeRoom(manifest, haul, files), files.back().bytes()});
          }
        },
        rules);
    world_.Exchange(sends, receives);
    world_.Barrier();  // the files are complete on every node
    return dir_;
  }

 private:
  bool IsHere(int file) const {
    return std::ranges::any_of(generation_.holders[static_cast<size_t>(file)],
                               [&](int rank) { return nodes_.NodeOf(rank) == nodes_.NodeOf(world_.Rank()); });
  }

  /// From the first rank that sees both intact.
  Texts ShareTexts() {
    const auto deck = static_cast<size_t>(std::ranges::find(generation_.files, kDeckName) - generation_.files.begin());
    const int giver = generation_.holders.at(deck).front();
    Texts texts;
    OnAllRanks(world_, [&] {
      if (world_.Rank() == giver) texts = {Print(ReadManifest(dir_)), ReadMetadata(dir_).deck};
    });
    const std::vector<Texts> all = Gathered(world_, texts);
    return OnRankZero(world_, [&] { return all[static_cast<size_t>(giver)]; });
  }

  /// A file goes to a node once, to the first of its ranks that reads it. Nodes take turns with the holders.
  std::vector<Haul> Plan(const std::set<int>& reads) {
    std::vector<int> lacking;
    for (const int file : reads)
      if (!IsHere(file)) lacking.push_back(file);
    const std::vector<std::vector<int>> all = Gathered(world_, lacking);
    return OnRankZero(world_, [&] {
      std::vector<Haul> hauls;
      std::set<std::pair<int, int>> done;  // node and file
      for (size_t rank = 0; rank < all.size(); ++rank)
        for (const int file : all[rank]) {
          const int node = nodes_.NodeOf(static_cast<int>(rank));
          const std::vector<int>& holders = generation_.holders[static_cast<size_t>(file)];
          if (done.insert({node, file}).second)
            hauls.push_back({holders[static_cast<size_t>(node) % holders.size()], static_cast<int>(rank), file});
        }
      return hauls;
    });
  }

  void MakeDirectory(const Texts& texts) const {
    if (!nodes_.Leads()) return;
    fs::create_directory(dir_);
    const Directory directory(dir_);
    for (const auto& [name, text] : {std::pair(kDeckName, &texts.deck), std::pair(kManifestName, &texts.manifest)}) {
      fs::remove(fs::path(dir_) / name);
      directory.WriteText(name, *text);
    }
  }

  std::byte* OpenToSend(const Manifest& manifest, const Haul& haul, std::vector<Mapping>& files) const {
    const ManifestFile& listed = manifest.files[static_cast<size_t>(haul.file)];
    return files.emplace_back(Directory(dir_).Open(listed.name).Map(Access::kRead)).data();
  }

  std::byte* MakeRoom(const Manifest& manifest, const Haul& haul, std::vector<Mapping>& files) const {
    const ManifestFile& listed = manifest.files[static_cast<size_t>(haul.file)];
    fs::remove(fs::path(dir_) / listed.name);  // a damaged copy
    const File file = Directory(dir_).Create(listed.name);
    file.Reserve(listed.bytes);
    return files.emplace_back(file.Map(Access::kWrite)).data();
  }

  const MemoryNodes& nodes_;
  const MemoryGeneration& generation_;
  World& world_;
  const std::string dir_;
};

}  // namespace

std::string BringGeneration(const MemoryNodes& nodes, const MemoryGeneration& generation,
                            const std::vector<LocalTensor>& local, const Mesh& mesh, World& world) {
  return Bringing(nodes, generation, world).Run(local, mesh);
}

void SettleGeneration(const MemoryNodes& nodes, const MemoryGeneration& generation, World& world) {
  if (nodes.Leads()) {
    const std::string dir = nodes.dir() + "/" + StepName(generation.step);
    for (const std::string& name : generation.files) {
      std::error_code error;
      const std::optional<int> writer = ShardRank(name);
      if (writer && !nodes.Keeps(*writer)) fs::remove(fs::path(dir) / name, error);
    }
  }
  nodes.RemoveAllBut(generation.step, world);
}

}  // namespace espalier
