#include "espalier/history/run_history.hpp"

#include <cmath>

namespace espalier {

double NumberOf(const nlohmann::json& fields, std::string_view name) {
  const auto found = fields.find(name);
  return found != fields.end() && found->is_number() ? found->get<double>() : std::nan("");
}

std::optional<int64_t> IntegerOf(const nlohmann::json& fields, std::string_view name) {
  const auto found = fields.find(name);
  return found != fields.end() && found->is_number_integer() ? std::optional(found->get<int64_t>()) : std::nullopt;
}

std::string TextOf(const nlohmann::json& fields, std::string_view name) {
  const auto found = fields.find(name);
  return found != fields.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<const Event*> RunHistory::EventsOf(std::string_view kind) const {
  std::vector<const Event*> found;
  for (const Event& event : events)
    if (event.kind == kind) found.push_back(&event);
  return found;
}

const Event* RunHistory::LastStart() const {
  const std::vector<const Event*> starts = EventsOf("start");
  return starts.empty() ? nullptr : starts.back();
}

const Event* RunHistory::End() const {
  const std::vector<const Event*> ends = EventsOf("end");
  const Event* start = LastStart();
  return ends.empty() || (start != nullptr && start->line > ends.back()->line) ? nullptr : ends.back();
}

}  // namespace espalier
