// espalier plan --passes: a pass whose pattern matches nowhere changes nothing, which a program alone does not show.
#include <fmt/format.h>

#include "commands/plan/parts.hpp"
#include "espalier/graph/changes.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/wrap.hpp"

namespace espalier {
namespace {

constexpr size_t kPassWidth = 120, kPassReasonIndent = 63;

std::string_view ReasonOf(std::string_view pass) { return std::ranges::find(Passes(), pass, &Pass::name)->why; }

std::string PassRow(std::string_view pass, double milliseconds, const Changes& c) {
  const std::string changes = c == Changes{}
                                  ? fmt::format("{:>32}", "unchanged")
                                  : fmt::format("{:>8}{:>8}{:>8}{:>8}", c.added, c.removed, c.changed, c.moved);
  return fmt::format("{:<19} {:>8.2f} {}  {}", pass, milliseconds, changes, ReasonOf(pass));
}

}  // namespace

void PrintPasses(const Deck& deck, int ranks) {
  fmt::print("{:<19} {:>8} {:>8}{:>8}{:>8}{:>8}  {}\n", "pass", "ms", "added", "removed", "changed", "moved",
             "why it is at this place");
  std::string before;
  auto start = std::chrono::steady_clock::now();
  const auto observe = [&](std::string_view pass, const Graph& graph) {
    const double milliseconds = MillisecondsSince(start);
    std::string after = Print(graph);
    if (pass != "model")
      fmt::print("{}\n", Wrap(PassRow(pass, milliseconds, Compare(before, after)), kPassWidth, kPassReasonIndent));
    before = std::move(after);
    start = std::chrono::steady_clock::now();
  };
  Compile(deck, ranks, Purpose::kTrain, observe, Verification::kAtTheEnd);
}

}  // namespace espalier
