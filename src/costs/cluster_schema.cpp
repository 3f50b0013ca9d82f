#include "cluster_schema.hpp"

#include <algorithm>

#include "cluster_ranges.hpp"
#include "cluster_values.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr std::string_view kDevices[] = {"cpu", "cuda"};       // by DeviceKind
constexpr std::string_view kAttention[] = {"fused", "plain"};  // by AttentionKernels

template <typename T, size_t kCount>
T Parse(const std::string_view (&names)[kCount], std::string_view name) {
  const auto found = std::ranges::find(names, name);
  CHECK(found != std::end(names), "'{}' is no choice of the key", name);
  return static_cast<T>(found - std::begin(names));
}

#define FIELD(member) \
  [](Cluster & cluster) -> auto& { return cluster.member; }

const ClusterChoice kDevice = {[](const Cluster& c) { return kDevices[static_cast<size_t>(c.device)]; },
                               [](Cluster& c, std::string_view name) { c.device = Parse<DeviceKind>(kDevices, name); }};
const ClusterChoice kAttentionKernels = {
    [](const Cluster& c) { return kAttention[static_cast<size_t>(c.attention)]; },
    [](Cluster& c, std::string_view name) { c.attention = Parse<AttentionKernels>(kAttention, name); }};

constexpr Presence kRequired = Presence::kRequired, kOptional = Presence::kOptional;

std::vector<ClusterKey> Machine() {
  // clang-format off
  return {
    {"cluster", "name", FIELD(name), kRequired, Any(),
     "Name for people."},
    {"cluster", "device", kDevice, kRequired, {.choices = {"cpu", "cuda"}},
     "What the programs are compiled for."},
    {"cluster", "ranks_per_node", FIELD(ranks_per_node), kRequired, Count(),
     "Ranks of one node; ranks fill nodes in order."},
    {"cluster", "ranks_per_domain", FIELD(ranks_per_domain), kOptional, CountOrNone(),
     "Ranks that the links of [node] join where these span several nodes (an NVLink domain); 0: those of a node."},
    {"cluster", "jitter", FIELD(jitter), kOptional, Deviation(),
     "Relative standard deviation of a kernel's time."},
    {"cluster", "spread", FIELD(spread), kOptional, Deviation(),
     "Relative standard deviation of the ranks' speed in a step: kernels take the time of the slowest of all ranks."},
  };
  // clang-format on
}

std::vector<ClusterKey> DeviceOfRank() {
  // clang-format off
  return {
    {"device", "name", FIELD(compute.name), kRequired, Any(), "Of the device of one rank."},
    {"device", "memory_bytes", FIELD(compute.memory_bytes), kRequired, MemoryBytes(),
     "Memory of one rank."},
    {"device", "reserved_bytes", FIELD(compute.reserved_bytes), kOptional, ReservedBytes(),
     "Of that: context and libraries."},
    {"device", "bf16_tflops", FIELD(compute.bf16_tflops), kRequired, Flops(),
     "Peak of matmuls in bf16, TFLOP/s."},
    {"device", "fp32_tflops", FIELD(compute.fp32_tflops), kRequired, Flops(),
     "Peak of matmuls in fp32, TFLOP/s."},
    {"device", "fp8_tflops", FIELD(compute.fp8_tflops), kOptional, FlopsOrNone(),
     "Peak of matmuls in fp8, TFLOP/s; 0: that of bf16, as on CPUs."},
    {"device", "memory_bytes_per_us", FIELD(compute.memory_bytes_per_us), kRequired, Rate(),
     "Peak memory bandwidth, bytes per us (= MB/s)."},
    {"device", "matmul_share", FIELD(compute.matmul_share), kOptional, Share(),
     "Of the peak: the most that a matmul of any size reaches."},
    {"device", "sustained_share", FIELD(compute.sustained_share), kOptional, Share(),
     "Share of the rates of matmuls and attention that the device sustains under lasting load."},
    {"device", "units", FIELD(compute.units), kOptional, Count(),
     "What computes tiles side by side: multiprocessors of a GPU."},
    {"device", "tiles", FIELD(compute.tiles), kOptional, Share(),
     "[rows, columns, share of the sustained rate] of output tiles; empty: any shape fills the device."},
    {"device", "matmul_depth", FIELD(compute.matmul_depth), kOptional, Depth(),
     "A tile that contracts k elements reaches k / (k + matmul_depth) of its rate."},
    {"device", "misaligned_share", FIELD(compute.misaligned_share), kOptional, Share(),
     "Of the rate if rows of an operand are no multiple of 16 bytes."},
    {"device", "attention_backward_share", FIELD(compute.attention_backward_share), kOptional, Ratio(),
     "Rate of attention's backward, relative to forward."},
    {"device", "ordered_backward_share", FIELD(compute.ordered_backward_share), kOptional, RatioOrNone(),
     "The same with run.deterministic; 0: attention_backward_share."},
    {"device", "attention_rows", FIELD(compute.attention_rows), kOptional, CountOrNone(),
     "Rows of queries that a unit computes; too few of them leave units idle; 0: none idle."},
    {"device", "memory_share", FIELD(compute.memory_share), kOptional, Share(),
     "[bytes, share] of the memory bandwidth that a kernel reaches, by the bytes that it reads and writes."},
    {"device", "kernel_us", FIELD(compute.kernel_us), kOptional, Overhead(),
     "From the end of one kernel to the full rate of the next, us."},
    {"device", "launch_us", FIELD(compute.launch_us), kOptional, Overhead(),
     "Of the host per kernel, us: a shorter kernel takes this long."},
    {"device", "host_bytes_per_us", FIELD(compute.host_bytes_per_us), kOptional, RateOrNone(),
     "Copies into the host's memory, of one rank while all of its node copy, bytes per us; 0: unknown."},
  };
  // clang-format on
}

/// The links within a node, or those between nodes.
template <LinkModel Cluster::*kLink>
std::vector<ClusterKey> Links(std::string_view section) {
#define LINK_FIELD(member) \
  [](Cluster & cluster) -> auto& { return (cluster.*kLink).member; }
  // clang-format off
  return {
    {section, "bytes_per_us", LINK_FIELD(bytes_per_us), kOptional, RateOrNone(),
     "Rate of one rank, one way, that collectives of many bytes sustain, bytes per us (= MB/s)."},
    {section, "pair_bytes_per_us", LINK_FIELD(pair_bytes_per_us), kOptional, RateOrNone(),
     "Rate of one rank in a message to one peer, bytes per us."},
    {section, "base_us", LINK_FIELD(base_us), kOptional, Overhead(),
     "Of a collective, once, us."},
    {section, "hop_us", LINK_FIELD(hop_us), kOptional, Overhead(),
     "Per step of a ring, us."},
    {section, "message_us", LINK_FIELD(message_us), kOptional, Overhead(),
     "Start of a message to one peer, us."},
    {section, "share", LINK_FIELD(share), kOptional, Share(),
     "[bytes, share] of the rate that is reached, by the bytes that a rank sends; empty: all of it."},
    {section, "all_reduce_bytes_per_us", LINK_FIELD(all_reduce_bytes_per_us), kOptional, RateOrNone(),
     "[ranks, rate] of an all_reduce where switches reduce; empty, or 0 there: as other collectives."},
    {section, "tree_share", LINK_FIELD(tree_share), kOptional, ShareOrNone(),
     "Share of the rate that a tree all_reduce reaches; 0: no trees."},
    {section, "nodes_share", LINK_FIELD(nodes_share), kOptional, Share(),
     "[nodes, share] of the rate that transfers between so many nodes reach; empty: all of it."},
    {section, "ranks_per_adapter", LINK_FIELD(ranks_per_adapter), kOptional, Count(),
     "Ranks that share what has these rates."},
  };
  // clang-format on
#undef LINK_FIELD
}

std::vector<ClusterKey> HostAndFailures() {
  // clang-format off
  return {
    {"host", "out_bytes_per_us", FIELD(host.out_bytes_per_us), kOptional, RateOrNone(),
     "Copies from a device to the host over one link, bytes per us (= MB/s); 0: device.host_bytes_per_us."},
    {"host", "in_bytes_per_us", FIELD(host.in_bytes_per_us), kOptional, RateOrNone(),
     "Copies from the host to a device; 0: host.out_bytes_per_us."},
    {"host", "ranks_per_link", FIELD(host.ranks_per_link), kOptional, Count(),
     "Ranks behind one switch, which share the rate of its link to the host."},
    {"host", "dram_bytes_per_us", FIELD(host.dram_bytes_per_us), kOptional, RateOrNone(),
     "Memory of the host, which the copies of all ranks of a node share, both ways, bytes per us; 0: no limit."},
    {"host", "copy_us", FIELD(host.copy_us), kOptional, Overhead(),
     "Start of a copy to or from the host, us."},
    {"host", "memory_bytes", FIELD(host.memory_bytes), kOptional, ReservedBytes(),
     "Memory of a node for what its ranks keep on the host, all together; 0: no limit."},

    {"storage", "node_bytes_per_us", FIELD(storage.node_bytes_per_us), kOptional, RateOrNone(),
     "Writes of one node to the storage of checkpoints, bytes per us (= MB/s); 0: unknown."},
    {"storage", "total_bytes_per_us", FIELD(storage.total_bytes_per_us), kOptional, RateOrNone(),
     "The same of all nodes together; 0: no limit besides."},

    {"failures", "node_mtbf_hours", FIELD(failures.node_mtbf_hours), kOptional, HoursOrNone(),
     "Mean time between failures of one node, hours; 0: unknown."},
    {"failures", "detect_s", FIELD(failures.detect_s), kOptional, Seconds(),
     "From the failure of a node to the end of the job, s."},
    {"failures", "launch_s", FIELD(failures.launch_s), kOptional, Seconds(),
     "From there until all ranks are ready to load their state, s."},
  };
  // clang-format on
}

std::vector<ClusterKey> Software() {
  // clang-format off
  return {
    {"software", "stack", FIELD(stack), kOptional, Any(),
     "Whose kernels are described."},
    {"software", "efficiency", FIELD(efficiency), kOptional, Ratio(),
     "Kernels take 1 / efficiency of their formula's time."},
    {"software", "attention", kAttentionKernels, kOptional, {.choices = {"fused", "plain"}},
     "Whether attention keeps scores on the chip, or passes the whole square through memory."},
    {"software", "attention_dropout", FIELD(attention_dropout), kOptional, Any(),
     "Plain attention drops probabilities out: one more kernel over the scores."},
    {"software", "recompute_unread", FIELD(recompute_unread), kOptional, Any(),
     "A layer recomputed as a whole runs its last kernels again, too, whose results nothing reads."},
    {"software", "merged_matmuls", FIELD(merged_matmuls), kOptional, Any(),
     "Projections of one input are one matmul: q, k and v; gate and up."},
    {"software", "gradient_bytes", FIELD(gradient_bytes), kOptional, GradientBytes(),
     "Bytes per element in which gradients are reduced; 0: as the program says."},
    {"software", "gather_bytes", FIELD(gather_bytes), kOptional, GradientBytes(),
     "Bytes per element in which weights of dp, and activations of tp, are gathered; 0: as the program says."},
    {"software", "split_messages", FIELD(split_messages), kOptional, Any(),
     "The ranks of a tp group send parts of a message that all of them hold."},
    {"software", "blocking_messages", FIELD(blocking_messages), kOptional, Any(),
     "A send to another stage delays the sender's next kernel by its own time."},
    {"software", "grouped_share", FIELD(grouped_share), kOptional, ShareOrNone(),
     "Share of the rate of dense matmuls of the same tiles that grouped ones reach; 0: as our kernels."},
    {"software", "exchange_tokens", FIELD(exchange_tokens), kOptional, Any(),
     "Ranks that share experts send a token only to the ranks of its experts, by an all-to-all."},
    {"software", "fused_scales", FIELD(fused_scales), kOptional, Any(),
     "Kernels find the largest element of what they make, so quantization to fp8 reads it once, not twice."},
    {"software", "loss_passes", FIELD(loss_passes), kOptional, Passes(),
     "Times that the loss passes over a rank's logits in fp32, forward and backward together; 0: as our kernels."},
    {"software", "memory_factor", FIELD(memory_factor), kOptional, Ratio(),
     "Kernels of forward and backward that only pass over memory move so many times the bytes of ours."},
    {"software", "gradient_passes", FIELD(gradient_passes), kOptional, Passes(),
     "Times per step that a stack passes over a rank's gradients in fp32 besides what our programs do."},
    {"software", "accumulation_passes", FIELD(accumulation_passes), kOptional, Passes(),
     "The same for each microbatch: kernels of their own add its gradients to sums."},

    {"interference", "node_slowdown", FIELD(node_slowdown), kOptional, Slowdown(),
     "Kernels run at 1 minus this rate while a transfer within the node is in progress."},
    {"interference", "network_slowdown", FIELD(network_slowdown), kOptional, Slowdown(),
     "The same for a transfer between nodes."},
  };
  // clang-format on
}

#undef FIELD

}  // namespace

const std::vector<ClusterKey>& ClusterSchema() {
  static const std::vector<ClusterKey> rows = [] {
    std::vector<ClusterKey> all;
    for (std::vector<ClusterKey> part : {Machine(), DeviceOfRank(), Links<&Cluster::node>("node"),
                                         Links<&Cluster::network>("network"), HostAndFailures(), Software()})
      std::ranges::move(part, std::back_inserter(all));
    return all;
  }();
  return rows;
}

SettingsFormat ClusterFormat() {
  SettingsFormat format{kClusterFile.what, {}, {"attention", "kernel", "collective"}, kClusterFile.most_bytes};
  for (const ClusterKey& key : ClusterSchema())
    if (format.sections.empty() || format.sections.back() != key.section) format.sections.push_back(key.section);
  return format;
}

std::string SetKey(Cluster& cluster, const ClusterKey& key, const RawSetting& setting) {
  const auto set = [&](auto field) -> std::string {
    if constexpr (std::is_same_v<decltype(field), ClusterChoice>) {
      std::string name;
      std::string fault = Read(setting, key.allowed, name);
      if (fault.empty()) field.set(cluster, name);
      return fault;
    } else {
      return Read(setting, key.allowed, field(cluster));
    }
  };
  return std::visit(set, key.field);
}

std::string KeyText(const Cluster& cluster, const ClusterKey& key) {
  const auto text = [&](auto field) {
    if constexpr (std::is_same_v<decltype(field), ClusterChoice>)
      return Write(std::string(field.get(cluster)));
    else
      return Write(field(const_cast<Cluster&>(cluster)));  // the accessor only names a member; nothing is written
  };
  return std::visit(text, key.field);
}

}  // namespace espalier
