#include "train/startup/world_check.hpp"

#include <fmt/core.h>

#include "espalier/comm/agreement.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"

namespace espalier {
namespace {

const FaultStages kWorldCheckStages = {"world-check"};

WorldProof Check(const Deck& deck, int ranks, DeviceKind device) {
  const auto start = std::chrono::steady_clock::now();
  FaultPoint("world-check");
  std::string why_not;
  for (const ProgramOfRun& program : ProgramsOfRun(deck))
    if (why_not.empty()) why_not = ProveWorld(Compile(program.deck, ranks, program.purpose, device));
  return {MillisecondsSince(start), why_not};
}

}  // namespace

WorldCheck::WorldCheck(const Deck& deck, DeviceKind device, World& world) : world_(world) {
  if (world.Rank() == 0) proof_ = std::async(std::launch::async, Check, deck, world.Size(), device);
}

WorldProof WorldCheck::Await() {
  WorldProof proof;
  OnAllRanks(world_, [&] {
    if (proof_.valid()) try {
        proof = proof_.get();
      } catch (const std::exception& error) {
        throw UserError(
            ExitStatus::kFault,
            fmt::format("the programs of the ranks do not fit together, so nothing was trained: {}", error.what()));
      }
  });
  return proof;
}

}  // namespace espalier
