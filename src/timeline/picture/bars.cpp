#include "timeline/picture/bars.hpp"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr double kMergePixels = 0.5;  ///< shorter gaps do not separate the kernels of a job
constexpr double kNarrowPixels = 1;   ///< bars narrower than this are merged with their neighbours
constexpr double kCellPixels = 1;     ///< transfers are summed over cells at least this wide
constexpr double kLevels = 4;         ///< number of levels in which shares of a cell are shown
constexpr double kMinShare = 0.02;    ///< share of a cell below which nothing is shown
constexpr double kMinExposed = 0.1;   ///< gaps with at least this exposed share are shown as exposed

/// Builds the bars from consecutive activities.
class BarBuilder {
 public:
  BarBuilder(const PictureJobs& jobs, double us_per_pixel) : jobs_(jobs), us_per_pixel_(us_per_pixel) {}

  void Kernel(double begin_us, double end_us, int job) {
    if (bars_.empty() || !Absorbs(bars_.back(), job)) {
      CloseGap();
      bars_.push_back({begin_us, begin_us, job});
    }
    Bar& bar = bars_.back();
    for (const Bar& gap : gaps_) bar.exposed_us += gap.exposed_us;
    gaps_.clear();
    if (bar.job != job) bar.merged = true;
    bar.end_us = end_us;
    bar.us[jobs_.jobs[static_cast<size_t>(job)].kind] += end_us - begin_us;
  }

  void Wait(double begin_us, double end_us, bool exposed) {
    const double exposed_us = exposed ? end_us - begin_us : 0;
    const bool narrow = !gaps_.empty() && gaps_.back().Length() < kMergePixels * us_per_pixel_;
    if (!gaps_.empty() && (narrow || (gaps_.back().exposed_us > 0) == exposed)) {
      gaps_.back().end_us = end_us;
      gaps_.back().exposed_us += exposed_us;
    } else {
      gaps_.push_back({begin_us, end_us, -1, exposed_us});
    }
  }

  std::vector<Bar> Done() {
    CloseGap();
    return std::move(bars_);
  }

 private:
  double GapLength() const { return gaps_.empty() ? 0 : gaps_.back().end_us - gaps_.front().begin_us; }
  /// A kernel of `job` continues this bar: it belongs to the same job, or the bar is too narrow to be visible alone.
  bool Absorbs(const Bar& bar, int job) const {
    if (bar.job < 0 || GapLength() >= kMergePixels * us_per_pixel_) return false;
    return (bar.job == job && !bar.merged) || bar.Length() < kNarrowPixels * us_per_pixel_;
  }
  void CloseGap() {
    for (const Bar& gap : gaps_)
      if (gap.exposed_us > kMinExposed * gap.Length()) bars_.push_back(gap);
    gaps_.clear();
  }

  const PictureJobs& jobs_;
  double us_per_pixel_;
  std::vector<Bar> bars_;
  std::vector<Bar> gaps_;  ///< gaps since the last kernel
};

/// Calls visit(interval, begin, end) for the parts of intervals in the window.
template <typename Visit>
void ForEachIn(const PictureTrack& track, const Window& window, Visit visit) {
  const auto first =
      std::ranges::partition_point(track.intervals, [&](const Interval& i) { return i.end_us <= window.begin_us; });
  for (auto i = first; i != track.intervals.end() && i->begin_us < window.end_us; ++i)
    visit(*i, std::max(i->begin_us, window.begin_us), std::min(i->end_us, window.end_us));
}

/// Rounds to the next level, but to none only if the share is tiny.
double Level(double share) { return share < kMinShare ? 0 : std::max(1.0, std::round(share * kLevels)) / kLevels; }

void Append(std::vector<TransferCell>& cells, const TransferCell& cell) {
  if (cell.exposed + cell.hidden == 0) return;
  if (!cells.empty() && cells.back().end_us == cell.begin_us && cells.back().exposed == cell.exposed &&
      cells.back().hidden == cell.hidden)
    cells.back().end_us = cell.end_us;
  else
    cells.push_back(cell);
}

}  // namespace

JobKind Bar::Kind() const { return kJobKinds[static_cast<size_t>(std::ranges::max_element(us) - us.begin())]; }

PictureTrack PrepareTrack(const Track& track, double step_us) {
  PictureTrack prepared{&track, JobsOf(*track.program), {}};
  Sweep(track, step_us, [&](const Interval& interval) { prepared.intervals.push_back(interval); });
  return prepared;
}

Breakdown BreakDown(const PictureTrack& track, const Window& window) {
  Breakdown total;
  ForEachIn(track, window, [&](const Interval& interval, double begin_us, double end_us) {
    Count(total, interval, end_us - begin_us);
  });
  return total;
}

std::vector<Bar> BarsOf(const PictureTrack& track, const Window& window) {
  BarBuilder builder(track.jobs, window.us_per_pixel);
  ForEachIn(track, window, [&](const Interval& interval, double begin_us, double end_us) {
    if (interval.kernel >= 0)
      builder.Kernel(begin_us, end_us, track.jobs.of_instruction[static_cast<size_t>(interval.kernel)]);
    else
      builder.Wait(begin_us, end_us, interval.exposed >= 0);
  });
  return builder.Done();
}

/// A cell ends at the first change after its minimum width, so wider cells are exact.
std::vector<TransferCell> TransfersOf(const PictureTrack& track, CommAxis axis, const Window& window) {
  std::vector<TransferCell> cells;
  TransferCell sum{window.begin_us, window.begin_us};
  const auto close = [&] {
    const double us = sum.end_us - sum.begin_us;
    if (us <= 0) return;
    const double exposed = Level(sum.exposed / us);
    Append(cells, {sum.begin_us, sum.end_us, exposed, Level((sum.exposed + sum.hidden) / us) - exposed});
    sum = {sum.end_us, sum.end_us};
  };
  ForEachIn(track, window, [&](const Interval& interval, double begin_us, double end_us) {
    // A long interval is a separate cell.
    if (end_us - begin_us >= kCellPixels * window.us_per_pixel) close();
    const bool exposed = interval.exposed == static_cast<int>(axis);
    if (interval.transfers[axis]) (exposed ? sum.exposed : sum.hidden) += end_us - begin_us;
    sum.end_us = end_us;
    if (end_us - sum.begin_us >= kCellPixels * window.us_per_pixel) close();
  });
  close();
  return cells;
}

}  // namespace espalier
