#include "page/html.hpp"

#include <fmt/core.h>

#include "page/assets.hpp"

namespace espalier {

void Html::BeginSection(std::string_view id, std::string_view title) {
  body_ += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", id, Escaped(title));
}

void Html::EndSection() { body_ += "</section>\n"; }

void Html::Heading(std::string_view text) { body_ += fmt::format("<h3>{}</h3>\n", Escaped(text)); }

void Html::Paragraph(std::string_view text) { body_ += fmt::format("<p>{}</p>\n", Escaped(text)); }

void Html::Note(std::string_view text) { body_ += fmt::format("<p class=\"note\">{}</p>\n", Escaped(text)); }

void Html::Add(const Table& table) {
  const auto cells = [&](const std::vector<std::string>& texts, std::string_view element) {
    std::string row;
    for (size_t i = 0; i < texts.size(); ++i)
      row +=
          fmt::format("<{}{}>{}</{}>", element, i < table.words ? "" : " class=\"number\"", Escaped(texts[i]), element);
    return "<tr>" + row + "</tr>\n";
  };
  body_ += "<div class=\"table\"><table>\n";
  if (!table.heads.empty()) body_ += "<thead>" + cells(table.heads, "th") + "</thead>\n";
  body_ += "<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) body_ += cells(row, "td");
  body_ += "</tbody>\n</table></div>\n";
}

void Html::AddFolded(std::string_view title, const Table& table) {
  body_ += fmt::format("<details>\n<summary>{}</summary>\n", Escaped(title));
  Add(table);
  body_ += "</details>\n";
}

void Html::Add(const std::vector<Card>& cards) {
  body_ += "<div class=\"cards\">\n";
  for (const Card& card : cards)
    body_ += fmt::format(
        "<div class=\"card\"><span class=\"name\">{}</span><span class=\"value\">{}</span><span "
        "class=\"more\">{}</span></div>\n",
        Escaped(card.name), Escaped(card.value), Escaped(card.more));
  body_ += "</div>\n";
}

void Html::BeginColumns() { body_ += "<div class=\"columns\">\n"; }
void Html::EndColumns() { body_ += "</div>\n"; }

void Html::Add(std::string name, Drawing drawing, std::string_view caption) {
  const std::string words = caption.empty() ? "" : fmt::format("<figcaption>{}</figcaption>\n", Escaped(caption));
  body_ += fmt::format("<figure id=\"{}\"{}>\n<div class=\"picture\">{}</div>\n{}</figure>\n", name,
                       drawing.width > 600 ? " class=\"wide\"" : "", SvgElement(drawing), words);
  if (styles_.find(drawing.style) == styles_.npos) styles_ += drawing.style;
  drawings_.push_back({std::move(name), std::move(drawing)});
}

Page Html::Done(std::string_view title) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light "
      "dark\">\n<title>{0}</title>\n<style>\n{1}{2}</style>\n</head>\n<body>\n<header>\n<h1>{0}</h1>\n</header>\n"
      "<main>\n{3}</main>\n<script>\n{4}</script>\n</body>\n</html>\n",
      Escaped(title), kPageCss, styles_, body_, kPageScript);
  return {std::move(html), std::move(drawings_)};
}

}  // namespace espalier
