// The rows of a panel: for every rank the compute lane and a thin row per axis.
#pragma once

#include "espalier/svg/svg.hpp"
#include "timeline/picture/bars.hpp"

namespace espalier {

/// A timeline, prepared for drawing.
struct PictureTimeline {
  const Timeline* timeline = nullptr;
  std::vector<PictureTrack> tracks;  ///< the tracks that are shown
  size_t gap = 0;                    ///< the track before which some are left out
  std::string left_out;              ///< "448 ranks of stages 4 to 11 are left out"; empty: none
  ByCommAxis<bool> axes{};           ///< axes that have transfers
  int chunks = 1;                    ///< chunks of a stage, at most
};

/// Shows at most `most` tracks: the first and the last.
PictureTimeline Prepare(const Timeline& timeline, size_t most);

/// The place of a panel's rows, and their height.
struct RowLayout {
  double left = 0, top = 0, width = 0;  ///< area of the bars
  double compute_height = 24, lane_height = 6, space = 10;
  int lanes = 0;  ///< axes with transfers
  size_t rows = 0;
  size_t gap = 0;  ///< the row before which some are left out
  bool has_gap = false;

  double RowHeight() const { return compute_height + lanes * (lane_height + 1) + space; }
  double Top(size_t row) const {
    return top + static_cast<double>(row) * RowHeight() + (has_gap && row >= gap ? 22 : 0);
  }
  double Bottom() const { return Top(rows) - space + 3; }
};
/// Rows are lower the more there are.
RowLayout LayOut(const PictureTimeline& timeline, double left, double top, double width);

/// Draws all rows: labels on the left, bars, and the shares of the window on the right.
void DrawRows(Svg& svg, const PictureTimeline& timeline, const RowLayout& layout, const Window& window);

/// The headings above the shares, which are shares of `whole`: "the step".
void DrawShareHeads(Svg& svg, double left, double baseline, std::string_view whole);
inline constexpr double kSharesWidth = 250;

}  // namespace espalier
