#include "timeline/picture/rows.hpp"

#include <algorithm>
#include <map>

#include "timeline/labels.hpp"
#include "timeline/picture/palette.hpp"

namespace espalier {
namespace {

constexpr double kDigitWidth = 6, kSmallDigitWidth = 5.3;  ///< width of a digit of the font in bars
constexpr double kSeparated = 3;                           ///< bars at least this wide have a space between them
constexpr double kMinBand = 0.02;                          ///< bars with at least this exposed share get a band
constexpr double kShareBarWidth = 96;

/// Draws the rows of one track.
class RowDrawer {
 public:
  RowDrawer(Svg& svg, const PictureTimeline& timeline, const RowLayout& layout, const Window& window, size_t row)
      : svg_(svg),
        timeline_(timeline),
        layout_(layout),
        window_(window),
        track_(timeline.tracks[row]),
        top_(layout.Top(row)) {}

  void Draw() {
    DrawLabel();
    svg_.Rect({layout_.left, top_, layout_.width, layout_.compute_height}, "track");
    const std::vector<Bar> bars = BarsOf(track_, window_);
    DrawBars(bars);
    DrawMicrobatches(bars);
    double y = top_ + layout_.compute_height + 1;
    for (const CommAxis axis : kAllCommAxes) {
      if (!timeline_.axes[axis]) continue;
      DrawAxis(axis, y);
      y += layout_.lane_height + 1;
    }
    DrawShares();
  }

 private:
  double X(double us) const { return layout_.left + (us - window_.begin_us) / window_.us_per_pixel; }
  double Width(const Bar& bar) const { return bar.Length() / window_.us_per_pixel; }
  const PictureJob& JobOf(const Bar& bar) const { return track_.jobs.jobs[static_cast<size_t>(bar.job)]; }

  void DrawLabel() {
    const Track& track = *track_.track;
    const double x = layout_.left - 26, y = top_ + std::min(layout_.compute_height - 3, 12.0);
    const std::string rank = fmt::format("stage {}, rank {}", track.program->stage, track.rank);
    const std::string alike = track.ranks > 1 ? fmt::format("and {} alike", track.ranks - 1) : "";
    svg_.Text(x, y, rank, "name", Anchor::kEnd);
    if (!alike.empty() && layout_.RowHeight() >= 26) svg_.Text(x, y + 11, alike, "small", Anchor::kEnd);
  }

  void DrawBars(const std::vector<Bar>& bars) {
    std::map<std::string, Lines> jobs;
    Lines gaps;
    for (const Bar& bar : bars) {
      const double space = Width(bar) >= kSeparated ? 0.6 : 0;
      if (bar.job < 0)
        gaps.Add(X(bar.begin_us), Width(bar));
      else
        jobs[ClassOf(bar.Kind(), JobOf(bar).chunk)].Add(X(bar.begin_us) + space / 2, Width(bar) - space);
    }
    for (const auto& [css_class, lines] : jobs) svg_.Bars(top_, layout_.compute_height, lines, css_class);
    svg_.Bars(top_, layout_.compute_height, gaps, "X");
    DrawBands(bars);
  }

  /// Waits that are too short to be visible: a band at the foot of the bar, whose height shows their share of its time.
  void DrawBands(const std::vector<Bar>& bars) {
    std::map<int, Lines> bands;  // by height in pixels
    for (const Bar& bar : bars) {
      if (const int height = Band(bar); height > 0) bands[height].Add(X(bar.begin_us), Width(bar));
    }
    for (const auto& [height, lines] : bands) svg_.Bars(top_ + layout_.compute_height - height, height, lines, "X");
  }

  /// The height of the band of a bar in pixels; 0 if it has none.
  int Band(const Bar& bar) const {
    const double share = bar.exposed_us / bar.Length();
    if (bar.job < 0 || share < kMinBand) return 0;
    return std::max(2, static_cast<int>(share * layout_.compute_height + 0.5));
  }

  /// Writes the microbatch number on every job.
  void DrawMicrobatches(const std::vector<Bar>& bars) {
    for (size_t begin = 0, end = 0; begin < bars.size(); begin = end) {
      Pieces job{&bars[begin], &bars[begin], &bars[begin]};
      for (end = begin + 1; end < bars.size() && bars[begin].job >= 0; ++end) {
        if (bars[end].job < 0) continue;
        if (bars[end].job != bars[begin].job) break;
        job.last = &bars[end];
        job.us += bars[end].Length();
        if (bars[end].Length() > job.widest->Length()) job.widest = &bars[end];
      }
      if (bars[begin].job >= 0 && !job.widest->merged) Label(job);
    }
  }

  /// The bars of a job, with waits between them.
  struct Pieces {
    const Bar *first, *widest, *last;
    double us = first->Length();
  };

  /// Writes the number into the widest bar, or across all bars if they are narrow and close together. Either all
  /// numbers of a row's jobs fit or none is shown, so that a row does not stop counting at 9.
  void Label(const Pieces& pieces) {
    const PictureJob& job = JobOf(*pieces.first);
    const bool once = job.microbatch < 0, light = IsLight(job.kind, job.chunk, timeline_.chunks);
    const std::string text = once ? ClassOf(job.kind, 0).substr(0, 1) : std::to_string(job.microbatch);
    const size_t digits = once ? 1 : std::to_string(track_.track->program->microbatches - 1).size();
    const double small = kSmallDigitWidth * static_cast<double>(digits) + 1;
    const double large = kDigitWidth * static_cast<double>(digits) + 1;
    const Bar& bar = *pieces.widest;
    const double whole_us = pieces.last->end_us - pieces.first->begin_us;
    if (Width(bar) >= large && layout_.compute_height >= 20)
      Centre(bar, bar, text, light ? "md" : "m", 3.5);
    else if (Width(bar) >= small)
      Centre(bar, bar, text, light ? "nd" : "n", 3);
    else if (!once && whole_us / window_.us_per_pixel >= 2 * small && pieces.us > 0.6 * whole_us)
      Centre(*pieces.first, *pieces.last, text, fmt::format("{} {}", light ? "hd" : "h", ClassOf(job.kind, job.chunk)),
             3.5);
  }
  void Centre(const Bar& first, const Bar& last, const std::string& text, const std::string& css_class, double below) {
    const double height = std::max(layout_.compute_height - Band(first), 10.0);
    svg_.Text((X(first.begin_us) + X(last.end_us)) / 2, top_ + height / 2 + below, text, css_class, Anchor::kMiddle);
  }

  void DrawAxis(CommAxis axis, double y) {
    const std::string name(Name(axis));
    if (layout_.lane_height >= 5)
      svg_.Text(layout_.left - 5, y + layout_.lane_height - 0.5, name, "lane", Anchor::kEnd);
    // Cells from the foot: exposed, hidden above it, by height in quarters.
    std::map<std::pair<int, int>, std::pair<Lines, Lines>> shares;
    for (const TransferCell& cell : TransfersOf(track_, axis, window_)) {
      const double x = X(cell.begin_us), width = std::max(0.3, X(cell.end_us) - x);
      const int exposed = static_cast<int>(cell.exposed * 4), hidden = static_cast<int>(cell.hidden * 4);
      auto& [dark, pale] = shares[{exposed, hidden}];
      if (exposed > 0) dark.Add(x, width);
      if (hidden > 0) pale.Add(x, width);
    }
    const double unit = layout_.lane_height / 4, foot = y + layout_.lane_height;
    for (const auto& [heights, lines] : shares) {
      const auto& [exposed, hidden] = heights;
      svg_.Bars(foot - exposed * unit, exposed * unit, lines.first, name);
      svg_.Bars(foot - (exposed + hidden) * unit, hidden * unit, lines.second, name + "h");
    }
  }

  /// Draws the shares of the part of the step that the panel shows.
  void DrawShares() {
    const double end_us = std::min(window_.end_us, timeline_.timeline->step_us);
    const Breakdown b = BreakDown(track_, {window_.begin_us, end_us});
    const double percent = 100 / (end_us - window_.begin_us);
    double exposed = 0;
    for (const CommAxis axis : kAllCommAxes) exposed += percent * b.exposed_us[axis];
    const double left = layout_.left + layout_.width + 16, height = std::min(10.0, layout_.compute_height - 2);
    const double compute = percent * b.compute_us, pixels = kShareBarWidth / 100;
    svg_.Rect({left, top_ + 2, kShareBarWidth, height}, "idle");
    svg_.Rect({left, top_ + 2, pixels * compute, height}, "compute");
    svg_.Rect({left + pixels * compute, top_ + 2, pixels * exposed, height}, "x");
    double x = left + kShareBarWidth;
    for (const double share : {compute, exposed, percent * b.idle_us})
      svg_.Text(x += 46, top_ + 11, fmt::format("{:.1f}", share), "head", Anchor::kEnd);
    if (layout_.RowHeight() >= 26) DrawAxisShares(b, percent, left, top_ + 24);
  }

  void DrawAxisShares(const Breakdown& b, double percent, double x, double y) {
    std::string text;
    for (const CommAxis axis : kAllCommAxes)
      if (timeline_.axes[axis] && percent * b.exposed_us[axis] >= 0.05)
        text += fmt::format("{}{} {:.1f}", text.empty() ? "exposed: " : ", ", Name(axis), percent * b.exposed_us[axis]);
    if (!text.empty()) svg_.Text(x, y, text, "small");
  }

  Svg& svg_;
  const PictureTimeline& timeline_;
  const RowLayout& layout_;
  const Window& window_;
  const PictureTrack& track_;
  double top_;
};

std::string WhatIsLeftOut(const std::vector<Track>& tracks, size_t begin, size_t end) {
  int ranks = 0;
  for (size_t t = begin; t < end; ++t) ranks += tracks[t].ranks;
  return fmt::format("{} rank{} of stages {} to {} not shown", ranks, ranks == 1 ? "" : "s",
                     tracks[begin].program->stage, tracks[end - 1].program->stage);
}

}  // namespace

PictureTimeline Prepare(const Timeline& timeline, size_t most) {
  PictureTimeline prepared;
  prepared.timeline = &timeline;
  const std::vector<Track>& tracks = timeline.tracks;
  const size_t shown = std::min(most, tracks.size());
  prepared.gap = (shown + 1) / 2;
  const size_t resume = tracks.size() - (shown - prepared.gap);
  if (shown < tracks.size()) prepared.left_out = WhatIsLeftOut(tracks, prepared.gap, resume);
  for (size_t t = 0; t < tracks.size(); ++t)
    if (t < prepared.gap || t >= resume) prepared.tracks.push_back(PrepareTrack(tracks[t], timeline.step_us));
  for (const PictureTrack& track : prepared.tracks) {
    for (const PictureJob& job : track.jobs.jobs) prepared.chunks = std::max(prepared.chunks, job.chunk + 1);
    for (const Instruction& instruction : track.track->program->instructions)
      if (instruction.lane != Lane::kCompute) prepared.axes[CommAxisOf(instruction.lane)] = true;
  }
  return prepared;
}

RowLayout LayOut(const PictureTimeline& timeline, double left, double top, double width) {
  RowLayout layout{left, top, width};
  layout.rows = timeline.tracks.size();
  layout.gap = timeline.gap;
  layout.has_gap = !timeline.left_out.empty();
  for (const bool used : timeline.axes) layout.lanes += used ? 1 : 0;
  if (layout.rows > 8) layout = {left, top, width, 16, 4, 7, layout.lanes, layout.rows, layout.gap, layout.has_gap};
  if (layout.rows > 16) layout = {left, top, width, 12, 3, 5, layout.lanes, layout.rows, layout.gap, layout.has_gap};
  return layout;
}

void DrawRows(Svg& svg, const PictureTimeline& timeline, const RowLayout& layout, const Window& window) {
  for (size_t row = 0; row < timeline.tracks.size(); ++row) RowDrawer(svg, timeline, layout, window, row).Draw();
  if (layout.has_gap)
    svg.Text(layout.left + layout.width / 2, layout.Top(layout.gap) - 22 + 13, "··· " + timeline.left_out + " ···",
             "head", Anchor::kMiddle);
}

void DrawShareHeads(Svg& svg, double left, double baseline, std::string_view whole) {
  svg.Text(left + 16, baseline, fmt::format("shares of {}, %", whole), "small");
  double x = left + 16 + kShareBarWidth;
  for (const char* word : {"compute", "exposed", "idle"}) svg.Text(x += 46, baseline, word, "small", Anchor::kEnd);
}

}  // namespace espalier
