#include "tune/recompute_options.hpp"

#include <algorithm>
#include <limits>

namespace espalier {

RecomputeOptions::RecomputeOptions(const Deck& deck) : deck_(deck) {
  deck_.recompute.ops.clear();
  deck_.recompute.layers.clear();
}

const LayerProfile& RecomputeOptions::ProfileOf(const LayerRecompute& what) {
  if (const auto it = profiles_.find(what); it != profiles_.end()) return it->second;
  deck_.recompute.ops.clear();
  for (const auto& [op, name] : kChoices<RecomputeOp>)
    if (what.ops.Has(op)) deck_.recompute.ops.emplace_back(name);
  deck_.recompute.mode = what.mode;
  return profiles_.emplace(what, ProfileLayers(deck_, LayoutOf(deck_), nullptr)).first->second;
}

RecomputeOption RecomputeOptions::Option(Part part, const LayerRecompute& what) {
  const LayerProfile& profile = ProfileOf(what);
  const PartMemory& memory = profile.memory[part];
  const auto micro = static_cast<double>(deck_.batch.micro);
  return {what, micro * double(memory.kept), micro * double(memory.kept_for_w), micro * double(memory.extra),
          profile.work[part]};
}

std::vector<LayerRecompute> RecomputeOptions::Candidates(Part part) {
  using enum RecomputeMode;
  const RecomputeOption none = Option(part, {});
  std::vector<std::pair<double, RecomputeOp>> ops;  // work per byte saved
  for (const auto& [op, name] : kChoices<RecomputeOp>) {
    LayerRecompute what;
    what.ops.Add(op);
    const RecomputeOption alone = Option(part, what);
    const double saved = none.kept - alone.kept, added = alone.work - none.work;
    if (saved != 0 || added != 0)
      ops.emplace_back(saved > 0 ? std::max(0.0, added) / saved : std::numeric_limits<double>::max(), op);
  }
  std::ranges::stable_sort(ops, {}, [](const auto& op) { return op.first; });
  std::vector<LayerRecompute> candidates = {{}, {kAttention, {}}, {kSelective, {}}, {kFull, {}}};
  LayerRecompute sum;
  for (const auto& [worth, op] : ops) {
    sum.ops.Add(op);
    candidates.push_back(sum);
  }
  return candidates;
}

const std::vector<RecomputeOption>& RecomputeOptions::Of(Part part) {
  std::vector<RecomputeOption>& options = options_[part];
  if (options.empty())
    for (const LayerRecompute& what : Candidates(part)) options.push_back(Option(part, what));
  return options;
}

}  // namespace espalier
