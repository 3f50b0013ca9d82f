#include "page/html.hpp"

#include <fmt/format.h>

#include "espalier/text/utf8.hpp"
#include "page/assets.hpp"

namespace espalier {

std::string SafeText(std::string_view text) {
  std::string valid(text);
  for (auto bad = FindBadUtf8(valid); bad; bad = FindBadUtf8(valid)) valid[*bad] = '?';
  return Escaped(valid);
}

void Html::BeginSection(std::string_view id, std::string_view title) {
  body_ += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n", id, SafeText(title));
}

void Html::EndSection() { body_ += "</section>\n"; }

void Html::Heading(std::string_view text) { body_ += fmt::format("<h3>{}</h3>\n", SafeText(text)); }

void Html::Paragraph(std::string_view text) { body_ += fmt::format("<p>{}</p>\n", SafeText(text)); }

void Html::Note(std::string_view text) { body_ += fmt::format("<p class=\"note\">{}</p>\n", SafeText(text)); }

void Html::Add(const Table& table) {
  const auto cells = [&](const std::vector<std::string>& texts, std::string_view element) {
    std::string row;
    for (size_t i = 0; i < texts.size(); ++i)
      row += fmt::format("<{}{}>{}</{}>", element, i < table.words ? "" : " class=\"number\"", SafeText(texts[i]),
                         element);
    return "<tr>" + row + "</tr>\n";
  };
  body_ += "<div class=\"table\"><table>\n";
  if (!table.heads.empty()) body_ += "<thead>" + cells(table.heads, "th") + "</thead>\n";
  body_ += "<tbody>\n";
  for (const std::vector<std::string>& row : table.rows) body_ += cells(row, "td");
  body_ += "</tbody>\n</table></div>\n";
}

void Html::AddFolded(std::string_view title, const Table& table) {
  body_ += fmt::format("<details>\n<summary>{}</summary>\n", SafeText(title));
  Add(table);
  body_ += "</details>\n";
}

void Html::Add(const std::vector<Card>& cards) {
  body_ += "<div class=\"cards\">\n";
  for (const Card& card : cards)
    body_ += fmt::format(
        "<div class=\"card\"><span class=\"name\">{}</span><span class=\"value\">{}</span><span "
        "class=\"more\">{}</span></div>\n",
        SafeText(card.name), SafeText(card.value), SafeText(card.more));
  body_ += "</div>\n";
}

void Html::BeginPictures() { body_ += "<div class=\"pictures\">\n"; }
void Html::EndPictures() { body_ += "</div>\n"; }

void Html::Add(std::string name, Drawing drawing, std::string_view caption) {
  const std::string words = caption.empty() ? "" : fmt::format("<figcaption>{}</figcaption>\n", SafeText(caption));
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
      SafeText(title), kPageCss, styles_, body_, kPageScript);
  return {std::move(html), std::move(drawings_)};
}

}  // namespace espalier
