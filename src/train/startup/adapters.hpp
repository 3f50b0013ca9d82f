// The network adapters near the GPUs of a node, by the tree of PCI devices in /sys, and what NCCL_IB_HCA or
// UCX_NET_DEVICES make of them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace espalier {

/// The way between two PCI devices, from near to far.
enum class PciWay : uint8_t {
  kSwitch,  ///< through a PCIe switch
  kNode,    ///< through the processor of one NUMA node
  kSockets  ///< between NUMA nodes
};

/// The adapters that are equally near to a GPU, and nearer than all others; none without any.
struct NearAdapters {
  std::vector<std::string> names;  ///< "mlx5_0", sorted
  PciWay way = PciWay::kSockets;

  auto Fields() { return std::tie(names, way); }
};

/// How a rank reaches the network.
struct RankOnNetwork {
  std::string host, bus_id;    ///< "0000:1b:00.0"
  NearAdapters nearest, used;  ///< of all adapters, and of those that the user's list allows
  std::string list;            ///< "NCCL_IB_HCA=mlx5_0"; empty: not set

  auto Fields() { return std::tie(host, bus_id, nearest, used, list); }
};

/// Whether a list allows an adapter, in the syntax of NCCL_IB_HCA ("mlx5" allows all names that begin so, "=mlx5_1"
/// this one, "^" in front all others; ports after a colon) or, `exact`, of UCX_NET_DEVICES (whole names, or "all").
bool AllowsAdapter(std::string_view list, std::string_view adapter, bool exact);

/// How a GPU reaches the network of this node. `variable` is NCCL_IB_HCA or UCX_NET_DEVICES, `list` its value, null if
/// it is not set. `root` is "/sys" but in tests.
RankOnNetwork FindAdapters(const std::string& bus_id, const char* variable, const char* list, const std::string& root);

/// A line for each distinct kind of node: "node7 and 3 more: 0000:1b:00.0 near mlx5_0 (PCIe switch), ...". Ranks of
/// hosts without adapters are left out.
std::vector<std::string> DescribeAdapters(const std::vector<RankOnNetwork>& ranks);

/// A line for each fault of a list, with the first rank that has it: it leaves out the nearest adapter of a GPU for one
/// that is farther, allows none, or makes more ranks share one than must.
std::vector<std::string> WrongAdapters(const std::vector<RankOnNetwork>& ranks);

}  // namespace espalier
