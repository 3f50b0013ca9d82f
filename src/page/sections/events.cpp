// Unusual entries of metrics.jsonl: events, numbers that are not finite, lines that cannot be read.
#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

using nlohmann::json;

constexpr size_t kMaxEvents = 400, kMaxNamed = 20;

bool IsFirstStart(const RunHistory& history, const Event& event) { return &event == history.EventsOf("start").front(); }

/// Events that every run has: its first start, its checkpoints and traces, and its end after the last step. Failed
/// saves are listed with the checkpoints.
bool IsRoutine(const RunHistory& history, const Event& event) {
  if (event.kind == "start") return IsFirstStart(history, event) && !event.fields.contains("fault");
  if (event.kind == "end") return IntegerOf(event.fields, "status") == 0;
  return event.kind == "checkpoint" || event.kind == "trace";
}

std::string AsText(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// "reason: no space left; to: 12".
std::string AllFields(const Event& event) {
  std::string text;
  for (const auto& [name, value] : event.fields.items())
    if (name != "event" && name != "time" && name != "step" && name != "rank_peak_bytes")
      text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, AsText(value));
  return text;
}

std::string StartText(const Event& event) {
  const std::string fault = TextOf(event.fields, "fault");
  const std::string again = fmt::format("starts at step {} on {}", *IntegerOf(event.fields, "first_step"),
                                        Count(IntegerOf(event.fields, "ranks").value_or(1), "rank"));
  return fault.empty() ? again : again + "; fault on purpose: " + fault;
}

std::string EventText(const Event& event) {
  const auto text = [&](std::string_view name) { return TextOf(event.fields, name); };
  if (event.kind == "start") return StartText(event);
  if (event.kind == "changed")
    return fmt::format("{} is {} now ({}); it was {}", text("key"), text("new"), text("origin"), text("old"));
  if (event.kind == "rollback")
    return fmt::format("back to step {}: {}", *IntegerOf(event.fields, "to"), text("reason"));
  if (event.kind == "warning") return text("text");
  if (event.fields.contains("reason")) return text("reason");
  return AllFields(event);
}

std::string KindText(const Event& event) { return event.kind == "checkpoint_failed" ? "save failed" : event.kind; }

Table EventTable(const std::vector<const Event*>& events) {
  Table table{{"event", "what", "when", "step"}, {}, 3};
  for (size_t i = 0; i < events.size(); ++i) {
    if (events.size() > kMaxEvents && i == kMaxEvents / 2) {
      table.rows.push_back({"...", fmt::format("{} events are left out", events.size() - kMaxEvents), "", ""});
      i = events.size() - kMaxEvents / 2;
    }
    const std::optional<int64_t> step = IntegerOf(events[i]->fields, "step");
    table.rows.push_back({KindText(*events[i]), EventText(*events[i]), DateText(NumberOf(events[i]->fields, "time")),
                          step ? std::to_string(*step) : ""});
  }
  return table;
}

/// "12, 13, 14, ...".
template <typename Element, typename ToText>
std::string Listed(const std::vector<Element>& elements, ToText to_text) {
  std::string text;
  for (size_t i = 0; i < std::min(elements.size(), kMaxNamed); ++i) text += (i == 0 ? "" : ", ") + to_text(elements[i]);
  return text + (elements.size() > kMaxNamed ? ", ..." : "");
}

void AddNotFinite(const RunHistory& history, Html& html) {
  std::map<std::string, std::vector<NotFinite>> by_field;
  for (const NotFinite& value : history.not_finite) by_field[value.field].push_back(value);
  for (const auto& [field, values] : by_field)
    html.Paragraph(fmt::format(
        "{}: {} was not finite in {}: {}.", history.folder, field, Count(std::ssize(values), "line"),
        Listed(values, [](const NotFinite& value) { return fmt::format("{} at step {}", value.value, value.step); })));
}

void AddUnread(const RunHistory& history, Html& html) {
  if (history.unread.empty()) return;
  html.Paragraph(fmt::format(
      "{}: {} of metrics.jsonl cannot be read and {} left out: {}.", history.folder,
      Count(history.unread_lines, "line"), history.unread_lines == 1 ? "is" : "are",
      Listed(history.unread, [](const UnreadLine& line) { return fmt::format("line {} {}", line.line, line.why); })));
}

}  // namespace

void WriteEvents(const Runs& runs, Html& html) {
  for (const RunOnPage& run : runs) {
    if (runs.size() > 1) html.Heading(run.name());
    std::vector<const Event*> events;
    for (const Event& event : run.history.events)
      if (!IsRoutine(run.history, event)) events.push_back(&event);
    if (!events.empty()) html.Add(EventTable(events));
    AddNotFinite(run.history, html);
    AddUnread(run.history, html);
    if (events.empty() && run.history.not_finite.empty() && run.history.unread.empty())
      html.Paragraph(fmt::format("{}: nothing but steps, validations, checkpoints and its end.", run.name()));
  }
}

}  // namespace espalier
