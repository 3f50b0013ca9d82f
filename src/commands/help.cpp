// espalier --help [SECTION], and doc/deck.md: both from the schema table.
#include <fmt/core.h>

#include "commands.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

int HelpCommand(const std::string& usage, const std::string& topic) {
  if (topic.empty())
    fmt::print("{}\nsections of a deck (--help SECTION, --help KEY, --help all):\n{}", usage, SectionList());
  else
    fmt::print("{}", HelpText(topic));
  return static_cast<int>(ExitStatus::kDone);
}

int DocDeckCommand() {
  fmt::print("{}", DeckReference());
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
