// A cluster file: the devices of a cluster, the links between them, and the times that were measured on it. One TOML
// file per device or cluster (inputs/clusters, doc/clusters.md). The formulas use only what is written here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/costs/cost_table.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A piecewise linear function of one variable (points with x ascending). Constant before the first point and after the
/// last.
using Curve = std::vector<std::pair<double, double>>;
double At(const Curve& curve, double x);

/// How the kernels of attention work. Fused ones (Dao 2022) keep scores on the chip and skip the masked half. Plain
/// ones compute the whole square and pass it through memory, as Megatron-LM did before 2022.
enum class AttentionKernels : uint8_t { kFused, kPlain };

/// One kind of link, as one rank sees it. A collective of n ranks in which each sends W bytes takes
///   base_us + (n - 1) hop_us + W / (bytes_per_us share(W)),
/// and an all_reduce has twice the hops. src/costs/formulas/collective.cpp has groups over several nodes.
struct LinkModel {
  double bytes_per_us = 0;       ///< rate of one rank, one way, sustained by collectives of many bytes
  double pair_bytes_per_us = 0;  ///< rate of one rank in a message to one peer
  double base_us = 0;            ///< fixed time of a collective
  double hop_us = 0;             ///< per step of a ring
  double message_us = 0;         ///< start of a message to one peer
  /// Share of the rate that is reached, by the bytes that a rank sends. Empty: all of it.
  Curve share;
  /// Rate of an all_reduce by the number of ranks, where switches reduce. Empty, or 0 there: as other collectives.
  Curve all_reduce_bytes_per_us;
  /// Share of the rate that a tree all_reduce reaches, which has 2 log2(nodes) hops. 0: no trees.
  double tree_share = 0;
  /// Share of the rate that transfers between so many nodes reach: congestion. Empty: all of it.
  Curve nodes_share;
  int ranks_per_adapter = 1;  ///< ranks that share what has this rate; all of them send at the same time
};

/// An output tile of a matmul: one unit of the device computes one at a time.
struct MatmulTile {
  int64_t rows = 1, columns = 1;  ///< in either orientation
  double share = 1;               ///< share of the sustained rate that a full wave of such tiles reaches
  auto operator<=>(const MatmulTile&) const = default;
};

/// Rates of fused attention in TFLOP/s, forward, by the number of keys. Causal rates count the visible half only.
struct AttentionRates {
  int64_t head_dim = 0;
  Curve causal, full;
  bool operator==(const AttentionRates&) const = default;
};

struct Cluster {
  std::string path;  ///< path of the file
  std::string name;
  DeviceKind device = DeviceKind::kCuda;  ///< the programs are compiled for it
  int ranks_per_node = 1;
  int ranks_per_domain = 0;  ///< ranks that the links of `node` join, if these span several nodes; 0: a node's

  /// Ranks that are near each other: of one node, or of all nodes of an NVLink domain.
  int NearRanks() const { return ranks_per_domain > 0 ? ranks_per_domain : ranks_per_node; }

  struct Device {
    std::string name;
    int64_t memory_bytes = 0;
    int64_t reserved_bytes = 0;               ///< part of memory_bytes that context and libraries take
    double bf16_tflops = 0, fp32_tflops = 0;  ///< peak of matmuls
    double fp8_tflops = 0;                    ///< fp8 rate; 0: equal to the bf16 rate
    double memory_bytes_per_us = 0;           ///< peak

    // Matmuls (src/costs/formulas/matmul.cpp).
    double matmul_share = 1;        ///< largest share of the peak that a matmul of any size reaches
    double sustained_share = 1;     ///< share of the rates of matmuls and attention that is left under lasting load
    int units = 1;                  ///< units that compute tiles in parallel: multiprocessors of a GPU
    std::vector<MatmulTile> tiles;  ///< the best one is used; empty: any shape fills the device
    double matmul_depth = 0;        ///< a tile that contracts k elements reaches k / (k + matmul_depth) of its rate
    double misaligned_share = 1;    ///< share of the rate if rows of an operand are no multiple of 16 bytes

    // Attention (src/costs/formulas/attention.cpp).
    std::vector<AttentionRates> attention;  ///< by head_dim, ascending; empty: as a matmul
    double attention_backward_share = 1;    ///< rate of backward, relative to forward
    double ordered_backward_share = 0;      ///< the same with run.deterministic; 0: attention_backward_share
    int attention_rows = 0;  ///< rows of queries that a unit computes; too few of them leave units idle; 0: none idle

    // Every kernel.
    Curve memory_share;  ///< share of memory_bytes_per_us that is reached, by bytes read and written; empty: all of it
    double kernel_us = 0;  ///< time from the end of one kernel to the full rate of the next
    double launch_us = 0;  ///< host time per kernel; a shorter kernel takes this long

    double host_bytes_per_us =
        0;  ///< copies into the host's memory: rate of one rank while all ranks of its node copy; 0: unknown
  } compute;
  LinkModel node, network;

  /// Copies between the memories of devices and of their node. All rates are 0 where they are unknown.
  struct Host {
    double out_bytes_per_us = 0, in_bytes_per_us = 0;  ///< rate of a link, to the host and from it
    int ranks_per_link = 1;                            ///< ranks behind one switch, which share its link
    double dram_bytes_per_us = 0;  ///< rate of the node's memory, which all copies of its ranks share; 0: no limit
    double copy_us = 0;            ///< start of a copy
    int64_t memory_bytes = 0;      ///< memory of a node for all its ranks; 0: not known, no limit
  } host;

  /// Storage that checkpoints are written to.
  struct Storage {
    double node_bytes_per_us = 0;   ///< rate of one node, all its ranks together; 0: unknown
    double total_bytes_per_us = 0;  ///< rate of all nodes together; 0: no other limit
  } storage;

  /// Failures of nodes, and what it takes to start again. The times are assumptions where a file does not set them.
  struct Failures {
    double node_mtbf_hours = 0;  ///< mean time between failures of one node; 0: unknown
    double detect_s = 5;         ///< from a failure to the end of the job (doc/reliability.md: a rank that dies)
    double launch_s = 30;        ///< from there until all ranks are ready to load their state
  } failures;

  /// Relative standard deviation of the ranks' speed in a step. A step takes as long as the slowest is expected to.
  double spread = 0;

  std::string stack;      ///< the stack whose kernels are described: "espalier", "megatron-2021"
  double efficiency = 1;  ///< one scalar for a software stack: kernels take 1 / efficiency of their formula's time
  AttentionKernels attention = AttentionKernels::kFused;
  /// Plain attention applies dropout to probabilities: one more kernel over the scores, forward and backward.
  bool attention_dropout = false;
  /// A layer that is recomputed as a whole also recomputes its last kernels, whose results nothing reads. (Reentrant
  /// checkpoints of PyTorch and Megatron-LM do; our programs do not.)
  bool recompute_unread = false;
  /// Projections of one input are one matmul: q, k and v; gate and up (src/costs/merged_matmuls.hpp).
  bool merged_matmuls = false;
  /// Bytes per element in which gradients are reduced; 0: as in the program (4).
  int gradient_bytes = 0;
  /// Bytes per element in which weights of dp, and activations of tp, are gathered; 0: as in the program.
  int gather_bytes = 0;
  /// A message that every rank of the sender's tp group holds is sent in parts, one by each rank, and gathered over the
  /// links of a node (Narayanan et al. 2021, section 4.1).
  bool split_messages = false;
  /// Stages compute nothing while they send (Megatron-LM before 2023): a send delays the sender's next kernel, too.
  bool blocking_messages = false;
  /// The rate of grouped matmuls as a share of dense ones of the same tiles; 0: that of our kernels.
  double grouped_share = 0;
  /// Ranks that share experts send a token only to the ranks of its experts, once to each, in place of a gather of all
  /// tokens; results come back likewise (dispatchers of Megatron-Core and DeepEP).
  bool exchange_tokens = false;

  /// The kernel that makes a value finds its largest element, too, so quantization to fp8 reads the value once, not
  /// twice (LLMQ).
  bool fused_scales = false;
  /// Times that the loss passes over a rank's logits in fp32, forward and backward together; 0: as our kernels.
  double loss_passes = 0;
  /// Kernels of forward and backward that only pass over memory move so many times the bytes of ours.
  double memory_factor = 1;
  /// Times per step that the stack passes over a rank's gradients in fp32, besides what our programs do.
  double gradient_passes = 0;
  /// Times per microbatch that the stack passes over a rank's gradients in fp32: kernels of their own add them up.
  double accumulation_passes = 0;

  /// Kernels run slower by these fractions while a transfer of this kind is in progress.
  double node_slowdown = 0, network_slowdown = 0;

  double jitter = 0;  ///< relative standard deviation of a kernel's time

  CostTable table;  ///< measured times

  /// Memory of a device less what the file reserves.
  int64_t BytesForPrograms() const { return compute.memory_bytes - compute.reserved_bytes; }
};

inline constexpr FileKind kClusterFile = {"cluster file", int64_t{16} << 20};

/// Reads a cluster file and the files that it includes. Throws UserError (kDeck): every error with file, line, value,
/// and what is allowed.
Cluster LoadCluster(const std::string& path);

/// The file with all its rows; LoadCluster reads it back to the same.
std::string ToText(const Cluster& cluster);

}  // namespace espalier
