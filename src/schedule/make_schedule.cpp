#include <array>

#include "espalier/schedule/schedule.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

struct Entry {
  std::string_view name;  // in the deck
  int chunks_per_stage;
  Schedule (*make)(int stages, int microbatches);
};

constexpr std::array kSchedules = {Entry{"1f1b", 1, OneFOneB}, Entry{"gpipe", 1, GPipe}};

std::string AllowedNames() {
  std::string names;
  for (const Entry& entry : kSchedules) names += fmt::format("{}\"{}\"", names.empty() ? "" : ", ", entry.name);
  return names;
}

}  // namespace

Schedule MakeSchedule(std::string_view name, int stages, int chunks_per_stage, int microbatches) {
  for (const Entry& entry : kSchedules) {
    if (entry.name != name) continue;
    if (chunks_per_stage != entry.chunks_per_stage) {
      throw UserError(
          ExitStatus::kDeck,
          fmt::format("pipeline.chunks = {}: schedule \"{}\" runs {} chunk per stage; set pipeline.chunks = {}",
                      chunks_per_stage, name, entry.chunks_per_stage, entry.chunks_per_stage));
    }
    return entry.make(stages, microbatches);
  }
  throw UserError(
      ExitStatus::kDeck,
      fmt::format("pipeline.schedule = \"{}\": this version has no such schedule; allowed: {}", name, AllowedNames()));
}

}  // namespace espalier
