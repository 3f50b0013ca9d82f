#include "page/chart/frame.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "page/assets.hpp"

namespace espalier {
namespace {

constexpr double kMargin = 10, kTitleBaseline = 18, kLegendRow = 17, kLetterWidth = 6.1, kSampleWidth = 18;

}  // namespace

std::string DotPath(double x, double y) {
  constexpr double kRadius = 2.4;
  return fmt::format("M{0} {1}m-{2} 0a{2} {2} 0 1 0 {3} 0a{2} {2} 0 1 0 -{3} 0", Pixels(x), Pixels(y), kRadius,
                     2 * kRadius);
}

ChartFrame::ChartFrame(ChartText text, ChartSize size, std::vector<LegendEntry> legend)
    : text_(std::move(text)), size_(size), legend_(std::move(legend)) {
  svg_.Rect({0, 0, size_.width, size_.height}, "ground");
  const std::string unit = text_.unit.empty() ? "" : ", " + text_.unit;
  svg_.Text(kMargin, kTitleBaseline, text_.title + unit, "title");
  DrawLegend();
}

void ChartFrame::DrawLegend() {
  if (legend_.empty()) return;
  double x = kMargin, y = kTitleBaseline + kLegendRow;
  for (const LegendEntry& entry : legend_) {
    const double width = kSampleWidth + 5 + kLetterWidth * static_cast<double>(entry.words.size()) + 12;
    if (x > kMargin && x + width > size_.width) {
      x = kMargin;
      y += kLegendRow;
    }
    DrawSample(entry, x, y);
    svg_.Text(x + kSampleWidth + 5, y, entry.words, "legend");
    x += width;
  }
  top_ = y + 14;
}

void ChartFrame::DrawSample(const LegendEntry& entry, double x, double y) {
  switch (entry.sample) {
    case LegendEntry::Sample::kLine:
      return svg_.Line(x, y - 4, x + kSampleWidth, y - 4, entry.css_class);
    case LegendEntry::Sample::kSquare:
      return svg_.Rect({x + 3, y - 9, 11, 11}, entry.css_class);
    case LegendEntry::Sample::kDot:
      return svg_.Raw(
          fmt::format("<path class=\"{}\" d=\"{}\"/>\n", entry.css_class, DotPath(x + kSampleWidth / 2, y - 4)));
  }
}

void ChartFrame::DrawYAxis(const Scale& y) {
  for (const double value : y.Ticks(static_cast<int>((bottom() - top()) / 34))) {
    svg_.Line(left(), y.At(value), right(), y.At(value), "grid");
    svg_.Text(left() - 6, y.At(value) + 4, TickText(value), "tick", Anchor::kEnd);
  }
}

void ChartFrame::DrawXAxis(const Scale& x) {
  const double places = (right() - left()) / 70, integers = std::max(1.0, std::floor(x.high() - x.low()));
  for (const double value : x.Ticks(static_cast<int>(std::min(places, integers)))) {
    svg_.Line(x.At(value), bottom(), x.At(value), bottom() + 4, "axis");
    svg_.Text(x.At(value), bottom() + 16, TickText(value), "tick", Anchor::kMiddle);
  }
  svg_.Raw(
      fmt::format("<path class=\"axis\" d=\"M{0} {2}H{1}\" data-from=\"{0}\" data-to=\"{1}\" data-low=\"{3:.10g}\" "
                  "data-high=\"{4:.10g}\" data-title=\"{5}\"/>\n",
                  Pixels(left()), Pixels(right()), Pixels(bottom()), x.low(), x.high(), Escaped(text_.x_title)));
  svg_.Text((left() + right()) / 2, size_.height - 5, text_.x_title, "tick", Anchor::kMiddle);
}

void ChartFrame::DrawMark(double x, std::string_view css_class) { svg_.Line(x, top(), x, bottom(), css_class); }

Drawing ChartFrame::Done(const std::string& content) const {
  return {size_.width, size_.height, text_.title + ": " + content, "chart", std::string(kChartCss), svg_.body()};
}

}  // namespace espalier
