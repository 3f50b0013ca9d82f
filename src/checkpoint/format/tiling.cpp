// Checks that boxes tile a tensor. Their first indices span a grid; each box must be one of its cells, and no cell may
// be missing. Parts of a stored tensor lie one below the other, and few rows may be sharded along another dim: then
// each part is a grid.
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
int64_t CellOf(const std::vector<int64_t>& cuts, int64_t last, const Range& range) {
  const auto at = std::lower_bound(cuts.begin(), cuts.end(), range.begin);
  const int64_t end = at + 1 == cuts.end() ? last : *(at + 1);
  return range.end == end && range.begin < range.end ? at - cuts.begin() : -1;
}

/// Why the pieces are no grid that fills `whole`.
std::string GridError(const Box& whole, const std::vector<Box>& pieces) {
  std::vector<int64_t> cell(pieces.size(), 0);
  const auto count = static_cast<int64_t>(pieces.size());
  int64_t cells = 1;
  for (size_t d = 0; d < whole.size(); ++d) {
    const std::vector<int64_t> cuts = CutsOf(pieces, d);
    if (cuts.front() != whole[d].begin) return fmt::format("dim {} starts at {}", d, cuts.front());
    const auto n = static_cast<int64_t>(cuts.size());
    for (size_t p = 0; p < pieces.size(); ++p) {
      const int64_t index = CellOf(cuts, whole[d].end, pieces[p][d]);
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

/// Whether the pieces are grids one below the other along dim 0.
bool AreStackedGrids(Box whole, std::vector<Box> pieces) {
  const int64_t last = whole[0].end;
  std::ranges::sort(pieces, {}, [](const Box& box) { return box[0].begin; });
  whole[0].end = 0;
  for (size_t first = 0, next = 0; first < pieces.size(); first = next) {
    whole[0].begin = whole[0].end;
    for (; next < pieces.size() && (next == first || pieces[next][0].begin < whole[0].end); ++next)
      whole[0].end = std::max(whole[0].end, pieces[next][0].end);
    if (!GridError(whole, {pieces.begin() + static_cast<int64_t>(first), pieces.begin() + static_cast<int64_t>(next)})
             .empty())
      return false;
  }
  return whole[0].end == last;
}

}  // namespace

std::string TilingError(const Shape& shape, const std::vector<Box>& pieces) {
  if (pieces.empty()) return "no pieces";
  Box whole;
  for (const int64_t extent : shape) whole.push_back({0, extent});
  for (const Box& box : pieces)
    if (box.size() != shape.size()) return fmt::format("piece {} in a tensor of {} dims", ToString(box), shape.size());
  const std::string error = GridError(whole, pieces);
  return error.empty() || AreStackedGrids(whole, pieces) ? "" : error;
}

}  // namespace espalier
