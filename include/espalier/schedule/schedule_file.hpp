// A pipeline schedule as a file: CSV as PyTorch's torch.distributed.pipelining writes it. A line is a rank of the
// pipeline (here: a stage), a cell one of its actions: number of the stage (here: a chunk), role, microbatch. F is a
// forward, B a whole backward, I the gradients of inputs and W the gradients of weights; "(2F1;0B0)OVERLAP_F_B" is a
// forward and a backward side by side. Empty cells are idle time, which follows from the order.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "espalier/schedule/schedule.hpp"
#include "espalier/schedule/traits.hpp"

namespace espalier {

struct ScheduleFile {
  Schedule schedule;
  ScheduleTraits traits;  ///< `given` is the schedule
  std::string origin;     ///< path and checksum of the contents, for people and for comparing ranks
};

/// Reads pipeline.file. Throws UserError (kDeck) with "FILE:LINE, cell N (CELL): ..." for cells that are no actions,
/// for chunks that are on several lines or unequally many on each, and for all that Validate refuses.
std::shared_ptr<const ScheduleFile> ReadScheduleFile(const std::string& path);
/// The same from text.
std::shared_ptr<const ScheduleFile> ParseSchedule(std::string_view text, const std::string& path);

/// The file of a schedule with backward, without idle cells; ReadScheduleFile gives back the same jobs.
std::string ToCsv(const Schedule& schedule);

}  // namespace espalier
