#include "espalier/program/compile.hpp"

#include <map>

#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

BatchShape BatchOfProgram(const Deck& deck, const Mesh& mesh, Purpose purpose) {
  BatchShape batch = BatchOf(deck, mesh);
  if (purpose == Purpose::kTrain || purpose == Purpose::kEvaluate) return batch;
  batch.sequences = batch.rows;
  batch.microbatches = 1;
  batch.tokens = batch.rows * deck.model.seq_len;
  return batch;
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

Compilation Compile(const Deck& deck, int ranks, Purpose purpose, DeviceKind device,
                    const std::function<void(const std::string& pass, const Graph&)>& observe) {
  Compilation c;
  c.deck = deck;
  c.mesh = ResolveMesh(deck, ranks);
  c.purpose = purpose;
  c.device = device;
  c.batch = BatchOfProgram(deck, c.mesh, purpose);
  const ScheduleTraits& traits = TraitsOf(deck.pipeline.schedule);
  const int stages = c.mesh.Degree(Axis::kPp), chunks = deck.pipeline.chunks,
            m = static_cast<int>(c.batch.microbatches);
  c.schedule = purpose == Purpose::kTrain ? MakeSchedule(traits, stages, chunks, m)
                                          : ForwardOnly(traits.PlaceChunks(stages, chunks), m);
  const Split split = SplitLayers(deck, c.schedule.Chunks());
  Model model = BuildModel(deck, split, c.batch.rows, purpose);
  if (observe) observe("model", model.graph);
  c.parameter_count = ParameterCount(model);
  c.parameters = std::move(model.parameters);
  c.inits = std::move(model.inits);
  c.stored = std::move(model.stored);
  RunPasses(model.graph, {deck, c.mesh, c.schedule.stage_of_chunk, traits}, purpose, observe);
  c.graph = std::make_shared<const Graph>(std::move(model.graph));
  return c;
}

std::vector<int> ClassRepresentatives(const Compilation& c) {
  // Types that divide evenly have the same local shape everywhere; only the others distinguish ranks.
  std::vector<const Type*> uneven;
  std::map<std::string, bool> seen;
  for (const Value& v : c.graph->values) {
    int64_t shards = c.mesh.GroupSize(v.type.placements.Sharded());
    bool even = true;
    for (size_t d = 0; d < v.type.shape.size(); ++d) {
      int64_t n = 1;
      for (Axis a : v.type.placements.dims[d]) n *= c.mesh.Degree(a);
      even = even && v.type.shape[d] % n == 0;
    }
    if (shards > 1 && !even && seen.emplace(ToString(v.type), true).second) uneven.push_back(&v.type);
  }
  std::map<std::pair<int, std::vector<Shape>>, int> first;
  std::vector<int> representative;
  for (int rank = 0; rank < c.mesh.Ranks(); ++rank) {
    const Coordinate coordinate = c.mesh.CoordinateOf(rank);
    std::vector<Shape> shapes;
    for (const Type* type : uneven) shapes.push_back(LocalShape(*type, c.mesh, coordinate));
    representative.push_back(first.try_emplace({coordinate[Axis::kPp], std::move(shapes)}, rank).first->second);
  }
  return representative;
}

}  // namespace espalier
