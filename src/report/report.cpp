#include "espalier/report/report.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "espalier/report/text.hpp"
#include "espalier/util/print.hpp"
#include "report/communication_summary.hpp"
#include "report/console.hpp"
#include "report/event_file.hpp"
#include "report/json_line.hpp"
#include "report/metrics_file.hpp"
#include "report/run_summary.hpp"

namespace espalier {
namespace {

// Nine significant digits identify any fp32; `{}` is the shortest text that reads back as the same double.
constexpr std::string_view kNineDigits = "{:.9g}";
constexpr std::string_view kShortest = "{}";
constexpr std::string_view kMilliseconds = "{:.3f}";
constexpr std::string_view kRate = "{:.1f}";
constexpr std::string_view kFraction = "{:.4g}";
constexpr std::string_view kSixDigits = "{:.6g}";
constexpr std::string_view kWhole = "{:.0f}";

/// At most so many lines of a run, besides the last, have the loads of all experts: with 61 layers of 256 experts a
/// line has some 80 kB.
constexpr int64_t kLinesWithLoads = 1000;

constexpr size_t kPaceSteps = 20;

std::string MeshObject(const Mesh& mesh) {
  JsonLine line;
  for (const auto& [axis, degree] : mesh.DeckDegrees()) line.Integer(axis, degree);
  std::string text = line.Finish();
  text.pop_back();
  return text;
}

/// "{"tp":0.150,"cp":0.000,"dp":0.000,"pp":0.000}"; "host" only if there were copies.
std::string MillisecondsObject(const ByCommAxis<double>& ms) {
  std::string members;
  for (const CommAxis axis : kAllCommAxes)
    if (axis != CommAxis::kHost || ms[axis] > 0)
      members += fmt::format("{}\"{}\":{:.3f}", members.empty() ? "" : ",", Name(axis), ms[axis]);
  return "{" + members + "}";
}

int StepWidth(int64_t steps) { return std::max(9, 2 * static_cast<int>(std::to_string(steps).size()) + 1); }

std::string NumbersArray(const std::vector<double>& numbers, std::string_view format) {
  std::string array;
  for (const double number : numbers) {
    if (!array.empty()) array += ',';
    array += std::isfinite(number) ? fmt::format(fmt::runtime(format), number) : "null";
  }
  return "[" + array + "]";
}
std::string LoadsArray(const std::vector<std::vector<double>>& layers) {
  std::string array;
  for (const std::vector<double>& loads : layers) array += (array.empty() ? "" : ",") + NumbersArray(loads, kWhole);
  return "[" + array + "]";
}

/// "compute 61.2 %, exposed tp 3.1 %, idle 33.7 %, hidden tp 4.0 %" of the step.
std::string SharesText(const TraceRecord& record) {
  const auto percent = [&](double us) { return 100 * us / record.step_us; };
  const auto by_axis = [&](std::string_view word, const ByCommAxis<double>& us) {
    std::string text;
    for (const CommAxis axis : kAllCommAxes)
      if (percent(us[axis]) >= 0.05) text += fmt::format(", {} {} {:.1f} %", word, Name(axis), percent(us[axis]));
    return text;
  };
  return fmt::format("compute {:.1f} %{}, idle {:.1f} %{}", percent(record.mean.compute_us),
                     by_axis("exposed", record.mean.exposed_us), percent(record.mean.idle_us),
                     by_axis("hidden", record.mean.hidden_us));
}

/// [{"first_step":1,"sequences":4},...]
std::string SizesArray(const BatchRamp& ramp) {
  std::string text;
  for (const RampSize& size : ramp.Sizes())
    text += fmt::format("{}{{\"first_step\":{},\"sequences\":{}}}", text.empty() ? "" : ",", size.first_step,
                        size.sequences);
  return "[" + text + "]";
}

/// [{"name":...,"share":...,"samples":...,"epochs":...},...]
std::string SourcesArray(const std::vector<SourceRecord>& sources) {
  std::string text;
  for (const SourceRecord& source : sources) {
    std::string object = JsonLine()
                             .Text("name", source.name)
                             .Number("share", source.share, kShortest)
                             .Integer("samples", source.samples)
                             .Number("epochs", source.epochs, kFraction)
                             .Finish();
    object.pop_back();  // the end of the line
    text += (text.empty() ? "" : ",") + object;
  }
  return "[" + text + "]";
}

}  // namespace

Reporter::Reporter(ReportOptions options)
    : options_(std::move(options)),
      console_(std::make_unique<Console>(options_.console)),
      communication_(std::make_unique<CommunicationSummary>()),
      summary_(std::make_unique<RunSummary>()) {
  CHECK(options_.every_steps >= 1, "a report every {} steps", options_.every_steps);
  if (Silent()) return;
  if (!options_.metrics_path.empty()) metrics_ = std::make_unique<MetricsFile>(options_.metrics_path);
  if (metrics_ && !metrics_->note().empty()) Say(metrics_->note());
  if (options_.log != nullptr) options_.log->SendTo(this);
}

Reporter::~Reporter() {
  if (!Silent() && options_.log != nullptr) options_.log->SendTo(nullptr);
}

void Reporter::Start(const StartRecord& start) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  if (!options_.events_folder.empty())
    events_ = std::make_unique<EventFile>(options_.events_folder, start.first_step, options_.now());
  if (events_) Complain(events_->TakeComplaint());
  JsonLine line;
  line.Text("event", "start")
      .Text("version", start.version)
      .Integer("ranks", start.ranks)
      .Raw("mesh", MeshObject(start.mesh))
      .Integer("parameters", start.parameters)
      .Integer("tokens_per_step", start.tokens_per_step)
      .Text("deck", start.deck)
      .Text("device", start.device)
      .Integer("threads", start.threads)
      .Integer("steps", options_.steps)
      .Integer("first_step", start.first_step)
      .Number("flops_per_token", options_.flops_per_token.causal, kShortest)
      .Number("flops_per_token_full", options_.flops_per_token.full, kShortest)
      .Integer("data_files", start.data.files)
      .Integer("data_tokens", start.data.tokens)
      .Integer("data_samples", start.data.samples)
      .Number("epochs", start.data.epochs, kFraction)
      .Text("data_fingerprint", fmt::format("{:016x}", start.data.fingerprint))
      .Number("world_check_ms", start.world_check_ms, kMilliseconds)
      .Raw("peak_flops", options_.peak_flops > 0 ? fmt::format(kShortest, options_.peak_flops) : "null")
      .Text("peak_source", options_.peak_source)
      .Number("startup_ms", start.startup_ms, kMilliseconds);
  if (options_.ramp.Grows()) line.Raw("batch_sizes", SizesArray(options_.ramp));
  if (!start.data.sources.empty()) line.Raw("data_sources", SourcesArray(start.data.sources));
  line.TextIfAny("cpu_level", start.cpu_level).TextIfAny("costs", start.costs);
  line.TextIfAny("schedule", start.schedule).TextIfAny("fault", start.fault);
  if (options_.sleeps) line.Text("cluster", start.cluster).Number("dilation", options_.dilation, kShortest);
  Write(line);
  started_ = true;
  for (const std::string& warning : std::exchange(early_warnings_, {})) WriteWarning(warning);
}

void Reporter::Changed(const std::string& key, const std::string& before, const std::string& now,
                       const std::string& origin) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(
      JsonLine().Text("event", "changed").Text("key", key).Text("old", before).Text("new", now).Text("origin", origin));
}

void Reporter::Step(const StepRecord& record) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  communication_->Add(record);
  summary_->Add(record);
  recent_.push_back({record.step_ms, options_.ramp.SequencesOf(record.step)});
  if (recent_.size() > kPaceSteps) recent_.pop_front();
  JsonLine line;
  line.Integer("step", record.step);
  if (options_.sleeps)
    line.Null("loss").Null("grad_norm");
  else
    line.Number("loss", record.loss, kNineDigits).Number("grad_norm", record.grad_norm, kNineDigits);
  if (record.z_loss && !options_.sleeps) line.Number("z_loss", *record.z_loss, kNineDigits);
  if (record.mtp_loss && !options_.sleeps) line.Number("mtp_loss", *record.mtp_loss, kNineDigits);
  if (record.balance_loss && !options_.sleeps) line.Number("balance_loss", *record.balance_loss, kNineDigits);
  if (record.router_z_loss && !options_.sleeps) line.Number("router_z_loss", *record.router_z_loss, kNineDigits);
  if (!record.experts_max_load.empty() && !options_.sleeps)
    line.Number("experts_max_load", std::ranges::max(record.experts_max_load), kFraction)
        .Raw("experts_max_loads", NumbersArray(record.experts_max_load, kFraction));
  if (record.router_entropy && !options_.sleeps) line.Number("router_entropy", *record.router_entropy, kSixDigits);
  if (!record.experts_loads.empty() && !options_.sleeps && HasLoads(record.step))
    line.Raw("experts_loads", LoadsArray(record.experts_loads));
  line.Number("lr", record.lr, kShortest);
  if (options_.ramp.Grows()) line.Integer("sequences", options_.ramp.SequencesOf(record.step));
  line.Integer("tokens", record.tokens)
      .Number("step_ms", record.step_ms, kMilliseconds)
      .Number("tokens_per_s", record.tokens_per_s, kRate);
  if (options_.peak_flops > 0) {
    line.Number("mfu", options_.flops_per_token.causal * record.tokens_per_s / options_.peak_flops, kFraction);
  } else {
    line.Null("mfu");
  }
  line.Integer("peak_bytes", record.peak_bytes)
      .Integer("host_bytes", record.host_bytes)
      .Number("compute_ms", record.compute_ms, kMilliseconds)
      .Number("exposed_comm_ms", record.exposed_comm_ms, kMilliseconds)
      .Number("idle_ms", record.idle_ms, kMilliseconds)
      .Raw("exposed_ms", record.comm ? MillisecondsObject(record.comm->exposed_ms) : "null")
      .Raw("hidden_ms", record.comm ? MillisecondsObject(record.comm->hidden_ms) : "null")
      .Number("data_ms", record.data_ms, kMilliseconds)
      .Number("checkpoint_ms", record.checkpoint_ms, kMilliseconds);
  Write(line);
  if (!header_printed_ || record.step % options_.every_steps == 0 || record.step == options_.steps)
    PrintStep(record);
  else
    Show(StepRow(record));
}

bool Reporter::HasLoads(int64_t step) const {
  const int64_t reports = options_.steps / options_.every_steps;
  const int64_t apart = options_.every_steps * std::max<int64_t>(1, (reports + kLinesWithLoads - 1) / kLinesWithLoads);
  return step % apart == 0 || step == options_.steps;
}

void Reporter::Validation(int64_t step, double loss) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  loss = PlainNan(loss);
  summary_->AddValidation(step, loss);
  Write(JsonLine().Integer("step", step).Number("val_loss", loss, kNineDigits));
  Print(fmt::format("{:>{}}  {:>9.5f}  validation\n", step, StepWidth(options_.steps), loss));
}

static JsonLine EventOf(std::string_view event, int64_t step) {
  return JsonLine().Text("event", event).Integer("step", step);
}

static JsonLine LineOf(std::string_view event, const CheckpointRecord& r) {
  JsonLine line;
  line.Text("event", event).Integer("step", r.step).Text("dir", r.dir).Integer("bytes", r.bytes);
  line.Number("blocked_ms", r.blocked_ms, kMilliseconds).Number("committed_ms", r.committed_ms, kMilliseconds);
  line.Number("proof_ms", r.proof_ms, kMilliseconds);
  return line;
}

void Reporter::Checkpoint(const CheckpointRecord& record) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  summary_->Add(record);
  Write(LineOf("checkpoint", record));
  Print(fmt::format("{:>{}}  checkpoint {} ({}, {:.0f} ms)\n", record.step, StepWidth(options_.steps), record.dir,
                    HumanBytes(record.bytes), record.committed_ms));
}

void Reporter::Trace(const TraceRecord& record) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  const CommTimes comm = CommTimesOf(record.mean);
  Write(JsonLine()
            .Text("event", "trace")
            .Integer("step", record.step)
            .Text("picture", record.picture)
            .Integer("ranks", record.ranks)
            .Number("step_ms", record.step_us / 1e3, kMilliseconds)
            .Number("compute_ms", record.mean.compute_us / 1e3, kMilliseconds)
            .Number("idle_ms", record.mean.idle_us / 1e3, kMilliseconds)
            .Raw("exposed_ms", MillisecondsObject(comm.exposed_ms))
            .Raw("hidden_ms", MillisecondsObject(comm.hidden_ms)));
  Print(fmt::format("{:>{}}  traced: {} ({})\n", record.step, StepWidth(options_.steps), record.picture,
                    SharesText(record)));
}

void Reporter::CheckpointFailed(int64_t step, const std::vector<std::string>& reasons) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(EventOf("checkpoint_failed", step).Text("reason", fmt::format("{}", fmt::join(reasons, "\n"))));
  summary_->AddFailedSave();
  for (const std::string& reason : reasons)
    Print(fmt::format("{:>{}}  checkpoint failed: {}\n", step, StepWidth(options_.steps), reason), Worth::kResult);
}

void Reporter::MemoryCopy(const CheckpointRecord& record) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(LineOf("memory_copy", record));
}

void Reporter::MemoryCopyFailed(int64_t step, const std::vector<std::string>& reasons, bool said) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(EventOf("memory_copy_failed", step).Text("reason", fmt::format("{}", fmt::join(reasons, "\n"))));
  if (said) return;
  for (const std::string& reason : reasons)
    Print(fmt::format("{:>{}}  copy in memory failed: {}\n", step, StepWidth(options_.steps), reason), Worth::kResult);
}

void Reporter::Say(int64_t step, JsonLine line, const std::string& text, void (RunSummary::*count)()) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  if (count != nullptr) (summary_.get()->*count)();
  Write(std::move(line));
  Print(fmt::format("{:>{}}  {}\n", step, StepWidth(options_.steps), text), Worth::kResult);
}

void Reporter::Stop(int64_t step, std::string_view reason) {
  Say(step, EventOf("stop", step).Text("reason", reason), fmt::format("stops here: {}", reason));
}

void Reporter::Spike(int64_t step, const std::string& reason) {
  Say(step, EventOf("spike", step).Text("reason", reason), fmt::format("accepted: {}", reason), &RunSummary::AddSpike);
}

void Reporter::Skipped(int64_t step, const std::string& reason) {
  Say(step, EventOf("skipped", step).Text("reason", reason), fmt::format("skipped: {}", reason), &RunSummary::AddSkip);
}

void Reporter::Grows(int64_t step, int64_t sequences) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(EventOf("batch", step).Integer("sequences", sequences));
  Print(fmt::format("{:>{}}  from here on {} sequence{} a step\n", step, StepWidth(options_.steps), sequences,
                    sequences == 1 ? "" : "s"));
}

void Reporter::Straggler(int64_t step, int rank, const std::string& host, double compute_ms, double peers_ms) {
  Say(step,
      EventOf("straggler", step)
          .Integer("rank", rank)
          .Text("host", host)
          .Number("compute_ms", compute_ms, kMilliseconds)
          .Number("peers_ms", peers_ms, kMilliseconds),
      fmt::format("rank {} ({}) computes {:.1f} ms a step, its peers {:.1f}: each step waits up to {:.1f} ms", rank,
                  host, compute_ms, peers_ms, compute_ms - peers_ms));
}

void Reporter::SlowLink(int64_t step, std::string_view axis, const std::vector<int>& ranks,
                        const std::vector<std::string>& hosts, double ms, double peers_ms) {
  Say(step,
      EventOf("slow_link", step)
          .Text("axis", axis)
          .Raw("ranks", fmt::format("[{}]", fmt::join(ranks, ",")))
          .Text("hosts", fmt::format("{}", fmt::join(hosts, ", ")))
          .Number("ms", ms, kMilliseconds)
          .Number("peers_ms", peers_ms, kMilliseconds),
      fmt::format("{} messages between ranks {} ({}) take {:.1f} ms a step, those of their peers {:.1f}: each "
                  "step waits up to {:.1f} ms",
                  axis, fmt::join(ranks, ", "), fmt::join(hosts, ", "), ms, peers_ms, ms - peers_ms));
}

void Reporter::Corrupt(int64_t step, const std::vector<int>& ranks, std::string_view what, const std::string& reason) {
  Say(step, EventOf("corruption", step).Raw("ranks", fmt::format("[{}]", fmt::join(ranks, ","))).Text("reason", reason),
      fmt::format("{}: {}", what, reason));
}

void Reporter::RolledBack(int64_t step, int64_t to, const std::string& reason) {
  Say(step, EventOf("rollback", step).Integer("to", to).Text("reason", reason),
      fmt::format("rolled back to step {}: {}", to, reason), &RunSummary::AddRollback);
}

void Reporter::End(ExitStatus status, const std::vector<int64_t>& rank_peak_bytes, int64_t outside_bytes,
                   const std::vector<int64_t>& rank_host_bytes) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  summary_->AddMemory(rank_peak_bytes, outside_bytes);
  JsonLine line;
  line.Text("event", "end")
      .Integer("status", static_cast<int>(status))
      .Raw("rank_peak_bytes", fmt::format("[{}]", fmt::join(rank_peak_bytes, ",")))
      .Integer("outside_bytes", outside_bytes);
  if (!rank_host_bytes.empty()) line.Raw("rank_host_bytes", fmt::format("[{}]", fmt::join(rank_host_bytes, ",")));
  Write(line);
}

void Reporter::Warn(const std::string& text) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Print(PrintWarning(text, options_.colours), Worth::kResult);
  TakeWarning(text);
}

void Reporter::RecordWarning(const std::string& text) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  TakeWarning(text);
}

/// The first line of a start is its "start" event.
void Reporter::TakeWarning(const std::string& text) {
  if (started_)
    WriteWarning(text);
  else
    early_warnings_.push_back(text);
}

void Reporter::WriteWarning(const std::string& text) { Write(JsonLine().Text("event", "warning").Text("text", text)); }

void Reporter::Write(JsonLine line) {
  const double now = options_.now();
  const std::string text = line.Number("time", now, kMilliseconds).Finish();
  if (metrics_)
    if (const std::string failed = metrics_->Write(text); !failed.empty())
      Print(PrintWarning(failed, options_.colours), Worth::kResult);
  if (!events_) return;
  events_->Add(text, now);
  Complain(events_->TakeComplaint());
}

void Reporter::Complain(const std::string& of_events) {
  if (of_events.empty()) return;
  Print(PrintWarning(of_events, options_.colours), Worth::kResult);
  TakeWarning(of_events);
}

void Reporter::Print(const std::string& line, Worth worth) {
  if (!Shows(options_.verbosity, worth)) return;
  shown_ = {};
  const std::string lost = console_->Print(line);
  if (!lost.empty()) Write(JsonLine().Text("event", "console_lost").Text("reason", lost));
}

void Reporter::Show(const std::string& line) {
  if (!Shows(options_.verbosity, Worth::kNormal)) return;
  constexpr auto kPause = std::chrono::milliseconds(100);
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ < kPause) return;
  shown_ = now;
  console_->Show(line);
}

void Reporter::SetActivity(int64_t step, std::string_view what) {
  ShowNow(fmt::format("{:>{}}  {} ...", step, StepWidth(options_.steps), what));
}

void Reporter::SetActivity(std::string_view what) { ShowNow(fmt::format("{} ...", what)); }

void Reporter::ShowNow(const std::string& line) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  shown_ = {};
  Show(line);
}

void Reporter::Say(const std::string& text, Worth worth) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Print(text + "\n", worth);
}

void Reporter::SayLine(const BlockLine& line) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Print(espalier::Print(line, options_.colours), line.worth);
}

void Reporter::SaySummary() {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  for (const BlockLine& line : summary_->Lines(options_)) Print(espalier::Print(line, options_.colours), line.worth);
  if (const std::string text = communication_->Text(); !text.empty())
    Print(espalier::Print({"messages", text}, options_.colours), Worth::kNormal);
}

std::string Reporter::StepRow(const StepRecord& record) const {
  const auto value = [&](double number, int digits) {
    return options_.sleeps ? std::string("-") : fmt::format("{:.{}f}", number, digits);
  };
  return fmt::format("{:>{}}  {:>9}  {:>9}  {:>9.3e}  {:>8}  {:>9.1f}  {:>9}",
                     fmt::format("{}/{}", record.step, options_.steps), StepWidth(options_.steps),
                     value(record.loss, 5), value(record.grad_norm, 4), record.lr, HumanCount(record.tokens_per_s),
                     record.step_ms, HumanDuration(SecondsLeft(record.step)));
}

void Reporter::PrintStep(const StepRecord& record) {
  if (!header_printed_)
    Print(fmt::format("{:>{}}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}  {:>9}\n", "step", StepWidth(options_.steps), "loss",
                      "grad norm", "lr", "tokens/s", "ms", "time left"));
  header_printed_ = true;
  Print(StepRow(record) + "\n");
}

double Reporter::SecondsLeft(int64_t step) const {
  // The first step is slower; it counts only while it is the only one.
  const auto first = recent_.begin() + (recent_.size() > 1 && recent_.size() < kPaceSteps ? 1 : 0);
  double ms = 0;
  int64_t sequences = 0;
  for (auto pace = first; pace != recent_.end(); ++pace) ms += pace->ms, sequences += pace->sequences;
  const int64_t left = options_.ramp.SequencesUpTo(options_.steps) - options_.ramp.SequencesUpTo(step);
  return static_cast<double>(left) * ms / static_cast<double>(sequences) * 1e-3 * options_.dilation;
}

}  // namespace espalier
