// HTML, piece by piece. All text is escaped.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "espalier/page/page.hpp"

namespace espalier {

struct Table {
  std::vector<std::string> heads;
  std::vector<std::vector<std::string>> rows;
  size_t words = 1;  ///< so many columns on the left are words; the others are numbers
};

/// A figure that stands out.
struct Card {
  std::string name, value, more;
};

class Html {
 public:
  void BeginSection(std::string_view id, std::string_view title);
  void EndSection();
  void Heading(std::string_view text);
  void Paragraph(std::string_view text);
  /// What is missing, and how to get it.
  void Note(std::string_view text);
  /// A table that is wider than the screen is scrolled by itself.
  void Add(const Table& table);
  /// A table behind its title, for those who want it.
  void AddFolded(std::string_view title, const Table& table);
  void Add(const std::vector<Card>& cards);
  /// Pictures and tables stand side by side between these, where the screen is wide enough.
  void BeginColumns();
  void EndColumns();
  /// `name` is unique on the page.
  void Add(std::string name, Drawing drawing, std::string_view caption = "");

  /// The finished page.
  Page Done(std::string_view title);

 private:
  std::string body_;
  std::string styles_;  ///< of the pictures, each once
  std::vector<NamedDrawing> drawings_;
};

}  // namespace espalier
