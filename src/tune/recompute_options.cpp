#include "tune/recompute_options.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

namespace espalier {
namespace {

double OptionBytes(const RecomputeOption& option, int before_b, int before_w) {
  return double(option.kept) * before_b + double(option.kept_for_w) * before_w;
}

/// Bytes saved per work added; infinite if an option takes no more work.
double Worth(double bytes, double work) {
  if (bytes <= 0) return 0;
  return work <= 0 ? std::numeric_limits<double>::max() : bytes / work;
}

}  // namespace

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
  const int64_t micro = deck_.batch.micro;
  return {what, micro * memory.kept, micro * memory.kept_for_w, profile.work[part]};
}

/// Nothing, the modes, and ops that are added one after the other: first those that save most per work by themselves.
std::vector<LayerRecompute> RecomputeOptions::Candidates(Part part, int before_b, int before_w) {
  using enum RecomputeMode;
  const RecomputeOption none = Option(part, {});
  std::vector<std::pair<double, RecomputeOp>> ops;
  for (const auto& [op, name] : kChoices<RecomputeOp>) {
    LayerRecompute what;
    what.ops.Add(op);
    const RecomputeOption alone = Option(part, what);
    const double saved = OptionBytes(none, before_b, before_w) - OptionBytes(alone, before_b, before_w);
    if (alone.kept != none.kept || alone.work != none.work) ops.emplace_back(-Worth(saved, alone.work - none.work), op);
  }
  std::ranges::stable_sort(ops, {}, [](const auto& op) { return op.first; });
  std::vector<LayerRecompute> candidates = {{}, {kAttention}, {kSelective}, {kFull}};
  LayerRecompute sum;
  for (const auto& [worth, op] : ops) {
    sum.ops.Add(op);
    candidates.push_back(sum);
  }
  return candidates;
}

std::vector<RecomputeOption> RecomputeOptions::Chain(Part part, int before_b, int before_w) {
  std::vector<RecomputeOption> options;
  for (const LayerRecompute& what : Candidates(part, before_b, before_w)) options.push_back(Option(part, what));
  const auto bytes = [&](const RecomputeOption& o) { return OptionBytes(o, before_b, before_w); };
  std::vector<RecomputeOption> chain = {options[0]};
  for (;;) {  // the lower hull of work over bytes: the next option is the one with the most bytes saved per work added
    const RecomputeOption* best = nullptr;
    std::tuple<double, double> most;
    for (const RecomputeOption& option : options) {
      const double saved = bytes(chain.back()) - bytes(option);
      if (saved <= 0) continue;
      const std::tuple worth(Worth(saved, option.work - chain.back().work), saved);
      if (best == nullptr || worth > most) best = &option, most = worth;
    }
    if (best == nullptr) return chain;
    chain.push_back(*best);
  }
}

}  // namespace espalier
