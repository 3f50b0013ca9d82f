// espalier run: trains. The deck goes down the journey once (deck, compile, memory, state, data), then step by step.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <sstream>

#include "commands/build_info.hpp"
#include "commands.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/mpi_communication.hpp"
#include "espalier/data/batch_loader.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/executor/executor.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/report.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/zigzag.hpp"
#include "state.hpp"
#include "version.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

double MillisecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

/// Runs `work` on every rank. If the user's mistake stops any of them, all stop with the messages of the first that failed.
template <typename Work>
void Together(World& world, const Work& work) {
  std::string mine;
  ExitStatus status = ExitStatus::kDone;
  try {
    work();
  } catch (const UserError& error) {
    status = error.status();
    mine = error.what();
  } catch (const fs::filesystem_error& error) {
    status = ExitStatus::kFault;
    mine = error.what();
  }
  const int64_t worst = world.Max(static_cast<int64_t>(status));
  if (worst == 0) return;
  std::string first;
  for (const std::string& message : world.Gather(status == static_cast<ExitStatus>(worst) ? mine : ""))
    if (first.empty()) first = message;
  std::istringstream lines(world.Broadcast(first));
  std::vector<std::string> messages;
  for (std::string line; std::getline(lines, line);) messages.push_back(line);
  throw UserError(static_cast<ExitStatus>(worst), messages);
}

void WriteFile(const fs::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (!file.flush()) throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be written", path.string()));
}

/// Resident memory at its highest, in bytes.
int64_t PeakResidentBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

/// Where a run starts: from nothing, or from a checkpoint.
struct Start {
  LoadedDeck loaded;
  std::vector<std::string> checkpoints;  ///< to try, best first; empty: fresh
};

/// The deck, and the checkpoints that it asks to restart from. A checkpoint's own deck stands below the user's.
Start FindStart(const RunOptions& options) {
  Start start;
  start.loaded = LoadDeck(options.arguments.deck, options.arguments.overrides);
  const Deck& deck = start.loaded.deck;
  const std::string folder = (fs::path(deck.run.dir) / "checkpoints").string();
  if (!options.restart.empty() && options.restart != "latest")
    start.checkpoints = {Resolve(options.restart, folder)};
  else if (deck.checkpoint.restart != "never" || !options.restart.empty())
    start.checkpoints = FindCheckpoints(folder);
  if (start.checkpoints.empty() && (deck.checkpoint.restart == "required" || !options.restart.empty()))
    throw UserError(ExitStatus::kData, fmt::format("{}: there is no checkpoint to restart from", folder));
  if (!start.checkpoints.empty())
    start.loaded = LoadDeck(options.arguments.deck, options.arguments.overrides, ReadMetadata(start.checkpoints[0]).deck);
  return start;
}

/// A program in memory, ready to run.
struct Runnable {
  Program program;
  std::unique_ptr<Executor> executor;
};

class Training {
 public:
  Training(const RunOptions& options, World& world, MpiWorld* mpi) : world_(world), mpi_(mpi), began_(std::chrono::steady_clock::now()) {
    Together(world_, [&] {
      start_ = FindStart(options);
      ResolveMesh(start_.loaded, world_.Size());
    });
  }

  int Run() {
    Compile();
    OpenData();
    BeginReport();
    Restore();
    Train();
    Finish();
    return static_cast<int>(ExitStatus::kDone);
  }

 private:
  const Deck& deck() const { return start_.loaded.deck; }
  std::string CheckpointFolder() const { return (fs::path(deck().run.dir) / "checkpoints").string(); }
  bool Root() const { return world_.Rank() == 0; }

  // 1. Programs and their memory.
  void Compile() {
    training_ = espalier::Compile(deck(), world_.Size(), Purpose::kTrain);
    coordinate_ = training_.mesh.CoordinateOf(world_.Rank());
    train_.program = MakeProgram(training_, coordinate_);
    int64_t bytes = train_.program.arena_bytes;
    if (Evaluates(deck())) {
      evaluate_.emplace();
      evaluate_->program =
          MakeProgram(espalier::Compile(deck(), world_.Size(), Purpose::kEvaluate), coordinate_, StateBytes(train_.program));
      bytes = std::max(bytes, evaluate_->program.arena_bytes);
    }
    SetCpuThreads(ThreadsHere());
    Together(world_, [&] { arena_ = std::make_unique<Arena>(bytes); });
    MakeExecutor(train_);
    if (evaluate_) MakeExecutor(*evaluate_);
    tensors_ = StateTensors(training_);
    local_ = LocalTensors(tensors_, *train_.executor, coordinate_);
  }
  int ThreadsHere() const { return ThreadCount(deck(), mpi_ == nullptr ? 1 : mpi_->NodeRanks()); }
  void MakeExecutor(Runnable& runnable) {
    if (mpi_ != nullptr && communication_ == nullptr) {
      std::vector<Channel> channels = ChannelsOf(train_.program);
      if (evaluate_) {
        const std::vector<Channel> more = ChannelsOf(evaluate_->program);
        channels.insert(channels.end(), more.begin(), more.end());
      }
      communication_ = std::make_unique<MpiCommunication>(*mpi_, training_.mesh, AgreeOnChannels(*mpi_, channels));
    }
    Executor::Abort abort;
    if (mpi_ != nullptr) abort = [this](const std::string& message) { mpi_->Fail(message); };
    runnable.executor =
        std::make_unique<Executor>(runnable.program, coordinate_, *arena_, communication_.get(), FindCpuKernel, abort);
  }

  // 2. Data.
  BatchLayout LayoutOfBatch() const {
    const Graph& graph = *training_.graph;
    const Box box = LocalBox(graph.values[static_cast<size_t>(graph.Find("ids"))].type, training_.mesh, coordinate_);
    BatchLayout layout{training_.microbatches, deck().batch.global / training_.microbatches, box[0], {}};
    for (int64_t i = box[1].begin; i < box[1].end; ++i)
      layout.positions.push_back(ZigzagPosition(i, deck().model.seq_len, training_.mesh.Degree(Axis::kCp)));
    return layout;
  }
  std::unique_ptr<TokenSource> Open(const std::vector<std::string>& paths) const {
    return OpenTokenSource(deck().data.format, paths, deck().model.seq_len, deck().model.vocab);
  }
  void OpenData() {
    layout_ = LayoutOfBatch();
    Together(world_, [&] {
      source_ = Open(deck().data.paths);
      if (evaluate_) validation_ = Open(deck().data.validation);
      fs::create_directories(CheckpointFolder());
    });
  }

  // 3. What the run says of itself.
  void BeginReport() {
    ReportOptions options;
    options.rank = world_.Rank();
    options.metrics_path = (fs::path(deck().run.dir) / "metrics.jsonl").string();
    options.steps = deck().run.steps;
    options.every_steps = deck().report.every_steps;
    options.flops_per_token = FlopsPerToken(deck());
    Together(world_, [&] {
      report_ = std::make_unique<Reporter>(options);
      if (Root()) WriteFile(fs::path(deck().run.dir) / "deck.toml", EffectiveDeck(deck()));
    });
  }
  void Announce() {
    StartRecord start;
    start.version = fmt::format("{} ({})", kVersion, kGitHash);
    start.deck = start_.loaded.deck.name;
    start.ranks = world_.Size();
    start.threads = ThreadsHere();
    start.mesh = training_.mesh;
    start.parameters = training_.parameter_count;
    start.tokens_per_step = TokensPerStep();
    start.first_step = step_ + 1;
    start.startup_ms = MillisecondsSince(began_);
    report_->Start(start);
    if (Root()) spdlog::info("bf16 products: {}", CpuBf16Method());
  }

  // 4. State: from a checkpoint (stepping back over damaged ones as far as the deck allows), or from nothing.
  void Restore() {
    SetConstantInputs(train_);
    if (evaluate_) SetConstantInputs(*evaluate_);
    int64_t refused = 0;
    for (const std::string& dir : start_.checkpoints) {
      try {
        step_ = Load(dir, tensors_, local_, training_.mesh, world_).step;
        if (Root()) spdlog::info("restarted from {} (step {})", dir, step_);
        break;
      } catch (const UserError& error) {
        if (refused++ >= deck().checkpoint.fallback || &dir == &start_.checkpoints.back()) throw;
        if (Root()) spdlog::warn("{}", error.what());
      }
    }
    if (start_.checkpoints.empty()) InitializeWeights(training_, *train_.executor);
    Announce();
    const SampleOrder order{deck().run.seed, deck().data.shuffle ? Order::kShuffled : Order::kSequential};
    loader_ = std::make_unique<BatchLoader>(std::move(source_), order, layout_, step_);
    if (deck().checkpoint.at_start && !fs::exists(fs::path(CheckpointFolder()) / StepName(step_))) SaveCheckpoint();
  }
  void SetConstantInputs(const Runnable& runnable) const {
    int32_t* positions = runnable.executor->At("positions").As<int32_t>();
    std::copy(layout_.positions.begin(), layout_.positions.end(), positions);
  }

  // 5. Steps.
  void Train() {
    while (step_ < deck().run.steps) {
      StepRecord record = TrainStep();
      CheckFinite(record);
      const bool last = step_ == deck().run.steps;
      const int64_t every = deck().checkpoint.every_steps;
      if (last || (every > 0 && step_ % every == 0)) {
        const auto before = std::chrono::steady_clock::now();
        SaveCheckpoint();
        record.checkpoint_ms = MillisecondsSince(before);
      }
      report_->Step(record);
      if (evaluate_ && (last || step_ % deck().data.validate_every_steps == 0)) report_->Validation(step_, Evaluate());
    }
  }

  StepRecord TrainStep() {
    const auto before = std::chrono::steady_clock::now();
    const Batch& batch = NextBatch();
    FillBatch(train_, batch);
    const double lr = LearningRate(deck(), step_ + 1);
    train_.executor->SetScalar("lr", static_cast<float>(lr));
    train_.executor->SetScalar("step", static_cast<float>(step_ + 1));
    const StepTimes times = train_.executor->RunStep();
    ++step_;
    return Record(times, lr, MillisecondsSince(before));
  }
  const Batch& NextBatch() {
    try {
      return loader_->Next();
    } catch (const UserError& error) {
      if (mpi_ == nullptr) throw;
      fmt::print(stderr, "espalier: rank {}: {}\n", world_.Rank(), error.what());
      mpi_->Abort(static_cast<int>(error.status()));
    }
  }
  void FillBatch(const Runnable& runnable, const Batch& batch) const {
    for (size_t k = 0; k < batch.microbatches.size(); ++k) {
      Fill(runnable, "ids", static_cast<int>(k), batch.microbatches[k].ids);
      Fill(runnable, "targets", static_cast<int>(k), batch.microbatches[k].targets);
    }
  }
  /// Inputs live on the stages that read them.
  static void Fill(const Runnable& runnable, std::string_view name, int microbatch, const std::vector<int32_t>& tokens) {
    const int id = runnable.program.graph->Find(name);
    for (const PersistentBuffer& buffer : runnable.program.persistent)
      if (buffer.value == id && buffer.microbatch == microbatch)
        std::copy(tokens.begin(), tokens.end(), runnable.executor->At(name, microbatch).As<int32_t>());
  }

  StepRecord Record(const StepTimes& times, double lr, double step_ms) {
    StepRecord record;
    record.step = step_;
    record.loss = train_.executor->GetScalar("mean_loss");
    record.grad_norm = train_.executor->GetScalar("norm");
    record.lr = lr;
    record.tokens = step_ * TokensPerStep();
    record.step_ms = step_ms;
    record.tokens_per_s = static_cast<double>(TokensPerStep()) / (step_ms / 1e3);
    record.peak_bytes = arena_->HighWater();
    record.compute_ms = times.compute_ms;
    record.exposed_comm_ms = times.exposed_comm_ms;
    record.idle_ms = times.idle_ms;
    record.data_ms = loader_->wait_ms();
    losses_.push_back(record.loss);
    if (losses_.size() > 100) losses_.erase(losses_.begin());
    return record;
  }
  /// The update read `apply` and left the weights alone; going on would only repeat the step. All ranks see the same numbers.
  void CheckFinite(const StepRecord& record) {
    if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) return;
    report_->Step(record);
    throw UserError(ExitStatus::kFault, fmt::format("step {}: loss {} and gradient norm {} are not both finite; the weights are those of step {}",
                                                    record.step, record.loss, record.grad_norm, record.step - 1));
  }
  int64_t TokensPerStep() const { return deck().batch.global * deck().model.seq_len; }

  /// Mean loss over the first validate_sequences samples (0: all) of the validation data; rows past the end are not counted.
  double Evaluate() {
    const int64_t wanted = deck().data.validate_sequences > 0 ? deck().data.validate_sequences : validation_->samples();
    double loss = 0, counted = 0;
    for (int64_t k = 0; k * layout_.Global() < wanted; ++k) {
      Batch batch = ValidationBatch(*validation_, layout_, k);
      const int64_t rows = std::min(layout_.Global(), wanted - k * layout_.Global());
      for (size_t m = 0; m < batch.microbatches.size(); ++m) MaskRows(batch.microbatches[m], static_cast<int64_t>(m), rows);
      FillBatch(*evaluate_, batch);
      evaluate_->executor->RunStep();
      loss += static_cast<double>(evaluate_->executor->GetScalar("mean_loss")) * static_cast<double>(rows);
      counted += static_cast<double>(rows);
    }
    return loss / counted;
  }
  /// Targets below 0 are not counted.
  void MaskRows(Microbatch& microbatch, int64_t index, int64_t rows) const {
    const int64_t width = static_cast<int64_t>(layout_.positions.size());
    for (int64_t r = 0; r < layout_.rows.Extent(); ++r)
      if (index * layout_.microbatch_rows + layout_.rows.begin + r >= rows)
        std::fill_n(microbatch.targets.begin() + r * width, width, -1);
  }

  void SaveCheckpoint() {
    Metadata metadata;
    metadata.step = step_;
    metadata.samples = step_ * deck().batch.global;
    metadata.version = kVersion;
    metadata.git_hash = kGitHash;
    metadata.losses = losses_;
    metadata.deck = EffectiveDeck(deck());
    const SaveResult result = Save(CheckpointFolder(), metadata, tensors_, local_, training_.mesh, world_, deck().checkpoint.keep);
    report_->Checkpoint(step_, result.dir, result.bytes, result.blocked_ms, result.committed_ms);
    for (const std::string& warning : result.warnings) spdlog::warn("{}", warning);
  }

  // 6. The end.
  void Finish() {
    std::vector<int64_t> peaks;
    int64_t outside = PeakResidentBytes() - arena_->bytes();
    for (const std::string& peak : world_.Gather(std::to_string(arena_->HighWater()))) peaks.push_back(std::stoll(peak));
    report_->End(ExitStatus::kDone, peaks, world_.Max(outside));
  }

  World& world_;
  MpiWorld* mpi_;
  std::chrono::steady_clock::time_point began_;
  Start start_;
  Compilation training_;
  Coordinate coordinate_{};
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<MpiCommunication> communication_;
  Runnable train_;
  std::optional<Runnable> evaluate_;
  std::vector<StateTensor> tensors_;
  std::vector<LocalTensor> local_;
  BatchLayout layout_;
  std::unique_ptr<TokenSource> source_, validation_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<Reporter> report_;
  std::vector<double> losses_;
  int64_t step_ = 0;
};

}  // namespace

int RunCommand(const RunOptions& options) {
  InitializeStorage();
  if (!StartedByLauncher()) {
    SelfWorld world;
    return Training(options, world, nullptr).Run();
  }
  std::optional<UserError> mistake;
  {
    MpiWorld world;
    try {
      return Training(options, world, &world).Run();
    } catch (const UserError& error) {
      mistake = error;  // the same on every rank: all end MPI together, and then say why
    } catch (const std::exception& error) {
      world.Fail(error.what());
    }
  }
  throw *mistake;
}

}  // namespace espalier
