// A cluster file: the devices of a cluster, the links between them, and the times that were measured on it. One TOML
// file per device or cluster (inputs/clusters, doc/clusters.md). The formulas use only what is written here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/costs/cost_table.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A function of one variable, by straight lines between points (x ascending). Constant before the first point and
/// after the last.
using Curve = std::vector<std::pair<double, double>>;
double At(const Curve& curve, double x);

/// How the kernels of attention work. Fused ones (Dao 2022) keep scores on the chip and skip the masked half. Plain
/// ones compute the whole square and pass it through memory, as Megatron-LM did before 2022.
enum class AttentionKernels : uint8_t { kFused, kPlain };

/// One link kind, as one rank sees it.
struct LinkModel {
  double bytes_per_us = 0;       ///< of one rank, one way, sustained by collectives
  double pair_bytes_per_us = 0;  ///< of one rank in a message to one peer
  double base_us = 0;            ///< of a collective, once
  double hop_us = 0;             ///< per step of a ring
  double message_us = 0;         ///< start of a message to one peer
};

struct Cluster {
  std::string path;  ///< of the file
  std::string name;
  DeviceKind device = DeviceKind::kCuda;  ///< the programs are compiled for it
  int ranks_per_node = 1;

  struct Device {
    std::string name;
    int64_t memory_bytes = 0;
    int64_t reserved_bytes = 0;               ///< of that: context and libraries
    double bf16_tflops = 0, fp32_tflops = 0;  ///< peak of matmuls
    double memory_bytes_per_us = 0;
    // The rest of the fields that the formulas of kernels need: see doc/clusters.md.
  } compute;
  LinkModel node, network;

  std::string stack;      ///< whose kernels are described: "espalier", "megatron-2021"
  double efficiency = 1;  ///< one scalar for a software stack: kernels take 1 / efficiency of their formula's time
  AttentionKernels attention = AttentionKernels::kFused;

  /// Kernels run slower by these fractions while a transfer of this kind is in progress.
  double node_slowdown = 0, network_slowdown = 0;

  double jitter = 0;  ///< relative standard deviation of a kernel's time

  CostTable table;  ///< measured times
};

/// Reads a cluster file and the files that it includes. Throws UserError (kDeck): every error with file, line, value,
/// and what is allowed.
Cluster LoadCluster(const std::string& path);

/// The file with all its rows; LoadCluster reads it back to the same.
std::string ToText(const Cluster& cluster);

}  // namespace espalier
