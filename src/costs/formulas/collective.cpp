// Transfers. A collective over n ranks on N nodes, g of them on each, follows a ring that visits one node after the
// other (NCCL): each rank sends W bytes over the node's links, or over the network when it is the last of its node, so
// the g network ports of a node share what leaves it. NCCL has several rings that begin at different ranks.
//
//   us = base_us + hops + W / (min(g network rate, node rate) share(W))
//   hops of an all_gather, reduce_scatter:  (n - N) node hops + (N - 1) network hops;  an all_reduce: twice as many
//
// An all_reduce may also follow a tree over the nodes: 2 (g - 1) node hops + 2 log2(N) network hops, at tree_share of
// the rate. An all_to_all sends to each rank directly, so that what leaves a node uses the rank's own port.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "espalier/util/error.hpp"
#include "formulas.hpp"

namespace espalier {
namespace {

double ShareOf(const LinkModel& link, double bytes) { return link.share.empty() ? 1 : At(link.share, bytes); }

/// The rate of one rank while all that share its adapter send, in a group of so many nodes.
double RateAmong(const LinkModel& link, double rate, int nodes) {
  return rate / link.ranks_per_adapter * (link.nodes_share.empty() ? 1 : At(link.nodes_share, nodes));
}

/// bytes / rate, where the rate is a key of the cluster file that its links may leave out.
double BytesUs(const Cluster& c, double bytes, double bytes_per_us, const char* key) {
  if (bytes <= 0) return 0;
  if (bytes_per_us <= 0)
    throw UserError(ExitStatus::kDeck, fmt::format("{}: {}: missing: the ranks send over this link (set its rate in "
                                                   "bytes per us = MB/s)",
                                                   c.path, key));
  return bytes / bytes_per_us;
}

constexpr char kNodeRate[] = "node.bytes_per_us", kNetworkRate[] = "network.bytes_per_us";

double NodeRate(const Cluster& c, OpKind kind, int ranks) {
  if (kind == OpKind::kAllReduce && !c.node.all_reduce_bytes_per_us.empty())
    if (const double rate = At(c.node.all_reduce_bytes_per_us, ranks); rate > 0) return rate;
  return c.node.bytes_per_us;
}

double OnNodeUs(const Cluster& c, OpKind kind, double bytes, int ranks) {
  const double hops = (ranks - 1) * (kind == OpKind::kAllReduce ? 2 : 1);
  const double rate = RateAmong(c.node, NodeRate(c, kind, ranks), 1) * ShareOf(c.node, bytes);
  return c.node.base_us + hops * c.node.hop_us + BytesUs(c, bytes, rate, kNodeRate);
}

/// Rate of a ring over nodes, per rank: all ports of the group's ranks on a node carry it.
double RingRate(const Cluster& c, const GroupPlace& p, double bytes) {
  const double port = RateAmong(c.network, c.network.bytes_per_us, p.nodes) * ShareOf(c.network, bytes);
  const double ports = p.ranks_per_node * port;
  return p.ranks_per_node > 1 ? std::min(ports, RateAmong(c.node, c.node.bytes_per_us, 1) * ShareOf(c.node, bytes))
                              : ports;
}

double AcrossNodesUs(const Cluster& c, OpKind kind, double bytes, const GroupPlace& p) {
  const int phases = kind == OpKind::kAllReduce ? 2 : 1;
  const char* missing = c.network.bytes_per_us > 0 ? kNodeRate : kNetworkRate;
  const double bytes_us = BytesUs(c, bytes, RingRate(c, p, bytes), missing);
  const double ring_hops_us = (p.ranks - p.nodes) * c.node.hop_us + (p.nodes - 1) * c.network.hop_us;
  const double ring_us = phases * ring_hops_us + bytes_us;
  if (kind != OpKind::kAllReduce || c.network.tree_share <= 0) return c.network.base_us + ring_us;
  const double tree_hops_us = (p.ranks_per_node - 1) * c.node.hop_us + std::ceil(std::log2(p.nodes)) * c.network.hop_us;
  return c.network.base_us + std::min(ring_us, phases * tree_hops_us + bytes_us / c.network.tree_share);
}

double AllToAllUs(const Cluster& c, double bytes, const GroupPlace& p) {
  const double leaving = bytes * (p.ranks - p.ranks_per_node) / (p.ranks - 1);
  const double network = RateAmong(c.network, c.network.bytes_per_us, p.nodes) * ShareOf(c.network, bytes);
  const double node = RateAmong(c.node, c.node.bytes_per_us, 1) * ShareOf(c.node, bytes);
  const double network_us = BytesUs(c, leaving, network, kNetworkRate);
  const double node_us = p.ranks_per_node > 1 ? BytesUs(c, bytes - leaving, node, kNodeRate) : 0;
  const double hops_us = (p.ranks_per_node - 1) * c.node.hop_us + (p.ranks - p.ranks_per_node) * c.network.hop_us;
  return c.network.base_us + hops_us + std::max(network_us, node_us);
}

}  // namespace

double CollectiveUs(const Cluster& c, OpKind kind, double wire_bytes, const GroupPlace& place) {
  if (place.ranks <= 1) return 0;
  // Every member sends to the next at the same time; the slowest link is the one between nodes.
  if (kind == OpKind::kRingShift) return MessageUs(c, wire_bytes, place.nodes == 1);
  if (place.nodes == 1) return OnNodeUs(c, kind, wire_bytes, place.ranks);
  if (kind == OpKind::kAllToAll) return AllToAllUs(c, wire_bytes, place);
  return AcrossNodesUs(c, kind, wire_bytes, place);
}

double MessageUs(const Cluster& c, double bytes, bool same_node) {
  const LinkModel& link = same_node ? c.node : c.network;
  const double rate = RateAmong(link, link.pair_bytes_per_us, same_node ? 1 : 2);
  return link.message_us + BytesUs(c, bytes, rate, same_node ? "node.pair_bytes_per_us" : "network.pair_bytes_per_us");
}

}  // namespace espalier
