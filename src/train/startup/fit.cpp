#include "train/startup/fit.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <optional>

#include "espalier/comm/agreement.hpp"
#include "espalier/comm/memory_demand.hpp"
#include "espalier/deck/offload.hpp"
#include "espalier/program/compile.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/tune/memory_choice.hpp"
#include "espalier/tune/tune.hpp"
#include "espalier/util/agreed_error.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

constexpr double kMaxMilliseconds = 5000;  // limit of the search for settings that fit
constexpr size_t kMaxSettings = 3;
constexpr int kMaxTimesTheRanks = 64;
// Host memory that a rank needs later in addition to its arena: threads, buffers of libraries, batches.
constexpr int64_t kOutsideArena = int64_t{32} << 20;
// The part of run.outside_bytes that a GPU context takes; it exists when free memory is read.
constexpr int64_t kMaxOfContext = 500'000'000;

// A rank's microbatch must have this many tokens before automatic chunks divide its loss.
constexpr int64_t kRowsWorthCutting = 4096;

/// A change of a deck, and of the number of ranks.
struct Change {
  std::string text;
  std::function<void(Deck&)> apply;
  int times_the_ranks = 1;
};

/// Changes that keep the model and the global batch, from the cheapest to the most expensive.
std::vector<Change> Changes(const Deck& deck) {
  std::vector<Change> changes;
  const int64_t rows = deck.batch.micro * deck.model.seq_len / deck.parallel.cp;
  if (deck.loss.chunks == 1 && rows >= kRowsWorthCutting)
    changes.push_back({"loss.chunks = 0", [](Deck& d) { d.loss.chunks = 0; }});
  for (int64_t micro = deck.batch.micro - 1; micro >= 1; --micro)
    if (deck.batch.micro % micro == 0)
      changes.push_back({fmt::format("batch.micro = {}", micro), [micro](Deck& d) { d.batch.micro = micro; }});
  if (deck.parallel.dp_shard > 1 && deck.parallel.zero < 3)
    changes.push_back({"parallel.zero = 3", [](Deck& d) { d.parallel.zero = 3; }});
  if (deck.parallel.dp_shard > 1 && deck.parallel.zero >= 2 && deck.parallel.reduce == ReduceFrequency::kStep)
    changes.push_back(
        {"parallel.reduce = \"microbatch\"", [](Deck& d) { d.parallel.reduce = ReduceFrequency::kMicrobatch; }});
  if (deck.recompute.mode != RecomputeMode::kFull && deck.recompute.mode != RecomputeMode::kAuto)
    changes.push_back({"recompute.mode = \"auto\"", [](Deck& d) {
                         d.recompute.mode = RecomputeMode::kAuto;
                         d.recompute.ops.clear();
                         d.recompute.layers.clear();
                       }});
  const bool devices_have_memory = deck.run.device == RunDevice::kCuda || deck.offload.device_bytes > 0;
  for (const OffloadShare& share : kOffloadedStates)
    if (const double now = share.Of(deck); now < 1 && now != kAutoShare && devices_have_memory)
      changes.push_back(
          {fmt::format("offload.{} = \"all\"", share.name), [share](Deck& d) { d.offload.*share.share = 1; }});
  return changes;
}

/// All changes together.
Change Everything(const std::vector<Change>& changes) {
  const auto apply = [changes](Deck& d) {
    for (const Change& change : changes) change.apply(d);
  };
  std::vector<std::string> texts;
  for (const Change& change : changes) {
    const std::string key = change.text.substr(0, change.text.find(' '));
    std::erase_if(texts, [&](const std::string& text) { return text.starts_with(key + " "); });
    texts.push_back(change.text);
  }
  return {fmt::format("{}", fmt::join(texts, " with ")), apply};
}

/// More ranks of dp_shard, with all other changes.
std::vector<Change> MoreRanks(const Deck& deck, int ranks, const Change& everything) {
  std::vector<Change> changes;
  for (int times = 2; times <= kMaxTimesTheRanks; times *= 2) {
    const int64_t shards = deck.parallel.dp_shard * times;
    const std::string with = everything.text.empty() ? "" : " with " + everything.text;
    changes.push_back({fmt::format("{} ranks, parallel.dp_shard = {}{}", ranks * times, shards, with),
                       [shards, apply = everything.apply](Deck& d) {
                         d.parallel.dp_shard = shards;
                         if (apply) apply(d);
                       },
                       times});
  }
  return changes;
}

bool Divides(const Deck& deck) {
  return deck.batch.global % (deck.batch.micro * deck.parallel.dp_replicate * deck.parallel.dp_shard) == 0;
}

class Search {
 public:
  Search(const Deck& deck, int ranks, int rank, int64_t budget)
      : deck_(deck), ranks_(ranks), rank_(rank), budget_(budget) {}

  std::vector<std::string> Run() {
    const std::vector<Change> single = Changes(deck_);
    for (const Change& change : single) Try(change);
    const Change everything = Everything(single);
    if (found_.empty() && single.size() > 1) Try(everything);
    if (!found_.empty()) return found_;
    for (const Change& change : MoreRanks(deck_, ranks_, everything))
      if (found_.empty()) Try(change);
    return found_;
  }

 private:
  /// Keeps only the first setting of a key that fits.
  void Try(const Change& change) {
    if (found_.size() >= kMaxSettings || MillisecondsSince(began_) > kMaxMilliseconds) return;
    const std::string key = change.text.substr(0, change.text.find(' ') + 1);
    if (std::ranges::any_of(found_, [&](const std::string& text) { return text.starts_with(key); })) return;
    Deck deck = deck_;
    change.apply(deck);
    if (!Divides(deck)) return;
    try {
      const int ranks = ranks_ * change.times_the_ranks;
      if (LeavesMemoryOpen(deck))
        deck = ChooseMemory(deck, ranks, DeviceOf(deck), MemoryBudget(deck, budget_), CostsOfChoice(deck)).deck;
      const int64_t bytes = ArenaBytes(deck, ranks, rank_)[Space::kDevice];
      if (bytes <= budget_) found_.push_back(fmt::format("{} ({} per rank)", change.text, Gigabytes(bytes)));
    } catch (const UserError&) {  // this deck does not allow the change
    }
  }

  const Deck& deck_;
  int ranks_, rank_;
  int64_t budget_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<std::string> found_;
};

/// On as many ranks: changes of one key, then other degrees. On more ranks if none of these fits.
std::vector<std::string> NearestSettings(const Deck& deck, int ranks, int rank, int64_t budget) {
  std::vector<std::string> settings = SettingsThatFit(deck, ranks, rank, budget);
  const bool more_ranks = !settings.empty() && settings[0].starts_with(fmt::format("{} ranks", 2 * ranks));
  if (!settings.empty() && !more_ranks) return settings;
  std::vector<std::string> nearest = NearestThatFit(deck, ranks, budget);
  nearest.insert(nearest.end(), settings.begin(), settings.end());
  nearest.resize(std::min(nearest.size(), kMaxSettings));
  return nearest;
}

std::string PurposeOf(const Device& device, int64_t to_come) {
  const std::string arena = "its arena (parameters, gradients, optimizer state, activations)";
  if (device.Kind() == DeviceKind::kCpu || to_come == 0) return arena;
  return fmt::format("{} and for libraries ({} of it: run.outside_bytes)", arena, Gigabytes(to_come));
}

std::string Advice(const std::vector<std::string>& settings) {
  if (settings.empty())
    return "no change of batch.micro, recompute.mode or parallel.dp_shard that was tried fits: espalier plan shows "
           "what takes it";
  return fmt::format("nearest settings that fit: {}", fmt::join(settings, "; or "));
}

/// The memory that a rank is about to allocate.
struct Need {
  int64_t bytes;
  std::vector<MemoryLimit> limits;
  std::string purpose;
  std::optional<int64_t> besides;  ///< bytes of it that are not the arena of the device; not set: all of them
};

MemoryShortage ShortageOf(World& world, const Need& need) {
  return FindShortage(world, {HostName(), need.bytes, need.limits});
}

/// Throws on every rank if some need more than a limit allows.
void Require(const Deck& deck, World& world, const Need& need) {
  const MemoryShortage shortage = ShortageOf(world, need);
  if (shortage.ranks == 0) return;
  const std::string text = OnRankZero(world, [&] {
    const double part = static_cast<double>(shortage.available) / static_cast<double>(shortage.together);
    const auto budget = static_cast<int64_t>(part * static_cast<double>(shortage.bytes));
    return fmt::format("{}; {}{}", shortage.Text(need.purpose),
                       need.besides
                           ? Advice(NearestSettings(deck, world.Size(), shortage.rank, budget - *need.besides))
                           : "a smaller share on the host needs less (offload.optimizer), and so do more ranks",
                       shortage.ranks > 1 ? "; or fewer ranks on this node" : "");
  });
  throw AgreedError(ExitStatus::kDoesNotFit, text);
}

/// The memory that a rank is about to allocate, by limit.
std::vector<Need> NeedsOf(const Deck& deck, const Device& device, const BySpace<int64_t>& arena_bytes) {
  const int64_t on_device = arena_bytes[Space::kDevice], on_host = arena_bytes[Space::kHost];
  std::vector<Need> needs;
  if (deck.offload.device_bytes > 0)
    needs.push_back({on_device, {{"", "offload.device_bytes", deck.offload.device_bytes}}, "its arena", 0});
  const bool together = device.Kind() == DeviceKind::kCpu;  // both arenas are in the node's memory
  const int64_t outside = BytesToCome(deck, device);
  needs.push_back({on_device + outside + (together ? on_host : 0), device.ArenaLimits(), PurposeOf(device, outside),
                   outside + (together ? on_host : 0)});
  if (on_host > 0 && !together)
    needs.push_back(
        {on_host + kOutsideArena, device.HostLimits(), "the states that it keeps on the host (offload)", std::nullopt});
  return needs;
}

}  // namespace

BySpace<int64_t> ArenasOf(const Program& program) { return {program.arena_bytes, program.host_bytes}; }

BySpace<int64_t> Larger(const BySpace<int64_t>& a, const BySpace<int64_t>& b) {
  BySpace<int64_t> larger{};
  for (const Space space : kSpaces) larger[space] = std::max(a[space], b[space]);
  return larger;
}

BySpace<int64_t> ArenaBytes(const Deck& deck, int ranks, int rank) {
  BySpace<int64_t> bytes{}, state_bytes{};  // training comes first, and has all states
  for (const ProgramOfRun& of_run : ProgramsOfRun(deck)) {
    const Compilation compilation = Compile(of_run.deck, ranks, of_run.purpose);
    const Program program = MakeProgram(compilation, compilation.mesh.CoordinateOf(rank), state_bytes);
    bytes = Larger(bytes, ArenasOf(program));
    state_bytes = Larger(state_bytes, StateBytes(program));
  }
  return bytes;
}

std::vector<std::string> SettingsThatFit(const Deck& deck, int ranks, int rank, int64_t budget) {
  return Search(deck, ranks, rank, budget).Run();
}

int64_t BytesToCome(const Deck& deck, const Device& device) {
  if (device.Kind() == DeviceKind::kCpu) return kOutsideArena;
  if (!device.Computes()) return 0;
  const int64_t taken = std::min(device.OutsideBytes(0, 0), kMaxOfContext);
  return std::max<int64_t>(0, deck.run.outside_bytes - taken);
}

bool Fits(const Deck& deck, World& world, const Device& device, const BySpace<int64_t>& arena_bytes) {
  return std::ranges::none_of(NeedsOf(deck, device, arena_bytes),
                              [&](const Need& need) { return ShortageOf(world, need).ranks > 0; });
}

void CheckFit(const Deck& deck, World& world, const Device& device, const BySpace<int64_t>& arena_bytes) {
  for (const Need& need : NeedsOf(deck, device, arena_bytes)) Require(deck, world, need);
}

}  // namespace espalier
