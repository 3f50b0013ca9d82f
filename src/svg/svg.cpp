#include "espalier/svg/svg.hpp"

#include <cmath>

#include "espalier/text/utf8.hpp"

namespace espalier {

std::string Pixels(double value) {
  const int64_t tenths = std::llround(value * 10);
  const std::string sign = tenths < 0 ? "-" : "";
  const int64_t whole = std::abs(tenths) / 10, rest = std::abs(tenths) % 10;
  return rest == 0 ? fmt::format("{}{}", sign, whole) : fmt::format("{}{}.{}", sign, whole, rest);
}

std::string Escaped(std::string_view text) {
  std::string valid(text), escaped;
  for (auto bad = FindBadUtf8(valid); bad; bad = FindBadUtf8(valid)) valid[*bad] = '?';
  for (const char c : valid) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '"')
      escaped += "&quot;";
    else
      escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return escaped;
}

std::string SvgFile(const Drawing& drawing) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{0}\" width=\"{1}\" height=\"{2}\" viewBox=\"0 0 {1} "
      "{2}\">\n<title>{3}</title>\n<style>{4}</style>\n{5}</svg>\n",
      drawing.css_class, Pixels(drawing.width), Pixels(drawing.height), Escaped(drawing.title), drawing.style,
      drawing.body);
}

std::string SvgElement(const Drawing& drawing) {
  return fmt::format("<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
                     drawing.css_class, Pixels(drawing.width), Pixels(drawing.height), Escaped(drawing.title),
                     drawing.body);
}

void Svg::Rect(const Rectangle& r, std::string_view css_class) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" class=\"{}\"/>\n", Pixels(r.x), Pixels(r.y),
                       Pixels(r.width), Pixels(r.height), css_class);
}

void Svg::Line(double x1, double y1, double x2, double y2, std::string_view css_class) {
  body_ += fmt::format("<path d=\"M{} {}L{} {}\" class=\"{}\"/>\n", Pixels(x1), Pixels(y1), Pixels(x2), Pixels(y2),
                       css_class);
}

void Svg::Text(double x, double y, std::string_view text, std::string_view css_class, Anchor anchor) {
  static constexpr std::string_view kAnchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  body_ += fmt::format("<text x=\"{}\" y=\"{}\" class=\"{}\"{}>{}</text>\n", Pixels(x), Pixels(y), css_class,
                       kAnchors[static_cast<size_t>(anchor)], Escaped(text));
}

void Svg::Bars(double y, double height, const Lines& lines, std::string_view css_class) {
  if (lines.Empty()) return;
  body_ += fmt::format("<path transform=\"translate(0 {})\" stroke-width=\"{}\" class=\"{}\" d=\"{}\"/>\n",
                       Pixels(y + height / 2), Pixels(height), css_class, lines.data());
}

}  // namespace espalier
