#include "train/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "espalier/comm/agreement.hpp"

namespace espalier {

Evaluation::Evaluation(const Deck& deck, const Programs& programs, World& world, std::unique_ptr<TokenSource> source)
    : programs_(programs),
      world_(world),
      source_(std::move(source)),
      wanted_(deck.data.validate_sequences > 0 ? deck.data.validate_sequences : source_->samples()) {}

double Evaluation::Loss() const {
  const BatchLayout& layout = programs_.layout();
  const Runnable& runnable = *programs_.evaluate();
  double loss = 0;
  int64_t counted = 0;
  for (int64_t k = 0; k * layout.Global() < wanted_; ++k) {
    Batch batch;
    OnAllRanks(world_, [&] { batch = ValidationBatch(*source_, layout, k); });
    const int64_t rows = std::min(layout.Global(), wanted_ - k * layout.Global());
    for (size_t m = 0; m < batch.microbatches.size(); ++m)
      MaskRows(batch.microbatches[m], static_cast<int64_t>(m), rows);
    runnable.Fill(batch, layout.positions);
    runnable.executor->RunStep();
    const int64_t targets = CountTargets(batch);
    if (targets == 0) continue;
    loss += static_cast<double>(runnable.executor->GetScalar("mean_loss")) * static_cast<double>(targets);
    counted += targets;
  }
  if (counted == 0)
    throw AgreedError(ExitStatus::kData,
                      {fmt::format("data.validation: none of the {} sequences of a validation has a target", wanted_)});
  return loss / static_cast<double>(counted);
}

/// Counts the targets of all ranks; with isolated documents the number varies by batch. Ranks of one data-parallel and
/// context-parallel coordinate hold the same ones.
int64_t Evaluation::CountTargets(const Batch& batch) const {
  int64_t own = 0;
  for (const Microbatch& microbatch : batch.microbatches)
    own += std::ranges::count_if(microbatch.targets, [](int32_t target) { return target >= 0; });
  const std::vector<int64_t> counts = Gathered(world_, own);
  const int64_t sum = OnRankZero(world_, [&] { return std::reduce(counts.begin(), counts.end()); });
  const Mesh& mesh = programs_.compilation().mesh;
  const int64_t copies = mesh.Ranks() / mesh.GroupSize(kTokenAxes);
  return sum / copies;
}

/// Targets below 0 do not count.
void Evaluation::MaskRows(Microbatch& microbatch, int64_t index, int64_t rows) const {
  const BatchLayout& layout = programs_.layout();
  const int64_t width = static_cast<int64_t>(layout.positions.size());
  for (int64_t r = 0; r < layout.rows.Extent(); ++r)
    if (index * layout.microbatch_rows + layout.rows.begin + r >= rows)
      std::fill_n(microbatch.targets.begin() + r * width, width, -1);
}

}  // namespace espalier
