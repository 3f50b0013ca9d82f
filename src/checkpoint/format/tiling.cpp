// Checks that boxes tile a tensor: each is a cell of the grid that their first indices span, and every cell is present.
#include <fmt/core.h>

#include <algorithm>

#include "espalier/checkpoint/manifest.hpp"

namespace espalier {
namespace {

/// The indices at which dim `d` is split: the first index of every box, sorted, each once.
std::vector<int64_t> CutsOf(const std::vector<Box>& pieces, size_t d) {
  std::vector<int64_t> cuts;
  for (const Box& box : pieces) cuts.push_back(box[d].begin);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

/// Index of the cell that starts at `range`; -1 unless it ends where the next one starts.
int64_t CellOf(const std::vector<int64_t>& cuts, int64_t extent, const Range& range) {
  const auto at = std::lower_bound(cuts.begin(), cuts.end(), range.begin);
  const int64_t end = at + 1 == cuts.end() ? extent : *(at + 1);
  return range.end == end && range.begin < range.end ? at - cuts.begin() : -1;
}

}  // namespace

std::string TilingError(const Shape& shape, const std::vector<Box>& pieces) {
  if (pieces.empty()) return "no pieces";
  for (const Box& box : pieces)
    if (box.size() != shape.size()) return fmt::format("piece {} in a tensor of {} dims", ToString(box), shape.size());

  std::vector<int64_t> cell(pieces.size(), 0);
  const auto count = static_cast<int64_t>(pieces.size());
  int64_t cells = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    const std::vector<int64_t> cuts = CutsOf(pieces, d);
    if (cuts.front() != 0) return fmt::format("dim {} starts at {}", d, cuts.front());
    const auto n = static_cast<int64_t>(cuts.size());
    for (size_t p = 0; p < pieces.size(); ++p) {
      const int64_t index = CellOf(cuts, shape[d], pieces[p][d]);
      if (index < 0)
        return fmt::format("piece {} overlaps another one or leaves a gap in dim {}", ToString(pieces[p]), d);
      cell[p] = cell[p] * n + index;
    }
    cells *= n;
    if (cells > count) return fmt::format("{} pieces do not fill a grid", count);
  }
  std::sort(cell.begin(), cell.end());
  if (std::adjacent_find(cell.begin(), cell.end()) != cell.end()) return "a piece appears twice";
  return cells == count ? "" : fmt::format("{} pieces for {} places", count, cells);
}

}  // namespace espalier
