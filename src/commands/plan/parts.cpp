#include "commands/plan/parts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/checkpoint/async_saver.hpp"
#include "espalier/costs/order.hpp"
#include "espalier/device_memory/workspace.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {

std::string RangesText(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end > i) text += fmt::format("-{}", numbers[end]);
    i = end + 1;
  }
  return text;
}

void PrintOrder(const Deck& deck) {
  constexpr size_t kWidth = 120, kIndent = 12;
  if (const std::string order = DescribeOrder(deck); !order.empty())
    fmt::print("{}\n", Wrap("order       " + order, kWidth, kIndent));
}

std::string DecimalBytes(int64_t bytes) {
  if (bytes < 1000) return fmt::format("{} B", bytes);
  std::string text = HumanCount(static_cast<double>(bytes));  // "7.82M"
  const char unit = text.back();
  text.pop_back();
  return fmt::format("{} {}B", text, unit);
}

int64_t LargestStaging(const Compilation& c) {
  return c.deck.checkpoint.asynchronous || c.deck.run.device == RunDevice::kCuda
             ? std::ranges::max(StagingBytes(StateTensors(c), c.mesh))
             : 0;
}

int64_t LargestMemoryCopies(const Compilation& c) {
  constexpr int64_t kGenerations = 2, kCopies = 2;
  if (c.deck.checkpoint.memory_steps == 0) return 0;
  return kGenerations * kCopies * std::ranges::max(StagingBytes(StateTensors(c), c.mesh));
}

std::set<std::string> ReasonsForPlainAttention(const WorldPlan& plan) {
  std::set<std::string> reasons;
  if (plan.training.deck.run.device != RunDevice::kCuda) return reasons;
  for (const auto& [rank, program] : plan.programs)
    for (const Op& op : program.graph->ops)
      if (op.kind == OpKind::kAttention || op.kind == OpKind::kAttentionGrad)
        reasons.insert(
            WhyPlainAttention(LocalOpOf(*program.graph, op, program.mesh, plan.training.mesh.CoordinateOf(rank))));
  reasons.erase("");
  return reasons;
}

nlohmann::ordered_json MeshJson(const Mesh& mesh) {
  nlohmann::ordered_json json;
  for (const auto& [axis, degree] : mesh.DeckDegrees()) json[std::string(axis)] = degree;
  return json;
}

nlohmann::ordered_json StagesJson(const WorldPlan& plan) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const StagePlan& stage : plan.stages) {
    nlohmann::ordered_json entry = {{"stage", stage.stage}, {"layers", stage.layers}, {"peak_bytes", stage.peak_bytes}};
    for (int k = 0; k < kMemoryClassCount; ++k)
      entry["bytes"][std::string(Name(static_cast<MemoryClass>(k)))] = stage.bytes[static_cast<size_t>(k)];
    if (plan.host_bytes > 0) {
      entry["host_bytes"] = stage.host_bytes;
      entry["copied_bytes"] = {{"out", stage.copied_bytes[Space::kHost]}, {"in", stage.copied_bytes[Space::kDevice]}};
    }
    json.push_back(std::move(entry));
  }
  return json;
}

std::string ClassesText(const ByMemoryClass<int64_t>& bytes) {
  std::vector<MemoryClass> classes;
  for (int k = 0; k < kMemoryClassCount; ++k)
    if (bytes[static_cast<size_t>(k)] > 0) classes.push_back(static_cast<MemoryClass>(k));
  std::ranges::stable_sort(classes, std::ranges::greater(), [&](MemoryClass k) { return bytes[k]; });
  std::vector<std::string> texts;
  for (const MemoryClass k : classes) texts.push_back(fmt::format("{} {}", Name(k), DecimalBytes(bytes[k])));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace espalier
