// Layouts for fewer hosts, found while the run goes on, so that a failure waits for none.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "espalier/costs/costs.hpp"
#include "espalier/deck/parse.hpp"

namespace espalier {

/// How a run continues on some number of hosts.
struct RunLayout {
  int ranks = 1;
  std::vector<std::string> keys;  ///< of the deck, "parallel.dp_shard=2"; none: as the deck has them
  std::string text;               ///< "pp 2 x dp_replicate 1 x dp_shard 1 x cp 1 x tp 1"
  std::string promise;            ///< which promise of doc/numerics.md holds, against the layout of the deck
};

/// The overrides; `keys` replace the ones that have their names.
std::vector<std::string> WithKeys(std::vector<std::string> overrides, const std::vector<std::string>& keys);

/// The layout of the deck itself. Throws UserError (kDeck) if it does not fit the number of ranks.
RunLayout OwnLayout(const DeckArguments& arguments, int ranks);

/// The layout with the most ranks, at most `ranks`, in which the same global batch is trained and no rank needs more
/// than `memory` bytes (0: not known). Compiled and checked as `plan` does. Nothing if there is none.
std::optional<RunLayout> FindFallback(const DeckArguments& arguments, int full_ranks, int ranks, int64_t memory);

/// The keys of a deck as espalier tune writes it, as overrides.
std::vector<std::string> KeysOf(const std::string& deck);

/// Where layouts for fewer hosts come from.
struct FallbackSearch {
  DeckArguments arguments;
  int hosts = 1, ranks_each = 1;  ///< of the deck's own layout
  int64_t memory = 0;             ///< as for FindFallback
  std::optional<Costs> costs;     ///< of the cluster: the fastest layouts (FallbackLayouts); nothing: FindFallback
};

/// Finds them in a thread of the lowest priority, for one host fewer first.
class Fallbacks {
 public:
  explicit Fallbacks(FallbackSearch search);
  ~Fallbacks();
  Fallbacks(const Fallbacks&) = delete;
  Fallbacks& operator=(const Fallbacks&) = delete;

  /// For this number of hosts; waits until it is found. Nothing if there is none.
  std::optional<RunLayout> On(int hosts);
  /// It turned out not to fit: do not offer it again.
  void Refuse(int hosts);

 private:
  void Search();
  void Keep(int hosts, std::optional<RunLayout> layout);
  std::optional<RunLayout> Nearest(int hosts) const;
  /// Fills in all that are searched ahead.
  void FindFastest();
  int LeastAhead() const;

  const FallbackSearch search_;
  std::mutex mutex_;
  std::condition_variable found_;
  std::map<int, std::optional<RunLayout>> layouts_;
  bool ending_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace espalier
