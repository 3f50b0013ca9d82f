#include "train/measuring/machine.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <limits>
#include <sstream>

#include "espalier/kernels/kernel_table.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/units.hpp"
#include "espalier/util/write_whole.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// The limit of a cluster file, where the system sets none.
constexpr int64_t kMaxMemory = 1'000'000'000'000'000'000;

/// The words of a text on one line, without tabs, double spaces and the label of /proc/cpuinfo.
std::string OneLine(const std::string& text) {
  std::istringstream words(text);
  std::string line;
  for (std::string word; words >> word;) line += (line.empty() ? "" : " ") + word;
  if (const size_t label = line.find("model name : "); label != line.npos) line.erase(label, 13);
  return line;
}

/// The lines before the first row. Nothing if keys come after rows.
std::optional<std::string> TextAboveRows(const std::string& text) {
  std::istringstream lines(text);
  std::string above;
  bool in_rows = false;
  for (std::string line; std::getline(lines, line);) {
    const bool row = line.starts_with("[[");
    if (in_rows && line.starts_with("[") && !row) return std::nullopt;
    in_rows |= row;
    if (!in_rows) above += line + "\n";
  }
  while (above.ends_with("\n\n")) above.pop_back();
  return above;
}

std::string Differs(const std::string& path, std::string_view key, const std::string& file, const std::string& here) {
  return fmt::format(
      "{}: {} = {}, and this machine has {}: times of one do not hold for the other (name another file; a new one is "
      "made)",
      path, key, file, here);
}

std::string_view Name(DeviceKind kind) { return kind == DeviceKind::kCpu ? "\"cpu\"" : "\"cuda\""; }

}  // namespace

double MemoryRate() {
  constexpr int64_t kElements = int64_t{16} << 20;
  constexpr int kRounds = 5;
  std::vector<float> memory(3 * kElements, 1.0F);
  const auto tensor = [&](int64_t i) { return Tensor{memory.data() + i * kElements, Dtype::kF32, {kElements}, {0}}; };
  const Tensor inputs[] = {tensor(0), tensor(1)}, outputs[] = {tensor(2)};
  const Attributes none;
  const Kernel add = FindCpuKernel("add");
  double best_ms = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto began = std::chrono::steady_clock::now();
    add({.inputs = inputs, .outputs = outputs, .attributes = &none});
    best_ms = std::min(best_ms, MillisecondsSince(began));
  }
  return 3.0 * kElements * sizeof(float) / (best_ms * 1e3);
}

MachineKey KeyOfMachine(const Device& device, const MpiWorld* mpi) {
  return {device.Kind(), OneLine(device.Conditions()), mpi == nullptr ? 1 : mpi->NodeRanks()};
}

Cluster DescribeMachine(const Device& device, World& world, const MpiWorld* mpi) {
  const MachineKey machine = KeyOfMachine(device, mpi);
  Cluster cluster;
  cluster.name = machine.name;
  cluster.device = machine.device;
  cluster.ranks_per_node = machine.ranks_per_node;
  cluster.stack = "espalier";
  cluster.compute.name = machine.name;
  world.Barrier();
  cluster.compute.bf16_tflops = device.Peak(Dtype::kBf16).flops / kTera;
  cluster.compute.fp32_tflops = device.Peak(Dtype::kF32).flops / kTera;
  world.Barrier();
  if (device.Kind() == DeviceKind::kCpu) cluster.compute.memory_bytes_per_us = MemoryRate();
  int64_t bytes = kMaxMemory;
  for (const MemoryLimit& limit : device.ArenaLimits()) bytes = std::min(bytes, limit.available);
  cluster.compute.memory_bytes = bytes / (device.Kind() == DeviceKind::kCpu ? machine.ranks_per_node : 1);
  return cluster;
}

std::optional<Cluster> LoadForMachine(const std::string& path, const MachineKey& machine) {
  if (!fs::exists(path)) return std::nullopt;
  Cluster cluster = LoadCluster(path);
  std::vector<std::string> errors;
  if (cluster.device != machine.device)
    errors.push_back(
        Differs(path, "cluster.device", std::string(Name(cluster.device)), std::string(Name(machine.device))));
  else if (cluster.compute.name != machine.name)
    errors.push_back(
        Differs(path, "device.name", fmt::format("\"{}\"", cluster.compute.name), fmt::format("\"{}\"", machine.name)));
  if (cluster.ranks_per_node != machine.ranks_per_node)
    errors.push_back(Differs(path, "cluster.ranks_per_node", std::to_string(cluster.ranks_per_node),
                             std::to_string(machine.ranks_per_node)));
  if (cluster.ranks_per_domain > 0)
    errors.push_back(
        fmt::format("{}: cluster.ranks_per_domain = {}: measured rows count nodes, and its rows domains "
                    "(name another file; a new one is made)",
                    path, cluster.ranks_per_domain));
  if (!errors.empty()) throw UserError(ExitStatus::kDeck, std::move(errors));
  return cluster;
}

void RequireRates(const Cluster& cluster) {
  const bool peaks = cluster.compute.bf16_tflops > 0 && cluster.compute.fp32_tflops > 0;
  if (peaks && cluster.compute.memory_bytes_per_us > 0) return;
  throw UserError(ExitStatus::kFault,
                  fmt::format("{}: the {} of {} is not known, so that no formula can hold: start from a cluster file "
                              "that sets device.bf16_tflops, fp32_tflops and memory_bytes_per_us, or measure a larger "
                              "deck",
                              cluster.path, peaks ? "memory bandwidth" : "peak", cluster.compute.name));
}

void WriteRows(const Cluster& cluster) {
  const std::string text = ToText(cluster);
  const std::optional<std::string> above =
      fs::exists(cluster.path) ? TextAboveRows(ReadFile(cluster.path, kClusterFile)) : std::nullopt;
  const size_t rows = text.find("\n[[");
  const std::string all = rows == text.npos ? "" : text.substr(rows);
  WriteWhole(cluster.path, above ? *above + all : text);
}

}  // namespace espalier
