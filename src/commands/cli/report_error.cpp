#include "commands/cli/report_error.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "commands/cli/first_rank.hpp"
#include "espalier/util/agreed_error.hpp"
#include "espalier/util/hint.hpp"
#include "espalier/util/message_of.hpp"
#include "espalier/util/print.hpp"
#include "espalier/util/printable_lines.hpp"

namespace espalier {

// The launcher ends all ranks when one exits with an error, so the other ranks wait until rank 0 has printed. Errors of
// the deck, and errors that the ranks have agreed on, are the same on every rank: rank 0 alone reports them. Any other
// error may have occurred on one rank only, so that rank reports it.
int ReportUserError(const UserError& error) {
  const int rank = LauncherRank();
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  const bool same = error.status() == ExitStatus::kDeck || dynamic_cast<const AgreedError*>(&error) != nullptr;
  if (rank != 0 && same) return static_cast<int>(error.status());
  const auto n = std::ranges::count_if(error.messages(), [](const std::string& message) { return !IsHint(message); });
  PrintError("espalier: {}{}\n", n <= 1 ? "error" : fmt::format("{} errors", n),
             rank == 0 ? "" : fmt::format(" (rank {})", rank));
  for (const std::string& message : error.messages()) PrintError("{}\n", PrintableLines(message));
  return static_cast<int>(error.status());
}

int ReportFault(const char* kind, const std::exception& error) {
  PrintError("espalier: {} (rank {}): {}\n", kind, LauncherRank(), MessageOf(error));
  return static_cast<int>(ExitStatus::kFault);
}

}  // namespace espalier
