// The page, section by section.
#include "espalier/page/page.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/util/error.hpp"
#include "page/html.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

struct Section {
  const char *id, *title;
  void (*write)(const Runs& runs, Html& html);
  bool (*is_shown)(const Runs& runs) = nullptr;  ///< null: always
};

constexpr Section kSections[] = {
    {"summary", "Summary", WriteSummary},
    {"curves", "Curves", WriteCurves},
    {"experts", "Load of experts", WriteExperts, HasExperts},
    {"time", "Where the time went", WriteTime},
    {"step", "Timeline of a step", WriteStep},
    {"memory", "Memory during a step", WriteMemory},
    {"checkpoints", "Checkpoints", WriteCheckpoints},
    {"events", "Events and warnings", WriteEvents},
};
constexpr Section kDecks = {"decks", "Keys of the decks that differ", WriteDecks};

/// "3 runs: a, b, c".
std::string TitleOfPage(const std::vector<RunOnPage>& runs) {
  constexpr size_t kMaxNames = 4;
  std::string names;
  for (size_t r = 0; r < std::min(runs.size(), kMaxNames); ++r) names += (r == 0 ? "" : ", ") + runs[r].name();
  if (runs.size() == 1) return "Run " + names;
  return fmt::format("{} runs: {}{}", runs.size(), names, runs.size() > kMaxNames ? ", ..." : "");
}

}  // namespace

Page MakePage(const std::vector<RunOnPage>& runs) {
  CHECK(!runs.empty(), "a page about no run");
  Html html;
  const auto write = [&](const Section& section) {
    if (section.is_shown != nullptr && !section.is_shown(runs)) return;
    html.BeginSection(section.id, section.title);
    section.write(runs, html);
    html.EndSection();
  };
  for (const Section& section : kSections) write(section);
  if (runs.size() > 1) write(kDecks);
  return html.Done(TitleOfPage(runs));
}

}  // namespace espalier
