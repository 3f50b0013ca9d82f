#include "tune/space.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/model/model.hpp"
#include "espalier/util/error.hpp"
#include "tune/memory_surplus.hpp"

namespace espalier {
namespace {

constexpr int kMaxChunks = 8;  // chunks per stage: more would only send more

struct Pipelining {
  ScheduleKind schedule;
  int chunks;
  bool interleave;
};

/// With 1F1B interleaving takes memory, and without tp it may hide too little to be worth its tighter order. Otherwise
/// it is a gain.
std::vector<bool> InterleaveValues(const SearchContext& c, const ScheduleTraits& traits, int tp) {
  if (c.fixed.Has("overlap.interleave")) return {c.deck.overlap.interleave};
  if (!traits.has_joint_jobs) return {false};
  if (traits.kind == ScheduleKind::k1F1B || tp == 1) return {false, true};
  return {true};
}

/// With one stage all schedules do the same work, and 1F1B keeps the fewest activations.
std::vector<Pipelining> PipeliningsOf(const SearchContext& c, int pp, int tp) {
  const auto& deck = c.deck.pipeline;
  const bool schedule_fixed = c.fixed.Has("pipeline.schedule"), chunks_fixed = c.fixed.Has("pipeline.chunks");
  std::vector<Pipelining> all;
  for (const Choice<ScheduleKind>& choice : kChoices<ScheduleKind>) {
    const bool own = choice.value == deck.schedule;
    const ScheduleTraits& traits = own ? TraitsOf(deck) : TraitsOf(choice.value);
    if (choice.value == ScheduleKind::kFile && !(schedule_fixed && own)) continue;
    if (schedule_fixed ? choice.value != deck.schedule : pp == 1 && choice.value != ScheduleKind::k1F1B) continue;
    const int least = chunks_fixed ? deck.chunks : traits.min_chunks;
    const int most = chunks_fixed ? deck.chunks : std::min(kMaxChunks, traits.max_chunks);
    for (int chunks = least; chunks <= most; ++chunks)
      for (bool interleave : InterleaveValues(c, traits, tp)) all.push_back({choice.value, chunks, interleave});
  }
  return all;
}

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d)
    if (n % d == 0) divisors.push_back(d);
  return divisors;
}

template <typename T>
std::vector<T> OwnFirst(T own, bool fixed, std::vector<T> others) {
  if (fixed) return {own};
  std::erase(others, own);
  others.insert(others.begin(), own);
  return others;
}

/// Settings of zero, reduce and regather, one for each distinct program: the deck's own values first, then the most
/// sharded.
std::vector<Layout> StateSettings(const SearchContext& c, const Layout& base) {
  using enum Regather;
  const auto& deck = c.deck;
  std::vector<Layout> settings;
  std::set<std::tuple<bool, bool, bool>> programs;
  for (int zero : OwnFirst(deck.parallel.zero, c.fixed.Has("parallel.zero"), {3, 2, 1}))
    for (ReduceFrequency reduce : OwnFirst(deck.parallel.reduce, c.fixed.Has("parallel.reduce"),
                                           {ReduceFrequency::kStep, ReduceFrequency::kMicrobatch}))
      for (Regather regather :
           OwnFirst(deck.recompute.regather, c.fixed.Has("recompute.regather"), {kAuto, kAlways, kNever})) {
        Layout l = base;
        l.zero = zero;
        l.reduce = reduce;
        l.regather = regather;
        const bool alone = l.DataParallel() * l.cp == 1;
        if (alone && l.ReducesEach() && !c.fixed.Has("parallel.reduce")) continue;
        if (zero == 2 && reduce == ReduceFrequency::kStep && l.Shards() > 1) continue;  // not a valid deck
        if (programs.emplace(l.GathersAgain(), l.ReducesEach(), l.Shards() > 1 && l.ShardsGradients()).second)
          settings.push_back(l);
      }
  return settings;
}

std::vector<RecomputeMode> RecomputesOf(const SearchContext& c) {
  if (c.fixed.Has("recompute.mode")) return {c.deck.recompute.mode};
  std::vector<RecomputeMode> modes = {RecomputeMode::kNone, RecomputeMode::kSelective, RecomputeMode::kFull};
  // Heads of latents are much wider than the latents.
  if (c.deck.model.attention == AttentionKind::kMla) modes.insert(modes.begin() + 1, RecomputeMode::kAttention);
  return modes;
}

}  // namespace

ScheduleFacts::ScheduleFacts(const Layout& layout, int64_t microbatches)
    : flights(FlightsOf(ScheduleOf(layout, microbatches))), replay(layout, microbatches) {}

std::shared_ptr<const ScheduleFacts> ScheduleCache::Of(const Layout& l, int64_t microbatches) {
  const Key key{l.schedule, l.pp, l.chunks, l.Steady(), microbatches};
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = known_.find(key); it != known_.end()) return it->second;
  }
  auto made = std::make_shared<const ScheduleFacts>(l, microbatches);
  const std::lock_guard lock(mutex_);
  return known_.try_emplace(key, std::move(made)).first->second;
}

bool Scorer::IsValidLayout(const Layout& layout) {
  SetLayout(deck_, layout);
  if (!context_.fixed.Has("pipeline.split")) deck_.pipeline.split.clear();
  return IsValid(deck_, context_.ranks);
}

void Scorer::ScoreAll(std::vector<Scored>& fitting, SpaceCounts& counts) {
  const auto& p = context_.deck.parallel;
  const auto& fixed = context_.fixed;
  const int rest = context_.ranks / (group_.tp * group_.cp);
  for (int64_t pp : Divisors(rest)) {
    if (fixed.Has("parallel.pp") && pp != p.pp) continue;
    for (int64_t replicate : Divisors(rest / pp)) {
      if (fixed.Has("parallel.dp_replicate") && replicate != p.dp_replicate) continue;
      const auto shard = static_cast<int>(rest / pp / replicate);
      if (fixed.Has("parallel.dp_shard") && shard != p.dp_shard) continue;
      Layout l;
      l.pp = static_cast<int>(pp);
      l.dp_replicate = static_cast<int>(replicate);
      l.dp_shard = shard;
      l.cp = group_.cp;
      l.tp = group_.tp;
      l.context = group_.context;
      l.ep = group_.ep;
      l.prefetch = context_.deck.overlap.prefetch;
      ScoreDegrees(l, fitting, counts);
    }
  }
  profilers_.clear();
}

void Scorer::ScoreDegrees(const Layout& degrees, std::vector<Scored>& fitting, SpaceCounts& counts) {
  const int64_t share = deck_.batch.global / degrees.DataParallel();
  std::vector<int64_t> micros = Divisors(std::max<int64_t>(1, share));
  if (context_.fixed.Has("batch.micro")) micros = {context_.deck.batch.micro};
  for (const Pipelining& pipelining : PipeliningsOf(context_, degrees.pp, degrees.tp))
    for (int64_t micro : micros) {
      Layout l = degrees;
      l.schedule = pipelining.schedule;
      l.of_file = LayoutOf(context_.deck).of_file;
      l.chunks = pipelining.chunks;
      l.interleave = pipelining.interleave;
      l.micro = micro;
      const bool alone = micro == share;  // one microbatch
      if (alone && l.interleave && l.schedule == ScheduleKind::k1F1B && !context_.fixed.Has("overlap.interleave"))
        continue;
      ++counts.considered;
      if (!IsValidLayout(l)) {
        ++counts.invalid;
        continue;
      }
      --counts.considered;
      ScoreSettings(l, fitting, counts);
    }
}

void Scorer::ScoreSettings(const Layout& base, std::vector<Scored>& fitting, SpaceCounts& counts) {
  const std::vector<ChunkParts>& chunks = ChunksOf(base);
  for (RecomputeMode recompute : RecomputesOf(context_))
    for (Layout l : StateSettings(context_, base)) {
      l.recompute = recompute;
      ++counts.considered;
      const int64_t enough = std::max(context_.memory_bytes, counts.smallest_bytes);  // more is not even the smallest
      const int64_t least = LeastBytesOf(l, chunks, counts.smallest ? enough : kNoLimit);
      if (least <= context_.memory_bytes) {
        Scored scored{.layout = l, .split = {}, .least_bytes = least};
        scored.least_us = TimeOf(l, chunks, LeastUs);
        fitting.push_back(std::move(scored));
        continue;
      }
      ++counts.too_large;
      if (!counts.smallest || least < counts.smallest_bytes) counts.smallest = l, counts.smallest_bytes = least;
    }
}

Scored Scorer::Score(const Layout& layout, const std::vector<int64_t>& split) {
  const std::vector<ChunkParts>& chunks = split.empty() ? ChunksOf(layout) : PartsOf(context_.deck.model, split);
  Scored scored{.layout = layout, .split = split, .least_bytes = LeastBytesOf(layout, chunks)};
  if (scored.least_bytes > context_.memory_bytes) return scored;
  scored.least_us = TimeOf(layout, chunks, LeastUs);
  scored.us = TimeOf(layout, chunks, FormulaUs);
  return scored;
}

void Scorer::Time(Scored& scored) { scored.us = TimeOf(scored.layout, ChunksOf(scored.layout), FormulaUs); }

void Scorer::ExpectPeak(Scored& scored) {
  const Layout& l = scored.layout;
  scored.expected_bytes =
      scored.least_bytes + SurplusOf(context_.deck, l, Microbatches(l), MemoryProfileOf(l), StatesOf(l));
}

int64_t Scorer::InstructionsOf(const Layout& layout) {
  const ByPart<int64_t>& of = ProfileOf(layout).instructions;
  int64_t sum = 0;
  for (const ChunkParts& chunk : ChunksOf(layout))
    sum = std::inner_product(of.begin(), of.end(), chunk.count.begin(), sum);
  return Microbatches(layout) * sum;
}

std::vector<int64_t> Scorer::BalancedByTime(const Layout& layout) {
  const LayerProfile& profile = ProfileOf(layout);
  const std::vector<ChunkParts>& balanced = ChunksOf(layout);
  const auto schedule = schedules_.Of(layout, Microbatches(layout));
  const size_t chunks = balanced.size();
  std::vector<size_t> stage_of(chunks);
  for (int s = 0; s < schedule->replay.Stages(); ++s)
    for (int chunk : schedule->replay.ChunksOf(s)) stage_of[static_cast<size_t>(chunk)] = static_cast<size_t>(s);
  const auto us = [&](Part part) { return profile.forward[part].us + profile.backward[part].us; };
  double layer_us = 0;  // the mean of all kinds
  for (const ChunkParts& chunk : balanced)
    for (Part kind = kFirstKind; kind < chunk.count.size(); ++kind)
      layer_us += static_cast<double>(chunk.count[kind]) * us(kind) / static_cast<double>(context_.deck.model.layers);
  std::vector<int64_t> layers(chunks, 1);
  std::vector<double> load(static_cast<size_t>(layout.pp), layout.chunks * layer_us);
  load[stage_of[0]] += us(kEmbedding);
  load[stage_of[chunks - 1]] += us(kHead) + context_.deck.model.mtp_layers * us(kFurther);
  for (auto l = static_cast<int64_t>(chunks); l < context_.deck.model.layers; ++l) {
    // Among the least loaded stages the last, which keeps the fewest microbatches; there the smaller chunk.
    size_t best = chunks - 1;
    for (size_t c = chunks; c-- > 0;)
      if (std::pair(load[stage_of[c]], layers[c]) < std::pair(load[stage_of[best]], layers[best])) best = c;
    ++layers[best];
    load[stage_of[best]] += layer_us;
  }
  return std::ranges::equal(layers, balanced, {}, {}, &ChunkParts::Layers) ? std::vector<int64_t>() : layers;
}

LayerProfiler& Scorer::ProfilerOf(const Layout& layout) {
  const std::pair key(layout.micro, layout.Traits().DefersW());
  if (const auto it = profilers_.find(key); it != profilers_.end()) return it->second;
  std::erase_if(profilers_, [](const auto& known) { return known.first.first != 1; });
  return profilers_.try_emplace(key, context_.deck, layout, shared_profiles_).first->second;
}

const LayerProfile& Scorer::ProfileOf(const Layout& layout) {
  const ProfileKey key{layout.micro, layout.recompute, layout.Traits().DefersW()};
  if (const auto it = profiles_.find(key); it != profiles_.end()) return it->second;
  return profiles_.emplace(key, ProfilerOf(layout).Profile(layout.recompute, &context_.fullest)).first->second;
}

const LayerProfile& Scorer::MemoryProfileOf(const Layout& layout) {
  const ProfileKey key{1, layout.recompute, layout.Traits().DefersW()};
  if (const auto it = memory_profiles_.find(key); it != memory_profiles_.end()) return it->second;
  Layout of_one = layout;
  of_one.micro = 1;
  return memory_profiles_.emplace(key, ProfilerOf(of_one).Profile(layout.recompute, nullptr)).first->second;
}

const ByPart<PartStates>& Scorer::StatesOf(const Layout& l) {
  const StateKey key{l.dp_replicate, l.dp_shard, l.GathersAgain(), l.ShardsGradients(), !l.ReducesEach()};
  if (const auto it = states_.find(key); it != states_.end()) return it->second;
  return states_.emplace(key, espalier::StatesOf(MemoryProfileOf(l), l)).first->second;
}

const DataParallelTimes& Scorer::SyncOf(const Layout& l) {
  const std::tuple<int, int, int> key{l.dp_replicate, l.dp_shard, l.pp};
  if (const auto it = syncs_.find(key); it != syncs_.end()) return it->second;
  return syncs_.emplace(key, SyncTimes(ProfileOf(l), l, context_.costs)).first->second;
}

const std::vector<ChunkParts>& Scorer::ChunksOf(const Layout& l) {
  const std::tuple<int, ScheduleKind> key{l.pp * l.chunks, l.schedule};
  if (const auto it = chunks_.find(key); it != chunks_.end()) return it->second;
  Deck deck = context_.deck;
  if (!context_.fixed.Has("pipeline.split")) deck.pipeline.split.clear();
  return chunks_.emplace(key, PartsOf(deck.model, SplitLayers(deck, l.pp * l.chunks).LayersOfChunks())).first->second;
}

int64_t Scorer::LeastBytesOf(const Layout& l, const std::vector<ChunkParts>& chunks, int64_t enough) {
  const auto schedule = schedules_.Of(l, Microbatches(l));
  return LeastBytes({MemoryProfileOf(l), StatesOf(l), schedule->flights, chunks, l.micro, Microbatches(l), l.prefetch},
                    enough);
}

double Scorer::TimeOf(const Layout& l, const std::vector<ChunkParts>& chunks, double (*us)(const StepQuestion&)) {
  const LayerProfile& profile = ProfileOf(l);
  const auto schedule = schedules_.Of(l, Microbatches(l));
  return us({profile, l, schedule->replay, Microbatches(l), chunks, SyncOf(l), LinkOf(profile, l, context_.costs),
             context_.deck.overlap.gradients});
}

}  // namespace espalier
