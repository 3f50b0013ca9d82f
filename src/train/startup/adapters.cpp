#include "train/startup/adapters.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>

#include "espalier/util/host_name.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/split.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// A PCI device: its folders from the root complex downwards, "pci0000:15", "0000:15:01.0", ..., and its NUMA node.
struct PciDevice {
  std::vector<std::string> path;
  std::string numa_node;
};

/// Nothing if the folder is no PCI device, such as a virtual adapter's.
std::optional<PciDevice> PciDeviceAt(const fs::path& folder) {
  std::error_code none;
  const fs::path real = fs::canonical(folder, none);
  if (none) return std::nullopt;
  PciDevice device;
  for (const fs::path& part : real)
    if (!device.path.empty() || part.string().starts_with("pci")) device.path.push_back(part.string());
  if (device.path.size() < 2) return std::nullopt;
  device.numa_node = ReadSystemFile((real / "numa_node").string());
  return device;
}

size_t CommonFolders(const PciDevice& a, const PciDevice& b) {
  const auto [end, ignored] = std::ranges::mismatch(a.path, b.path);
  return static_cast<size_t>(end - a.path.begin());
}

/// Devices with a bridge in common are behind one switch; the first folder is the root complex.
PciWay WayBetween(const PciDevice& a, const PciDevice& b) {
  const size_t common = CommonFolders(a, b);
  if (common >= 2) return PciWay::kSwitch;
  return common == 1 || a.numa_node == b.numa_node ? PciWay::kNode : PciWay::kSockets;
}

NearAdapters Nearest(const PciDevice& gpu, const std::map<std::string, PciDevice>& adapters) {
  NearAdapters nearest;
  size_t most_common = 0;
  for (const auto& [name, adapter] : adapters) {
    const PciWay way = WayBetween(gpu, adapter);
    const size_t common = way == PciWay::kSwitch ? CommonFolders(gpu, adapter) : 0;
    const auto nearer = std::pair(way, most_common) <=> std::pair(nearest.way, common);
    if (nearest.names.empty() || nearer < 0) {
      nearest = {{}, way};
      most_common = common;
    } else if (nearer > 0) {
      continue;
    }
    nearest.names.push_back(name);
  }
  return nearest;
}

std::string_view Name(PciWay way) {
  switch (way) {
    case PciWay::kSwitch:
      return "PCIe switch";
    case PciWay::kNode:
      return "same NUMA node";
    case PciWay::kSockets:
      break;
  }
  return "another NUMA node";
}

std::string TextOf(const NearAdapters& adapters) {
  return fmt::format("{} ({})", fmt::join(adapters.names, ", "), Name(adapters.way));
}

/// The largest number of ranks of one host that share their adapters, and the first of them.
struct Sharers {
  size_t ranks = 0, first = 0;
};
Sharers MostSharers(const std::vector<RankOnNetwork>& ranks, NearAdapters RankOnNetwork::*of_rank) {
  std::map<std::pair<std::string, std::vector<std::string>>, Sharers> sharing;
  Sharers most;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const NearAdapters& adapters = ranks[r].*of_rank;
    if (adapters.names.empty()) continue;
    Sharers& of_these = sharing.try_emplace({ranks[r].host, adapters.names}, Sharers{0, r}).first->second;
    if (++of_these.ranks > most.ranks) most = of_these;
  }
  return most;
}

}  // namespace

bool AllowsAdapter(std::string_view list, std::string_view adapter, bool exact) {
  bool others = false;
  if (exact && list == "all") return true;
  for (bool more = true; more && !list.empty();) {
    more = list.front() == '^' || list.front() == '=';
    others |= list.front() == '^';
    exact |= list.front() == '=';
    if (more) list.remove_prefix(1);
  }
  for (const std::string_view entry : SplitAt(list, ',')) {
    const std::string_view name = entry.substr(0, entry.find(':'));
    if (name.empty()) continue;
    if (exact ? name == adapter : adapter.starts_with(name)) return !others;
  }
  return others;
}

RankOnNetwork FindAdapters(const std::string& bus_id, const char* variable, const char* list, const std::string& root) {
  RankOnNetwork rank{HostName(), bus_id, {}, {}, list == nullptr ? "" : fmt::format("{}={}", variable, list)};
  std::string folder = bus_id;
  std::ranges::transform(folder, folder.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::optional<PciDevice> gpu = PciDeviceAt(fs::path(root) / "bus/pci/devices" / folder);
  if (!gpu) return rank;
  std::map<std::string, PciDevice> all, allowed;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(fs::path(root) / "class/infiniband", none)) {
    const std::string name = entry.path().filename().string();
    const std::optional<PciDevice> adapter = PciDeviceAt(entry.path() / "device");
    if (!adapter) continue;
    all[name] = *adapter;
    if (list == nullptr || AllowsAdapter(list, name, std::string_view(variable) == "UCX_NET_DEVICES"))
      allowed[name] = *adapter;
  }
  rank.nearest = Nearest(*gpu, all);
  rank.used = Nearest(*gpu, allowed);
  return rank;
}

std::vector<std::string> DescribeAdapters(const std::vector<RankOnNetwork>& ranks) {
  std::map<std::string, std::string> by_host;
  for (const RankOnNetwork& rank : ranks)
    if (!rank.nearest.names.empty()) {
      std::string& text = by_host[rank.host];
      text += fmt::format("{}{} near {}", text.empty() ? "" : ", ", rank.bus_id, TextOf(rank.nearest));
    }
  std::map<std::string, std::vector<std::string>> hosts;
  for (const auto& [host, text] : by_host) hosts[text].push_back(host);
  std::vector<std::string> lines;
  for (const auto& [text, alike] : hosts)
    lines.push_back(fmt::format("{}{}: {}", alike.front(),
                                alike.size() > 1 ? fmt::format(" and {} more", alike.size() - 1) : "", text));
  return lines;
}

std::vector<std::string> WrongAdapters(const std::vector<RankOnNetwork>& ranks) {
  std::vector<std::string> lines;
  const auto report = [&](const auto& has_it, const auto& text) {
    const auto first = std::ranges::find_if(ranks, has_it);
    if (first == ranks.end()) return;
    const auto count = std::ranges::count_if(ranks, has_it);
    lines.push_back(fmt::format("{} of {} ranks: rank {} on {}: {} {}", count, ranks.size(), first - ranks.begin(),
                                first->host, first->list, text(*first)));
  };
  report([](const RankOnNetwork& r) { return !r.nearest.names.empty() && r.used.names.empty(); },
         [](const RankOnNetwork& r) {
           return fmt::format("allows no adapter of this node; the nearest to GPU {} is {}", r.bus_id,
                              TextOf(r.nearest));
         });
  report(
      [](const RankOnNetwork& r) {
        return !r.used.names.empty() && std::ranges::none_of(r.used.names, [&](const std::string& name) {
          return std::ranges::count(r.nearest.names, name) > 0;
        });
      },
      [](const RankOnNetwork& r) {
        return fmt::format("leaves GPU {} with {}; the nearest is {}", r.bus_id, TextOf(r.used), TextOf(r.nearest));
      });
  const Sharers without = MostSharers(ranks, &RankOnNetwork::nearest), with = MostSharers(ranks, &RankOnNetwork::used);
  if (with.ranks > without.ranks) {
    const RankOnNetwork& first = ranks[with.first];
    lines.push_back(fmt::format("{} on {}: {} ranks share {}; without it at most {} share one", first.list, first.host,
                                with.ranks, fmt::join(first.used.names, ", "), without.ranks));
  }
  return lines;
}

}  // namespace espalier
