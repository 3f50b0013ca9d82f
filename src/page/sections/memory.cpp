// The exact memory of a training step: the plan of the programs, compiled again from the deck of the run.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "espalier/report/text.hpp"
#include "espalier/util/units.hpp"
#include "page/chart/stacked_chart.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

constexpr size_t kMaxMemoryIntervals = 360;

int64_t SumOf(const ByMemoryClass<int64_t>& bytes) { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

/// The instruction with the most memory in each interval, so that no peak is lost.
std::vector<size_t> HighestOfIntervals(const MemoryTimeline& course) {
  const size_t count = course.allocated.size(), intervals = std::min(kMaxMemoryIntervals, count);
  std::vector<size_t> highest;
  for (size_t i = 0; i < intervals; ++i) {
    size_t most = i * count / intervals;
    for (size_t k = most; k < (i + 1) * count / intervals; ++k)
      if (SumOf(course.allocated[k]) > SumOf(course.allocated[most])) most = k;
    highest.push_back(most);
  }
  return highest;
}

StackedChart ChartOf(const MemoryOnPage& memory) {
  const MemoryTimeline& course = memory.course;
  const bool large = static_cast<double>(memory.arena_bytes) >= kGiB;
  StackedChart chart;
  chart.text = {fmt::format("memory of rank {}, stage {}", memory.rank, memory.stage), large ? "GiB" : "MiB",
                "instruction"};
  chart.size = kWideChart;
  const std::vector<size_t> shown = HighestOfIntervals(course);
  for (size_t i = 0; i <= shown.size(); ++i)
    chart.edges.push_back(static_cast<double>(i * course.allocated.size() / shown.size()));
  for (int k = 0; k < kMemoryClassCount; ++k) {
    Layer layer{std::string(Name(static_cast<MemoryClass>(k))), fmt::format("m{}", k), {}};
    for (const size_t i : shown)
      layer.values.push_back(static_cast<double>(course.allocated[i][static_cast<size_t>(k)]) / (large ? kGiB : kMiB));
    chart.layers.push_back(std::move(layer));
  }
  chart.mark = course.peak;
  chart.mark_words = "peak";
  return chart;
}

std::vector<std::string> MemoryRow(const MemoryOnPage& memory) {
  std::vector<std::string> row = {std::to_string(memory.stage), std::to_string(memory.rank), memory.peak_instruction,
                                  HumanBytes(memory.arena_bytes)};
  const ByMemoryClass<int64_t> none{};
  const MemoryTimeline& course = memory.course;
  const ByMemoryClass<int64_t>& peak = course.peak < 0 ? none : course.allocated[static_cast<size_t>(course.peak)];
  for (const int64_t bytes : peak) row.push_back(HumanBytes(bytes));
  return row;
}

/// The peaks of all ranks from the end event; empty if there are none.
std::vector<int64_t> MeasuredPeaks(const RunHistory& history) {
  std::vector<int64_t> peaks;
  const Event* end = history.End();
  if (end == nullptr || !end->fields.contains("rank_peak_bytes")) return peaks;
  for (const nlohmann::json& bytes : end->fields["rank_peak_bytes"])
    if (bytes.is_number_integer()) peaks.push_back(bytes.get<int64_t>());
  return peaks;
}

/// Planned and used memory of all ranks.
std::string Comparison(const RunOnPage& run) {
  const std::vector<int64_t>&planned = run.programs.rank_peak_bytes, used = MeasuredPeaks(run.history);
  const int64_t largest = *std::ranges::max_element(planned);
  const std::string plan = fmt::format(
      "{}: planned for the rank that needs most: {} ({} bytes), all programs of the "
      "run included. ",
      run.name(), HumanBytes(largest), largest);
  if (used.empty()) return plan + "The run has no end line, which would say what was used.";
  if (used == planned) return plan + fmt::format("{} used exactly what is planned.", Count(std::ssize(used), "rank"));
  if (used.size() != planned.size()) return plan + fmt::format("The run ended on {}.", Count(std::ssize(used), "rank"));
  int64_t different = 0, first = -1;
  for (size_t r = 0; r < used.size(); ++r) {
    if (used[r] == planned[r]) continue;
    if (different++ == 0) first = static_cast<int64_t>(r);
  }
  return plan + fmt::format("{} used another amount than planned; the first is rank {}: {} bytes used, {} planned.",
                            Count(different, "rank"), first, used[static_cast<size_t>(first)],
                            planned[static_cast<size_t>(first)]);
}

}  // namespace

void WriteMemory(const Runs& runs, Html& html) {
  for (size_t r = 0; r < runs.size(); ++r) {
    const RunOnPage& run = runs[r];
    if (!run.programs.why_none.empty()) {
      html.Note(fmt::format("{}: {}", run.name(), run.programs.why_none));
      continue;
    }
    if (runs.size() > 1) html.Heading(run.name());
    Table table{{"stage", "rank", "peak at", "peak"}, {}, 3};
    for (int k = 0; k < kMemoryClassCount; ++k) table.heads.emplace_back(Name(static_cast<MemoryClass>(k)));
    const auto largest = std::ranges::max_element(run.programs.memory, {}, &MemoryOnPage::arena_bytes);
    html.Add(fmt::format("memory-{}", r + 1), DrawStackedChart(ChartOf(*largest)),
             "The rank that needs most. Each column shows its instruction with the most memory.");
    for (const MemoryOnPage& memory : run.programs.memory) table.rows.push_back(MemoryRow(memory));
    html.Add(table);
    html.Paragraph(Comparison(run));
  }
}

}  // namespace espalier
