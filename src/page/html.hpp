// Builds HTML from paragraphs, tables and pictures. All text is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/page/page.hpp"

namespace espalier {

struct Table {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;
  size_t words = 1;  ///< columns of words on the left; the others are numbers
};

/// A figure shown large.
struct Card {
  std::string name, value, more;
};

class Html {
 public:
  void BeginSection(std::string_view id, std::string_view title);
  void EndSection();
  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  /// A note about missing data, and how to get them.
  void Note(std::string_view text);
  /// A table that is wider than the screen scrolls separately.
  void Add(const Table& table);
  /// A folded table: its title opens it.
  void AddFolded(std::string_view title, const Table& table);
  void Add(const std::vector<Card>& cards);
  /// Pictures and tables between these calls are side by side if the screen is wide enough.
  void BeginColumns();
  void EndColumns();
  /// `name` is unique on the page.
  void Add(std::string name, Drawing drawing, std::string_view caption = "");

  /// The finished page.
  Page Done(std::string_view title);

 private:
  std::string body_;
  std::string styles_;  ///< styles of the pictures, each once
  std::vector<NamedDrawing> drawings_;
};

}  // namespace espalier
