// Reports a run: one line per step on the console, and one JSON object per line in metrics.jsonl.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/mesh/mesh.hpp"
#include "espalier/model/flops.hpp"
#include "espalier/report/block.hpp"
#include "espalier/report/run_log.hpp"
#include "espalier/timeline/timeline.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// One step, with the names of metrics.jsonl. `step` 1 is the first; times are of this rank.
struct StepRecord {
  int64_t step = 0;
  float loss = 0;                    ///< cross-entropy of the step's batch, before its update
  float grad_norm = 0;               ///< before clipping
  std::optional<float> z_loss = {};  ///< mean of the z-loss, which `loss` does not include; none: loss.z_loss is 0
  /// Mean over the depths of model.mtp_layers of the cross-entropy per target, which `loss` does not include.
  std::optional<float> mtp_loss = {};
  /// Means of the routers' losses, which `loss` does not include, summed over layers; none: their factors are 0.
  std::optional<float> balance_loss = {}, router_z_loss = {};
  /// Tokens of the expert that most chose, relative to the mean of the layer's experts, by layer with experts.
  std::vector<double> experts_max_load = {};
  std::vector<std::vector<double>> experts_loads = {};  ///< tokens of each expert, by layer with experts
  std::optional<double> router_entropy = {};            ///< in nats, mean over tokens and layers with experts
  double lr = 0;
  int64_t tokens = 0;  ///< so far
  double step_ms = 0;
  double tokens_per_s = 0;
  int64_t peak_bytes = 0;
  int64_t host_bytes = 0;  ///< current host memory of this process, as the system counts it (resident)
  double compute_ms = 0;
  double exposed_comm_ms = 0;
  double idle_ms = 0;
  std::optional<CommTimes> comm = {};  ///< by axis; none: unknown for this step
  double data_ms = 0;
  double checkpoint_ms = 0;  ///< time that training waited for saves since the previous line
};

/// A source of a blend.
struct SourceRecord {
  std::string name;
  double share = 0;  ///< share of the run's samples
  int64_t samples = 0;
  double epochs = 0;  ///< passes over its samples in all steps
};

/// The training data of a run.
struct DataRecord {
  int64_t files = 0, tokens = 0, samples = 0;
  double epochs = 0;  ///< passes over the samples in all steps
  uint64_t fingerprint = 0;
  std::vector<SourceRecord> sources = {};  ///< empty unless data are a blend
};

/// The contents of the "start" event.
struct StartRecord {
  std::string version;
  std::string deck;  ///< path or name
  std::string device = "cpu";
  std::string cpu_level;  ///< instruction level of kernels on CPUs; "": no CPU computes
  int ranks = 1;
  int64_t threads = 1;  ///< threads of each rank
  Mesh mesh;
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;  ///< with batch.global sequences
  int64_t first_step = 1;       ///< first step of this start: 1, or the step after the checkpoint
  DataRecord data;
  double world_check_ms = 0;  ///< time to prove that the programs of all ranks fit together; NaN: not proven
  double startup_ms = 0;      ///< time since the start of the process
  std::string fault;          ///< effect of ESPALIER_FAULT, in words; "": none
  std::string costs;          ///< file of run.costs with its checksum; "": none
  std::string schedule;       ///< the same of pipeline.file
  std::string cluster;        ///< cluster file of a run that waits; "": the run trains
};

/// A committed checkpoint.
struct CheckpointRecord {
  int64_t step = 0;
  std::string dir;
  int64_t bytes = 0;        ///< size of all its files
  double blocked_ms = 0;    ///< time that the step waited for the previous save and for the copy (or the whole save)
  double committed_ms = 0;  ///< time from the start of the write to the commit
  double proof_ms = 0;      ///< time of the forward of the fixed microbatch before it
};

/// A traced step: where its time went, as the mean of the traced ranks.
struct TraceRecord {
  int64_t step = 0;
  int ranks = 0;       ///< traced
  double step_us = 0;  ///< time to the end of the last rank
  Breakdown mean;
  std::string picture;  ///< file
};

struct ReportOptions {
  int rank = 0;               ///< all ranks but 0 print nothing
  std::string metrics_path;   ///< file to append to; "" for none
  std::string events_folder;  ///< folder of TensorBoard's event files; "": none
  double (*now)() = SecondsSinceEpoch;
  std::FILE* console = stdout;  ///< nullptr for none
  Colours colours = Colours::kNo;
  Verbosity verbosity = Verbosity::kNormal;
  RunLog* log = nullptr;          ///< its messages are printed here while the reporter exists; null: none
  int64_t steps = 0;              ///< steps of the whole run
  BatchRamp ramp = BatchRamp(1);  ///< the sequences of each step
  int64_t every_steps = 1;  ///< >= 1; the console shows every such step, the first step of this start and the last
  ModelFlops flops_per_token;
  double peak_flops = 0;    ///< rate of all ranks together, per second; 0: unknown, so mfu is null
  std::string peak_source;  ///< origin of the peak, or why it is unknown
  bool sleeps = false;      ///< nothing is trained: there are no losses and norms
  double dilation = 1;      ///< a step takes this multiple of the recorded time
};

/// Every line of metrics.jsonl is a complete JSON object, written at once. A number that is not finite is null, and
/// "note" names it. A restart appends a "start" event; lines of steps after the restart point stay as history, so the
/// last line with a given "step" counts. A torn last line of a killed run is removed. Any thread may call any member.
class Console;
class CommunicationSummary;
class EventFile;
class JsonLine;
class MetricsFile;
class RunSummary;

class Reporter {
 public:
  /// Creates missing folders. Throws UserError (kFault) if the metrics file cannot be opened. If a later line cannot be
  /// written it prints a warning once, and the run continues.
  explicit Reporter(ReportOptions options);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  void Start(const StartRecord& start);
  /// A key of the deck that differs from the checkpoint: both values as TOML, and the origin of the new one.
  void Changed(const std::string& key, const std::string& before, const std::string& now, const std::string& origin);
  void Step(const StepRecord& record);
  void Validation(int64_t step, double loss);
  void Checkpoint(const CheckpointRecord& record);
  void Trace(const TraceRecord& record);
  /// The checkpoint of `step` was not committed; each reason is one line.
  void CheckpointFailed(int64_t step, const std::vector<std::string>& reasons);
  /// Like the line before, for copies in memory. Only metrics.jsonl lists them. A failure is printed unless it was
  /// `said` before.
  void MemoryCopy(const CheckpointRecord& record);
  void MemoryCopyFailed(int64_t step, const std::vector<std::string>& reasons, bool said);
  /// The run ends after `step`, before its last step, and why.
  void Stop(int64_t step, std::string_view reason);
  /// `step` is a spike and was accepted.
  void Spike(int64_t step, const std::string& reason);
  /// The update of `step` was skipped, and the run continues.
  void Skipped(int64_t step, const std::string& reason);
  /// `rank` on `host` has computed longer than its peers for many steps.
  void Straggler(int64_t step, int rank, const std::string& host, double compute_ms, double peers_ms);
  /// Messages over `axis` between `ranks` on `hosts` have taken longer than those of other groups for many steps.
  void SlowLink(int64_t step, std::string_view axis, const std::vector<int>& ranks,
                const std::vector<std::string>& hosts, double ms, double peers_ms);
  /// The batch size changes from `step` on, which is about to begin.
  void Grows(int64_t step, int64_t sequences);
  /// The copies of the state after `step` on `ranks` differ from the others. `what` it means: "not
  /// saved", "copies differ" if nothing was to be saved, or "computed differently".
  void Corrupt(int64_t step, const std::vector<int>& ranks, std::string_view what, const std::string& reason);
  /// `step` is discarded: the run continues from the checkpoint of `to`.
  void RolledBack(int64_t step, int64_t to, const std::string& reason);
  /// A warning, on the console and as an event.
  void Warn(const std::string& text);
  /// A warning that was printed before there was a reporter, as an event.
  void RecordWarning(const std::string& text);
  /// A line on the console only.
  void Say(const std::string& text, Worth worth = Worth::kNormal);
  void SayLine(const BlockLine& line);
  /// On a terminal, until the next line: shows a long activity, such as "saving", and after which step.
  void SetActivity(int64_t step, std::string_view what);
  void SetActivity(std::string_view what);
  /// Prints a summary of this start on the console, after End(). Communication is the mean of the steps for which it is
  /// known, without the first step of this start if there are others.
  void SaySummary();
  /// `rank_peak_bytes`: the high-water mark of each rank; `outside_bytes`: the most memory of a rank outside its
  /// arenas; `rank_host_bytes`: the high-water marks of arenas on the host, empty if there are none.
  void End(ExitStatus status, const std::vector<int64_t>& rank_peak_bytes, int64_t outside_bytes,
           const std::vector<int64_t>& rank_host_bytes = {});

 private:
  bool Silent() const { return options_.rank != 0; }
  /// A line of metrics.jsonl, to which it adds the time of day.
  void Write(JsonLine line);
  /// An event of a step, in metrics.jsonl and on the console, and how the summary counts it.
  void Say(int64_t step, JsonLine line, const std::string& text, void (RunSummary::*count)() = nullptr);
  /// Writes a warning, or keeps it until there is a "start" event.
  void TakeWarning(const std::string& text);
  void WriteWarning(const std::string& text);
  /// Prints and records an error of the event file; nothing if the text is empty.
  void Complain(const std::string& of_events);
  /// If nobody reads the console (a closed pipe, a terminal that is gone or paused), metrics.jsonl notes it, and the
  /// run continues.
  void Print(const std::string& line, Worth worth = Worth::kNormal);
  /// Shows a line until the next one, on a terminal; several times a second at most.
  void Show(const std::string& line);
  void ShowNow(const std::string& line);
  /// Whether the line of `step` has the load of every expert: steps at equal distances that are multiples of
  /// `every_steps`, and the last one.
  bool HasLoads(int64_t step) const;
  std::string StepRow(const StepRecord& record) const;
  void PrintStep(const StepRecord& record);
  /// Estimated seconds to the last step, from the mean time of a sequence in the latest steps.
  double SecondsLeft(int64_t step) const;

  const ReportOptions options_;
  std::mutex mutex_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<CommunicationSummary> communication_;
  std::unique_ptr<RunSummary> summary_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<MetricsFile> metrics_;
  std::vector<std::string> early_warnings_;  ///< before the "start" event
  bool started_ = false;
  bool header_printed_ = false;
  std::chrono::steady_clock::time_point shown_;  ///< when the last line was shown
  struct Pace {
    double ms;
    int64_t sequences;
  };
  std::deque<Pace> recent_;
};

}  // namespace espalier
