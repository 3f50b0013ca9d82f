#include "tune/recompute_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "espalier/ops/op_times.hpp"

namespace espalier {

RecomputeOptions::RecomputeOptions(const Deck& deck, int ranks) : deck_(deck), ranks_(ranks) {
  deck_.recompute.ops.clear();
  deck_.recompute.layers.clear();
  deck_.offload.activations = 0;
}

const LayerProfile& RecomputeOptions::ProfileOf(const LayerRecompute& what) {
  if (const auto it = profiles_.find(what); it != profiles_.end()) return it->second;
  deck_.recompute.ops.clear();
  for (const auto& [op, name] : kChoices<RecomputeOp>)
    if (what.ops.Has(op)) deck_.recompute.ops.emplace_back(name);
  deck_.recompute.mode = what.mode;
  return profiles_.emplace(what, ProfileLayers(deck_, LayoutOf(deck_), nullptr)).first->second;
}

RecomputeOption RecomputeOptions::Option(Part part, const LayerChoice& choice) {
  const LayerProfile& profile = ProfileOf(choice.what);
  const PartMemory& memory = profile.memory[part];
  const int64_t micro = deck_.batch.micro;
  RecomputeOption option{choice,
                         static_cast<double>(micro * memory.kept),
                         static_cast<double>(micro * memory.kept_for_w),
                         static_cast<double>(micro * memory.extra),
                         profile.work[part],
                         profile.forward_work[part]};
  if (!choice.offload) return option;
  const OpTimes& times = TimesOf(deck_);
  option.out = times.HostCopy(OpKind::kCopyOut, micro * memory.kept, ranks_);
  option.in = times.HostCopy(OpKind::kCopyIn, micro * memory.kept, ranks_);
  option.staged = std::exchange(option.kept, 0);
  return option;
}

std::vector<LayerRecompute> RecomputeOptions::Candidates(Part part) {
  using enum RecomputeMode;
  const RecomputeOption none = Option(part, {});
  std::vector<std::pair<double, RecomputeOp>> ops;  // work per byte saved
  for (const auto& [op, name] : kChoices<RecomputeOp>) {
    LayerRecompute what;
    what.ops.Add(op);
    const RecomputeOption alone = Option(part, {what});
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

std::vector<RecomputeOption> RecomputeOptions::Of(Part part, const std::optional<LayerRecompute>& fixed,
                                                  bool may_leave) {
  std::vector<LayerRecompute>& candidates = candidates_[part];
  if (candidates.empty() && !fixed) candidates = Candidates(part);
  std::vector<RecomputeOption> options;
  for (const bool offload : {false, true}) {
    if (offload && !may_leave) continue;
    for (const LayerRecompute& what : fixed ? std::vector{*fixed} : candidates)
      options.push_back(Option(part, {what, offload}));
  }
  return options;
}

std::string ToString(const LayerChoice& choice) {
  if (!choice.offload) return ToString(choice.what);
  return choice.what == LayerRecompute{} ? "offload" : ToString(choice.what) + "+offload";
}

std::string ToString(const StageRecomputeChoice& stage) {
  std::string text;
  for (const auto& [choice, layers] : stage.layers)
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", ToString(choice), LayerRanges(layers));
  return text.empty() ? "none" : text;
}

}  // namespace espalier
