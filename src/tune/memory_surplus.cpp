#include "tune/memory_surplus.hpp"

#include <algorithm>

#include "espalier/deck/batch_ramp.hpp"
#include "espalier/model/model.hpp"
#include "espalier/program/compile.hpp"
#include "tune/pipeline_replay.hpp"

namespace espalier {
namespace {

constexpr int kLeastLayers = 12;
constexpr int64_t kMicrobatchesPerStage = 3;    // microbatches per stage that keep a pipeline busy
constexpr int64_t kMicrobatchesOfOneStage = 2;  // without a pipeline

int LayersOf(const Deck& deck, const Layout& layout) {
  return std::min(deck.model.layers, std::max(kLeastLayers, layout.pp * layout.chunks));
}

int64_t MicrobatchesOf(const Layout& layout, int64_t microbatches) {
  if (layout.schedule == ScheduleKind::kFile) return microbatches;
  return std::min(microbatches, layout.pp > 1 ? kMicrobatchesPerStage * layout.pp : kMicrobatchesOfOneStage);
}

size_t KindOfLast(const Deck::Model& model) {
  const std::vector<LayerKind> kinds = KindsOf(model);
  return static_cast<size_t>(std::ranges::find(kinds, KindOf(model, model.layers)) - kinds.begin());
}

/// The deck of the smaller model.
Deck SmallerDeck(const Deck& deck, const Layout& layout, int64_t microbatches) {
  Deck smaller = WithLayout(deck, layout, {});
  smaller.pipeline.split.clear();
  smaller.model = WithLayersOf(deck.model, KindOf(deck.model, deck.model.layers), LayersOf(deck, layout));
  return WithSequences(std::move(smaller), microbatches * layout.micro * layout.DataParallel());
}

/// Its chunks, in parts of the large model.
std::vector<ChunkParts> ChunksOf(const Deck& smaller, const Layout& layout, size_t parts, Part kind) {
  std::vector<ChunkParts> chunks =
      PartsOf(smaller.model, SplitLayers(smaller, layout.pp * layout.chunks).LayersOfChunks());
  for (ChunkParts& chunk : chunks) {
    chunk.count.resize(parts);
    std::swap(chunk.count[kFirstKind], chunk.count[kind]);
    if (chunk.first == kFirstKind) chunk.first = kind;
    if (chunk.last == kFirstKind) chunk.last = kind;
  }
  return chunks;
}

}  // namespace

int64_t SurplusOf(const Deck& deck, const Layout& layout, int64_t microbatches, const LayerProfile& profile,
                  const ByPart<PartStates>& states) {
  const int64_t fewer = MicrobatchesOf(layout, microbatches);
  const Deck smaller = SmallerDeck(deck, layout, fewer);
  const bool by_number = !deck.recompute.layers.empty() || !deck.offload.layers.empty();
  if (by_number || !IsValid(smaller, layout.Ranks())) return 0;
  const std::vector<StageFlights> flights = FlightsOf(ScheduleOf(layout, fewer));
  const std::vector<ChunkParts> chunks = ChunksOf(smaller, layout, states.size(), kFirstKind + KindOfLast(deck.model));
  const std::vector<int64_t> bounds =
      LeastBytesOfStages({profile, states, flights, chunks, layout.micro, fewer, layout.prefetch});
  const auto fullest = std::ranges::max_element(bounds);
  const Compilation c = Compile(smaller, layout.Ranks(), Purpose::kTrain, {}, Verification::kAtTheEnd);
  Coordinate coordinate{};
  coordinate[Axis::kPp] = static_cast<int>(fullest - bounds.begin());
  const int64_t peak = ProgramMaker(c).ArenaBytes(coordinate)[Space::kDevice];
  return std::max<int64_t>(0, peak - *fullest);
}

}  // namespace espalier
