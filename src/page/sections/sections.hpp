// The sections of the page, one function and one file each. They write into `html`, between its head and its end.
#pragma once

#include <vector>

#include "espalier/page/page.hpp"
#include "page/html.hpp"

namespace espalier {

using Runs = std::vector<RunOnPage>;

void WriteSummary(const Runs& runs, Html& html);
void WriteCurves(const Runs& runs, Html& html);
/// Only if a run has loads of experts.
void WriteExperts(const Runs& runs, Html& html);
bool HasExperts(const Runs& runs);
void WriteTime(const Runs& runs, Html& html);
void WriteStep(const Runs& runs, Html& html);
void WriteMemory(const Runs& runs, Html& html);
void WriteCheckpoints(const Runs& runs, Html& html);
void WriteEvents(const Runs& runs, Html& html);
void WriteDecks(const Runs& runs, Html& html);

}  // namespace espalier
