// Summary of runs: settings, how far they came, and main figures.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "espalier/report/text.hpp"
#include "espalier/util/median.hpp"
#include "page/sections/numbers.hpp"
#include "page/sections/sections.hpp"

namespace espalier {
namespace {

using nlohmann::json;

constexpr int kStopped = static_cast<int>(ExitStatus::kStopped);

/// The fields of the last start; an empty object if there is none.
const json& Setup(const RunHistory& history) {
  static const json none = json::object();
  const Event* start = history.LastStart();
  return start == nullptr ? none : start->fields;
}

std::string State(const RunHistory& history) {
  const Event* end = history.End();
  if (end == nullptr) return "no end";
  const int64_t status = IntegerOf(end->fields, "status").value_or(-1);
  return status == 0 ? "done" : status == kStopped ? "stopped" : "failed";
}

std::string StateInWords(const RunHistory& history) {
  const Event* end = history.End();
  if (end == nullptr) return "there is no end line: it is running, or it was killed";
  const int64_t status = IntegerOf(end->fields, "status").value_or(-1);
  if (status == 0) return "all its steps are done";
  return fmt::format("exit status {}{}", status, status == kStopped ? ": started again, it goes on" : "");
}

/// The last finite value of a column and the lowest one.
struct Extreme {
  double value = std::nan("");
  int64_t step = 0;
  std::string Text() const {
    return std::isnan(value) ? kUnknown : fmt::format("{} at step {}", NineDigits(value), step);
  }
};
Extreme Last(const StepColumns& steps, std::string_view name) {
  Extreme last;
  const std::vector<double>& values = steps.Column(name);
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i])) last = {values[i], steps.steps()[i]};
  return last;
}
Extreme Lowest(const StepColumns& steps, std::string_view name) {
  Extreme lowest;
  const std::vector<double>& values = steps.Column(name);
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && !(values[i] >= lowest.value)) lowest = {values[i], steps.steps()[i]};
  return lowest;
}

/// The median since the last start; earlier starts may have had another layout or machine.
double MedianSinceStart(const RunHistory& history, std::string_view name) {
  const int64_t first = IntegerOf(Setup(history), "first_step").value_or(1);
  std::vector<double> values;
  const std::vector<double>& column = history.steps.Column(name);
  for (size_t i = 0; i < column.size(); ++i)
    if (history.steps.steps()[i] >= first && std::isfinite(column[i])) values.push_back(column[i]);
  return MedianOf(std::move(values));
}

/// Peak of the rank that used most, from the end event; before the end, of rank 0.
std::string PeakMemory(const RunHistory& history) {
  double most = 0;
  if (const Event* end = history.End(); end != nullptr && end->fields.contains("rank_peak_bytes"))
    for (const json& bytes : end->fields["rank_peak_bytes"])
      if (bytes.is_number()) most = std::max(most, bytes.get<double>());
  if (most == 0)
    for (const double bytes : FiniteOf(history.steps, "peak_bytes")) most = std::max(most, bytes);
  return most > 0 ? HumanBytes(static_cast<int64_t>(most)) : kUnknown;
}

int64_t LastStep(const RunHistory& history) { return history.steps.Rows() == 0 ? 0 : history.steps.steps().back(); }

std::string IntegerText(const json& fields, std::string_view name) {
  const std::optional<int64_t> value = IntegerOf(fields, name);
  return value ? std::to_string(*value) : kUnknown;
}

std::string CountText(const json& fields, std::string_view name) {
  const double value = NumberOf(fields, name);
  return value >= 10000 ? fmt::format("{} ({:.0f})", HumanCount(value), value) : IntegerText(fields, name);
}

std::string OrUnknown(std::string text) { return text.empty() ? kUnknown : std::move(text); }

std::string MeshText(const json& setup) {
  std::string text;
  if (setup.contains("mesh"))
    for (const auto& [axis, degree] : setup["mesh"].items())
      if (degree.is_number_integer() && degree != 1)
        text += fmt::format("{}{} {}", text.empty() ? "" : " x ", axis, degree.get<int64_t>());
  return text.empty() ? "every degree is 1" : text;
}

std::string DeviceText(const json& setup) {
  return fmt::format("{}, {} each", OrUnknown(TextOf(setup, "device")),
                     Count(IntegerOf(setup, "threads").value_or(1), "thread"));
}

std::string DataText(const json& setup) {
  if (!setup.contains("data_tokens")) return kUnknown;
  return fmt::format("{} tokens in {}; {:.3g} epochs", HumanCount(NumberOf(setup, "data_tokens")),
                     Count(IntegerOf(setup, "data_files").value_or(0), "file"), NumberOf(setup, "epochs"));
}

std::string StartsText(const RunHistory& history) {
  int64_t rollbacks = 0;
  for (const Resumption& resumption : history.resumptions) rollbacks += resumption.kind == Resumption::Kind::kRollback;
  const auto starts = static_cast<int64_t>(history.EventsOf("start").size());
  return Count(starts, "start") + (rollbacks > 0 ? ", " + Count(rollbacks, "rollback") : "");
}

std::string GivenUpText(const RunHistory& history) {
  const auto steps = static_cast<int64_t>(history.given_up.Rows());
  return steps == 0 ? "none"
                    : fmt::format("{}, {}", Count(steps, "step"), MillisecondsText(SumOf(history.given_up, "step_ms")));
}

std::string StepsText(const RunHistory& history) {
  return fmt::format("{} of {}", LastStep(history), IntegerText(Setup(history), "steps"));
}

std::string TokensText(const RunHistory& history) {
  const Extreme tokens = Last(history.steps, "tokens");
  return std::isnan(tokens.value) ? kUnknown : HumanCount(tokens.value);
}

std::string TitleOf(const RunHistory& history) {
  const json& setup = Setup(history);
  return OrUnknown(TextOf(setup, "deck"));
}

void AddCards(const RunOnPage& run, Html& html) {
  const RunHistory& history = run.history;
  const Extreme last = Last(history.steps, "loss"), lowest = Lowest(history.steps, "loss");
  const double rate = MedianSinceStart(history, "tokens_per_s"), mfu = MedianSinceStart(history, "mfu");
  std::vector<Card> cards = {
      {"state", State(history), StateInWords(history)},
      {"steps", StepsText(history), TokensText(history) + " tokens"},
      {"loss", std::isnan(last.value) ? kUnknown : fmt::format("{:.5f}", last.value),
       std::isnan(lowest.value) ? "" : fmt::format("lowest {:.5f} at step {}", lowest.value, lowest.step)},
      {"tokens per second", HumanCount(rate), "median since the last start"},
      {"memory of a rank", PeakMemory(history), "the most that a rank used"},
      {"time in steps", MillisecondsText(SumOf(history.steps, "step_ms")), "of the steps that count"},
  };
  if (!std::isnan(mfu)) cards.insert(cards.begin() + 4, {"mfu", PercentText(mfu), "of the peak, median"});
  html.Add(cards);
}

struct Fact {
  const char* name;
  std::function<std::string(const RunHistory&)> text;
};

const std::vector<Fact>& Facts() {
  static const std::vector<Fact> facts = {
      {"deck", TitleOf},
      {"version", [](const RunHistory& h) { return OrUnknown(TextOf(Setup(h), "version")); }},
      {"started", [](const RunHistory& h) { return DateText(h.first_time); }},
      {"last line", [](const RunHistory& h) { return DateText(h.last_time); }},
      {"state", StateInWords},
      {"ranks", [](const RunHistory& h) { return IntegerText(Setup(h), "ranks"); }},
      {"mesh", [](const RunHistory& h) { return MeshText(Setup(h)); }},
      {"device", [](const RunHistory& h) { return DeviceText(Setup(h)); }},
      {"parameters", [](const RunHistory& h) { return CountText(Setup(h), "parameters"); }},
      {"tokens per step", [](const RunHistory& h) { return CountText(Setup(h), "tokens_per_step"); }},
      {"data", [](const RunHistory& h) { return DataText(Setup(h)); }},
      {"steps done", StepsText},
      {"starts", StartsText},
      {"steps given up", GivenUpText},
      {"loss, last", [](const RunHistory& h) { return Last(h.steps, "loss").Text(); }},
      {"loss, lowest", [](const RunHistory& h) { return Lowest(h.steps, "loss").Text(); }},
      {"validation loss, last", [](const RunHistory& h) { return Last(h.steps, "val_loss").Text(); }},
      {"validation loss, lowest", [](const RunHistory& h) { return Lowest(h.steps, "val_loss").Text(); }},
      {"tokens per second, median",
       [](const RunHistory& h) { return HumanCount(MedianSinceStart(h, "tokens_per_s")); }},
      {"ms per step, median", [](const RunHistory& h) { return NineDigits(MedianSinceStart(h, "step_ms")); }},
      {"mfu, median", [](const RunHistory& h) { return PercentText(MedianSinceStart(h, "mfu")); }},
      {"peak of the device", [](const RunHistory& h) { return OrUnknown(TextOf(Setup(h), "peak_source")); }},
      {"memory of a rank", PeakMemory},
  };
  return facts;
}

/// Facts that are known of at least one run.
Table FactsOf(const Runs& runs) {
  Table table;
  table.words = 1 + runs.size();
  for (const Fact& fact : Facts()) {
    std::vector<std::string> row = {fact.name};
    for (const RunOnPage& run : runs) row.push_back(fact.text(run.history));
    const auto known = [](const std::string& text) { return text != kUnknown; };
    if (std::any_of(row.begin() + 1, row.end(), known)) table.rows.push_back(std::move(row));
  }
  return table;
}

/// A single run has its facts in two columns.
void AddFacts(const Table& facts, Html& html) {
  const auto middle = facts.rows.begin() + std::ssize(facts.rows) / 2;
  html.BeginColumns();
  html.Add(Table{{}, {facts.rows.begin(), middle}, facts.words});
  html.Add(Table{{}, {middle, facts.rows.end()}, facts.words});
  html.EndColumns();
}

}  // namespace

void WriteSummary(const Runs& runs, Html& html) {
  for (const RunOnPage& run : runs) {
    if (runs.size() > 1) html.Heading(run.name());
    AddCards(run, html);
  }
  Table table = FactsOf(runs);
  if (runs.size() == 1) return AddFacts(table, html);
  table.heads = {""};
  for (const RunOnPage& run : runs) table.heads.push_back(run.name());
  html.Add(table);
}

}  // namespace espalier
