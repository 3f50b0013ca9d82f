#include "train/reporting/start_block.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "espalier/comm/pack.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/host_name.hpp"

namespace espalier {
namespace {

std::string Count(int64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string Line(std::string_view word, const std::string& text) { return fmt::format("{:<10} {}", word, text); }

/// What each rank says of its memory.
struct RankMemory {
  std::string host;
  int64_t arena = 0, staging = 0, free = 0;

  auto Fields() { return std::tie(host, arena, staging, free); }
};

std::vector<RankMemory> MemoryOfRanks(const Run& run) {
  const RankMemory mine{HostName(), run.programs.arena().bytes(), run.checkpoints.staging_bytes(),
                        run.programs.free_bytes()};
  std::vector<RankMemory> ranks;
  for (const std::string& packed : run.world.Gather(Pack(mine))) ranks.push_back(Unpack<RankMemory>(packed));
  return ranks;
}

std::string ModelText(const Run& run) {
  const Deck::Model& m = run.deck().model;
  return fmt::format("{}, {} parameters: {} of {}, {} tokens; {}", DeckName(m.family),
                     HumanCount(static_cast<double>(run.programs.compilation().parameter_count)),
                     Count(m.layers, "layer"), m.dim, m.vocab, DeckName(run.deck().precision.compute));
}

std::string MeshText(const Mesh& mesh) {
  std::vector<std::string> degrees;
  for (const auto& [axis, degree] : mesh.DeckDegrees())
    if (degree > 1) degrees.push_back(fmt::format("{} {}", axis, degree));
  return degrees.empty() ? "no parallelism" : fmt::format("{}", fmt::join(degrees, " x "));
}

std::string RanksText(const Run& run, size_t hosts) {
  const Compilation& c = run.programs.compilation();
  const std::string pipeline =
      c.mesh.Degree(Axis::kPp) == 1 ? "" : fmt::format(", {}", DeckName(c.deck.pipeline.schedule));
  return fmt::format("{} on {}, {}, {} each; {}{}, {} microbatch{} of {}", run.world.Size(),
                     Count(static_cast<int64_t>(hosts), "host"), DeckName(run.deck().run.device),
                     Count(run.threads.count, "thread"), MeshText(c.mesh), pipeline, c.batch.microbatches,
                     c.batch.microbatches == 1 ? "" : "es", c.batch.micro);
}

/// The rank that needs most, and the one with the least free memory.
std::string MemoryText(const std::vector<RankMemory>& ranks) {
  const auto most = std::ranges::max_element(ranks, {}, &RankMemory::arena);
  const auto least = std::ranges::min_element(ranks, {}, &RankMemory::free);
  const std::string staging = most->staging == 0 ? "" : fmt::format(" + {} to stage saves", HumanBytes(most->staging));
  return fmt::format("{} a rank{}{}; {} were free{}", HumanBytes(most->arena),
                     ranks.size() > 1 ? fmt::format(" at most (rank {})", most - ranks.begin()) : "", staging,
                     HumanBytes(least->free), ranks.size() > 1 ? " on " + least->host : "");
}

std::string StepsText(const Run& run, int64_t step) {
  const Deck& deck = run.deck();
  const std::string sequences =
      run.programs.ramp().Grows()
          ? Describe(run.programs.ramp())
          : fmt::format("{} a step, {} tokens", Count(deck.batch.global, "sequence"), TokensPerStep(deck));
  return fmt::format("{} to {}; sequences of {}: {}", step + 1, deck.run.steps, deck.model.seq_len, sequences);
}

std::string SavesText(const Deck& deck) {
  std::vector<std::string> when;
  if (deck.checkpoint.every_steps > 0)
    when.push_back(fmt::format("every {}", Count(deck.checkpoint.every_steps, "step")));
  if (deck.checkpoint.every_s > 0) when.push_back(fmt::format("every {}", HumanDuration(deck.checkpoint.every_s)));
  when.emplace_back("at the end");
  return fmt::format("{} {}, {} kept", CheckpointFolder(deck), fmt::join(when, ", "), deck.checkpoint.keep);
}

/// The process to signal: under a launcher, which passes signals on, that is the launcher.
std::string StopText(const Deck& deck) {
  return fmt::format("kill -USR1 {} on {} saves and ends{}; the same command{} goes on", getpid(), HostName(),
                     StartedByLauncher() ? " (or any other rank, or the launcher)" : "",
                     deck.checkpoint.restart == Restart::kAuto ? "" : " with -r latest");
}

}  // namespace

std::vector<std::string> StartBlock(const Run& run, int64_t step) {
  const std::vector<RankMemory> ranks = MemoryOfRanks(run);
  if (!run.IsRankZero()) return {};
  std::set<std::string> hosts;
  for (const RankMemory& rank : ranks) hosts.insert(rank.host);
  const Deck& deck = run.deck();
  std::vector<std::string> lines = {Line("espalier", fmt::format("{} ({}), {}", kVersion, kGitHash, deck.name)),
                                    Line("model", ModelText(run)), Line("ranks", RanksText(run, hosts.size())),
                                    Line("memory", MemoryText(ranks))};
  if (run.device.Computes())
    for (const std::string& text : Describe(run.start.data, deck)) lines.push_back(Line("data", text));
  lines.push_back(Line("steps", StepsText(run, step)));
  if (run.device.Computes()) lines.push_back(Line("saves", SavesText(deck)));
  lines.push_back(Line("metrics", deck.run.dir + "/metrics.jsonl"));
  lines.push_back(Line("stop", StopText(deck)));
  return lines;
}

}  // namespace espalier
