#include "commands/report/gather.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "espalier/deck/schema.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// Folders have the names that the run wrote: relative to its working directory, which may differ from this one.
void FindCheckpoints(RunOnPage& run) {
  for (const Event* save : run.history.EventsOf("checkpoint")) {
    const std::string folder = TextOf(save->fields, "dir");
    const fs::path here = fs::path(run.history.folder) / "checkpoints" / fs::path(folder).filename();
    std::error_code error;
    if (fs::exists(here / "MANIFEST", error)) run.checkpoints_there.insert(folder);
  }
}

void WithoutDeck(RunOnPage& run, const UserError& error) {
  run.why_no_keys = fmt::format("its deck cannot be read: {}", InOneLine(error));
  run.programs.why_none = "the memory of its programs is not known, since " + run.why_no_keys;
  run.measured.why_none = "no step is shown, since " + run.why_no_keys;
}

}  // namespace

std::string InOneLine(const UserError& error) { return fmt::format("{}", fmt::join(error.messages(), "; ")); }

RunOnPage Gather(const std::string& folder, const std::string& cluster) {
  RunOnPage run;
  run.history = ReadHistory(folder);
  FindCheckpoints(run);
  try {
    const LoadedDeck loaded = LoadDeck((fs::path(folder) / "deck.toml").string(), {}, KeyNames::kOfAnyVersion);
    for (const DeckKey& key : DeckSchema()) run.keys.emplace_back(key.FullName(), ToToml(Get(loaded.deck, key)));
    AddPrograms(run, loaded, cluster);
  } catch (const UserError& error) {
    WithoutDeck(run, error);
  }
  return run;
}

}  // namespace espalier
