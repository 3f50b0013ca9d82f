// The page: titles, legend, and for every timeline a panel of the whole step and one of its steady state.
#include <algorithm>

#include "timeline/picture/palette.hpp"
#include "timeline/picture/phases.hpp"
#include "timeline/picture/rows.hpp"
#include "timeline/picture/time_axis.hpp"

namespace espalier {
namespace {

constexpr double kPageWidth = 1600, kMargin = 24, kLabelsWidth = 150;
constexpr double kLeft = kMargin + kLabelsWidth, kWidth = kPageWidth - kLeft - kSharesWidth - kMargin;
constexpr size_t kMaxRows = 32, kMaxEnlargedRows = 16;
constexpr double kReadableJob = 16;  ///< pixels: if jobs are narrower on average, a part of the step is enlarged
constexpr int kMinForEnlarged = 8;   ///< microbatches of a step, at least
constexpr int kMaxEnlarged = 8;      ///< microbatches

constexpr std::string_view kHatch =
    "<defs><pattern id=\"hatch\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><rect width=\"4\" height=\"4\" fill=\"#FBE3DE\"/>"
    "<rect width=\"1.8\" height=\"4\" fill=\"#CC3311\"/></pattern></defs>\n";

class Page {
 public:
  explicit Page(const std::vector<Timeline>& timelines) {
    for (const Timeline& timeline : timelines) {
      timelines_.push_back(Prepare(timeline, kMaxRows));
      longest_us_ = std::max(longest_us_, timeline.step_us);
    }
  }

  Drawing Draw() {
    double y = kMargin;
    for (const PictureTimeline& timeline : timelines_) {
      y = DrawHeading(timeline, y);
      if (&timeline == &timelines_.front()) y = DrawLegend(y);
      y = DrawTimeline(timeline, y);
    }
    return Document(y);
  }

 private:
  double DrawHeading(const PictureTimeline& timeline, double y) {
    svg_.Text(kMargin, y + 14, timeline.timeline->title, "title");
    svg_.Text(kPageWidth - kMargin, y + 14, Summary(timeline), "head", Anchor::kEnd);
    return y + 26;
  }

  /// The shares of an average rank.
  static std::string Summary(const PictureTimeline& timeline) {
    double ranks = 0, compute = 0, exposed = 0, idle = 0;
    for (const Track& track : timeline.timeline->tracks) {
      const Breakdown b = BreakDown(track, timeline.timeline->step_us);
      ranks += track.ranks;
      compute += track.ranks * b.compute_us;
      idle += track.ranks * b.idle_us;
      for (const CommAxis axis : kAllCommAxes) exposed += track.ranks * b.exposed_us[axis];
    }
    const double percent = 100 / (ranks * timeline.timeline->step_us);
    return fmt::format("step {}; mean of all ranks: compute {:.1f} %, exposed {:.1f} %, idle {:.1f} %",
                       TimeText(timeline.timeline->step_us), percent * compute, percent * exposed, percent * idle);
  }

  double DrawLegend(double y) {
    double x = kMargin;
    const auto entry = [&](std::string_view css_class, double height, std::string_view words) {
      Lines line;
      line.Add(x, 18);
      svg_.Bars(y + 6 - height / 2, height, line, css_class);
      svg_.Text(x + 23, y + 10, words, "head");
      x += 23 + 6.4 * static_cast<double>(words.size()) + 14;
    };
    for (const JobKind kind : kJobKinds)
      if (Has(kind)) entry(ClassOf(kind, 0), 12, LegendOf(kind));
    entry("I", 12, "idle");
    const bool communicates = std::ranges::any_of(kAllCommAxes, [&](CommAxis axis) { return Has(axis); });
    if (communicates) entry("X", 12, "exposed: waits for communication");
    for (const CommAxis axis : kAllCommAxes)
      if (Has(axis)) entry(Name(axis), 5, Name(axis));
    if (communicates) entry("tph", 5, "pale: hidden");
    return y + 22;
  }

  double DrawTimeline(const PictureTimeline& timeline, double y) {
    const Window whole{0, longest_us_, longest_us_ / kWidth};
    const std::optional<SteadyState> steady = SteadyStateOf(timeline.tracks);
    if (steady) DrawPhases(*steady, timeline, whole, y + 8);
    DrawShareHeads(svg_, kLeft + kWidth, y + 12, "the step");
    const RowLayout layout = LayOut(timeline, kLeft, y + 18, kWidth);
    DrawGrid(layout, whole);
    DrawRows(svg_, timeline, layout, whole);
    const double end = kLeft + timeline.timeline->step_us / whole.us_per_pixel;
    svg_.Line(end, layout.top - 3, end, layout.Bottom(), "end");
    y = layout.Bottom() + 18;
    if (const std::optional<Window> part = EnlargedPart(timeline)) y = DrawEnlarged(timeline, *part, layout, whole, y);
    return y + 14;
  }

  void DrawPhases(const SteadyState& steady, const PictureTimeline& timeline, const Window& whole, double y) {
    const double xs[] = {kLeft, kLeft + steady.begin_us / whole.us_per_pixel,
                         kLeft + steady.end_us / whole.us_per_pixel,
                         kLeft + timeline.timeline->step_us / whole.us_per_pixel};
    const std::string_view words[] = {"warm-up", "steady state", "cool-down"};
    for (int phase = 0; phase < 3; ++phase) {
      const double begin = xs[phase] + 2, end = xs[phase + 1] - 2, middle = (begin + end) / 2;
      const double half = 2.6 * static_cast<double>(words[phase].size()) + 3;
      if (end - begin < 2 * half + 8) continue;
      svg_.Line(begin, y, middle - half, y, "phase");
      svg_.Line(middle + half, y, end, y, "phase");
      svg_.Line(begin, y - 3, begin, y + 3, "phase");
      svg_.Line(end, y - 3, end, y + 3, "phase");
      svg_.Text(middle, y + 3, words[phase], "small", Anchor::kMiddle);
    }
  }

  void DrawGrid(const RowLayout& layout, const Window& window) {
    const double bottom = layout.Bottom();
    for (const Tick& tick : TicksOf(window.begin_us, window.end_us, 12)) {
      const double x = kLeft + (tick.us - window.begin_us) / window.us_per_pixel;
      svg_.Line(x, layout.top - 3, x, bottom + 3, "grid");
      svg_.Text(x, bottom + 13, tick.label, "small", Anchor::kMiddle);
    }
  }

  /// A few microbatches in the middle, if the jobs of the whole step are too narrow to be read. All timelines show the
  /// same microbatches, in windows of equal length.
  std::optional<Window> EnlargedPart(const PictureTimeline& timeline) const {
    const PictureTimeline& first = timelines_.front();
    if (first.tracks.empty()) return std::nullopt;
    const int microbatches = first.tracks[0].track->program->microbatches;
    const int shown = std::clamp(microbatches / 4, 2, kMaxEnlarged);
    const double step = first.timeline->step_us, jobs = static_cast<double>(first.tracks[0].jobs.jobs.size());
    if (kWidth * step / longest_us_ / jobs >= kReadableJob || microbatches < kMinForEnlarged) return std::nullopt;
    const double length = shown * step / microbatches;
    const SteadyState middle = SteadyStateOf(first.tracks).value_or(SteadyState{0, step});
    const std::optional<int> from = MicrobatchAt(first.tracks, (middle.begin_us + middle.end_us - length) / 2);
    const std::optional<double> begin = from ? ForwardBegin(timeline.tracks, *from) : std::nullopt;
    if (!begin) return std::nullopt;
    return Window{*begin, *begin + length, length / kWidth};
  }

  double DrawEnlarged(const PictureTimeline& timeline, const Window& part, const RowLayout& above, const Window& whole,
                      double y) {
    const double left = kLeft + part.begin_us / whole.us_per_pixel, right = kLeft + part.end_us / whole.us_per_pixel;
    svg_.Rect({left, above.top - 3, right - left, above.Bottom() - above.top + 3}, "window");
    const PictureTimeline enlarged = Prepare(*timeline.timeline, kMaxEnlargedRows);
    const RowLayout layout = LayOut(enlarged, kLeft, y + 26, kWidth);
    svg_.Line(left, above.Bottom(), kLeft, layout.top - 3, "beam");
    svg_.Line(right, above.Bottom(), kLeft + kWidth, layout.top - 3, "beam");
    svg_.Text(kMargin, y + 16, "enlarged", "name");
    DrawShareHeads(svg_, kLeft + kWidth, y + 20, "this part");
    DrawGrid(layout, part);
    DrawRows(svg_, enlarged, layout, part);
    return layout.Bottom() + 18;
  }

  bool Has(JobKind kind) const {
    for (const PictureTimeline& timeline : timelines_)
      for (const PictureTrack& track : timeline.tracks)
        for (const PictureJob& job : track.jobs.jobs)
          if (job.kind == kind) return true;
    return false;
  }
  bool Has(CommAxis axis) const {
    return std::ranges::any_of(timelines_, [&](const PictureTimeline& timeline) { return timeline.axes[axis]; });
  }

  Drawing Document(double height) const {
    int chunks = 1;
    std::string title;
    for (const PictureTimeline& timeline : timelines_) {
      chunks = std::max(chunks, timeline.chunks);
      title += (title.empty() ? "" : "; ") + timeline.timeline->title;
    }
    const std::string page =
        fmt::format("<rect width=\"{}\" height=\"{}\" class=\"page\"/>\n", kPageWidth, Pixels(height));
    return {kPageWidth,
            height,
            title,
            "timeline",
            StyleSheet(chunks, Has(CommAxis::kHost)),
            std::string(kHatch) + page + svg_.body()};
  }

  Svg svg_;
  std::vector<PictureTimeline> timelines_;
  double longest_us_ = 0;
};

}  // namespace

Drawing DrawTimelines(const std::vector<Timeline>& timelines) { return Page(timelines).Draw(); }

}  // namespace espalier
