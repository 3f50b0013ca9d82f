#include "espalier/checkpoint/async_saver.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "checkpoint/transfer/pieces.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/host_name.hpp"
#include "espalier/util/message_of.hpp"

namespace espalier {
namespace {

const FaultStages kAsyncSaverStages = {"staging", "copy"};

using Clock = std::chrono::steady_clock;

constexpr int64_t kLine = 64;

int64_t WholeLines(int64_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

}  // namespace

std::vector<int64_t> StagingBytes(const std::vector<StateTensor>& tensors, const Mesh& mesh) {
  return SumByWriter(tensors, mesh, WholeLines);
}

AsyncSaver::AsyncSaver(Options options, const std::vector<StateTensor>& tensors, const std::vector<LocalTensor>& local,
                       const Mesh& mesh, World& world, std::unique_ptr<World> writers)
    : options_(std::move(options)), tensors_(tensors), mesh_(mesh), world_(world), writers_(std::move(writers)) {
  Plan(local);
  const bool on_device = world_.Or(OnHost() ? 0 : 1) != 0;
  if (writers_ != nullptr || on_device) MakeRoom();
  if (on_device && staging_ == nullptr)
    throw AgreedError(ExitStatus::kDoesNotFit, "checkpoints: no room on the host for a copy of the state: " + refusal_);
  asynchronous_ = writers_ != nullptr && staging_ != nullptr;
}

AsyncSaver::~AsyncSaver() { Wait(); }

void AsyncSaver::Plan(const std::vector<LocalTensor>& local) {
  std::map<std::string_view, LocalTensor> own;
  for (const LocalTensor& tensor : local) own[tensor.tensor->name] = tensor;
  for (const Piece& piece : PlanPieces(tensors_, mesh_)) {
    if (piece.writer != world_.Rank()) continue;
    const StateTensor& tensor = tensors_[static_cast<size_t>(piece.tensor)];
    CHECK(own.contains(tensor.name), "rank {} writes {} but passed none", world_.Rank(), tensor.name);
    pieces_.push_back({own[tensor.name], Volume(ExtentsOf(piece.box)) * SizeOf(tensor.type.dtype), 0});
  }
  Place();
}

/// Sorts shards by address, so that adjacent ones are copied together: large copies bypass the caches and are much
/// faster.
void AsyncSaver::Place() {
  std::ranges::sort(pieces_, std::less<>(), [](const Staged& piece) { return piece.tensor.data; });
  for (Staged& piece : pieces_) {
    piece.offset = bytes_;
    const bool adjacent =
        !runs_.empty() && runs_.back().first->arena == piece.tensor.arena &&
        static_cast<const char*>(runs_.back().first->data) + runs_.back().bytes == piece.tensor.data &&
        runs_.back().offset + runs_.back().bytes == piece.offset;
    if (adjacent)
      runs_.back().bytes += piece.bytes;
    else
      runs_.push_back({&piece.tensor, piece.bytes, piece.offset});
    bytes_ += WholeLines(piece.bytes);
  }
}

bool AsyncSaver::OnHost() const {
  return std::ranges::all_of(pieces_, [](const Staged& piece) { return piece.tensor.OnHost(); });
}

/// All ranks check the memory before any allocates it, since the kernel kills a process that touches more than the
/// machine has.
void AsyncSaver::MakeRoom() {
  std::string reason =
      FindShortage(world_, {HostName(), bytes_, MemoryLimits()}).Text("the staging buffer of checkpoints");
  if (reason.empty()) try {
      FaultPoint("staging");
      staging_ = options_.make_staging ? options_.make_staging(bytes_) : std::make_unique<HostArena>(bytes_);
    } catch (const UserError& error) {
      reason = error.what();
    }
  if (world_.Or(reason.empty() ? 0 : 1) == 0) return;
  staging_.reset();
  for (const std::string& other : world_.Gather(reason))
    if (refusal_.empty()) refusal_ = other;
  refusal_ = world_.Broadcast(refusal_);
}

std::vector<LocalTensor> AsyncSaver::Copy() const {
  for (const Run& run : runs_) {
    std::byte* copy = staging_->At(run.offset, run.bytes);
    if (run.first->arena != nullptr)
      run.first->arena->Read(run.first->data, copy, run.bytes);
    else
      std::memcpy(copy, run.first->data, static_cast<size_t>(run.bytes));
  }
  std::vector<LocalTensor> copies;
  for (const Staged& piece : pieces_)
    copies.push_back({piece.tensor.tensor, staging_->At(piece.offset, piece.bytes), nullptr, {}, piece.tensor.crc});
  return copies;
}

/// `save` returns the result.
template <typename Work>
SaveOutcome OutcomeOf(const Metadata& metadata, bool in_memory, World& world, const Work& save) {
  SaveOutcome outcome{metadata.step, in_memory, false, {}, {}};
  try {
    outcome.result = save();
    outcome.committed = true;
  } catch (const AgreedError& error) {
    outcome.reasons = error.messages();
  } catch (const std::exception& error) {
    // The other ranks do not know of this failure, and would wait for this rank.
    if (world.Size() > 1) world.Fail(fmt::format("in the save of step {}: {}", metadata.step, MessageOf(error)));
    outcome.reasons = {MessageOf(error)};
  }
  return outcome;
}

std::vector<SaveOutcome> AsyncSaver::Write(const Metadata& metadata, const std::vector<LocalTensor>& local,
                                           World& world, int64_t keep, SaveTo to) const {
  std::vector<SaveOutcome> outcomes;
  if (to != SaveTo::kDisk)
    outcomes.push_back(OutcomeOf(metadata, true, world, [&] {
      CHECK(options_.memory != nullptr, "a copy in memory without a place for it");
      return SaveInMemory(*options_.memory, metadata, tensors_, local, mesh_, world);
    }));
  if (to != SaveTo::kMemory)
    outcomes.push_back(OutcomeOf(metadata, false, world, [&] {
      return espalier::Save(options_.checkpoints_dir, metadata, tensors_, local, mesh_, world, keep);
    }));
  return outcomes;
}

void AsyncSaver::Save(Metadata metadata, int64_t keep, const StateChecksums& checksums, SaveTo to) {
  const Clock::time_point start = Clock::now();
  Wait();
  for (Staged& piece : pieces_) {
    const auto found = checksums.find(piece.tensor.tensor->name);
    piece.tensor.crc = found == checksums.end() ? std::nullopt : std::optional(found->second);
  }
  metadata.lineage = lineage_;
  if (keep == 0) keep = options_.keep;
  FaultPoint("copy");
  if (!Asynchronous()) {
    std::vector<LocalTensor> local;
    for (const Staged& piece : pieces_) local.push_back(piece.tensor);
    in_flight_ = Write(metadata, staging_ == nullptr ? local : Copy(), world_, keep, to);
    blocked_ms_ = MillisecondsSince(start);
    return;
  }
  busy_ = true;
  writer_ = std::thread([this, metadata = std::move(metadata), local = Copy(), keep, to] {
    in_flight_ = Write(metadata, local, *writers_, keep, to);
    busy_ = false;
  });
  blocked_ms_ = MillisecondsSince(start);
}

std::vector<SaveOutcome> AsyncSaver::Ended() {
  if (!busy_) Wait();
  return std::exchange(ended_, {});
}

void AsyncSaver::Wait() {
  if (writer_.joinable()) writer_.join();
  for (SaveOutcome& outcome : std::exchange(in_flight_, {})) {
    outcome.result.blocked_ms = blocked_ms_;
    if (outcome.committed && !outcome.in_memory) lineage_.parent = outcome.result.id;
    ended_.push_back(std::move(outcome));
  }
}

}  // namespace espalier
