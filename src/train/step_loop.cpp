#include "train/step_loop.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "espalier/comm/agreement.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/model/router_losses.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/hint.hpp"
#include "espalier/util/memory.hpp"
#include "espalier/util/print.hpp"
#include "train/reporting/end_block.hpp"
#include "train/reporting/fallbacks.hpp"
#include "train/state/compare_computation.hpp"

namespace espalier {
namespace {

const FaultStages kStepLoopStages = {"step"};

constexpr size_t kLossesKept = 100;

/// The parts of a step that the device's own clocks cannot separate.
void TakeParts(StepRecord& record, const Breakdown& traced) {
  record.compute_ms = traced.compute_us * 1e-3;
  record.idle_ms = traced.idle_us * 1e-3;
  record.comm = CommTimesOf(traced);
  record.exposed_comm_ms = record.comm->ExposedMs();
}

/// `numbers`: kRouterNumbers.
void TakeRouters(StepRecord& record, const std::vector<float>& numbers, const Deck::Model::Experts& experts,
                 double tokens) {
  const double mean = tokens * double(experts.per_token) / double(experts.count);
  double entropy = 0;
  for (auto layer = numbers.begin(); layer != numbers.end(); layer += experts.count + 1) {
    const std::vector<double>& loads = record.experts_loads.emplace_back(layer, layer + experts.count);
    record.experts_max_load.push_back(std::ranges::max(loads) / mean);
    entropy += double(layer[experts.count]) / tokens;
  }
  record.router_entropy = entropy / double(record.experts_loads.size());
}

/// A setting that may get a run past a step that stopped it.
std::string TrySetting(const Deck& deck, bool spike) {
  if (spike && deck.guard.on_spike == OnSpike::kStop)
    return "guard.on_spike=rollback or skip, or a higher guard.spike_z";
  if (!spike && deck.guard.on_nonfinite == OnNonfinite::kStop) return "guard.on_nonfinite=rollback or skip";
  return "another run.seed";
}

}  // namespace

StepLoop::StepLoop(const Run& run, int64_t first_step)
    : run_(run),
      first_step_(first_step),
      step_(first_step),
      loader_(NewLoader()),
      guard_(run.deck(), run.checkpoints.window()),
      computed_alike_(first_step),
      stragglers_(run.programs.compilation().mesh, run.world) {
  run.measured_costs.BeginWith(first_step + 1);
  run.tracer.BeginWith(first_step + 1);
}

Outcome StepLoop::Train() {
  if (run_.IsRankZero()) SayStopSignals();
  if (deck().checkpoint.at_start) SaveUnlessThere();
  if (!AllStepsDone() && AgreeOnFlags().stop) SaveUnlessThere();
  if (step_ > 0 && !Stopped() && (AllStepsDone() || ValidatesAfter(step_)))
    Validate();  // the start that trained this step may have ended before its validation
  if (!AllStepsDone() && !Stopped()) run_.reporter.SetActivity(NextStep(), "the first step of this start");
  while (!AllStepsDone() && !Stopped()) {
    while (MayBegin()) BeginStep();
    StepRecord record = AwaitStep();
    if (!PassesGuard(record)) continue;
    run_.stop_reasons.StepTook(last_step_ms_ * GrowthAfter(step_));
    const StepFlags flags = AgreeOnFlags();
    save_due_ = save_due_ || run_.checkpoints.Due(step_);
    copy_due_ = copy_due_ || run_.checkpoints.MemoryDue(step_);
    record.checkpoint_ms = std::exchange(save_wait_ms_, 0);
    run_.checkpoints.RequireLock();
    // Before the save: a run that is killed right after the commit continues after this step.
    run_.reporter.Step(record);
    if (NoStepInFlight() && !SaveOrCompare(flags)) continue;
    run_.checkpoints.Report();
    if (AllStepsDone() || (!Stopped() && ValidatesAfter(step_))) Validate();
  }
  return {first_step_, step_, Stopped(), error_, state_unusable_, late_ms_ / std::max(stepped_ms_, 1e-9)};
}

// Steps.

/// Whether the next step may begin before the previous one is awaited.
bool StepLoop::MayBegin() {
  if (NoStepInFlight()) return true;
  if (guard_.WatchesSpikes()) return false;  // the limits of a step follow from the previous one
  const int64_t last = in_flight_.back().step;
  if (ramp().IndexOf(last) != ramp().IndexOf(last + 1)) return false;          // the programs share memory
  if (run_.tracer.Traces(last) || run_.tracer.Traces(last + 1)) return false;  // one timed step at a time, alone
  if (run_.measured_costs.Times(last) || run_.measured_costs.Times(last + 1)) return false;
  return phase_ != Phase::kDraining && !save_due_ && last < deck().run.steps &&
         std::ssize(in_flight_) <= ExecutorOf(last).StepsAhead() && !run_.checkpoints.Due(last) &&
         !run_.checkpoints.MemoryDue(last) && !ComparesAfter(last) && !ComparesComputationAfter(last) &&
         !ValidatesAfter(last) && AllHaveNextBatch();
}

/// 1, except before a step with more sequences.
double StepLoop::GrowthAfter(int64_t step) const {
  return static_cast<double>(ramp().SequencesOf(step + 1)) / static_cast<double>(ramp().SequencesOf(step));
}

/// The size of a start's first step is in the announcement. After a rollback the batch may be smaller again.
void StepLoop::ReportSize(int64_t step) {
  const int64_t before = std::exchange(sequences_, ramp().SequencesOf(step));
  if (before != 0 && before != sequences_) run_.reporter.Grows(step, sequences_);
}

void StepLoop::BeginStep() {
  FaultPoint("step");
  const int64_t step = NextStep();
  ReportSize(step);
  const Runnable& runnable = run_.programs.TrainingOf(step).runnable;
  if (loader_ != nullptr) runnable.Fill(loader_->Next(), run_.programs.layout().positions);
  // The wait for the batch counts as time of this step, although it happened at the end of the previous one.
  const std::chrono::duration<double, std::milli> waited(loader_ != nullptr ? loader_->wait_ms() : 0.0);
  StepInFlight next{step, LearningRate(deck(), step), waited.count(),
                    Clock::now() - std::chrono::duration_cast<Clock::duration>(waited)};
  runnable.FillScalars(deck(), step);
  if (guard_.WatchesSpikes()) {
    const SpikeLimits limits = guard_.LimitsOfUpdate();
    runnable.executor->SetScalar("loss_limit", limits.loss);
    runnable.executor->SetScalar("norm_limit", limits.norm);
  }
  run_.instruction_times.Before(step);
  run_.measured_costs.Before(step);
  if (run_.tracer.Traces(step)) run_.tracer.Before(step);
  run_.watch.InStep(step);
  runnable.executor->Begin();
  in_flight_.push_back(next);
}

StepRecord StepLoop::AwaitStep() {
  const StepInFlight oldest = in_flight_.front();
  run_.watch.InStep(oldest.step);
  const StepTimes times = ExecutorOf(oldest.step).End();
  run_.watch.EndStep();
  SayFallbacks(run_.device, run_.world.Rank());
  run_.instruction_times.After(oldest.step, times);
  run_.measured_costs.After(oldest.step, times);
  const std::optional<Breakdown> traced =
      run_.tracer.Traces(oldest.step) ? run_.tracer.After(oldest.step) : std::nullopt;
  in_flight_.pop_front();
  if (!NoStepInFlight()) run_.watch.InStep(in_flight_.back().step);
  ++step_;
  // A host that issues the next step may see this one's end late, and then the next one's in time: a step lasts at
  // least as long as on the device.
  last_step_ms_ = std::max(MillisecondsSince(std::max(oldest.began, last_end_)), times.step_ms * run_.Dilation());
  stepped_ms_ += last_step_ms_;
  late_ms_ += times.late_ms * run_.Dilation();
  last_end_ = Clock::now();
  if (run_.device.Computes()) ReportSlow(stragglers_.After(last_step_ms_, times.compute_ms, times.comm));
  StepRecord record = RecordOf(oldest, times);
  if (traced && !times.comm) TakeParts(record, *traced);
  return record;
}

void StepLoop::ReportSlow(const SlowParts& slow) const {
  for (const Straggler& one : slow.ranks) run_.reporter.Straggler(step_, one.rank, one.host, one.ms, one.peers_ms);
  for (const SlowLink& one : slow.links)
    run_.reporter.SlowLink(step_, Name(one.axis), one.ranks, one.hosts, one.ms, one.peers_ms);
}

/// Called after a step that the guard gives up: a rollback loads the weights again, and an ending run no longer uses
/// them.
void StepLoop::DiscardStepsInFlight() {
  for (; !NoStepInFlight(); in_flight_.pop_front()) ExecutorOf(in_flight_.front().step).End();
}

StepRecord StepLoop::RecordOf(const StepInFlight& step, const StepTimes& times) const {
  const Executor& executor = ExecutorOf(step.step);
  const int64_t sequences = ramp().SequencesOf(step.step), seq_len = deck().model.seq_len;
  StepRecord record;
  record.step = step.step;
  record.loss = PlainNan(executor.GetScalar("mean_loss"));
  record.grad_norm = PlainNan(executor.GetScalar("norm"));
  if (deck().loss.z_loss > 0) record.z_loss = PlainNan(executor.GetScalar("mean_z_loss"));
  if (const int depths = deck().model.mtp_layers; depths > 0) {
    double sum = 0;
    for (int k = 1; k <= depths; ++k) sum += double(executor.GetScalar(MeanLossOfDepth(k)));
    record.mtp_loss = PlainNan(static_cast<float>(sum / depths));
  }
  const auto& experts = deck().model.experts;
  if (experts.count > 0 && experts.balance_loss > 0)
    record.balance_loss = PlainNan(executor.GetScalar("mean_balance_loss"));
  if (experts.count > 0 && experts.z_loss > 0)
    record.router_z_loss = PlainNan(executor.GetScalar("mean_router_z_loss"));
  if (experts.count > 1 && run_.IsRankZero() && deck().run.device != RunDevice::kSleep) {
    TakeRouters(record, executor.GetNumbers(kRouterNumbers), experts, double(sequences * seq_len));
  }
  record.lr = step.lr;
  record.tokens = ramp().SequencesUpTo(step.step) * seq_len;
  record.step_ms = last_step_ms_ / run_.Dilation();
  record.tokens_per_s = static_cast<double>(sequences * seq_len) / (record.step_ms / 1e3);
  record.peak_bytes = run_.programs.arena().HighWater();
  if (run_.IsRankZero()) record.host_bytes = ResidentMemory();
  record.compute_ms = times.compute_ms;
  record.exposed_comm_ms = times.exposed_comm_ms;
  record.idle_ms = times.idle_ms;
  record.comm = times.comm;
  record.data_ms = step.data_ms;
  return record;
}

// Batches. A step begins only if every rank has its batch: unreadable data stop the run after a whole step, whose state
// is saved.

std::unique_ptr<BatchLoader> StepLoop::NewLoader() const {
  if (run_.start.data.training == nullptr) return nullptr;
  const SampleOrder order{deck().run.seed, deck().data.shuffle ? Order::kShuffled : Order::kSequential,
                          run_.checkpoints.passed_over()};
  return std::make_unique<BatchLoader>(run_.start.data.training, order, run_.programs.layout(), ramp(), step_);
}

bool StepLoop::NextBatchIsUnread() {
  return loader_ != nullptr && NextStep() <= deck().run.steps && loader_->Await() != nullptr;
}

/// The ranks have agreed on it with their flags, except for the first step that begins ahead.
bool StepLoop::AllHaveNextBatch() {
  if (read_to_ < NextStep() && run_.world.Or(NextBatchIsUnread() ? 1 : 0) == 0) read_to_ = NextStep();
  return read_to_ >= NextStep();
}

/// Throws the same error on every rank if one of them could not read the next step's batch.
void StepLoop::RequireBatch() {
  OnAllRanks(run_.world, [&] {
    if (const std::exception_ptr error = loader_->Await()) std::rethrow_exception(error);
  });
}

// Between steps.

/// While a save is in flight, the flag `save` alone (from the clock or the user) is deferred: another save would only
/// block training.
StepFlags StepLoop::AgreeOnFlags() {
  const bool unread = NextBatchIsUnread();
  const double beside_ms =
      (ValidatesAfter(step_) ? slowest_validation_ms_ : 0) + static_cast<double>(in_flight_.size()) * last_step_ms_;
  const std::string reason = run_.stop_reasons.StopReason(beside_ms, run_.checkpoints.SlowestSaveMs());
  const StepFlags own{
      .save = run_.checkpoints.Wanted(), .stop = !reason.empty(), .saving = run_.checkpoints.Busy(), .unread = unread};
  const Activity activity = NoStepInFlight() ? Activity::kAgreeing : Activity::kStep;
  const StepFlags all = run_.watch.During(activity, [&] { return CombineFlags(run_.world, own); });
  if (!all.unread) read_to_ = NextStep();
  const bool stop = all.stop || all.unread, save = (all.save || copy_due_) && !all.saving;
  if (NoStepInFlight())
    phase_ = stop && !AllStepsDone() ? Phase::kStopped : Phase::kRunning;
  else
    phase_ = stop || save ? Phase::kDraining : Phase::kRunning;
  if (Stopped() && all.unread) StopOnError([&] { RequireBatch(); });
  if (Stopped()) run_.reporter.Stop(step_, error_ ? error_->what() : run_.stop_reasons.AllReasons(reason));
  return all;
}

/// If all ranks throw in `work`, the run stops with that error, after its state is saved.
template <typename Work>
void StepLoop::StopOnError(Work work) {
  try {
    work();
  } catch (const AgreedError& error) {
    error_ = error;
    if (!AllStepsDone()) phase_ = Phase::kStopped;
  }
}

/// A copy in memory waits until no save is in flight, as one that the clock asks for does. False if the state was given
/// up because copies of it differ.
bool StepLoop::SaveOrCompare(const StepFlags& flags) {
  if (ComparesComputationAfter(step_) && !CompareComputation()) return false;
  const bool end = AllStepsDone() || Stopped();
  const bool disk = end || save_due_ || (flags.save && !flags.saving);
  const bool memory = copy_due_ && !end && !flags.saving;
  if (disk || memory) return Save(!disk ? SaveTo::kMemory : memory ? SaveTo::kMemoryAndDisk : SaveTo::kDisk);
  return !ComparesAfter(step_) || Compare();
}

/// Weights may be unusable although they are finite, and a skipped step is the first sign of it. So after a skipped
/// step nothing is saved before the next finite one, unless the run ends.
bool StepLoop::Save(SaveTo to) {
  const bool end = AllStepsDone() || Stopped();
  if (to != SaveTo::kMemory) save_due_ = skipped_ && !end;
  if (skipped_ && !end) return true;
  copy_due_ = copy_due_ && to == SaveTo::kDisk;
  const Moment moment = !end ? Moment::kBetweenSteps : skipped_ ? Moment::kAfterSkip : Moment::kAtTheEnd;
  run_.reporter.SetActivity(step_, "saving");
  const SaveStart save =
      run_.watch.During(Activity::kSaving, [&] { return run_.checkpoints.Save(step_, HistoryOfSteps(), moment, to); });
  save_wait_ms_ += save.blocked_ms;
  if (save.corruption) AnswerCorruption(*save.corruption, "not saved");
  return !save.corruption;
}

/// False if the state was given up because copies of it differ.
bool StepLoop::Compare() {
  const auto before = Clock::now();
  const auto corruption = run_.watch.During(Activity::kSaving, [&] { return run_.checkpoints.CompareCopies(); });
  save_wait_ms_ += MillisecondsSince(before);
  if (corruption) AnswerCorruption(*corruption, "copies differ");
  return !corruption;
}

/// False if the state was given up because ranks compute differently. Comes before a save: what was computed since the
/// last comparison may be wrong.
bool StepLoop::CompareComputation() {
  const auto before = Clock::now();
  run_.reporter.SetActivity(step_, "computing a microbatch on several ranks");
  const auto corruption = run_.watch.During(
      Activity::kEvaluating, [&] { return espalier::CompareComputation(deck(), run_.programs, run_.world, step_); });
  save_wait_ms_ += MillisecondsSince(before);
  if (!corruption) computed_alike_ = step_;
  if (corruption) AnswerCorruption(*corruption, "computed differently", computed_alike_);
  return !corruption;
}

bool StepLoop::ComparesComputationAfter(int64_t step) const {
  return run_.programs.gradients() != nullptr && run_.device.Computes() && step > 0 &&
         step % deck().guard.recompute_steps == 0;
}

/// Saves compare, too.
bool StepLoop::ComparesAfter(int64_t step) const {
  return deck().guard.hash_steps > 0 && run_.device.Computes() && step > 0 && step % deck().guard.hash_steps == 0;
}

void StepLoop::SaveUnlessThere() {
  const SaveStart save = run_.checkpoints.SaveUnlessThere(step_, HistoryOfSteps());
  if (save.corruption) AnswerCorruption(*save.corruption, "not saved");
}

bool StepLoop::ValidatesAfter(int64_t step) const {
  return run_.evaluation != nullptr && step > 0 && step % deck().data.validate_every_steps == 0;
}

void StepLoop::Validate() {
  if (run_.evaluation == nullptr) return;
  const auto before = Clock::now();
  run_.reporter.SetActivity(step_, "validating");
  StopOnError([&] {
    run_.reporter.Validation(step_, run_.watch.During(Activity::kEvaluating, [&] { return run_.evaluation->Loss(); }));
  });
  slowest_validation_ms_ = std::max(slowest_validation_ms_, MillisecondsSince(before));
  if (!error_) return;
  run_.reporter.Stop(step_, error_->what());
  run_.watch.Set(Activity::kSaving);
  run_.checkpoints.Finish();
  SaveUnlessThere();
}

// Describes steps that are not finite, or spikes.

/// Ranks that send to themselves have numbers of their own, so they do not ask one another.
std::string StepLoop::WhatIsWrong(const StepRecord& record) const {
  if (!guard_.Spike().empty()) return guard_.Spike();
  const std::string where = NoStepInFlight() && !NcclToItself() ? FirstNonFinite(run_.programs, record.step, run_.world)
                                                                : FirstNonFiniteOfResults(run_.programs, record.step);
  return fmt::format("loss {} and gradient norm {} are not both finite; {}", record.loss, record.grad_norm, where);
}

/// False if the step was given up and rolled back. The update has read `apply`: a step that is not finite, or a spike
/// that is not accepted, has changed no weight.
bool StepLoop::PassesGuard(const StepRecord& record) {
  if (!run_.device.Computes()) return true;
  if (record.loss == 0 && record.grad_norm == 0) {
    run_.reporter.Skipped(record.step, "no token of its batch is a target");
    return true;
  }
  const Guard::Verdict verdict = guard_.Judge(record.loss, record.grad_norm);
  if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) proven_ = record.step - 1;
  skipped_ = verdict == Guard::Verdict::kSkip;
  if (verdict == Guard::Verdict::kAccept || verdict == Guard::Verdict::kWarn) {
    if (verdict == Guard::Verdict::kWarn) run_.reporter.Spike(record.step, guard_.Spike());
    losses_.push_back(record.loss);
    if (losses_.size() > kLossesKept) losses_.erase(losses_.begin());
    return true;
  }
  const std::string reason = WhatIsWrong(record);
  if (verdict == Guard::Verdict::kSkip) {
    run_.reporter.Skipped(record.step, reason);
    return true;
  }
  run_.reporter.Step(record);
  DiscardStepsInFlight();
  if (verdict == Guard::Verdict::kRollBack &&
      run_.watch.During(Activity::kSaving, [&] { return RollBack(reason, Samples::kPassOver); }))
    return false;
  // The state is still the previous step's.
  GiveUp(fmt::format("step {}: {}; its update was left out{}", record.step, reason, guard_.Limit()), WhatToTry());
  return false;
}

/// Ends the run without a save.
void StepLoop::GiveUp(const std::string& reason, const std::string& remedy) {
  run_.checkpoints.Finish();
  run_.checkpoints.DropMemory();
  const std::string good = OnRankZero(run_.world, [&] { return LastGoodCheckpoint(run_, proven_); });
  error_ = AgreedError(ExitStatus::kFault, {reason, Hint(fmt::format("{}; to try: {}", good, remedy))});
  state_unusable_ = true;
  phase_ = Phase::kStopped;
}

std::string StepLoop::WhatToTry() const {
  return "a lower optimizer.lr, more lr.warmup_steps, " + TrySetting(deck(), !guard_.Spike().empty());
}

/// No step caused the corruption, so the steps since the last checkpoint up to `sound_to` are repeated with the same
/// samples. A run that is asked to stop has no time for that.
void StepLoop::AnswerCorruption(const Corruption& corruption, std::string_view what, int64_t sound_to) {
  run_.reporter.Corrupt(step_, corruption.ranks, what, corruption.text);
  proven_ = std::min(proven_, sound_to);
  const bool goes_back = !Stopped() && guard_.JudgeCorruption() == Guard::Verdict::kRollBack;
  if (goes_back &&
      run_.watch.During(Activity::kSaving, [&] { return RollBack(corruption.text, Samples::kRepeat, sound_to); }))
    return;
  GiveUp(fmt::format("the state after step {} is not saved: {}{}", step_, corruption.text, guard_.Limit()),
         "another node in place of the one that is named, and a test of it");
}

/// Loads the last checkpoint and continues from it, with the samples after those consumed so far, or with the same
/// samples again. States after `sound_to` do not count. False if there is no checkpoint.
bool StepLoop::RollBack(const std::string& reason, Samples samples, int64_t sound_to) {
  const int64_t given_up = step_, consumed = ramp().SequencesUpTo(given_up) + run_.checkpoints.passed_over();
  const int64_t to = run_.checkpoints.RollBack(samples == Samples::kRepeat, sound_to);
  if (to < 0) return false;
  step_ = to;
  copy_due_ = false;
  proven_ = std::min(proven_, to);
  computed_alike_ = std::min(computed_alike_, to);
  if (samples == Samples::kPassOver) run_.checkpoints.PassOver(consumed - ramp().SequencesUpTo(step_));
  run_.reporter.RolledBack(given_up, to, reason);
  losses_.clear();
  guard_.GoBackTo(run_.checkpoints.window());
  loader_.reset();  // before the new loader: only one may read the source
  loader_ = NewLoader();
  RequireBatch();
  return true;
}

}  // namespace espalier
