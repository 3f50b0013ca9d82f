#include "train/startup/same_start.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <thread>

#include "espalier/comm/agreement.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/kernels/kernel_table.hpp"
#include "espalier/ops/op_times.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Variables that change numbers or the order of messages. Launchers may not pass them on to other hosts.
constexpr const char* kVariables[] = {"ESPALIER_CUDA_GRAPH", "ESPALIER_NCCL_NATIVE", "ESPALIER_NCCL_SELF"};

/// An item that ranks compare, from a line "name\tvalue".
struct Item {
  std::string name, value;
  bool operator==(const Item&) const = default;
};

std::string PrintItems(const std::vector<Item>& items) {
  std::string text;
  for (const Item& item : items) text += fmt::format("{}\t{}\n", item.name, item.value);
  return text;
}

std::vector<Item> Parse(const std::string& text) {
  std::vector<Item> items;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    const size_t tab = line.find('\t');
    items.push_back({line.substr(0, tab), line.substr(tab + 1)});
  }
  return items;
}

std::string Me(const World& world) { return fmt::format("rank {} on {}", world.Rank(), HostName()); }

std::vector<Item> StartOf(const RunOptions& options, const LoadedDeck& loaded) {
  std::vector<Item> items = {{"build", fmt::format("{} ({}) by {}, {}", kVersion, kGitHash, kCompiler, kBuildType)},
                             {"--restart", options.restart.empty() ? "(not given)" : options.restart}};
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);
    items.push_back({name, value == nullptr ? "(not set)" : TomlString(value)});
  }
  for (const DeckKey& key : DeckSchema()) items.push_back({key.FullName(), ToToml(Get(loaded.deck, key))});
  return items;
}

/// One message per item that differs from rank 0's. Another build may know other keys, so then only the builds are
/// named.
std::vector<std::string> Differences(const World& world, const std::vector<Item>& mine, const std::vector<Item>& first,
                                     const LoadedDeck& loaded) {
  std::vector<std::string> messages;
  for (size_t i = 0; i < std::min(mine.size(), first.size()); ++i) {
    if (mine[i] == first[i]) continue;
    const auto origin = loaded.origins.find(mine[i].name);
    const std::string place = origin == loaded.origins.end() ? "" : fmt::format(" ({})", origin->second);
    messages.push_back(fmt::format("{}: {} = {}{}, but rank 0 has {}: every rank must be started alike", Me(world),
                                   mine[i].name, mine[i].value, place, first[i].value));
    if (mine[i].name == "build") break;
  }
  return messages;
}

std::vector<Item> FilesOf(const TokenSource& source) {
  std::vector<Item> items;
  for (const DataFile& file : source.files())
    items.push_back({TomlString(file.path), fmt::format("{} bytes {:016x}", file.bytes, file.sample)});
  return items;
}

std::string BytesText(const Item& file) { return file.value.substr(0, file.value.rfind(' ')); }

bool Lacks(const std::vector<Item>& items, const std::string& name) {
  return std::ranges::find(items, name, &Item::name) == items.end();
}

/// The first file that differs from rank 0's, in words.
std::string FileDifference(const World& world, const std::vector<Item>& mine, const std::vector<Item>& first) {
  const auto [here, there] = std::ranges::mismatch(mine, first);
  if (here != mine.end() && Lacks(first, here->name))
    return fmt::format("{} sees {}, which rank 0 does not see", Me(world), here->name);
  if (there != first.end() && Lacks(mine, there->name))
    return fmt::format("{} does not see {}, which rank 0 sees", Me(world), there->name);
  if (here == mine.end() || there == first.end() || here->name != there->name)
    return fmt::format("{} sees the same files in another order", Me(world));
  const std::string bytes = BytesText(*here), bytes_there = BytesText(*there);
  if (bytes != bytes_there)
    return fmt::format("{}: {} has {}, {} on rank 0", Me(world), here->name, bytes, bytes_there);
  return fmt::format("{}: {} has other contents than on rank 0, in the same {}", Me(world), here->name, bytes);
}

/// File systems over a network may show a new folder some seconds later.
bool Appears(const std::string& folder) {
  constexpr int kPatience = 50;
  for (int i = 0; i < kPatience; ++i) {
    std::error_code error;
    if (fs::is_directory(folder, error)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

/// `read` reads the file of a key and returns its path and checksum. Rank 0 reads first, so that all ranks need not
/// report what is wrong with a file.
void AgreeOnFile(World& world, const char* key, const std::function<std::string()>& read) {
  std::string mine;
  OnAllRanks(world, [&] {
    if (world.Rank() == 0) mine = read();
  });
  const std::string first = world.Broadcast(mine);
  const auto compare = [&] {
    try {
      if (world.Rank() > 0) mine = read();
    } catch (const UserError& error) {
      mine = error.what();
    }
    if (mine != first)
      throw UserError(ExitStatus::kDeck, fmt::format("{}: {} has {}, but rank 0 has {}: every rank must read the same "
                                                     "file, since it puts messages in order",
                                                     key, Me(world), mine, first));
  };
  OnAllRanks(world, compare, AnyFailureIs(ExitStatus::kDeck));
}

}  // namespace

void AgreeOnDeck(World& world, const RunOptions& options, const LoadedDeck& loaded) {
  const std::vector<Item> mine = StartOf(options, loaded);
  const std::string text = PrintItems(mine), first = world.Broadcast(text);
  OnAllRanks(world, [&] {
    if (text != first) throw UserError(ExitStatus::kDeck, Differences(world, mine, Parse(first), loaded));
  });
}

void AgreeOnOrder(World& world, Deck& deck) {
  if (!deck.run.costs.empty())
    AgreeOnFile(world, "run.costs", [&] {
      ReadCosts(deck);
      return deck.times->Origin();
    });
  if (deck.pipeline.schedule == ScheduleKind::kFile)
    AgreeOnFile(world, "pipeline.file", [&] {
      ReadSchedule(deck);
      return OriginOfSchedule(deck);
    });
}

void AgreeOnLevel(World& world) {
  const std::string mine(CpuLevel()), first = world.Broadcast(mine);
  OnAllRanks(world, [&] {
    if (mine != first)
      throw UserError(ExitStatus::kDeck,
                      fmt::format("{}: kernels use the instruction level {}, those of rank 0 {}: results would differ; "
                                  "set ESPALIER_ISA to the lower of both for all ranks",
                                  Me(world), mine, first));
  });
}

// The list of files may be long, so its checksum goes first.
void AgreeOnData(World& world, const std::string& key, const TokenSource& source) {
  const std::vector<Item> mine = FilesOf(source);
  const std::string text = PrintItems(mine);
  const std::string mark = fmt::format("{} {} {:08x}", source.tokens(), text.size(), Crc32c(text.data(), text.size()));
  const bool same = world.Broadcast(mark) == mark;
  if (world.Max(same ? 0 : 1) == 0) return;
  const std::string first = world.Broadcast(text);
  OnAllRanks(world, [&] {
    if (text != first)
      throw UserError(ExitStatus::kData,
                      fmt::format("{}: {}: every rank must read the same files (a stale copy on a node, or files "
                                  "that are still written?)",
                                  key, FileDifference(world, mine, Parse(first))));
  });
}

void MakeSharedFolder(World& world, const std::string& folder) {
  OnRankZero(world, [&] { return fs::create_directories(folder); });
  OnAllRanks(world, [&] {
    if (!Appears(folder))
      throw UserError(ExitStatus::kDeck,
                      fmt::format("{} does not see {}, which rank 0 sees: run.dir must be on a file system "
                                  "that all ranks share",
                                  Me(world), folder));
  });
}

}  // namespace espalier
