// Relations that need the rank count, and what follows from it.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <numeric>

#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

/// Product that stays at the largest int64 instead of overflowing.
int64_t Product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t f : factors)
    if (__builtin_mul_overflow(product, f, &product)) return INT64_MAX;
  return product;
}

class MeshChecker {
 public:
  MeshChecker(const Deck& deck, int ranks) : deck_(deck), p_(deck.parallel), ranks_(ranks), shard_(p_.dp_shard) {}

  std::vector<MeshMistake> Check(Mesh& mesh) {
    CheckRanks();
    if (mistakes_.empty())
      mesh = Mesh({static_cast<int>(p_.pp), static_cast<int>(p_.dp_replicate), static_cast<int>(shard_),
                   static_cast<int>(p_.cp), static_cast<int>(p_.tp)});
    CheckTensorParallel();
    CheckBatch();
    return std::move(mistakes_);
  }

 private:
  void CheckRanks() {
    if (p_.dp_shard >= 1) return CheckFixedDegrees();
    const int64_t fixed = Product({p_.pp, p_.dp_replicate, p_.cp, p_.tp});
    shard_ = std::max<int64_t>(1, ranks_ / fixed);
    if (ranks_ % fixed == 0) return;
    Blame("", fmt::format("pp {} x dp_replicate {} x cp {} x tp {} = {} must divide the number of ranks, {} (allowed: "
                          "{} ranks)",
                          p_.pp, p_.dp_replicate, p_.cp, p_.tp, fixed, ranks_,
                          MultiplesText(std::min<int64_t>(fixed, INT_MAX))));
  }

  void CheckFixedDegrees() {
    const int64_t product = Product({p_.pp, p_.dp_replicate, p_.dp_shard, p_.cp, p_.tp});
    if (product == ranks_) return;
    Blame("", fmt::format("pp {} x dp_replicate {} x dp_shard {} x cp {} x tp {} = {}, but the number of ranks is {} "
                          "(start {}, or set parallel.dp_shard = -1 to take what is left)",
                          p_.pp, p_.dp_replicate, p_.dp_shard, p_.cp, p_.tp, product, ranks_, product));
  }

  /// tp cuts heads, the feed-forward width, the vocabulary and the sequence into equal pieces.
  void CheckTensorParallel() {
    const auto& m = deck_.model;
    const std::pair<std::string_view, int64_t> wholes[] = {{"model.heads", m.heads},
                                                           {"model.kv_heads", m.kv_heads},
                                                           {"model.ffn_dim", m.ffn_dim},
                                                           {"model.vocab", m.vocab}};
    for (const auto& [name, whole] : wholes) CheckTpDivides(name, whole, "");
    if (p_.sequence_parallel) CheckTpDivides("model.seq_len", m.seq_len, ", or set parallel.sequence_parallel = false");
  }

  void CheckTpDivides(std::string_view name, int64_t whole, std::string_view remedy) {
    if (whole % p_.tp == 0) return;
    Blame("parallel.tp",
          fmt::format("must divide {} = {} (allowed: {}{})", name, whole, ListNumbers(Divisors(whole)), remedy));
  }

  void CheckBatch() {
    const int64_t unit = Product({deck_.batch.micro, p_.dp_replicate, shard_});
    if (deck_.batch.global % unit == 0) return;
    Blame("batch.global", fmt::format("must be a multiple of batch.micro * dp_replicate * dp_shard = {} * {} * {} = {} "
                                      "(allowed: {})",
                                      deck_.batch.micro, p_.dp_replicate, shard_, unit,
                                      MultiplesText(std::min<int64_t>(unit, INT_MAX))));
  }

  void Blame(std::string_view key, std::string text) { mistakes_.push_back({key, std::move(text)}); }

  const Deck& deck_;
  const Deck::Parallel& p_;
  int64_t ranks_;
  int64_t shard_;  ///< dp_shard with -1 filled in
  std::vector<MeshMistake> mistakes_;
};

std::string ToMessage(const Deck& deck, const MeshMistake& mistake) {
  if (mistake.key.empty()) return "parallel: " + mistake.text;
  return fmt::format("{} = {}: {}", mistake.key, ToToml(Get(deck, *FindDeckKey(mistake.key))), mistake.text);
}

Mesh ResolveOrThrow(const Deck& deck, int ranks, const std::function<std::string(std::string_view key)>& place) {
  CHECK(ranks >= 1, "a job of {} ranks", ranks);
  Mesh mesh;
  std::vector<std::string> messages;
  for (const MeshMistake& mistake : CheckMesh(deck, ranks, mesh))
    messages.push_back(place(mistake.key) + ToMessage(deck, mistake));
  if (!messages.empty()) throw UserError(ExitStatus::kDeck, std::move(messages));
  return mesh;
}

}  // namespace

std::vector<MeshMistake> CheckMesh(const Deck& deck, int ranks, Mesh& mesh) {
  return MeshChecker(deck, ranks).Check(mesh);
}

Mesh ResolveMesh(const Deck& deck, int ranks) {
  return ResolveOrThrow(deck, ranks, [](std::string_view) { return std::string(); });
}

Mesh ResolveMesh(const LoadedDeck& loaded, int ranks) {
  return ResolveOrThrow(loaded.deck, ranks, [&](std::string_view key) {
    auto origin = loaded.origins.find(key);
    return origin == loaded.origins.end() ? loaded.deck.name + ": " : origin->second + ": ";
  });
}

int SmallestRanks(const Deck& deck) {
  const auto& p = deck.parallel;
  return static_cast<int>(
      std::min<int64_t>(INT_MAX, Product({p.pp, p.dp_replicate, std::max<int64_t>(1, p.dp_shard), p.cp, p.tp})));
}

int64_t MicrobatchCount(const Deck& deck, const Mesh& mesh) {
  return deck.batch.global / (deck.batch.micro * mesh.Degree(Axis::kDpReplicate) * mesh.Degree(Axis::kDpShard));
}

}  // namespace espalier
