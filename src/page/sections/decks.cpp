// The keys of the decks in which several runs differ.
#include <fmt/core.h>

#include <algorithm>

#include "page/sections/sections.hpp"

namespace espalier {
namespace {

std::string ValueOf(const RunOnPage& run, const std::string& key) {
  const auto found = std::ranges::find(run.keys, key, &std::pair<std::string, std::string>::first);
  return found == run.keys.end() ? "-" : found->second;
}

}  // namespace

void WriteDecks(const Runs& runs, Html& html) {
  Table table{{"key"}, {}, 1 + runs.size()};
  const RunOnPage* known = nullptr;
  for (const RunOnPage& run : runs) {
    table.heads.push_back(run.name());
    if (run.why_no_keys.empty())
      known = &run;
    else
      html.Note(fmt::format("{}: {}", run.name(), run.why_no_keys));
  }
  if (known == nullptr) return;
  for (const auto& [key, value] : known->keys) {
    std::vector<std::string> row = {key};
    bool differs = false;
    for (const RunOnPage& run : runs) {
      row.push_back(ValueOf(run, key));
      differs = differs || (run.why_no_keys.empty() && row.back() != value);
    }
    if (differs) table.rows.push_back(std::move(row));
  }
  if (table.rows.empty()) return html.Paragraph("None: their effective decks are equal.");
  html.Add(table);
}

}  // namespace espalier
