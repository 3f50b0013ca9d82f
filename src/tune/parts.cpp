#include "tune/parts.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/model/layer_kinds.hpp"

namespace espalier {

int64_t ChunkParts::Layers() const { return std::accumulate(count.begin() + kFirstKind, count.end(), int64_t{0}); }

std::vector<ChunkParts> PartsOf(const Deck::Model& model, const std::vector<int64_t>& layers) {
  const std::vector<LayerKind> kinds = KindsOf(model);
  std::vector<ChunkParts> chunks;
  int layer = 0;
  for (int64_t n : layers) {
    ChunkParts chunk{ByPart<int64_t>(kFirstKind + kinds.size()), kFirstKind, kFirstKind};
    for (int64_t i = 0; i < n; ++i) {
      const auto kind = std::ranges::find(kinds, KindOf(model, ++layer)) - kinds.begin();
      chunk.last = kFirstKind + static_cast<Part>(kind);
      if (i == 0) chunk.first = chunk.last;
      ++chunk.count[chunk.last];
    }
    chunks.push_back(std::move(chunk));
  }
  chunks.front().count[kEmbedding] = 1;
  chunks.back().count[kHead] = 1;
  chunks.back().count[kFurther] = model.mtp_layers;
  if (model.mtp_layers > 0) chunks.back().last = kFurther;
  return chunks;
}

}  // namespace espalier
