#include "train/state/checkpointing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/executor/cuda_module.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/hint.hpp"
#include "espalier/util/host_name.hpp"
#include "train/startup/memory_start.hpp"
#include "train/state/proof.hpp"

namespace espalier {
namespace {

const FaultStages kCheckpointingStages = {"proof", "compare"};

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();

std::unique_ptr<World> WritersOf(const Deck& deck, MpiWorld* mpi) {
  if (!deck.checkpoint.asynchronous) return nullptr;
  return mpi == nullptr ? std::make_unique<SelfWorld>() : mpi->Duplicate();
}

}  // namespace

Checkpointing::Checkpointing(const Deck& deck, LoadedDeck requested_deck, const RunData& data, const Programs& programs,
                             World& world, MpiWorld* mpi, const MemoryNodes* memory, Reporter& reporter)
    : deck_(deck),
      requested_deck_(std::move(requested_deck)),
      data_(data.Seen()),
      tokenizer_(data.tokenizer),
      programs_(programs),
      world_(world),
      reporter_(reporter),
      conditions_(ConditionsOf(deck, programs, world)),
      nodes_(memory),
      memory_(memory),
      now_(fs::path(deck.run.dir) / "checkpoint_now") {
  if (!programs.device().Computes()) return;
  const AsyncSaver::Options options{CheckpointFolder(deck), deck.checkpoint.keep,
                                    [&programs](int64_t bytes) { return programs.device().MakeStaging(bytes); },
                                    memory};
  saver_.emplace(options, programs.tensors(), programs.local(), programs.compilation().mesh, world,
                 WritersOf(deck, mpi));
  copies_.emplace(programs.tensors(), programs.local(), programs.compilation().mesh, world);
  if (world.Rank() == 0 && !saver_->refusal().empty())
    spdlog::warn("checkpoints are synchronous: there is no room for the staging buffer: {}", saver_->refusal());
  RequireMemory();
}

/// The kernel kills processes when files in memory fill it, so the room for two generations is asked for now.
void Checkpointing::RequireMemory() {
  if (memory_ == nullptr) return;
  const std::vector<int64_t> by_writer = StagingBytes(programs_.tensors(), programs_.compilation().mesh);
  const int64_t more = memory_->Leads() ? memory_->PlannedBytes(by_writer) - memory_->BytesNow() : 0;
  const std::string short_of = FindShortage(world_, {HostName(), std::max<int64_t>(more, 0), MemoryLimits()})
                                   .Text("copies of the state in memory");
  if (short_of.empty()) return;
  if (world_.Rank() == 0) spdlog::warn("there are no copies in memory (checkpoint.memory_steps): {}", short_of);
  memory_ = nullptr;
}

int64_t Checkpointing::Restore(Start& start) {
  lock_ = &start.lock;
  std::optional<int64_t> step;
  if (start.generation) {
    struct Newest {
      int64_t step = 0;
      std::string id;
      auto Fields() { return std::tie(step, id); }
    };
    const Newest newest = OnRankZero(world_, [&] {
      if (start.checkpoints.empty()) return Newest{};
      const Manifest manifest = ReadManifest(start.checkpoints.front());
      return Newest{manifest.metadata.step, manifest.id};
    });
    base_ = start.checkpoints.empty() ? "" : start.checkpoints.front();
    base_id_ = newest.id;
    newest_step_ = newest.step;
    branch_ = start.branch.empty() ? start.generation->branch : start.branch;
    saver_->Follow({base_id_, branch_});
    step = RestoreFromMemory(*start.generation);
    if (!step && start.checkpoints.empty())
      throw AgreedError(
          ExitStatus::kData,
          {fmt::format("{}: the copy in memory cannot be loaded, and there is no checkpoint", CheckpointFolder(deck_)),
           Hint("the copy is removed: the same command begins anew")});
  } else {
    DropMemory();
  }
  if (!step) step = Restore(start.checkpoints, start.refused, start.branch);
  candidates_.assign(std::ranges::find(start.checkpoints, base_), start.checkpoints.end());
  if (world_.Rank() == 0) WarnOfAbandoned();
  return *step;
}

std::optional<int64_t> Checkpointing::RestoreFromMemory(const MemoryGeneration& generation) {
  try {
    const std::string dir =
        BringGeneration(*nodes_, generation, programs_.local(), programs_.compilation().mesh, world_);
    const Metadata saved = LoadAndProve(dir);
    SettleGeneration(*nodes_, generation, world_);
    loaded_ = dir;
    return saved.step;
  } catch (const RefusedForGood&) {
    throw;
  } catch (const AgreedError& error) {
    if (world_.Rank() == 0) spdlog::warn("not continued from memory: {}", error.what());
    nodes_->RemoveAllBut(-1, world_);
    return std::nullopt;
  }
}

Metadata Checkpointing::LoadAndProve(const std::string& dir) {
  Compare(dir);
  Metadata saved = Load(dir, programs_.tensors(), programs_.local(), programs_.compilation().mesh, world_);
  programs_.CopyWeights();
  Prove(dir, saved);
  CompareData(saved);
  passed_over_ = saved.samples - programs_.ramp().SequencesUpTo(saved.step);
  window_ = saved.window;
  return saved;
}

void Checkpointing::WarnOfAbandoned() const {
  const std::string folder = CheckpointFolder(deck_);
  std::vector<std::string> abandoned = FindAbandoned(folder, saver_->parent());
  if (abandoned.empty()) return;
  for (std::string& path : abandoned) path = fs::path(path).filename().string();
  spdlog::warn(
      "{}: this run does not continue {} there (another branch): they stay until a checkpoint of the same step "
      "replaces them, and do not "
      "count for checkpoint.keep; to delete them: cd {} && rm -r {}",
      folder, abandoned.size() == 1 ? "1 checkpoint" : fmt::format("{} checkpoints", abandoned.size()), folder,
      fmt::join(abandoned, " "));
}

std::vector<std::string> Checkpointing::Line() const {
  if (!saver_) return {};
  std::vector<std::string> line = FindLine(CheckpointFolder(deck_), saver_->parent());
  std::error_code error;
  const auto is_known = [&](const std::string& dir) {
    return std::ranges::any_of(line, [&](const std::string& known) { return fs::equivalent(dir, known, error); });
  };
  for (const std::string& dir : candidates_)
    if (fs::exists(fs::path(dir) / "MANIFEST", error) && !is_known(dir)) line.push_back(dir);
  return line;
}

int64_t Checkpointing::RollBack(bool steps_are_sound, int64_t sound_to) {
  Finish();
  if (nodes_ != nullptr && steps_are_sound) {
    const FoundInMemory found = FindInMemory(*nodes_, world_);
    if (found.newest && found.newest->step > newest_step_ && found.newest->step <= sound_to)
      if (const auto step = RestoreFromMemory(*found.newest)) return *step;
  }
  DropMemory();
  std::vector<std::string> checkpoints = OnRankZero(world_, [&] {
    std::vector<std::string> line = FindLine(CheckpointFolder(deck_), saver_->parent());
    std::erase_if(line, [&](const std::string& dir) { return ReadManifest(dir).metadata.step > sound_to; });
    return line;
  });
  if (checkpoints.empty() && !base_.empty() && saver_->parent() == base_id_)
    checkpoints = {base_};  // a checkpoint of another run
  return checkpoints.empty() ? -1 : Restore(checkpoints, 0, branch_);
}

int64_t Checkpointing::Restore(const std::vector<std::string>& checkpoints, int64_t refused,
                               const std::string& branch) {
  for (const std::string& dir : checkpoints) try {
      const Metadata saved = LoadAndProve(dir);
      loaded_ = base_ = dir;
      base_id_ = OnRankZero(world_, [&] {
        const Manifest manifest = ReadManifest(dir);
        ReportConversion(dir, manifest);
        return manifest.id;
      });
      branch_ = branch.empty() && saved.lineage ? saved.lineage->branch : branch;
      saver_->Follow({base_id_, branch_});
      newest_step_ = saved.step;
      return saved.step;
    } catch (const RefusedForGood&) {
      throw;
    } catch (const AgreedError& error) {
      if (refused++ >= deck_.checkpoint.fallback || &dir == &checkpoints.back()) throw;
      if (world_.Rank() == 0) spdlog::warn("not restarted from {}: {}", dir, error.what());
    }
  return 0;
}

void Checkpointing::Compare(const std::string& dir) {
  const std::string saved = OnRankZero(world_, [&] { return ReadMetadata(dir).deck; });
  differences_ = Differences(SavedDeck(dir, saved), requested_deck_);
  RequireSameModel(dir, differences_);
}

void Checkpointing::CompareData(const Metadata& saved) {
  if (!saved.data || *saved.data == data_) return;
  differences_.push_back(
      {"data", Describe(*saved.data), Describe(data_), requested_deck_.origins.at("data.paths"), false, false});
}

void Checkpointing::ReportConversion(const std::string& dir, const Manifest& manifest) {
  const Dtype wanted = deck_.precision.moments;
  const auto differs = [&](const ManifestTensor& t) {
    return !t.name.starts_with(kParameterPrefix) && t.dtype != wanted;
  };
  if (std::ranges::none_of(manifest.tensors, differs)) return;
  const std::string text =
      fmt::format("{}: the optimizer's moments were converted {} (precision.moments)", dir,
                  wanted == Dtype::kF32 ? "from bf16 to fp32, exactly" : "from fp32 to bf16, by rounding to nearest");
  if (said_.insert(text).second) spdlog::info("{}", text);
}

void Checkpointing::Prove(const std::string& dir, const Metadata& saved) const {
  const bool root = world_.Rank() == 0;
  if (!saved.proof) {
    if (root)
      spdlog::warn("{}: no proof of its weights ({}): only checksums were compared", dir,
                   saved.step == 0 ? "they were imported" : "it was saved by version " + saved.version);
    return;
  }
  if (std::ranges::any_of(differences_, &DeckDifference::computes)) {
    if (root)
      spdlog::warn(
          "{}: keys of the model differ, so the proof of its weights says nothing: only checksums were compared", dir);
    return;
  }
  const Proof now = MakeProof(deck_, programs_, conditions_);
  const std::string error = OnRankZero(world_, [&] { return ProofError(*saved.proof, now); });
  if (!error.empty()) throw AgreedError(ExitStatus::kData, fmt::format("{}: {}", dir, error));
}

bool Checkpointing::Due(int64_t step) const {
  return saver_ && deck_.checkpoint.every_steps > 0 && step % deck_.checkpoint.every_steps == 0;
}

bool Checkpointing::MemoryDue(int64_t step) const {
  return memory_ != nullptr && saver_ && step % deck_.checkpoint.memory_steps == 0;
}

void Checkpointing::DropMemory() {
  if (nodes_ != nullptr) nodes_->RemoveAllBut(-1, world_);
}

void Checkpointing::EndMemory() {
  if (nodes_ == nullptr) return;
  nodes_->RemoveAll(world_);
  if (world_.Rank() == 0) RemoveMemoryRunId(deck_);
}

bool Checkpointing::ClockWants() const {
  return deck_.checkpoint.every_s > 0 && MillisecondsSince(last_save_) >= deck_.checkpoint.every_s * 1e3;
}

bool Checkpointing::Wanted() const { return saver_ && world_.Rank() == 0 && (ClockWants() || now_.Wanted()); }

void Checkpointing::RequireLock() {
  if (world_.Rank() != 0 || lock_ == nullptr) return;
  if (const std::string lost = lock_->WhyLost(); !lost.empty()) throw UserError(ExitStatus::kFault, lost);
}

/// A save writes exactly the bytes that were proved: the copies that the proof reads are made anew from the masters;
/// the data to be written are summed before the proof and again while they are written; all other copies of them are
/// summed after it.
SaveStart Checkpointing::Save(int64_t step, const History& history, Moment moment, SaveTo to) {
  if (!saver_) return {};
  const Clock::time_point start = Clock::now();
  const std::string lost = OnRankZero(world_, [&] { return lock_ == nullptr ? "" : lock_->WhyLost(); });
  if (!lost.empty()) throw AgreedError(ExitStatus::kFault, lost);
  if (world_.Rank() == 0 && to != SaveTo::kMemory) now_.Begun(step);
  FaultPoint("proof");
  programs_.CopyWeights();
  copies_->SumWritten();
  const Proof proof = MakeProof(deck_, programs_, conditions_);
  FaultPoint("compare");
  copies_->SumOthers();
  const bool judged = !NcclToItself();  // ranks that send to themselves have numbers of their own
  if (auto corruption = judged ? copies_->Compare() : std::nullopt)
    return {MillisecondsSince(start), std::move(corruption)};
  const double proof_ms = MillisecondsSince(start);
  if (to != SaveTo::kMemory) last_save_ = Clock::now();
  if (judged && !std::isfinite(proof.loss)) {
    Report();
    Report({step,
            to == SaveTo::kMemory,
            false,
            {},
            {fmt::format("the weights after step {} give the loss {}: they are not worth keeping", step, proof.loss)}});
    return {MillisecondsSince(start), std::nullopt};
  }
  for (int places = to == SaveTo::kMemoryAndDisk ? 2 : 1; places > 0; --places) proof_ms_.push_back(proof_ms);
  if (moment == Moment::kAfterSkip && world_.Rank() == 0)
    spdlog::warn(
        "the step before this checkpoint was left out, so its weights may be wrecked: no older checkpoint is removed");
  const int64_t keep = moment == Moment::kAtTheEnd    ? deck_.checkpoint.keep
                       : moment == Moment::kAfterSkip ? kEverything
                                                      : std::max(deck_.checkpoint.keep, int64_t{2});
  saver_->Save({step,
                programs_.ramp().SequencesUpTo(step) + passed_over_,
                kVersion,
                kGitHash,
                history.losses,
                EffectiveDeck(requested_deck_.deck),
                proof,
                data_,
                {},
                history.window,
                tokenizer_},
               keep, copies_->written(), to);
  return {MillisecondsSince(start), std::nullopt};
}

SaveStart Checkpointing::SaveUnlessThere(int64_t step, const History& history) {
  if (!saver_) return {};
  const bool there = OnRankZero(world_, [&] {
    const std::vector<std::string> line = FindLine(CheckpointFolder(deck_), saver_->parent());
    return !line.empty() && fs::path(line.front()).filename() == StepName(step);
  });
  return there ? SaveStart{} : Save(step, history, Moment::kAtTheEnd);
}

void Checkpointing::Report() {
  if (!saver_) return;
  for (const SaveOutcome& outcome : saver_->Ended()) {
    Report(outcome);
    proof_ms_.pop_front();
  }
}

void Checkpointing::ReportCopy(const SaveOutcome& outcome) {
  if (outcome.committed)
    reporter_.MemoryCopy({outcome.step, outcome.result.dir, outcome.result.bytes, outcome.result.blocked_ms,
                          outcome.result.committed_ms, proof_ms_.front()});
  else
    reporter_.MemoryCopyFailed(outcome.step, outcome.reasons, copies_fail_);
  copies_fail_ = !outcome.committed;
}

void Checkpointing::Report(const SaveOutcome& outcome) {
  if (outcome.in_memory) return ReportCopy(outcome);
  last_failed_ = !outcome.committed;
  if (last_failed_) {
    reporter_.CheckpointFailed(outcome.step, outcome.reasons);
    return;
  }
  reporter_.Checkpoint({outcome.step, outcome.result.dir, outcome.result.bytes, outcome.result.blocked_ms,
                        outcome.result.committed_ms, proof_ms_.front()});
  newest_step_ = outcome.step;
  slowest_ms_ = std::max(slowest_ms_, proof_ms_.front() + outcome.result.blocked_ms + outcome.result.committed_ms);
  if (world_.Rank() == 0) now_.Committed(outcome.step);
  for (const std::string& warning : outcome.result.warnings)
    if (said_.insert(warning).second) spdlog::warn("{}", warning);
}

bool Checkpointing::Finish() {
  if (!saver_) return true;
  saver_->Wait();
  Report();
  return !last_failed_;
}

}  // namespace espalier
