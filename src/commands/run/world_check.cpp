#include "commands/run/world_check.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "commands/run/together.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

double Check(const Deck& deck, int ranks) {
  const auto start = std::chrono::steady_clock::now();
  FaultPoint("world-check");
  for (Purpose purpose : PurposesOf(deck))
    if (const std::string why = ProveWorld(Compile(deck, ranks, purpose)); !why.empty())
      spdlog::warn("not proven that all programs fit together: {}", why);
  return MillisecondsSince(start);
}

}  // namespace

WorldCheck::WorldCheck(const Deck& deck, World& world) : world_(world) {
  if (world.Rank() == 0) took_ms_ = std::async(std::launch::async, Check, deck, world.Size());
}

double WorldCheck::Await() {
  double ms = 0;
  Together(world_, [&] {
    if (took_ms_.valid()) try {
        ms = took_ms_.get();
      } catch (const std::exception& error) {
        throw UserError(
            ExitStatus::kFault,
            fmt::format("the programs of the ranks do not fit together, so nothing was trained: {}", error.what()));
      }
  });
  return ms;
}

}  // namespace espalier
