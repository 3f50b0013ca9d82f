#include "espalier/report/report.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "espalier/report/text.hpp"
#include "espalier/util/print.hpp"
#include "report/communication_summary.hpp"
#include "report/console.hpp"
#include "report/event_file.hpp"
#include "report/json_line.hpp"
#include "report/run_summary.hpp"

namespace espalier {
namespace {

// Nine significant digits identify any fp32; `{}` is the shortest text that reads back as the same double.
constexpr std::string_view kNineDigits = "{:.9g}";
constexpr std::string_view kShortest = "{}";
constexpr std::string_view kMilliseconds = "{:.3f}";
constexpr std::string_view kRate = "{:.1f}";
constexpr std::string_view kFraction = "{:.4g}";

constexpr size_t kPaceSteps = 20;

/// The end of the last complete line in the first `end` bytes, searched backwards in blocks.
off_t EndOfLines(int file, off_t end) {
  std::array<char, 1 << 16> block;
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - std::ssize(block));
    if (pread(file, block.data(), static_cast<size_t>(end - begin), begin) != end - begin) return end;
    const std::string_view text(block.data(), static_cast<size_t>(end - begin));
    if (const size_t last = text.rfind('\n'); last != text.npos) return begin + static_cast<off_t>(last) + 1;
    end = begin;
  }
  return 0;
}

/// Truncates the file after its last newline.
void RemoveTornLine(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0) return;
  const off_t end = EndOfLines(file, status.st_size);
  if (end == status.st_size) return;
  if (ftruncate(file, end) == 0)
    return spdlog::info("{}: the last line was torn: its {} bytes are removed", path, status.st_size - end);
  spdlog::warn("{}: the last line is torn and stays: {}", path, std::strerror(errno));
}

/// A regular file, not a link, which may name a file of others, nor a pipe, which could block the run.
bool IsPlainFile(int file) {
  struct stat status {};
  return fstat(file, &status) == 0 && S_ISREG(status.st_mode);
}

int OpenMetrics(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (file < 0 && errno == ELOOP)
    throw UserError(
        ExitStatus::kFault,
        fmt::format("{}: is a link, which a run does not follow: remove it, or set run.dir to where it leads", path));
  if (file < 0) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot write: {}", path, std::strerror(errno)));
  if (!IsPlainFile(file)) {
    close(file);
    throw UserError(ExitStatus::kFault,
                    fmt::format("{}: is not a regular file: remove it, or use another run.dir", path));
  }
  RemoveTornLine(file, path);
  return file;
}

std::string MeshObject(const Mesh& mesh) {
  JsonLine line;
  for (const auto& [axis, degree] : mesh.DeckDegrees()) line.Integer(axis, degree);
  std::string text = line.Finish();
  text.pop_back();
  return text;
}

/// "{"tp":0.150,"cp":0.000,"dp":0.000,"pp":0.000}".
std::string MillisecondsObject(const ByCommAxis<double>& ms) {
  std::string members;
  for (const CommAxis axis : kCommAxes)
    members += fmt::format("{}\"{}\":{:.3f}", members.empty() ? "" : ",", Name(axis), ms[axis]);
  return "{" + members + "}";
}

int StepWidth(int64_t steps) { return std::max(9, 2 * static_cast<int>(std::to_string(steps).size()) + 1); }

/// "compute 61.2 %, exposed tp 3.1 %, idle 33.7 %, hidden tp 4.0 %" of the step.
std::string SharesText(const TraceRecord& record) {
  const auto percent = [&](double us) { return 100 * us / record.step_us; };
  const auto by_axis = [&](std::string_view word, const ByCommAxis<double>& us) {
    std::string text;
    for (const CommAxis axis : kCommAxes)
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
  if (!Silent() && !options_.metrics_path.empty()) metrics_ = OpenMetrics(options_.metrics_path);
}

Reporter::~Reporter() {
  if (metrics_ >= 0) close(metrics_);
}

void Reporter::Start(const StartRecord& start) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  if (!options_.events_folder.empty())
    events_ = std::make_unique<EventFile>(options_.events_folder, start.first_step, options_.now());
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
  if (!start.fault.empty()) line.Text("fault", start.fault);
  if (options_.sleeps) line.Text("cluster", start.cluster).Number("dilation", options_.dilation, kShortest);
  Write(line);
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
      .Number("compute_ms", record.compute_ms, kMilliseconds)
      .Number("exposed_comm_ms", record.exposed_comm_ms, kMilliseconds)
      .Number("idle_ms", record.idle_ms, kMilliseconds)
      .Raw("exposed_ms", record.comm ? MillisecondsObject(record.comm->exposed_ms) : "null")
      .Raw("hidden_ms", record.comm ? MillisecondsObject(record.comm->hidden_ms) : "null")
      .Number("data_ms", record.data_ms, kMilliseconds)
      .Number("checkpoint_ms", record.checkpoint_ms, kMilliseconds);
  Write(line);
  if (!header_printed_ || record.step % options_.every_steps == 0 || record.step == options_.steps) PrintStep(record);
}

void Reporter::Validation(int64_t step, double loss) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  loss = PlainNan(loss);
  Write(JsonLine().Integer("step", step).Number("val_loss", loss, kNineDigits));
  Print(fmt::format("{:>{}}  {:>9.5f}  validation\n", step, StepWidth(options_.steps), loss));
}

void Reporter::Checkpoint(const CheckpointRecord& record) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine()
            .Text("event", "checkpoint")
            .Integer("step", record.step)
            .Text("dir", record.dir)
            .Integer("bytes", record.bytes)
            .Number("blocked_ms", record.blocked_ms, kMilliseconds)
            .Number("committed_ms", record.committed_ms, kMilliseconds)
            .Number("proof_ms", record.proof_ms, kMilliseconds));
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
  Write(JsonLine()
            .Text("event", "checkpoint_failed")
            .Integer("step", step)
            .Text("reason", fmt::format("{}", fmt::join(reasons, "\n"))));
  for (const std::string& reason : reasons)
    Print(fmt::format("{:>{}}  checkpoint failed: {}\n", step, StepWidth(options_.steps), reason));
}

void Reporter::Stop(int64_t step, std::string_view reason) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine().Text("event", "stop").Integer("step", step).Text("reason", reason));
  Print(fmt::format("{:>{}}  stops here: {}\n", step, StepWidth(options_.steps), reason));
}

void Reporter::Spike(int64_t step, const std::string& reason) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine().Text("event", "spike").Integer("step", step).Text("reason", reason));
  Print(fmt::format("{:>{}}  accepted: {}\n", step, StepWidth(options_.steps), reason));
}

void Reporter::Skipped(int64_t step, const std::string& reason) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine().Text("event", "skipped").Integer("step", step).Text("reason", reason));
  Print(fmt::format("{:>{}}  skipped: {}\n", step, StepWidth(options_.steps), reason));
}

void Reporter::Grows(int64_t step, int64_t sequences) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine().Text("event", "batch").Integer("step", step).Integer("sequences", sequences));
  Print(fmt::format("{:>{}}  from here on {} sequence{} a step\n", step, StepWidth(options_.steps), sequences,
                    sequences == 1 ? "" : "s"));
}

void Reporter::RolledBack(int64_t step, int64_t to, const std::string& reason) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine().Text("event", "rollback").Integer("step", step).Integer("to", to).Text("reason", reason));
  Print(fmt::format("{:>{}}  rolled back to step {}: {}\n", step, StepWidth(options_.steps), to, reason));
}

void Reporter::End(ExitStatus status, const std::vector<int64_t>& rank_peak_bytes, int64_t outside_bytes) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Write(JsonLine()
            .Text("event", "end")
            .Integer("status", static_cast<int>(status))
            .Raw("rank_peak_bytes", fmt::format("[{}]", fmt::join(rank_peak_bytes, ",")))
            .Integer("outside_bytes", outside_bytes));
}

void Reporter::Write(JsonLine line) {
  const double now = options_.now();
  const std::string text = line.Number("time", now, kMilliseconds).Finish();
  WriteMetrics(text);
  if (events_) events_->Add(text, now);
}

void Reporter::WriteMetrics(const std::string& line) {
  if (metrics_ < 0) return;
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = write(metrics_, line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      if (!warned_)
        spdlog::warn("{}: cannot write: {}; lines will be missing", options_.metrics_path, std::strerror(errno));
      warned_ = true;
      return TakeBack(done);
    }
    done += static_cast<size_t>(written);
  }
}

void Reporter::TakeBack(size_t bytes) {
  struct stat status {};
  if (bytes == 0 || fstat(metrics_, &status) != 0) return;
  if (ftruncate(metrics_, status.st_size - static_cast<off_t>(bytes)) != 0)
    spdlog::warn("{}: a torn line stays: {}", options_.metrics_path, std::strerror(errno));
}

void Reporter::Print(const std::string& line) {
  const std::string lost = console_->Print(line);
  if (!lost.empty()) Write(JsonLine().Text("event", "console_lost").Text("reason", lost));
}

void Reporter::Say(const std::string& text) {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  Print(text + "\n");
}

void Reporter::SaySummary() {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  if (const std::string text = summary_->Text(options_); !text.empty()) Print(text + "\n");
}

void Reporter::SayCommunication() {
  if (Silent()) return;
  const std::lock_guard lock(mutex_);
  if (const std::string text = communication_->Text(); !text.empty()) Print(text + "\n");
}

void Reporter::PrintStep(const StepRecord& record) {
  const int width = StepWidth(options_.steps);
  if (!header_printed_) {
    Print(fmt::format("{:>{}}  {:>9}  {:>9}  {:>9}  {:>8}  {:>9}  {:>9}\n", "step", width, "loss", "grad norm", "lr",
                      "tokens/s", "ms", "time left"));
    header_printed_ = true;
  }
  const auto value = [&](double number, int digits) {
    return options_.sleeps ? std::string("-") : fmt::format("{:.{}f}", number, digits);
  };
  Print(fmt::format("{:>{}}  {:>9}  {:>9}  {:>9.3e}  {:>8}  {:>9.1f}  {:>9}\n",
                    fmt::format("{}/{}", record.step, options_.steps), width, value(record.loss, 5),
                    value(record.grad_norm, 4), record.lr, HumanCount(record.tokens_per_s), record.step_ms,
                    HumanDuration(SecondsLeft(record.step))));
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
