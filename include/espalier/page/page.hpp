// The page about runs that `espalier report` writes: from what was read and compiled to HTML. Pure: no file is read
// here.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "espalier/history/run_history.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/svg/svg.hpp"
#include "espalier/timeline/timeline.hpp"

namespace espalier {

/// The memory of one rank during a step of training.
struct MemoryOnPage {
  int stage = 0, rank = 0;
  MemoryTimeline course;
  std::string peak_instruction;  ///< "instruction 12 (matmul, role F, microbatch 2, layer 5)"
  int64_t arena_bytes = 0;       ///< of the program of this step, holes included
};

/// The figures of a run's deck when it is compiled again.
struct ProgramsOnPage {
  std::vector<MemoryOnPage> memory;      ///< of the rank of each stage that needs most
  std::vector<int64_t> rank_peak_bytes;  ///< planned, by rank: the largest of all programs of the run
  std::string why_none;                  ///< why there is nothing of this; "" if there is
};

/// A timeline of one step, or why there is none.
struct TimelineOnPage {
  std::optional<Timeline> timeline;
  std::string why_none;
};

struct RunOnPage {
  RunHistory history;
  std::vector<std::pair<std::string, std::string>> keys;  ///< of its effective deck, values as TOML
  std::string why_no_keys;                                ///< why the deck could not be read; "" if it was
  std::set<std::string> checkpoints_there;                ///< folders of checkpoints that still exist
  ProgramsOnPage programs;
  TimelineOnPage measured, simulated;

  const std::string& name() const { return history.folder; }
};

/// A picture of the page, under a name that is unique there.
struct NamedDrawing {
  std::string name;
  Drawing drawing;
};

struct Page {
  std::string html;  ///< complete, in one file: it refers to nothing outside
  std::vector<NamedDrawing> drawings;
};

/// There is at least one run. Text of the runs may be anything: it is escaped.
Page MakePage(const std::vector<RunOnPage>& runs);

}  // namespace espalier
