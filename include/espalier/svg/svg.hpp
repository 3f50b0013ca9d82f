// SVG: text of pictures, piece by piece. Text is escaped for HTML as well.
#pragma once

#include <fmt/core.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

/// A coordinate in pixels with one decimal at most: "12.3", "12", "-0.5".
std::string Pixels(double value);

/// With &, <, > and quotes as entities. Control characters, which XML forbids, are spaces; bytes that are not UTF-8 are
/// '?'.
std::string Escaped(std::string_view text);

struct Rectangle {
  double x = 0, y = 0, width = 0, height = 0;
};

/// A picture, to be a file of its own or a part of a page.
struct Drawing {
  double width = 0, height = 0;  ///< pixels
  std::string title;             ///< for those who cannot see it
  std::string css_class;         ///< of the root; every rule of `style` begins with it
  std::string style;             ///< CSS
  std::string body;              ///< the elements
};

/// A file: what any viewer of SVG shows.
std::string SvgFile(const Drawing& drawing);

/// An element of an HTML page that has `style` elsewhere. It is as wide as its place, and keeps its proportions.
std::string SvgElement(const Drawing& drawing);

/// All bars of one class in a row: horizontal lines as thick as the bars are high.
class Lines {
 public:
  void Add(double x, double width) { data_ += fmt::format("M{} 0h{}", Pixels(x), Pixels(width)); }
  bool Empty() const { return data_.empty(); }
  const std::string& data() const { return data_; }

 private:
  std::string data_;
};

/// How text is aligned to its x.
enum class Anchor : uint8_t { kStart, kMiddle, kEnd };

class Svg {
 public:
  void Rect(const Rectangle& r, std::string_view css_class);
  void Line(double x1, double y1, double x2, double y2, std::string_view css_class);
  /// `y` is the baseline.
  void Text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor = Anchor::kStart);
  /// Lines of thickness `height` in the middle of [y, y + height].
  void Bars(double y, double height, const Lines& lines, std::string_view css_class);
  void Raw(std::string_view text) { body_ += text; }

  const std::string& body() const { return body_; }

 private:
  std::string body_;
};

}  // namespace espalier
