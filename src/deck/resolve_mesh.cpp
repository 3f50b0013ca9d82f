// Relations that need the number of ranks, and values that depend on it.
#include <fmt/core.h>

#include <algorithm>
#include <climits>

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/schedule/schedule_file.hpp"
#include "espalier/util/error.hpp"
#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

/// Keys with which the deck runs on `ranks` ranks: "parallel.dp_shard=-1", and others if that does not suffice.
std::string KeysThatFit(const Deck& deck, int ranks) {
  const Deck::Parallel& p = deck.parallel;
  std::string keys;
  const bool divides = ranks % Product({p.pp, p.dp_replicate, p.cp, p.tp}) == 0;
  const std::pair<const char*, int64_t> degrees[] = {
      {"pp", p.pp}, {"dp_replicate", p.dp_replicate}, {"cp", p.cp}, {"tp", p.tp}};
  for (const auto& [name, degree] : degrees)
    if (!divides && degree != 1) keys += fmt::format("parallel.{}=1 ", name);
  if (p.dp_shard >= 1) keys += "parallel.dp_shard=-1 ";
  const int64_t groups = divides ? ranks / Product({p.pp, p.cp, p.tp}) : ranks;
  const int64_t rows = Product({deck.batch.micro, groups});
  if (deck.batch.global % rows != 0) keys += fmt::format("batch.global={} ", (deck.batch.global / rows + 1) * rows);
  return keys.substr(0, keys.size() - 1);
}

/// The error of the degrees on `ranks` ranks; empty if they fit.
std::string DegreesFault(const Deck& deck, int ranks) {
  const Deck::Parallel& p = deck.parallel;
  if (p.dp_shard >= 1) {
    const int64_t product = Product({p.pp, p.dp_replicate, p.dp_shard, p.cp, p.tp});
    if (product == ranks) return "";
    return fmt::format(
        "pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {} = {}, but the number of ranks is {} "
        "(start {}, or set {})",
        p.pp, p.dp_replicate, p.dp_shard, p.cp, p.tp, product, ranks, product, KeysThatFit(deck, ranks));
  }
  const int64_t fixed = Product({p.pp, p.dp_replicate, p.cp, p.tp});
  if (ranks % fixed == 0) return "";
  return fmt::format(
      "pp {} x dp_replicate {} x cp {} x tp {} = {} must divide the number of ranks, {} (allowed: {}; or set {})", p.pp,
      p.dp_replicate, p.cp, p.tp, fixed, ranks, MultiplesText(fixed), KeysThatFit(deck, ranks));
}

/// The ranks of a regather group; 1 if there are no groups. All ranks of dp_shard together are not a group of their
/// own.
int RegatherDegree(const Deck& deck) {
  const Deck::Parallel& p = deck.parallel;
  const bool again = p.zero == 3 && deck.recompute.regather != Regather::kNever;
  return again && p.regather_group > 1 && p.regather_group < p.dp_shard ? p.regather_group : 1;
}

/// The place where a key was set, as the beginning of a message.
using PlaceOf = std::function<std::string(std::string_view key)>;

Mesh Resolve(Deck deck, int ranks, const PlaceOf& place) {
  CHECK(ranks >= 1, "a job of {} ranks", ranks);
  std::vector<std::string> messages;
  // With a wrong number of ranks an open dp_shard stays open: its value would be wrong too.
  if (const std::string fault = DegreesFault(deck, ranks); !fault.empty())
    messages.push_back(fmt::format("{}parallel: {}", place("parallel.dp_shard"), fault));
  else
    deck.parallel.dp_shard = static_cast<int>(
        ranks / Product({deck.parallel.pp, deck.parallel.dp_replicate, deck.parallel.cp, deck.parallel.tp}));
  for (const Relation& relation : MeshRelations()) {
    const std::string_view key = relation.keys[0];
    const std::string broken = relation.broken(deck);
    if (broken.empty()) continue;
    messages.push_back(fmt::format("{}{} = {}: {}", place(key), key, ToToml(Get(deck, *FindDeckKey(key))), broken));
  }
  if (!messages.empty()) throw UserError(ExitStatus::kDeck, std::move(messages));
  const Deck::Parallel& p = deck.parallel;
  // Ranks share kv heads if there are more ranks than kv heads.
  const int tp = static_cast<int>(std::min<int64_t>(p.tp, deck.model.kv_heads));
  const int regather = RegatherDegree(deck);
  const int ep = ExpertParallelOf(p).dp_shard;
  return Mesh({p.pp, p.dp_replicate, p.dp_shard / regather / ep, p.cp, tp, p.tp / tp, regather, ep});
}

/// Number of ranks among which the optimizer state is sharded.
int StateShards(const Mesh& mesh) { return mesh.GroupSize(kStateAxes); }

}  // namespace

const ScheduleTraits& TraitsOf(const Deck::Pipeline& pipeline) {
  const bool given = pipeline.schedule == ScheduleKind::kFile && pipeline.of_file != nullptr;
  return given ? pipeline.of_file->traits : TraitsOf(pipeline.schedule);
}

Mesh ResolveMesh(const Deck& deck, int ranks) {
  return Resolve(deck, ranks, [](std::string_view) { return std::string(); });
}

Mesh ResolveMesh(const LoadedDeck& loaded, int ranks) {
  return Resolve(loaded.deck, ranks, [&](std::string_view key) { return loaded.origins.find(key)->second + ": "; });
}

bool IsValid(const Deck& deck, int ranks) {
  const auto& p = deck.parallel;
  return Product({p.pp, p.dp_replicate, p.dp_shard, p.cp, p.tp}) == ranks &&
         std::ranges::all_of(DeckRelations(), [&](const Relation& relation) { return relation.broken(deck).empty(); });
}

int SmallestRanks(const Deck& deck) {
  const auto& p = deck.parallel;
  const int dp_shard = p.dp_shard < 1 ? ExpertParallelOf(p).dp_shard : p.dp_shard;
  return static_cast<int>(std::min<int64_t>(INT_MAX, Product({p.pp, p.dp_replicate, dp_shard, p.cp, p.tp})));
}

BatchShape DivideBatch(int64_t sequences, int64_t micro, int64_t data_parallel) {
  const int64_t rows = Product({micro, data_parallel});
  return {sequences, micro, rows, sequences / rows, 0};
}

int64_t TokensPerStep(const Deck& deck) { return deck.batch.global * deck.model.seq_len; }

BatchShape BatchOf(const Deck& deck, const Mesh& mesh) {
  BatchShape batch = DivideBatch(deck.batch.global, deck.batch.micro, mesh.GroupSize(kBatchAxes));
  batch.tokens = TokensPerStep(deck);
  return batch;
}

ReduceFrequency ReduceOf(const Deck& deck, const Mesh& mesh) {
  const Deck::Parallel& p = deck.parallel;
  if (p.reduce != ReduceFrequency::kAuto) return p.reduce;
  return p.zero >= 2 && StateShards(mesh) > 1 ? ReduceFrequency::kMicrobatch : ReduceFrequency::kStep;
}

bool GathersAgain(const Deck& deck, const Mesh& mesh) {
  return deck.parallel.zero == 3 && deck.recompute.regather != Regather::kNever && StateShards(mesh) > 1;
}

}  // namespace espalier
