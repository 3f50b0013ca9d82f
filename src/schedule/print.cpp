#include "schedule/jobs.hpp"

namespace espalier {

std::string LabelOf(const Schedule& schedule, const Job& job) {
  std::string label;
  for (size_t i = 0; i < job.parts.size(); ++i) {
    const JobPart& part = job.parts[i];
    label += Name(part.role);
    const bool same_follows = i + 1 < job.parts.size() && job.parts[i + 1].chunk == part.chunk &&
                              job.parts[i + 1].microbatch == part.microbatch;
    if (same_follows) continue;
    label += std::to_string(part.microbatch);
    if (schedule.Chunks() > schedule.stages) label += fmt::format(".{}", part.chunk);
    if (i + 1 < job.parts.size()) label += '&';
  }
  return label;
}

std::string ToString(const Schedule& schedule, int stage) {
  std::string text;
  for (const Job& job : schedule.jobs.at(static_cast<size_t>(stage))) {
    if (!text.empty()) text += ' ';
    text += LabelOf(schedule, job);
  }
  return text;
}

}  // namespace espalier
