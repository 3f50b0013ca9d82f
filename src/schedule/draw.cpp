#include <algorithm>
#include <cmath>

#include "schedule/jobs.hpp"

namespace espalier {
namespace {

// A job as it is drawn: its label and its time.
struct Block {
  std::string label;
  double begin, end;
};

std::vector<Block> BlocksOf(const Schedule& schedule, const Replay& replay, size_t stage) {
  std::vector<Block> blocks;
  auto span = replay.spans[stage].begin();
  for (const Job& job : schedule.jobs[stage]) {
    blocks.push_back({LabelOf(schedule, job), span->begin, span->end});
    span += static_cast<std::ptrdiff_t>(job.parts.size());
  }
  return blocks;
}

// Columns per unit of time, so that every label fits with a gap after it. Jobs of no duration are not drawn.
int ColumnsPerUnit(const std::vector<std::vector<Block>>& rows) {
  double columns = 1;
  for (const auto& row : rows) {
    for (const Block& block : row) {
      const double duration = block.end - block.begin;
      if (duration > 0) columns = std::max(columns, static_cast<double>(block.label.size() + 1) / duration);
    }
  }
  return static_cast<int>(std::ceil(columns));
}

// A contiguous range of columns of the whole timeline that is shown.
struct Window {
  size_t from, to;
};

// Draws `label` and `filling` into the columns [begin, end) of the timeline, a gap at their end. A label is drawn whole
// or not at all.
void Fill(std::string& line, Window window, size_t begin, size_t end, std::string_view label, char filling) {
  if (begin >= end) return;
  const size_t last = begin + std::max(end - begin - 1, label.size());
  const size_t from = std::max(begin, window.from), to = std::min(last, window.to);
  if (from >= to) return;
  line.replace(from - window.from, to - from, to - from, filling);
  if (from == begin && begin + label.size() <= to) line.replace(from - window.from, label.size(), label);
}

std::string Row(const std::vector<Block>& blocks, int columns_per_unit, size_t length, Window window) {
  const auto column = [&](double time) { return static_cast<size_t>(std::lround(time * columns_per_unit)); };
  std::string line(window.to - window.from, ' ');
  size_t free_from = 0;
  for (const Block& block : blocks) {
    Fill(line, window, free_from, column(block.begin), "", '.');
    Fill(line, window, column(block.begin), column(block.end), block.label, '=');
    free_from = column(block.end);
  }
  Fill(line, window, free_from, length, "", '.');
  return line;
}

constexpr std::string_view kCut = " ... ";

// The windows that fit into `columns` columns: everything, or the beginning and as much from the middle, where the
// pipeline is in its steady state.
std::vector<Window> WindowsOf(size_t length, size_t columns) {
  if (length <= columns) return {{0, length}};
  const size_t each = (columns - 2 * kCut.size()) / 2;
  const size_t middle = std::max(each + 1, (length - each) / 2);
  return {{0, each}, {middle, middle + each}};
}

}  // namespace

std::string Draw(const Schedule& schedule, RoleCosts costs, int max_columns) {
  const Replay replay = Validate(schedule, costs);
  std::vector<std::vector<Block>> rows;
  for (size_t stage = 0; stage < schedule.jobs.size(); ++stage) rows.push_back(BlocksOf(schedule, replay, stage));
  const int columns_per_unit = ColumnsPerUnit(rows);
  const auto length = static_cast<size_t>(std::lround(replay.makespan * columns_per_unit));
  const int digits = static_cast<int>(std::to_string(schedule.stages - 1).size());

  std::string picture;
  for (size_t stage = 0; stage < rows.size(); ++stage) {
    const std::string head = fmt::format("stage {:>{}} | ", stage, digits);
    picture += head;
    for (const Window& window : WindowsOf(length, static_cast<size_t>(std::max(max_columns, 40)) - head.size())) {
      picture += Row(rows[stage], columns_per_unit, length, window);
      if (window.to < length) picture += kCut;
    }
    picture.erase(picture.find_last_not_of(' ') + 1);
    picture += '\n';
  }
  return picture;
}

}  // namespace espalier
