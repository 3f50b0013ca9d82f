// Trains. The deck goes down the journey once (deck, data, compile, memory, state), then step by step.
// What the steps below are made of is in startup/, state/ and stopping/.
#include "espalier/train/trainer.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <filesystem>
#include <optional>

#include "espalier/comm/agreement.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/report.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/agreed_error.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/print.hpp"
#include "train/evaluation.hpp"
#include "train/guard.hpp"
#include "train/instruction_times.hpp"
#include "train/peak.hpp"
#include "train/programs.hpp"
#include "train/run_files.hpp"
#include "train/startup/check_launcher.hpp"
#include "train/startup/faults.hpp"
#include "train/startup/find_start.hpp"
#include "train/startup/run_data.hpp"
#include "train/startup/same_start.hpp"
#include "train/startup/world_check.hpp"
#include "train/state/checkpointing.hpp"
#include "train/state/initialize_weights.hpp"
#include "train/stopping/ending.hpp"
#include "train/stopping/step_flags.hpp"
#include "train/watch.hpp"

namespace espalier {
namespace {

const FaultStages kFaultStages = {"step", "end"};

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// A step that was begun, and not yet awaited.
struct StepUnderWay {
  int64_t step;
  double lr, data_ms;
  Clock::time_point began;
};

class Training {
 public:
  Training(const RunOptions& options, World& world, MpiWorld* mpi) : options_(options), world_(world), mpi_(mpi) {}

  ExitStatus Run() {
    Begin();
    if (start_.beyond) return NothingToDo();
    Compile();
    BeginReport();
    Restore();
    Train();
    return Finish();
  }

 private:
  const Deck& deck() const { return start_.deck(); }
  bool Root() const { return world_.Rank() == 0; }
  bool Last() const { return step_ >= deck().run.steps; }

  // 1. Deck, data and directory.
  void Begin() {
    faults_ = FaultsOfAll(world_);
    if (Root() && !faults_.empty())
      spdlog::warn("ESPALIER_FAULT is set: this run makes a fault on purpose: {}", faults_);
    start_ = FindStart(options_, world_);
    if (!start_.beyond) MakeSharedFolder(world_, CheckpointFolder(deck()));
  }
  ExitStatus NothingToDo() const {
    if (Root())
      spdlog::info(
          "{}: the checkpoint is at step {}, the deck asks for {} step{}: nothing is done, and nothing was changed; "
          "for more training: run.steps=N above {}",
          start_.checkpoints.front(), *start_.beyond, deck().run.steps, deck().run.steps == 1 ? "" : "s",
          *start_.beyond);
    return ExitStatus::kDone;
  }

  // 2. What the ranks compute on, programs and their memory. Beside all that follows rank 0 proves that the programs
  // fit together.
  void Compile() {
    asked_ = start_.loaded;
    threads_ = AgreeOnThreads(deck(), world_);
    device_ = ChooseDevice(start_.loaded.deck, world_, mpi_, threads_.count);
    if (Root())
      for (const std::string& line : SettingsWithoutEffect(start_.loaded)) spdlog::warn("{}", line);
    world_check_.emplace(deck(), world_);
    programs_.emplace(deck(), world_, mpi_, *device_);
    OnAllRanks(world_, [&] { instruction_times_.emplace(deck(), *programs_, world_.Rank()); });
    guard_.emplace(deck());
    watch_.emplace(deck(), *programs_, world_, mpi_);
    if (start_.data.validation) evaluation_.emplace(deck(), *programs_, world_, std::move(start_.data.validation));
  }

  // 3. What the run says of itself.
  void BeginReport() {
    ReportOptions options;
    options.rank = world_.Rank();
    options.metrics_path = (fs::path(deck().run.dir) / "metrics.jsonl").string();
    options.steps = deck().run.steps;
    options.every_steps = deck().report.every_steps;
    options.flops_per_token = FlopsPerToken(deck());
    peak_ = PeakOfRun(deck(), *device_, world_);
    options.peak_flops = peak_.flops;
    options.peak_source = peak_.source;
    OnAllRanks(world_, [&] {
      report_.emplace(options);
      if (Root()) KeepDeck();
    });
  }
  void KeepDeck() const {
    const std::string left = WriteEffectiveDeck(deck().run.dir, EffectiveDeck(deck()), options_.arguments.deck);
    if (!left.empty())
      spdlog::info("{}/deck.toml stays as it is: {}; the effective deck is in every checkpoint", deck().run.dir, left);
  }
  void Announce(const WorldProof& proof) {
    StartRecord start;
    start.version = fmt::format("{} ({})", kVersion, kGitHash);
    start.deck = deck().name;
    start.ranks = world_.Size();
    start.device = DeckName(deck().run.device);
    start.threads = threads_.count;
    start.mesh = programs_->compilation().mesh;
    start.parameters = programs_->compilation().parameter_count;
    start.tokens_per_step = TokensPerStep(deck());
    start.first_step = step_ + 1;
    start.data = start_.data.Record(deck());
    start.world_check_ms = proof.why_not.empty() ? proof.ms : std::nan("");
    start.startup_ms = MillisecondsSince(options_.began);
    start.fault = faults_;
    report_->Start(start);
    if (Root()) spdlog::info("data: {}", Describe(start_.data, deck()));
    if (Root() && world_.Size() > 1) AnnounceWorld(proof);
    for (const DeckDifference& difference : checkpoints_->differences()) {
      report_->Changed(difference.key, difference.before, difference.now, difference.origin);
      if (Root()) spdlog::info("{}", difference.Text());
    }
    AnnounceDevices(*device_, world_);
    if (Root()) AnnouncePeak(peak_);
    if (Root() && !threads_.notice.empty()) spdlog::info("threads: {}", threads_.notice);
    if (const std::string notice = ending_->Notice(); Root() && !notice.empty()) spdlog::info("{}", notice);
  }

  void AnnounceWorld(const WorldProof& proof) const {
    if (proof.why_not.empty())
      spdlog::info("world: the programs of {} ranks fit together (proven in {:.0f} ms beside the start)", world_.Size(),
                   proof.ms);
    else
      spdlog::warn("world: not proven that the programs of all ranks fit together: {}", proof.why_not);
  }

  // 4. State: from a checkpoint, or from nothing.
  void Restore() {
    checkpoints_.emplace(deck(), asked_, start_.data.Seen(), *programs_, world_, mpi_, *report_);
    first_ = step_ = checkpoints_->Restore(start_);
    if (start_.checkpoints.empty()) InitializeWeights(programs_->compilation(), *programs_->train().executor);
    ending_.emplace(deck(), world_, options_.began);
    Announce(world_check_->Await());
    OnAllRanks(world_, [&] {
      if (Root() && !Last()) RemoveFile(Done());
    });
    BeginLoading();
    if (deck().checkpoint.at_start) checkpoints_->SaveUnlessThere(step_, losses_);
  }

  void BeginLoading() {
    const SampleOrder order{deck().run.seed, deck().data.shuffle ? Order::kShuffled : Order::kSequential,
                            checkpoints_->passed_over()};
    loader_.emplace(start_.data.training, order, programs_->layout(), step_);
  }

  // 5. Steps. A run that is to end before the first of them leaves the state that it would have begun with. Where the
  // device takes steps ahead, the next one runs while the loss of the one before is read, judged and reported. A step
  // begins when every rank has its batch: data that cannot be read ends the run after a step, with its state saved.
  void Train() {
    if (!Last() && AtBoundary().stop) checkpoints_->SaveUnlessThere(step_, losses_);
    if (step_ > 0 && !stopped_ && (Last() || ValidatesAfter(step_)))
      Validate();  // the start before may not have come to it
    while (!Last() && !stopped_) {
      while (MayBegin()) BeginStep();
      StepRecord record = AwaitStep();
      if (!Guarded(record)) continue;
      ending_->StepTook(record.step_ms);
      const Boundary boundary = AtBoundary();
      owed_ = owed_ || checkpoints_->Due(step_);
      record.checkpoint_ms = std::exchange(save_wait_ms_, 0);
      report_->Step(record);  // before its save: a run killed right after the commit goes on after this step
      if (Quiet() && (Last() || stopped_ || owed_ || (boundary.save && !boundary.saving))) Save();
      checkpoints_->Report();
      if (Last() || (!stopped_ && ValidatesAfter(step_))) Validate();
    }
  }
  /// Weights may be finite and yet wrecked; a step that is left out is the first sign of it. So between it and the next
  /// finite one nothing is saved, unless the run ends.
  void Save() {
    const bool end = Last() || stopped_;
    owed_ = skipped_ && !end;
    if (owed_) return;
    const Moment moment = !end ? Moment::kBetweenSteps : skipped_ ? Moment::kAfterSkip : Moment::kAtTheEnd;
    save_wait_ms_ += watch_->During(Activity::kSaving, [&] { return checkpoints_->Save(step_, losses_, moment); });
  }
  /// No step is under way: the state is that after `step_`.
  bool Quiet() const { return under_way_.empty(); }
  /// One more step may be begun: nothing is to be done between it and the one before.
  bool MayBegin() {
    if (Quiet()) return true;
    const int64_t last = under_way_.back().step;
    return !held_ && !owed_ && last < deck().run.steps &&
           std::ssize(under_way_) <= programs_->train().executor->StepsAhead() && !checkpoints_->Due(last) &&
           !ValidatesAfter(last) && BatchIsRead();
  }
  int64_t NextStep() const { return (Quiet() ? step_ : under_way_.back().step) + 1; }
  bool NextIsUnread() { return NextStep() <= deck().run.steps && loader_->Await() != nullptr; }
  /// Every rank has the next step's batch. They have agreed on it at a boundary but for a step that is the first to be
  /// begun ahead.
  bool BatchIsRead() {
    if (read_to_ < NextStep() && world_.Or(NextIsUnread() ? 1 : 0) == 0) read_to_ = NextStep();
    return read_to_ >= NextStep();
  }
  /// A save that the clock or a person asks for is put off while another is in flight: it would only make training
  /// wait. A save or the end wait until every step that was begun is judged.
  Boundary AtBoundary() {
    const bool unread = NextIsUnread();
    const double beside_ms =
        (ValidatesAfter(step_) ? slowest_validation_ms_ : 0) + static_cast<double>(under_way_.size()) * last_step_ms_;
    const std::string wish = ending_->Wish(beside_ms, checkpoints_->SlowestSaveMs());
    const Boundary mine{
        .save = checkpoints_->Wanted(), .stop = !wish.empty(), .saving = checkpoints_->Busy(), .unread = unread};
    const Activity activity = Quiet() ? Activity::kAgreeing : Activity::kStep;
    const Boundary all = watch_->During(activity, [&] { return Agree(world_, mine); });
    if (!all.unread) read_to_ = NextStep();
    held_ = !Quiet() && (all.stop || all.unread || (all.save && !all.saving));
    stopped_ = Quiet() && (all.stop || all.unread) && !Last();
    if (stopped_ && all.unread) EndBy([&] { RequireBatch(); });
    if (stopped_) report_->Stop(step_, failed_ ? failed_->what() : ending_->Reasons(wish));
    return all;
  }
  /// Throws the same on every rank if one could not read the next step's batch.
  void RequireBatch() {
    OnAllRanks(world_, [&] {
      if (const std::exception_ptr error = loader_->Await()) std::rethrow_exception(error);
    });
  }
  /// The run ends with what `work` throws on every rank, after its state is saved.
  template <typename Work>
  void EndBy(Work work) {
    try {
      work();
    } catch (const AgreedError& error) {
      failed_ = error;
      stopped_ = !Last();
    }
  }
  bool ValidatesAfter(int64_t step) const {
    return evaluation_ && step > 0 && step % deck().data.validate_every_steps == 0;
  }
  void Validate() {
    if (!evaluation_) return;
    const auto before = Clock::now();
    EndBy([&] {
      report_->Validation(step_, watch_->During(Activity::kEvaluating, [&] { return evaluation_->Loss(); }));
    });
    slowest_validation_ms_ = std::max(slowest_validation_ms_, MillisecondsSince(before));
    if (!failed_) return;
    report_->Stop(step_, failed_->what());
    watch_->Set(Activity::kSaving);
    checkpoints_->Finish();
    checkpoints_->SaveUnlessThere(step_, losses_);
  }

  void BeginStep() {
    FaultPoint("step");
    const int64_t step = NextStep();
    programs_->train().Fill(loader_->Next(), programs_->layout().positions);
    // The step pays for what it waited for, though that was at the boundary before it.
    const std::chrono::duration<double, std::milli> waited(loader_->wait_ms());
    StepUnderWay next{step, LearningRate(deck(), step), waited.count(),
                      Clock::now() - std::chrono::duration_cast<Clock::duration>(waited)};
    Executor& executor = *programs_->train().executor;
    executor.SetScalar("lr", static_cast<float>(next.lr));
    executor.SetScalar("step", static_cast<float>(step));
    instruction_times_->Before(step);
    watch_->InStep(step);
    executor.Begin();
    under_way_.push_back(next);
  }
  StepRecord AwaitStep() {
    const StepUnderWay oldest = under_way_.front();
    watch_->InStep(oldest.step);
    const StepTimes times = programs_->train().executor->End();
    watch_->EndStep();
    instruction_times_->After(oldest.step, times);
    under_way_.pop_front();
    if (!Quiet()) watch_->InStep(under_way_.back().step);
    ++step_;
    last_step_ms_ = MillisecondsSince(std::max(oldest.began, last_end_));
    last_end_ = Clock::now();
    return Record(times, oldest);
  }
  /// After a step that is given up: the weights are read again, or never used.
  void ForgetStepsUnderWay() {
    for (; !Quiet(); under_way_.pop_front()) programs_->train().executor->End();
  }

  StepRecord Record(const StepTimes& times, const StepUnderWay& step) {
    StepRecord record;
    record.step = step.step;
    record.loss = PlainNan(programs_->train().executor->GetScalar("mean_loss"));
    record.grad_norm = PlainNan(programs_->train().executor->GetScalar("norm"));
    record.lr = step.lr;
    record.tokens = step.step * TokensPerStep(deck());
    record.step_ms = last_step_ms_;
    record.tokens_per_s = static_cast<double>(TokensPerStep(deck())) / (last_step_ms_ / 1e3);
    record.peak_bytes = programs_->arena().HighWater();
    record.compute_ms = times.compute_ms;
    record.exposed_comm_ms = times.exposed_comm_ms;
    record.idle_ms = times.idle_ms;
    record.data_ms = step.data_ms;
    return record;
  }
  /// False if the step was given up. The update read `apply`: what is not finite has changed no weight.
  bool Guarded(const StepRecord& record) {
    const Guard::Verdict verdict = guard_->Judge(record.loss, record.grad_norm);
    skipped_ = verdict == Guard::Verdict::kSkip;
    if (verdict == Guard::Verdict::kFinite) {
      losses_.push_back(record.loss);
      if (losses_.size() > 100) losses_.erase(losses_.begin());
      return true;
    }
    const std::string reason =
        fmt::format("loss {} and gradient norm {} are not both finite; {}", record.loss, record.grad_norm,
                    Quiet() ? FirstNonFinite(*programs_, world_) : FirstNonFiniteOfResults(*programs_));
    if (verdict == Guard::Verdict::kSkip) return report_->Skipped(record.step, reason), true;
    report_->Step(record);
    ForgetStepsUnderWay();
    if (verdict == Guard::Verdict::kRollBack && watch_->During(Activity::kSaving, [&] { return RollBack(reason); }))
      return false;
    checkpoints_->Finish();
    throw AgreedError(
        ExitStatus::kFault,
        {fmt::format("step {}: {}; its update was left out{}", record.step, reason, guard_->Limit()), WhatToTry()});
  }
  std::string WhatToTry() const {
    const std::string last = OnRankZero(world_, [&] { return FindLatest(CheckpointFolder(deck())).value_or(""); });
    return fmt::format(
        "{}; to try: a lower optimizer.lr, more lr.warmup_steps, {}",
        last.empty() ? "there is no checkpoint to go on from"
                     : "the last good checkpoint is " + last + ": started again, the run goes on from it",
        deck().guard.on_nonfinite == OnNonfinite::kStop ? "guard.on_nonfinite=rollback or skip" : "another run.seed");
  }
  /// To the last checkpoint, and on behind the samples consumed so far; false if there is none.
  bool RollBack(const std::string& reason) {
    const int64_t given_up = step_, consumed = given_up * deck().batch.global + checkpoints_->passed_over();
    const int64_t to = checkpoints_->RollBack();
    if (to < 0) return false;
    step_ = to;
    checkpoints_->PassOver(consumed - step_ * deck().batch.global);
    report_->RolledBack(given_up, to, reason);
    losses_.clear();
    loader_.reset();
    BeginLoading();
    RequireBatch();
    return true;
  }

  std::string StateAtTheEnd(bool saved) const {
    if (step_ == first_) return fmt::format("the run ends at step {}, where it began", step_);
    return fmt::format("the run ends after step {}, whose state is {}saved in {}", step_, saved ? "" : "not ",
                       CheckpointFolder(deck()));
  }

  // 6. The end. The file `done` is what a chain of jobs can rely on: launchers lose exit statuses.
  fs::path Done() const { return fs::path(deck().run.dir) / "done"; }
  ExitStatus Finish() {
    watch_->Set(Activity::kEnded);
    const bool saved = checkpoints_->Finish();
    const ExitStatus status = failed_    ? failed_->status()
                              : !saved   ? ExitStatus::kFault
                              : stopped_ ? ExitStatus::kStopped
                                         : ExitStatus::kDone;
    std::vector<int64_t> peaks;
    const int64_t outside = device_->OutsideBytes(programs_->arena().bytes(), checkpoints_->staging_bytes());
    for (const std::string& peak : world_.Gather(std::to_string(programs_->arena().HighWater())))
      peaks.push_back(std::stoll(peak));
    report_->End(status, peaks, world_.Max(outside));
    world_.Barrier();  // a heartbeat that is gone then says that its rank has ended in order
    watch_.reset();
    FaultPoint("end");
    if (failed_) throw AgreedError(status, fmt::format("{}; {}", failed_->what(), StateAtTheEnd(saved)));
    if (!saved)
      throw AgreedError(status, fmt::format("{}: the last checkpoint could not be saved", CheckpointFolder(deck())));
    OnAllRanks(world_, [&] {
      if (Root() && status == ExitStatus::kDone) WriteWhole(Done(), fmt::format("step {}\n", step_));
    });
    report_->Say(HowToGoOn());
    return status;
  }

  std::string HowToGoOn() const {
    const std::string dir = deck().run.dir;
    if (stopped_) return fmt::format("stopped after step {} of {}: start it again to go on", step_, deck().run.steps);
    return fmt::format("all {} steps are done; for more: run.steps=N{}", deck().run.steps,
                       deck().data.format == DataFormat::kText ? "; for a text: espalier sample " + dir : "");
  }

  const RunOptions& options_;
  World& world_;
  MpiWorld* mpi_;
  Start start_;
  LoadedDeck asked_;    ///< the deck before its device was chosen
  std::string faults_;  ///< made on purpose, in words
  Threads threads_;
  std::unique_ptr<Device> device_;
  std::optional<WorldCheck> world_check_;
  PeakRate peak_;  ///< on rank 0
  std::optional<Programs> programs_;
  std::optional<InstructionTimes> instruction_times_;
  std::optional<Watch> watch_;
  std::optional<Guard> guard_;
  std::optional<Evaluation> evaluation_;
  std::optional<BatchLoader> loader_;
  std::optional<Reporter> report_;
  std::optional<Checkpointing> checkpoints_;
  std::optional<Ending> ending_;
  std::vector<double> losses_;
  double slowest_validation_ms_ = 0;
  double save_wait_ms_ = 0;  ///< training waited for saves since the last step was reported
  int64_t first_ = 0;        ///< the step that this start went on from
  int64_t step_ = 0;         ///< the last one that was awaited
  std::deque<StepUnderWay> under_way_;
  Clock::time_point last_end_;  ///< of a step
  double last_step_ms_ = 0;
  int64_t read_to_ = 0;  ///< every rank has the batches of the steps up to this one
  bool held_ = false;    ///< a save or the end waits for the steps under way
  bool stopped_ = false;
  bool skipped_ = false;               ///< the guard left the last step out
  bool owed_ = false;                  ///< a checkpoint is due, or was after a step left out
  std::optional<AgreedError> failed_;  ///< ends the run when its state is saved
};

/// Before anything starts a thread. A deck that is wrong is told of later, by all ranks together.
void ChooseHowThreadsWait(const RunOptions& options) {
  if (!fs::is_regular_file(options.arguments.deck)) return;  // a pipe can be read once
  try {
    WaitPassivelyIfCrowded(LoadDeck(options.arguments.deck, options.arguments.overrides).deck);
  } catch (const UserError&) {
  }
}

}  // namespace

ExitStatus Train(const RunOptions& options) {
  ChooseHowThreadsWait(options);
  ArmFaultFromEnvironment();
  InitializeStorage();
  if (!StartedByLauncher()) {
    SelfWorld world;
    CheckLauncher(world.Size());
    return Training(options, world, nullptr).Run();
  }
  std::optional<AgreedError> agreed;
  {
    MpiWorld world;
    CatchStopSignals();
    // Outside of the try: not destroyed before the job is ended, since a save in flight may wait for another rank.
    Training training(options, world, &world);
    try {
      CheckLauncher(world.Size());
      return training.Run();
    } catch (const AgreedError& error) {
      agreed = error;  // all end MPI together, and then say why
    } catch (const UserError& error) {
      world.Fail(error.what(), error.status());
    } catch (const std::exception& error) {
      world.Fail(error.what());
    }
  }
  throw *agreed;
}

}  // namespace espalier
