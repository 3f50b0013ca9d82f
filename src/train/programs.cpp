#include "train/programs.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "espalier/comm/agreement.hpp"
#include "espalier/executor/attention_times.hpp"
#include "espalier/executor/demands.hpp"
#include "espalier/mesh/zigzag.hpp"
#include "espalier/model/dropout_inputs.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/train/states.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "train/startup/fit.hpp"
#include "train/startup/measured_attention.hpp"
#include "train/startup/measured_gemms.hpp"

namespace espalier {
namespace {

/// Does nothing on stages without the input, and for a model without it.
void FillInput(const Runnable& runnable, std::string_view name, int microbatch, const std::vector<int32_t>& numbers) {
  const int id = runnable.program.graph->FindOrNone(name);
  for (const PersistentBuffer& buffer : runnable.program.persistent)
    if (id >= 0 && buffer.value == id && buffer.microbatch == microbatch)
      runnable.executor->SetInput(name, microbatch, numbers.data(),
                                  std::ssize(numbers) * static_cast<int64_t>(sizeof(int32_t)));
}

/// By name: space, offset and bytes of the values that a program keeps from step to step.
std::map<std::string, std::tuple<Space, int64_t, int64_t>> KeptOf(const Program& program) {
  std::map<std::string, std::tuple<Space, int64_t, int64_t>> kept;
  for (const PersistentBuffer& buffer : program.persistent)
    if (const Value& value = program.graph->value(buffer.value); IsKept(value.kind))
      kept[value.name] = {value.space, buffer.place.offset, buffer.place.bytes};
  return kept;
}

/// Steps of all sizes continue with the states and copies of the previous step; other programs read some of them.
void RequireSamePlaces(const Program& training, const Program& other) {
  const auto places = KeptOf(training);
  for (const auto& [name, place] : KeptOf(other)) {
    const auto found = places.find(name);
    CHECK(found != places.end() && found->second == place, "two programs of a run have {} at different places", name);
  }
}

}  // namespace

void Runnable::Fill(const Batch& batch, const std::vector<int64_t>& positions) const {
  FillInput(*this, "positions", -1, {positions.begin(), positions.end()});
  for (size_t k = 0; k < batch.microbatches.size(); ++k) {
    FillInput(*this, "ids", static_cast<int>(k), batch.microbatches[k].ids);
    FillInput(*this, "targets", static_cast<int>(k), batch.microbatches[k].targets);
    FillInput(*this, "documents", static_cast<int>(k), batch.microbatches[k].document_starts);
    FillInput(*this, "document_positions", static_cast<int>(k), batch.microbatches[k].positions);
    FillInput(*this, kStreamNumbers, static_cast<int>(k), batch.microbatches[k].stream_numbers);
    FillInput(*this, kQueryNumbers, static_cast<int>(k), batch.microbatches[k].query_numbers);
    for (size_t d = 0; d < batch.microbatches[k].further_ids.size(); ++d) {
      const int depth = static_cast<int>(d) + 1;
      FillInput(*this, IdsOfDepth(depth), static_cast<int>(k), batch.microbatches[k].further_ids[d]);
      FillInput(*this, TargetsOfDepth(depth), static_cast<int>(k), batch.microbatches[k].further_targets[d]);
    }
  }
}

void Runnable::FillStep(int64_t step) const {
  for (const PersistentBuffer& buffer : program.persistent)
    if (program.graph->value(buffer.value).name == "step") executor->SetScalar("step", static_cast<float>(step));
}

void Runnable::FillScalars(const Deck& deck, int64_t step) const {
  executor->SetScalar("step", static_cast<float>(step));
  executor->SetScalar("lr", static_cast<float>(LearningRate(deck, step)));
  if (deck.optimizer.name == OptimizerName::kMuon)
    executor->SetScalar("muon_lr", static_cast<float>(MuonLearningRate(deck, step)));
  if (deck.guard.spike_z > 0)
    for (const char* limit : {"loss_limit", "norm_limit"})
      executor->SetScalar(limit, std::numeric_limits<float>::infinity());
}

BatchLayout LayoutOfBatch(const Compilation& compilation, const Coordinate& coordinate) {
  const Graph& graph = *compilation.graph;
  const auto box_of = [&](int id) { return LocalBox(graph.value(id).type, compilation.mesh, coordinate); };
  const auto positions_in = [&](const Range& rows) {
    std::vector<int64_t> positions;
    for (int64_t i = rows.begin; i < rows.end; ++i)
      positions.push_back(ZigzagPosition(i, compilation.deck.model.seq_len, compilation.mesh.Degree(Axis::kCp)));
    return positions;
  };
  const Box box = box_of(graph.Find("ids"));
  BatchLayout layout{compilation.batch.microbatches, compilation.batch.rows, box[0], positions_in(box[1]),
                     compilation.deck.data.isolate_documents};
  const int stream = graph.FindOrNone(kStreamNumbers), queries = graph.FindOrNone(kQueryNumbers);
  if (stream >= 0) layout.stream_positions = positions_in(box_of(stream)[1]);
  layout.query_numbers = queries >= 0;
  layout.depths = graph.FindOrNone(IdsOfDepth(1)) >= 0 ? compilation.deck.model.mtp_layers : 0;
  for (int of_attention : {graph.FindOrNone("documents"), queries})
    if (of_attention >= 0 && box_of(of_attention)[1] != box[1])
      layout.document_positions = positions_in(box_of(of_attention)[1]);
  return layout;
}

Programs::Programs(const Deck& deck, World& world, MpiWorld* mpi, Device& device) : ramp_(deck.batch), device_(device) {
  OnAllRanks(world, [&] { Compile(deck, world); });
  if (device_.Kind() == DeviceKind::kCuda && ChoosesBackward(deck)) ChooseBackward(deck, world);
  const BySpace<int64_t> bytes = Arenas();
  CheckFit(deck, world, device_, bytes);
  // Before the arena takes the memory.
  if (device_.Kind() == DeviceKind::kCuda && compilation().deck.run.gemm_plans == kMeasuredAtStart)
    UseMeasuredGemms(LoadCudaModule(), Gemms(), world);
  free_bytes_ = std::numeric_limits<int64_t>::max();
  for (const MemoryLimit& limit : device_.ArenaLimits()) free_bytes_ = std::min(free_bytes_, limit.available);
  OnAllRanks(world, [&] {
    arena_ = device_.MakeArena(bytes[Space::kDevice]);
    if (bytes[Space::kHost] > 0) host_ = device_.MakeStaging(bytes[Space::kHost]);
  });
  MakeExecutors(world, mpi);
  tensors_ = StateTensors(compilation());
  local_ = LocalTensors(tensors_, training().executor(), coordinate_);
  layout_ = LayoutOfBatch(compilation(), coordinate_);
}

std::vector<Runnable*> Programs::All() {
  std::vector<Runnable*> all;
  for (Training& training : trainings_) all.push_back(&training.runnable);
  all.push_back(&proof_);
  if (evaluate_) all.push_back(&*evaluate_);
  if (copies_) all.push_back(&*copies_);
  if (gradients_) all.push_back(&*gradients_);
  return all;
}

void Programs::Compile(const Deck& deck, World& world) {
  const auto began = std::chrono::steady_clock::now();
  trainings_.clear();
  for (const RampSize& size : ramp_.Sizes())
    CompileTraining(size.sequences == deck.batch.global ? deck : WithSequences(deck, size.sequences), world);
  training_compile_ms_ = MillisecondsSince(began);
  proof_ = CompileOther(deck, Purpose::kProof);
  if (Evaluates(deck)) evaluate_ = CompileOther(deck, Purpose::kEvaluate);
  if (CopiesWeights(deck)) copies_ = CompileOther(deck, Purpose::kCopies);
  if (ComparesComputation(deck)) gradients_ = CompileOther(deck, Purpose::kGradients);
  for (const Runnable* runnable : All()) RequireSamePlaces(training().program(), runnable->program);
}

void Programs::CompileTraining(const Deck& deck, World& world) {
  Training& training = trainings_.emplace_back();
  training.compilation = espalier::Compile(deck, world.Size(), Purpose::kTrain, device_.Kind());
  coordinate_ = training.compilation.mesh.CoordinateOf(world.Rank());
  training.runnable.program = MakeProgram(training.compilation, coordinate_);
}

Runnable Programs::CompileOther(const Deck& deck, Purpose purpose) const {
  return {MakeProgram(espalier::Compile(deck, compilation().mesh.Ranks(), purpose, device_.Kind()), coordinate_,
                      StateBytes(training().program())),
          nullptr};
}

BySpace<int64_t> Programs::Arenas() {
  BySpace<int64_t> bytes{};
  for (const Runnable* runnable : All()) bytes = Larger(bytes, ArenasOf(runnable->program));
  return bytes;
}

void Programs::ChooseBackward(const Deck& deck, World& world) {
  std::vector<AttentionDemand> demands;
  AddAttentionGradsOf(training().program(), coordinate_, demands);
  std::string compiled = DeterministicWays().front();
  for (const std::string& way : MeasuredWays(LoadCudaModule(), demands, world)) {
    Deck with = deck;
    with.run.attention_backward = *ParseChoice<AttentionBackward>(way);
    if (std::exchange(compiled, way) != way) OnAllRanks(world, [&] { Compile(with, world); });
    if (Fits(with, world, device_, Arenas())) return;
    if (world.Rank() == 0) spdlog::info("attention backward: {} does not fit into memory", way);
  }
}

void Programs::CopyWeights() const {
  if (copies_) copies_->executor->RunStep();
}

std::vector<GemmDemand> Programs::Gemms() {
  std::vector<GemmDemand> demands;
  for (const Runnable* runnable : All())
    for (const GemmDemand& demand : GemmsOf(runnable->program, coordinate_)) demands.push_back(demand);
  return Distinct(std::move(demands));
}

void Programs::MakeExecutors(World& world, MpiWorld* mpi) {
  Executor::Abort abort;
  if (mpi != nullptr) {
    std::vector<Channel> channels;
    for (const Runnable* runnable : All()) {
      const std::vector<Channel> more = ChannelsOf(runnable->program);
      channels.insert(channels.end(), more.begin(), more.end());
    }
    device_.Connect(*mpi, compilation().mesh, AgreeOnChannels(world, channels));
    abort = [mpi](const std::string& message) { mpi->Fail(message); };
  }
  for (Runnable* runnable : All())
    runnable->executor = device_.MakeExecutor(runnable->program, coordinate_, {*arena_, host_.get()}, abort);
}

}  // namespace espalier
