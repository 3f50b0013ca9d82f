#include "supervise/fallback.hpp"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "espalier/costs/order.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/tune/fallback.hpp"

namespace espalier {
namespace {

constexpr int kSearchedAhead = 4;  // hosts that are lost one after another

std::string NameOfKey(const std::string& override_text) {
  std::string name = override_text.substr(0, override_text.find('='));
  name.erase(std::remove(name.begin(), name.end(), ' '), name.end());
  return name;
}

/// The deck on `ranks` ranks, its open degrees resolved.
LoadedDeck Resolved(const DeckArguments& arguments, const std::vector<std::string>& keys, int ranks) {
  LoadedDeck loaded = CountSteps(LoadDeck(arguments.deck, WithKeys(arguments.overrides, keys))).loaded;
  ReadOrder(loaded.deck);
  ResolveMesh(loaded, ranks);
  Deck::Parallel& p = loaded.deck.parallel;
  if (p.dp_shard == -1) p.dp_shard = ranks / (p.pp * p.dp_replicate * p.cp * p.tp);
  return loaded;
}

/// Whether no sum is grouped in another way (doc/numerics.md, What is equal to what).
bool SameSums(const Deck& a, const Deck& b) {
  const Deck::Parallel &p = a.parallel, &q = b.parallel;
  const bool reduces =
      p.reduce == q.reduce && (p.reduce != ReduceFrequency::kAuto || (p.pp == q.pp && p.zero == q.zero));
  return p.dp_replicate == q.dp_replicate && p.dp_shard == q.dp_shard && p.cp == q.cp && p.tp == q.tp && p.ep == q.ep &&
         a.batch.micro == b.batch.micro && reduces;
}

constexpr const char* kBitwise =
    "the same batches and sums: losses and weights are bitwise those of the undisturbed run on equal processors "
    "(doc/numerics.md, What is equal to what)";
constexpr const char* kRounding =
    "the same batches, sums grouped in another way: losses and norms agree with the undisturbed run up to rounding, in "
    "fp32 within a relative 1e-5 over 20 steps (doc/numerics.md, What is equal to what)";

/// Keys of a layout with these degrees. A pipeline of another depth has the plainest schedule, if the deck's does not
/// allow it; and so has one of other microbatches whose schedule is a file.
std::vector<std::vector<std::string>> Variants(const Deck& deck, int pp, int replicate, int shard) {
  std::vector<std::string> keys = {fmt::format("parallel.dp_replicate={}", replicate),
                                   fmt::format("parallel.dp_shard={}", shard)};
  if (pp != deck.parallel.pp) {
    keys.push_back(fmt::format("parallel.pp={}", pp));
    if (!deck.pipeline.split.empty()) keys.emplace_back("pipeline.split=[]");
  }
  std::vector<std::vector<std::string>> variants = {keys};
  if (pp != deck.parallel.pp || deck.pipeline.schedule == ScheduleKind::kFile) {
    keys.insert(keys.end(), {"pipeline.schedule=1f1b", "pipeline.chunks=1"});
    if (deck.pipeline.chunks > 1 && !deck.pipeline.split.empty()) keys.emplace_back("pipeline.split=[]");
    variants.push_back(keys);
  }
  const size_t plain = variants.size();
  for (const auto& [mode, key] : {std::pair(RecomputeMode::kSelective, "recompute.mode=selective"),
                                  std::pair(RecomputeMode::kFull, "recompute.mode=full")})
    for (size_t i = 0; deck.recompute.mode < mode && i < plain; ++i) {
      variants.push_back(variants[i]);
      variants.back().emplace_back(key);
    }
  return variants;
}

/// The layout if it is valid, compiles and fits.
std::optional<RunLayout> Try(const DeckArguments& arguments, const Deck& own, const std::vector<std::string>& keys,
                             int ranks, int64_t memory) try {
  LoadedDeck loaded = Resolved(arguments, keys, ranks);
  loaded.deck.run.device = PlanDevice(loaded.deck).device;
  const WorldPlan plan = PlanWorld(loaded.deck, ranks);
  if (memory > 0 && plan.peak_bytes > memory) return std::nullopt;
  return RunLayout{ranks, keys, plan.training.mesh.ToString(), SameSums(own, loaded.deck) ? kBitwise : kRounding};
} catch (const UserError&) {
  return std::nullopt;
}

}  // namespace

std::vector<std::string> WithKeys(std::vector<std::string> overrides, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    std::erase_if(overrides, [&](const std::string& text) { return NameOfKey(text) == NameOfKey(key); });
    overrides.push_back(key);
  }
  return overrides;
}

RunLayout OwnLayout(const DeckArguments& arguments, int ranks) {
  const LoadedDeck loaded = LoadDeck(arguments.deck, arguments.overrides);
  return {ranks, {}, ResolveMesh(loaded, ranks).ToString(), kBitwise};
}

std::optional<RunLayout> FindFallback(const DeckArguments& arguments, int full_ranks, int ranks, int64_t memory) {
  const Deck own = Resolved(arguments, {}, full_ranks).deck;
  const Deck::Parallel& p = own.parallel;
  for (int pp = p.pp; pp >= 1; --pp) {
    const int unit = pp * p.cp * p.tp;
    if (p.pp % pp != 0 || unit > ranks) continue;
    for (int copies = std::min(ranks / unit, p.dp_replicate * p.dp_shard * (p.pp / pp)); copies >= 1; --copies) {
      if (own.batch.global % (own.batch.micro * copies) != 0) continue;
      const int replicate = std::gcd(p.dp_replicate, copies);
      for (const std::vector<std::string>& keys : Variants(own, pp, replicate, copies / replicate))
        if (const auto found = Try(arguments, own, keys, unit * copies, memory)) return found;
    }
  }
  return std::nullopt;
}

std::vector<std::string> KeysOf(const std::string& deck) {
  std::vector<std::string> keys;
  std::istringstream lines(deck);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('['))
      section = line.substr(1, line.find(']') - 1) + ".";
    else if (const size_t equals = line.find(" = "); equals != line.npos)
      keys.push_back(section + line.substr(0, equals) + "=" + line.substr(equals + 3));
  }
  return keys;
}

Fallbacks::Fallbacks(FallbackSearch search) : search_(std::move(search)), thread_([this] { Search(); }) {}

Fallbacks::~Fallbacks() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  thread_.join();
}

int Fallbacks::LeastAhead() const { return std::max(1, search_.hosts - kSearchedAhead); }

void Fallbacks::Keep(int hosts, std::optional<RunLayout> layout) {
  const std::lock_guard lock(mutex_);
  layouts_.try_emplace(hosts, std::move(layout));
  found_.notify_all();
}

/// The ranks of this host need its cores.
void Fallbacks::Search() {
  constexpr int kLowest = 19;
  ::setpriority(PRIO_PROCESS, 0, kLowest);  // on Linux: of this thread
  if (search_.costs && search_.hosts > 1) FindFastest();
  for (int hosts = search_.hosts - 1; hosts >= LeastAhead(); --hosts) {
    {
      const std::lock_guard lock(mutex_);
      if (ending_) break;
      if (layouts_.contains(hosts)) continue;
    }
    Keep(hosts, Nearest(hosts));
  }
}

void Fallbacks::FindFastest() try {
  const Deck own = Resolved(search_.arguments, {}, search_.hosts * search_.ranks_each).deck;
  FallbackOptions options;
  options.losses = search_.hosts - LeastAhead();
  options.tune.threads = 1;
  for (const Fallback& found : FallbackLayouts(own, search_.hosts * search_.ranks_each, *search_.costs, options)) {
    if (!found.layout) continue;
    const Deck& deck = found.layout->deck;
    Keep(found.left, RunLayout{found.ranks, KeysOf(AsDeck(*found.layout, own)), found.layout->layout,
                               SameSums(own, deck) ? kBitwise : kRounding});
  }
} catch (const std::exception& error) {
  spdlog::warn("layouts for fewer hosts are not searched on the cluster ({}): they are the nearest to the deck's",
               error.what());
}

std::optional<RunLayout> Fallbacks::Nearest(int hosts) const try {
  return FindFallback(search_.arguments, search_.hosts * search_.ranks_each, hosts * search_.ranks_each,
                      search_.memory);
} catch (const std::exception&) {
  return std::nullopt;  // the run itself says what is wrong with the deck
}

std::optional<RunLayout> Fallbacks::On(int hosts) {
  std::unique_lock lock(mutex_);
  if (hosts >= LeastAhead()) {
    found_.wait(lock, [&] { return layouts_.contains(hosts); });
  } else if (!layouts_.contains(hosts)) {
    lock.unlock();
    std::optional<RunLayout> layout = Nearest(hosts);
    lock.lock();
    layouts_.emplace(hosts, std::move(layout));
  }
  return layouts_.at(hosts);
}

void Fallbacks::Refuse(int hosts) {
  const std::lock_guard lock(mutex_);
  layouts_[hosts] = std::nullopt;
}

}  // namespace espalier
