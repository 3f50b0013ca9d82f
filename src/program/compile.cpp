#include "espalier/program/compile.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "espalier/graph/local_range.hpp"
#include "espalier/program/half_compilation.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/parallel.hpp"

namespace espalier {
namespace {

BatchShape BatchOfProgram(const Deck& deck, const Mesh& mesh, Purpose purpose, int64_t tokens) {
  BatchShape batch = BatchOf(deck, mesh);
  if (purpose == Purpose::kTrain || purpose == Purpose::kEvaluate || purpose == Purpose::kScore) return batch;
  batch.sequences = batch.rows;
  batch.microbatches = 1;
  batch.tokens = batch.rows * tokens;
  return batch;
}

/// A dim that its axes do not divide evenly: ranks hold different extents of it.
using UnevenDim = std::pair<int64_t, std::vector<Axis>>;  // extent, axes

/// By stage: the uneven dims of its values. All other dims have the same local extent on every rank.
std::vector<std::set<UnevenDim>> UnevenDims(const Compilation& c) {
  std::set<UnevenDim> of_all;
  std::vector<std::set<UnevenDim>> of_stage(c.schedule.stages);
  for (const Value& v : c.graph->values)
    for (size_t d = 0; d < v.type.shape.size(); ++d) {
      AxisSet axes;
      for (Axis a : v.type.placements.dims[d]) {
        axes.Add(a);
        if (RowOf(a).division == Division::kOfWhole) axes = axes | FactorsInside(a);  // LocalRange
      }
      if (v.type.shape[d] % c.mesh.GroupSize(axes) != 0)
        (v.chunk == kAllChunks ? of_all : of_stage[c.StageOf(v.chunk)])
            .emplace(v.type.shape[d], v.type.placements.dims[d]);
    }
  for (std::set<UnevenDim>& dims : of_stage) dims.insert(of_all.begin(), of_all.end());
  return of_stage;
}

/// Splits classes of the ranks of one stage, which are consecutive from `first` on, by their extent of a dim.
void Refine(std::vector<int>& class_of, int first, const UnevenDim& dim, const Mesh& mesh) {
  const Type type{Dtype::kF32, {dim.first}, {{dim.second}, {}, {}}};
  std::unordered_map<int64_t, int> fresh;  // (class, extent) -> new class
  for (size_t i = 0; i < class_of.size(); ++i) {
    const Coordinate coordinate = mesh.CoordinateOf(first + static_cast<int>(i));
    const int64_t key = class_of[i] * (dim.first + 1) + LocalRange(type, 0, mesh, coordinate).Extent();
    class_of[i] = fresh.try_emplace(key, static_cast<int>(fresh.size())).first->second;
  }
}

}  // namespace

int Compilation::StageOf(int chunk) const {
  CHECK(chunk >= 0 && chunk < schedule.Chunks(), "chunk {} has no single stage", chunk);
  return schedule.stage_of_chunk[chunk];
}

DeviceKind DeviceOf(const Deck& deck) {
  CHECK(deck.run.device != RunDevice::kSleep, "programs of a device that waits are those of its cluster's device");
  return deck.run.device == RunDevice::kCuda ? DeviceKind::kCuda : DeviceKind::kCpu;
}

namespace {

/// A compilation without its graph, and the model that becomes its graph.
struct Begun {
  Compilation c;
  Graph model;
};

/// Compile, for `tokens` of each sequence, up to the passes.
Begun Begin(const Deck& deck, int ranks, Purpose purpose, int64_t tokens, DeviceKind device) {
  Compilation c;
  c.deck = deck;
  c.mesh = ResolveMesh(deck, ranks);
  c.purpose = purpose;
  c.device = device;
  c.batch = BatchOfProgram(deck, c.mesh, purpose, tokens);
  const ScheduleTraits& traits = TraitsOf(deck.pipeline);
  CHECK(traits.make != nullptr || traits.given != nullptr, "the file of pipeline.file has not been read");
  const int stages = c.mesh.Degree(Axis::kPp), chunks = deck.pipeline.chunks,
            m = static_cast<int>(c.batch.microbatches);
  const SteadyState steady = deck.overlap.interleave ? SteadyState::kJoint : SteadyState::kAlternating;
  c.schedule = purpose == Purpose::kTrain       ? MakeSchedule(traits, stages, chunks, m, steady)
               : purpose == Purpose::kGradients ? ForwardThenBackward(traits.PlaceChunks(stages, chunks), m)
                                                : ForwardOnly(traits.PlaceChunks(stages, chunks), m);
  const Split split = SplitLayers(deck, c.schedule.Chunks());
  Model model = BuildModel(deck, split, c.batch.rows, purpose, tokens);
  c.parameter_count = ParameterCount(model);
  c.parameters = std::move(model.parameters);
  c.inits = std::move(model.inits);
  c.stored = std::move(model.stored);
  return {std::move(c), std::move(model.graph)};
}

PassContext ContextOfPasses(const Compilation& c) {
  // Matmuls and messages of GPU libraries choose by size how they add up.
  const bool sizes_follow_times = c.device == DeviceKind::kCpu || !c.deck.run.deterministic;
  return {c.deck, c.mesh, c.schedule.stage_of_chunk, TraitsOf(c.deck.pipeline), c.purpose, sizes_follow_times};
}

Compilation CompileTokens(const Deck& deck, int ranks, Purpose purpose, int64_t tokens, DeviceKind device,
                          const PassObserver& observe, Verification verification) {
  auto [c, graph] = Begin(deck, ranks, purpose, tokens, device);
  if (observe) observe("model", graph);
  RunPasses(graph, ContextOfPasses(c), observe, verification);
  c.graph = std::make_shared<const Graph>(std::move(graph));
  return std::move(c);
}

size_t PassesBeforeRecompute() {
  const auto found = std::ranges::find(Passes(), std::string_view("recompute"), &Pass::name);
  CHECK(found != Passes().end(), "there is no pass recompute");
  return static_cast<size_t>(found - Passes().begin());
}

}  // namespace

HalfCompilation::HalfCompilation(const Deck& deck, int ranks, Purpose purpose) {
  Begun begun = Begin(deck, ranks, purpose, deck.model.seq_len, DeviceOf(deck));
  compilation_ = std::move(begun.c);
  graph_ = std::move(begun.model);
  const PassContext context = ContextOfPasses(compilation_);
  for (const Pass& pass : Passes().first(PassesBeforeRecompute())) pass.run(graph_, context);
}

Compilation HalfCompilation::With(const Deck::Recompute& recompute) const {
  Compilation c = compilation_;
  c.deck.recompute = recompute;
  Graph graph = graph_;
  const PassContext context = ContextOfPasses(c);
  for (const Pass& pass : Passes().subspan(PassesBeforeRecompute())) pass.run(graph, context);
  c.graph = std::make_shared<const Graph>(std::move(graph));
  return c;
}

Compilation Compile(const Deck& deck, int ranks, Purpose purpose, DeviceKind device, const PassObserver& observe,
                    Verification verification) {
  return CompileTokens(deck, ranks, purpose, deck.model.seq_len, device, observe, verification);
}

Compilation CompileSampling(const Deck& deck, int64_t tokens) {
  return CompileTokens(deck, 1, Purpose::kSample, tokens, DeviceKind::kCpu, {}, Verification::kEveryPass);
}

std::vector<int> ClassRepresentatives(const Compilation& c) {
  std::vector<int> representative;
  representative.reserve(c.mesh.Ranks());
  const int ranks_of_stage = c.mesh.Ranks() / c.schedule.stages;
  for (const std::set<UnevenDim>& dims : UnevenDims(c)) {
    const auto first = static_cast<int>(representative.size());  // pp is the outermost axis
    std::vector<int> class_of(ranks_of_stage, 0);
    for (const UnevenDim& dim : dims) Refine(class_of, first, dim, c.mesh);
    std::vector<int> lowest(class_of.size(), -1);  // by class
    for (size_t i = 0; i < class_of.size(); ++i) {
      int& rank = lowest[class_of[i]];
      if (rank < 0) rank = first + static_cast<int>(i);
      representative.push_back(rank);
    }
  }
  return representative;
}

std::map<int, Program> MakePrograms(const Compilation& c, const std::vector<int>& representative, int threads) {
  const std::set<int> distinct(representative.begin(), representative.end());
  const std::vector<int> ranks(distinct.begin(), distinct.end());
  std::vector<Program> made(ranks.size());
  const ProgramMaker maker(c);
  ParallelFor(
      ranks.size(), [&](size_t i) { made[i] = maker.Make(c.mesh.CoordinateOf(ranks[i])); }, threads);
  std::map<int, Program> programs;
  for (size_t i = 0; i < ranks.size(); ++i) programs.emplace_hint(programs.end(), ranks[i], std::move(made[i]));
  return programs;
}

}  // namespace espalier
