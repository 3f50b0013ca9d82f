// Everything that the page of `espalier report` shows of one run.
#pragma once

#include <string>

#include "espalier/deck/parse.hpp"
#include "espalier/page/page.hpp"

namespace espalier {

/// Reads the folder of a run. `cluster` is --cluster, may be empty. The page notes missing files other than
/// metrics.jsonl. Throws as ReadHistory.
RunOnPage Gather(const std::string& folder, const std::string& cluster);

/// Compiles the deck of the run again, for its ranks and device, and fills `programs`, `measured` and `simulated` with
/// the results, or with the reason why there are none.
void AddPrograms(RunOnPage& run, const LoadedDeck& loaded, const std::string& cluster);

/// "a; b": the messages of an error, for a sentence.
std::string InOneLine(const UserError& error);

}  // namespace espalier
