// Settings close to a deck that need less memory, for the message that the deck does not fit.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "espalier/deck/offload.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/tune/tune.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/units.hpp"
#include "tune/layout.hpp"
#include "tune/trial.hpp"

namespace espalier {
namespace {

constexpr double kMaxSeconds = 2;
constexpr size_t kMaxSettings = 3;

using Clock = std::chrono::steady_clock;

/// Changes of one key that need less memory, and their distance from the deck.
std::vector<Layout> Neighbours(const Layout& from, int layers) {
  std::vector<Layout> near;
  const auto add = [&](const auto& change) {
    Layout l = from;
    change(l);
    if (l != from) near.push_back(l);
  };
  for (int64_t micro = from.micro / 2; micro >= 1; micro /= 2)
    if (from.micro % micro == 0) add([&](Layout& l) { l.micro = micro; });
  add([](Layout& l) { l.interleave = false; });
  if (from.recompute < RecomputeMode::kSelective) add([](Layout& l) { l.recompute = RecomputeMode::kSelective; });
  add([](Layout& l) { l.recompute = RecomputeMode::kFull; });
  if (from.Shards() > 1) {
    add([](Layout& l) { l.zero = 3; });
    add([](Layout& l) { l.zero = 3, l.regather = Regather::kAlways; });
  }
  // Data-parallel copies become shards, then ranks of tp, pp or cp.
  if (from.dp_replicate > 1) add([](Layout& l) { l.dp_shard *= l.dp_replicate, l.dp_replicate = 1; });
  for (int times = 2; from.DataParallel() % times == 0; times *= 2) {
    const auto take = [times](Layout& l) {
      if (l.dp_shard % times != 0) l.dp_shard *= l.dp_replicate, l.dp_replicate = 1;
      l.dp_shard /= times;
    };
    add([&](Layout& l) { take(l), l.tp *= times; });
    if (from.pp * times * from.chunks <= layers) add([&](Layout& l) { take(l), l.pp *= times; });
    add([&](Layout& l) { take(l), l.cp *= times; });
  }
  return near;
}

/// Whether the key has another value that is not only a default that follows from the other changes.
bool IsChanged(const DeckKey& key, const Deck& deck, const Deck& changed) {
  const auto* derived = std::get_if<Derived>(&key.fallback);
  const bool follows = derived != nullptr && Get(deck, key) == derived->compute(deck);
  return Get(changed, key) != (follows ? derived->compute(changed) : Get(deck, key));
}

/// "parallel.tp = 4 with recompute.mode = \"full\"".
std::string ChangesOf(const Deck& deck, const Deck& changed) {
  std::vector<std::string> texts;
  for (std::string_view name : SearchedKeys()) {
    const DeckKey& key = *FindDeckKey(name);
    if (IsChanged(key, deck, changed)) texts.push_back(fmt::format("{} = {}", name, ToToml(Get(changed, key))));
  }
  return fmt::format("{}", fmt::join(texts, " with "));
}

class NearestMisses {
 public:
  NearestMisses(const Deck& deck, int ranks, int64_t memory_bytes)
      : deck_(deck), ranks_(ranks), memory_bytes_(memory_bytes) {
    const Deck::Parallel& p = deck.parallel;
    // It does not fit even with everything recomputed and moved.
    if (deck_.recompute.mode == RecomputeMode::kAuto) deck_.recompute.mode = RecomputeMode::kFull;
    for (const OffloadShare& share : kOffloadShares)
      if (share.Of(deck_) == kAutoShare) deck_.offload.*share.share = 1;
    if (p.dp_shard == -1) deck_.parallel.dp_shard = ranks / (p.pp * p.dp_replicate * p.cp * p.tp);
  }

  std::vector<std::string> Run() {
    const Layout from = LayoutOf(deck_);
    const std::vector<Layout> near = Neighbours(from, deck_.model.layers);
    for (const Layout& layout : near) Test(layout);
    // Two changes together: full recompute and another one.
    Layout full = from;
    full.recompute = RecomputeMode::kFull;
    if (found_.empty())
      for (const Layout& layout : Neighbours(full, deck_.model.layers)) Test(layout);
    return found_;
  }

 private:
  void Test(const Layout& layout) {
    if (found_.size() >= kMaxSettings || std::chrono::duration<double>(Clock::now() - began_).count() > kMaxSeconds)
      return;
    const bool same_split = layout.pp == deck_.parallel.pp;
    const Deck changed = WithLayout(deck_, layout, same_split ? deck_.pipeline.split : std::vector<int64_t>());
    if (!IsValid(changed, ranks_)) return;
    const std::string changes = ChangesOf(deck_, changed);
    const std::string key = changes.substr(0, changes.find(' '));
    if (std::ranges::any_of(found_, [&](const std::string& text) { return text.starts_with(key + " "); })) return;
    const int64_t peak = PeakBytes(changed, ranks_);
    if (peak <= memory_bytes_) found_.push_back(fmt::format("{} ({:.3g} GB per rank)", changes, double(peak) / kGiga));
  }

  Deck deck_;
  int ranks_;
  int64_t memory_bytes_;
  Clock::time_point began_ = Clock::now();
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> NearestThatFit(const Deck& deck, int ranks, int64_t memory_bytes) {
  return NearestMisses(deck, ranks, memory_bytes).Run();
}

}  // namespace espalier
