#include "relations.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/deck/parameter_groups.hpp"
#include "espalier/deck/recompute.hpp"
#include "espalier/deck/step_range.hpp"
#include "espalier/deck/time_limit.hpp"
#include "espalier/schedule/schedule.hpp"
#include "text.hpp"

namespace espalier {
namespace {

/// A limit below a second would end healthy jobs.
std::string WatchdogWaitsASecond(const Deck& deck) {
  const auto& run = deck.run;
  return run.watchdog_s == 0 || run.watchdog_s >= 1 ? "" : "must be 0 (off) or at least 1";
}

std::string SlowWatchdogWaitsLonger(const Deck& deck) {
  const auto& run = deck.run;
  if (run.watchdog_slow_s == 0 || run.watchdog_slow_s >= run.watchdog_s) return "";
  return fmt::format("must be 0 or at least run.watchdog_s = {}", run.watchdog_s);
}

std::string TextNeedsBytes(const Deck& deck) {
  const bool bytes = IsText(deck.data.format) && deck.data.tokenizer.empty();
  if (!bytes || deck.model.vocab >= 256) return "";
  return fmt::format("must be at least 256 for data.format = \"{}\": tokens are bytes", DeckName(deck.data.format));
}

/// The keys of training and validation data follow the same rules.
std::string WeightsOf(const std::vector<double>& weights, const std::vector<std::string>& paths, std::string_view key) {
  if (weights.empty() || weights.size() == paths.size()) return "";
  return fmt::format("must have a weight for each entry of {}: {}, not {} (or none: [])", key, paths.size(),
                     weights.size());
}
std::string EachSourceHasAWeight(const Deck& deck) {
  return WeightsOf(deck.data.weights, deck.data.paths, "data.paths");
}
std::string EachValidationSourceHasAWeight(const Deck& deck) {
  return WeightsOf(deck.data.validation_weights, deck.data.validation, "data.validation");
}

std::string EndTokenIsInTheVocabulary(const Deck& deck) {
  if (deck.data.end_token < deck.model.vocab) return "";
  return fmt::format("must be a token: allowed are -1 (none) and 0 to {} (model.vocab - 1)", deck.model.vocab - 1);
}

/// Documents of flat ids can only end with a token. A sample has several conversations.
std::string DocumentsAreKnown(const Deck& deck) {
  const auto& data = deck.data;
  if (data.format == DataFormat::kChat && !data.isolate_documents)
    return "must be true for data.format = \"chat\": a sample has several conversations";
  if (!data.isolate_documents || data.end_token >= 0 || data.format == DataFormat::kAuto) return "";
  if (IsText(data.format) || data.format == DataFormat::kMegatron) return "";
  return fmt::format("needs data.end_token with data.format = \"{}\", which does not say where documents end",
                     DeckName(data.format));
}

std::string ConversationsHaveATemplate(const Deck& deck) {
  if (deck.data.format != DataFormat::kChat || deck.data.tokenizer + deck.data.chat_template != "") return "";
  return "must be a file or \"chatml\": without data.tokenizer there is no chat template beside it";
}

/// While dp_shard is open: batch.global must be a multiple of this, in terms of the future number of ranks.
std::string OpenUnit(const Deck& deck) {
  const auto& p = deck.parallel;
  const int64_t others = Product({p.pp, p.cp, p.tp});
  return fmt::format("batch.micro * ranks{} = {} * ranks{}", others > 1 ? " / (pp * cp * tp)" : "", deck.batch.micro,
                     others > 1 ? fmt::format(" / {}", others) : "");
}

/// A batch of `sequences` sequences, with 1 for an open dp_shard.
BatchShape KnownBatch(const Deck& deck, int64_t sequences) {
  return DivideBatch(sequences, deck.batch.micro,
                     Product({deck.parallel.dp_replicate, std::max(1, deck.parallel.dp_shard)}));
}

/// Why a number of sequences cannot be divided into microbatches, with a `remedy`; empty if it can.
std::string DivisionFault(const Deck& deck, int64_t sequences, const std::string& remedy = "") {
  const auto& p = deck.parallel;
  const int64_t unit = KnownBatch(deck, sequences).rows;
  if (sequences % unit == 0) return "";
  if (p.dp_shard == -1)
    return fmt::format(
        "must be a multiple of batch.micro * dp_replicate * dp_shard, where dp_shard = -1 is what the other degrees "
        "leave of the ranks (allowed: multiples of {})",
        OpenUnit(deck));
  return fmt::format("must be a multiple of batch.micro * dp_replicate * dp_shard = {} * {} * {} = {} (allowed: {}{})",
                     deck.batch.micro, p.dp_replicate, p.dp_shard, unit, MultiplesText(unit), remedy);
}

/// "; set batch.global=18": the next larger batch of whole microbatches, once dp_shard is known.
std::string NextBatch(const Deck& deck) {
  if (deck.parallel.dp_shard == -1) return "";
  const int64_t unit = KnownBatch(deck, deck.batch.global).rows;
  return fmt::format("; set batch.global={}", (deck.batch.global / unit + 1) * unit);
}

std::string MicrobatchesComeOutWhole(const Deck& deck) {
  return DivisionFault(deck, deck.batch.global, NextBatch(deck));
}

/// The number of sequences by which the batch grows in total; 0 without a ramp.
int64_t RiseOf(const Deck::Batch& batch) {
  return batch.ramp_start == 0 ? 0 : std::max<int64_t>(0, batch.global - batch.ramp_start);
}

std::string RampStartsBelowGlobal(const Deck& deck) {
  if (deck.batch.ramp_start <= deck.batch.global) return "";
  return fmt::format("must be at most batch.global = {} (allowed: 0 for no ramp, or 1 to {})", deck.batch.global,
                     deck.batch.global);
}

std::string RampEndsAtGlobal(const Deck& deck) {
  const auto& b = deck.batch;
  const int64_t rise = RiseOf(b);
  if (rise % b.ramp_step == 0) return "";
  std::vector<int64_t> allowed = Divisors(rise);
  std::erase_if(allowed, [&](int64_t step) { return step % KnownBatch(deck, rise).rows != 0; });
  if (allowed.empty()) allowed = Divisors(rise);
  return fmt::format("must divide batch.global - batch.ramp_start = {} - {} = {} (allowed: {})", b.global, b.ramp_start,
                     rise, ListNumbers(allowed));
}

std::string RampStartComesOutWhole(const Deck& deck) { return DivisionFault(deck, deck.batch.ramp_start); }

/// Its default is ramp_start, which has already been checked.
std::string RampStepComesOutWhole(const Deck& deck) {
  const auto& b = deck.batch;
  return RiseOf(b) == 0 || b.ramp_step == b.ramp_start ? "" : DivisionFault(deck, b.ramp_step);
}

/// tp shards attention by whole heads; kv heads are sharded or, if there are fewer than tp, replicated. Feed-forward
/// width, vocabulary and sequence may have unequal shards.
std::string TensorParallelDivides(const Deck& deck) {
  const auto& m = deck.model;
  const auto meets_kv_heads = [&](int64_t tp) { return m.kv_heads % tp == 0 || tp % m.kv_heads == 0; };
  const int64_t tp = deck.parallel.tp;
  if (m.heads % tp == 0 && meets_kv_heads(tp)) return "";
  std::vector<int64_t> allowed = Divisors(m.heads);
  std::erase_if(allowed, [&](int64_t t) { return !meets_kv_heads(t); });
  if (m.heads % tp != 0)
    return fmt::format("must divide model.heads = {} (allowed: {})", m.heads, ListNumbers(allowed));
  return fmt::format("must divide model.kv_heads = {} or be a multiple of it (allowed: {})", m.kv_heads,
                     ListNumbers(allowed));
}

/// Zigzag order gives every cp rank two chunks of equal size.
std::string ContextParallelCutsSequence(const Deck& deck) {
  const int64_t cp = deck.parallel.cp, length = deck.model.seq_len;
  if (cp == 1 || length % (2 * cp) == 0) return "";
  return fmt::format("twice it must divide model.seq_len = {} (allowed: {})", length,
                     ListNumbers(length % 2 == 0 ? Divisors(length / 2) : std::vector<int64_t>{1}));
}

std::string ChunksHaveRows(const Deck& deck) {
  const int64_t rows = Product({deck.batch.micro, deck.model.seq_len}) / deck.parallel.cp;
  if (deck.loss.chunks <= rows) return "";
  return fmt::format(
      "a microbatch has batch.micro * model.seq_len / parallel.cp = {} * {} / {} = {} rows (allowed: 0 to {})",
      deck.batch.micro, deck.model.seq_len, deck.parallel.cp, rows, rows);
}

/// "all_to_all" exchanges parts of sequences with all of a tp rank's heads for whole sequences with some of the heads.
std::string AllToAllHasHeads(const Deck& deck) {
  const auto& p = deck.parallel;
  const auto& m = deck.model;
  if (p.cp == 1 || p.context != ContextMode::kAllToAll) return "";
  const int64_t unit = Product({p.cp, p.tp}), common = std::gcd(m.heads, m.kv_heads);
  if (common % unit == 0) return "";
  std::vector<int64_t> good = Divisors(common);
  std::erase_if(good, [&](int64_t d) { return d % p.tp != 0; });
  for (int64_t& d : good) d /= p.tp;
  if (good.empty()) good = {1};
  return fmt::format(
      "for parallel.context = \"all_to_all\", cp * tp = {} * {} = {} must divide model.heads = {} and model.kv_heads = "
      "{} (allowed: {}; or parallel.context = \"ring\" or \"all_gather\")",
      p.cp, p.tp, unit, m.heads, m.kv_heads, ListNumbers(good));
}

std::string ChunksSuitTheSchedule(const Deck& deck) {
  return TraitsOf(deck.pipeline).ChunkCountError(deck.pipeline.chunks);
}

/// Why the schedule cannot take the microbatches of `sequences` sequences. While dp_shard is open there may be fewer
/// microbatches than counted here, never more.
std::string ScheduleFault(const Deck& deck, int64_t sequences) {
  const auto& p = deck.parallel;
  const ScheduleTraits& schedule = TraitsOf(deck.pipeline);
  const BatchShape batch = KnownBatch(deck, sequences);
  const int64_t least = schedule.MinMicrobatches(p.pp);
  if (batch.sequences % batch.rows != 0 || batch.microbatches >= least) return "";
  if (p.dp_shard == -1)
    return fmt::format(
        "makes at most {} microbatches of batch.micro * dp_replicate = {} sequences, but pipeline.schedule = \"{}\" "
        "with parallel.pp = {} needs at least {} (allowed: multiples of {} from {} times that)",
        batch.microbatches, batch.rows, Name(schedule.kind), p.pp, least, OpenUnit(deck), least);
  return fmt::format(
      "makes {} microbatches of {} sequences, but pipeline.schedule = \"{}\" with parallel.pp = {} needs at least {} "
      "(allowed: multiples of {} from {})",
      batch.microbatches, batch.rows, Name(schedule.kind), p.pp, least, batch.rows, Product({least, batch.rows}));
}

std::string MicrobatchesSuitTheSchedule(const Deck& deck) { return ScheduleFault(deck, deck.batch.global); }

std::string RampStartSuitsTheSchedule(const Deck& deck) {
  return deck.batch.ramp_start == 0 ? "" : ScheduleFault(deck, deck.batch.ramp_start);
}

std::string ComparedBitsRepeat(const Deck& deck) {
  const auto& run = deck.run;
  if (deck.guard.recompute_steps == 0 || (run.deterministic && run.deterministic_attention)) return "";
  if (run.device == RunDevice::kCpu || run.device == RunDevice::kSleep) return "";
  return "must be 0 with run.deterministic or run.deterministic_attention = false: bits differ from run to run";
}

std::string FileHasAName(const Deck& deck) {
  if (deck.pipeline.schedule != ScheduleKind::kFile || !deck.pipeline.file.empty()) return "";
  return "is needed with pipeline.schedule = \"file\": a CSV file, such as espalier plan --schedule prints";
}

/// Once the file is read.
std::string FileSuitsTheDeck(const Deck& deck) {
  const auto& p = deck.parallel;
  const Schedule* given = TraitsOf(deck.pipeline).given;
  if (given == nullptr || p.dp_shard == -1) return "";
  if (deck.batch.ramp_start > 0) return "has one number of microbatches, so batch.ramp_start must be 0";
  const int chunks = given->Chunks() / given->stages;
  const BatchShape batch = KnownBatch(deck, deck.batch.global);
  if (p.pp == given->stages && deck.pipeline.chunks == chunks && batch.microbatches == given->microbatches) return "";
  return fmt::format(
      "has {} lines, {} stages on each and {} microbatches, but parallel.pp = {}, pipeline.chunks = {}, and the batch "
      "makes {} microbatches (needed: parallel.pp = {}, pipeline.chunks = {}, and batch.global = {} * batch.micro * "
      "dp_replicate * dp_shard)",
      given->stages, chunks, given->microbatches, p.pp, deck.pipeline.chunks, batch.microbatches, given->stages, chunks,
      given->microbatches);
}

/// A split says itself what a chunk has.
std::string EveryChunkHasALayer(const Deck& deck) {
  if (!deck.pipeline.split.empty()) return "";
  const int chunks = deck.parallel.pp * deck.pipeline.chunks;
  if (chunks <= deck.model.layers) return "";
  return fmt::format(
      "needs a layer for each of pp * pipeline.chunks = {} * {} = {} chunks, but model.layers = {} (allowed: {} layers "
      "or more, or pp * pipeline.chunks up to {})",
      deck.parallel.pp, deck.pipeline.chunks, chunks, deck.model.layers, chunks, deck.model.layers);
}

std::string SplitFits(const Deck& deck) {
  const std::vector<int64_t>& split = deck.pipeline.split;
  if (split.empty()) return "";
  const auto chunks = static_cast<size_t>(deck.parallel.pp * deck.pipeline.chunks);
  if (split.size() != chunks)
    return fmt::format("must have parallel.pp * pipeline.chunks = {} * {} = {} entries, not {}", deck.parallel.pp,
                       deck.pipeline.chunks, chunks, split.size());
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  const bool hollow = split.size() > 2 && std::find(split.begin() + 1, split.end() - 1, 0) != split.end() - 1;
  if (hollow)
    return "must have layers in all chunks but the first, which has the embedding, and the last, with the head";
  if (sum == deck.model.layers) return "";
  return fmt::format("must add up to model.layers = {}, not {}", deck.model.layers, sum);
}

/// ZeRO-2 that keeps whole gradients would be ZeRO-1.
std::string ReduceKeepsShards(const Deck& deck) {
  const auto& p = deck.parallel;
  if (p.reduce != ReduceFrequency::kStep || p.zero != 2 || (p.dp_shard == 1 && p.cp == 1)) return "";
  return "keeps gradients whole until the last microbatch, but parallel.zero = 2 shards them (allowed: "
         "parallel.reduce = \"auto\" or \"microbatch\"; or parallel.zero = 1, which keeps them whole, or 3, which then "
         "shards parameters only)";
}

/// Only applies to sharded parameters. A group of one would keep them whole.
std::string GroupsShareOutShards(const Deck& deck) {
  const auto& p = deck.parallel;
  const bool sharded = p.zero == 3 && deck.recompute.regather != Regather::kNever && p.dp_shard > 1;
  if (p.regather_group == 0 || !sharded || (p.regather_group > 1 && p.dp_shard % p.regather_group == 0)) return "";
  if (p.regather_group == 1)
    return "is a group of one rank, which would keep whole parameters (use recompute.regather = \"never\", or at least "
           "2)";
  std::vector<int64_t> allowed = Divisors(p.dp_shard);
  allowed[0] = 0;
  return fmt::format("must divide parallel.dp_shard = {} (allowed: {})", p.dp_shard, ListNumbers(allowed));
}

/// ep is known to divide experts.count; dp_shard may be open.
std::string ExpertsAreShared(const Deck& deck) {
  const auto& p = deck.parallel;
  const int64_t experts = deck.model.experts.count;
  if (p.ep == 1) return "";
  if (experts == 0) return "shards experts, but experts.count = 0: all layers are dense (leave it out)";
  if (experts % p.ep != 0)
    return fmt::format("must divide experts.count = {} (allowed: {})", experts, ListNumbers(Divisors(experts)));
  const ExpertParallel e = ExpertParallelOf(p);
  if (p.dp_shard < 1 || p.dp_shard % e.dp_shard == 0) return "";
  std::vector<int64_t> allowed = Divisors(experts);
  std::erase_if(allowed, [&](int64_t ep) {
    Deck::Parallel other = p;
    other.ep = static_cast<int>(ep);
    return p.dp_shard % ExpertParallelOf(other).dp_shard != 0;
  });
  return fmt::format(
      "must be a factor of dp_shard * cp * tp = {} * {} * {}: tp, if it divides ep, times cp, if it divides the rest, "
      "times a divisor of dp_shard (allowed: {})",
      p.dp_shard, p.cp, p.tp, ListNumbers(allowed));
}

std::string GroupsHaveNoExperts(const Deck& deck) {
  const auto& p = deck.parallel;
  if (p.regather_group == 0 || ExpertParallelOf(p).dp_shard == 1) return "";
  return fmt::format("is not possible where parallel.ep = {} shares experts over ranks of dp_shard (allowed: 0)", p.ep);
}

std::string ShardIsCount(const Deck& deck) {
  return deck.parallel.dp_shard == 0 ? "must be -1 (what is left) or at least 1" : "";
}

std::string RunHasFolder(const Deck& deck) {
  if (deck.run.dir.find_first_not_of(' ') != std::string::npos) return "";
  return deck.run.dir.empty() ? "must name a folder" : "must name a folder, not blanks";
}

/// A value below the smallest fp32 becomes 0 in the update, and 0 means off.
std::string ClipNormIsAFloat(const Deck& deck) {
  const double norm = deck.optimizer.clip_norm;
  return norm == 0 || norm >= kMinFloat ? ""
                                        : fmt::format("is 0 in fp32, which means off (allowed: 0, >= {:g})", kMinFloat);
}

std::string Fp8RoundsBf16(const Deck& deck) {
  if (deck.precision.matmul != MatmulPrecision::kFp8 || deck.precision.compute == Dtype::kBf16) return "";
  return "needs precision.compute = \"bf16\" (allowed: \"compute\", or \"fp8\" with bf16)";
}

std::string GroupsAreWellFormed(const Deck& deck) {
  std::string faults;
  for (const std::string& entry : deck.optimizer.groups)
    if (const std::string fault = ParseGroup(entry).fault; !fault.empty())
      faults += fmt::format("{}\"{}\" {}", faults.empty() ? "" : "; ", entry,
                            fault.starts_with('"') ? "is malformed: " + fault : fault);
  if (faults.empty()) return "";
  return faults + " (allowed: \"PATTERN lr=X decay=Y\", of which lr or decay may be missing)";
}

/// Keys that "auto" chooses may not be given as well.
std::string AutoChoosesAlone(const Deck& deck) {
  const Deck::Recompute& r = deck.recompute;
  if (r.mode != RecomputeMode::kAuto || (r.ops.empty() && r.layers.empty())) return "";
  return fmt::format("chooses ops and layers by itself (leave out {}, or take another mode)",
                     r.layers.empty() ? "recompute.ops" : "recompute.layers");
}

std::string RulesNameLayers(const Deck& deck) {
  for (const std::string& entry : deck.recompute.layers)
    if (const std::string fault = ParseRecomputeRule(entry, deck.model.AllLayers()).fault; !fault.empty())
      return fmt::format("in \"{}\" {}", entry, fault);
  return "";
}

std::string OffloadNamesLayers(const Deck& deck) {
  const Deck::Offload& o = deck.offload;
  if (o.layers.empty()) return "";
  if (o.activations != 0) return "names layers in place of the share offload.activations (leave one of them out)";
  return ParseLayerSet(o.layers, deck.model.AllLayers()).fault;
}

std::string TraceIsARange(const Deck& deck) {
  if (ParseStepRange(deck.report.trace)) return "";
  return "must be two steps from 1, first:last, the first not above the last (allowed: such as 10:12, or \"\" for "
         "none)";
}

std::string TimeLimitIsATime(const Deck& deck) {
  if (deck.run.time_limit.empty() || TimeLimitSeconds(deck.run.time_limit)) return "";
  return "must be a time above zero (allowed: minutes, minutes:seconds, hours:minutes:seconds, days-hours, "
         "days-hours:minutes, days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)";
}

std::string StopMarginIsATime(const Deck& deck) {
  const double margin = deck.run.stop_margin_s;
  return margin >= 0 || margin == -1 ? "" : "must be a number of seconds, or -1 (allowed: -1, >= 0)";
}

std::string StepsOrEpochs(const Deck& deck) {
  if (deck.run.epochs == 0 || deck.run.steps == 0) return "";
  return fmt::format("run.steps = {} is set too: leave one of them out", deck.run.steps);
}

std::string EpochsNeedData(const Deck& deck) {
  if (deck.run.epochs == 0 || deck.run.device != RunDevice::kSleep) return "";
  return "must be 0 with run.device = \"sleep\", which opens no data (set run.steps)";
}

std::string SleepsForACluster(const Deck& deck) {
  if (deck.run.device != RunDevice::kSleep || !deck.run.cluster.empty()) return "";
  return "needs run.cluster = FILE, which says how long to wait (inputs/clusters has some)";
}

std::string TrainsOnSomething(const Deck& deck) {
  return deck.data.paths.empty() ? "must name at least one file or glob" : "";
}

std::string ValidatesOnSomething(const Deck& deck) {
  if (deck.data.validate_every_steps == 0 || !deck.data.validation.empty()) return "";
  return "needs data.validation to name at least one file or glob";
}

std::string ValidatesWholeBatches(const Deck& deck) {
  if (deck.data.validate_every_steps == 0 || deck.data.validate_sequences % deck.batch.global == 0) return "";
  return fmt::format("must be a multiple of batch.global = {} (allowed: {})", deck.batch.global,
                     MultiplesText(deck.batch.global));
}

std::vector<Relation> Together(std::vector<Relation> list, const std::vector<Relation>& more) {
  list.insert(list.end(), more.begin(), more.end());
  return list;
}

}  // namespace

const std::vector<Relation>& MeshRelations() {
  static const std::vector<Relation> own = {
      {{"parallel.tp", "model.heads", "model.kv_heads"}, TensorParallelDivides},
      {{"parallel.cp", "model.seq_len"}, ContextParallelCutsSequence},
      {{"loss.chunks", "batch.micro", "model.seq_len", "parallel.cp"}, ChunksHaveRows},
      {{"parallel.regather_group", "parallel.dp_shard", "parallel.zero", "recompute.regather"}, GroupsShareOutShards},
      {{"parallel.ep", "experts.count", "parallel.dp_shard", "parallel.cp", "parallel.tp"}, ExpertsAreShared},
      {{"parallel.regather_group", "parallel.ep", "parallel.cp", "parallel.tp"}, GroupsHaveNoExperts},
      {{"parallel.cp", "parallel.context", "parallel.tp", "model.heads", "model.kv_heads"}, AllToAllHasHeads},
      {{"batch.global", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard"}, MicrobatchesComeOutWhole},
      {{"batch.global", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard", "parallel.pp",
        "pipeline.schedule"},
       MicrobatchesSuitTheSchedule},
      {{"batch.ramp_start", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard"}, RampStartComesOutWhole},
      {{"batch.ramp_step", "batch.ramp_start", "batch.global", "batch.micro", "parallel.dp_replicate",
        "parallel.dp_shard"},
       RampStepComesOutWhole},
      {{"batch.ramp_start", "batch.micro", "parallel.dp_replicate", "parallel.dp_shard", "parallel.pp",
        "pipeline.schedule"},
       RampStartSuitsTheSchedule},
      {{"pipeline.file", "pipeline.schedule", "pipeline.chunks", "parallel.pp", "parallel.dp_replicate",
        "parallel.dp_shard", "batch.global", "batch.micro", "batch.ramp_start"},
       FileSuitsTheDeck},
  };
  static const std::vector<Relation> relations = Together(own, SizeRelations());
  return relations;
}

const std::vector<Relation>& DeckRelations() {
  static const std::vector<Relation> rank_free = {
      {{"model.vocab", "data.format", "data.tokenizer"}, TextNeedsBytes},
      {{"pipeline.chunks", "pipeline.schedule"}, ChunksSuitTheSchedule},
      {{"pipeline.file", "pipeline.schedule"}, FileHasAName},
      {{"guard.recompute_steps", "run.deterministic", "run.deterministic_attention", "run.device"}, ComparedBitsRepeat},
      {{"parallel.pp", "pipeline.chunks", "model.layers", "pipeline.split"}, EveryChunkHasALayer},
      {{"pipeline.split", "parallel.pp", "pipeline.chunks", "model.layers"}, SplitFits},
      {{"parallel.dp_shard"}, ShardIsCount},
      {{"parallel.reduce", "parallel.zero", "parallel.dp_shard", "parallel.cp"}, ReduceKeepsShards},
      {{"run.dir"}, RunHasFolder},
      {{"run.device", "run.cluster"}, SleepsForACluster},
      {{"run.epochs", "run.steps"}, StepsOrEpochs},
      {{"run.epochs", "run.device"}, EpochsNeedData},
      {{"optimizer.clip_norm"}, ClipNormIsAFloat},
      {{"precision.matmul", "precision.compute"}, Fp8RoundsBf16},
      {{"optimizer.groups"}, GroupsAreWellFormed},
      {{"recompute.mode", "recompute.ops", "recompute.layers"}, AutoChoosesAlone},
      {{"recompute.layers", "model.layers"}, RulesNameLayers},
      {{"offload.layers", "offload.activations", "model.layers"}, OffloadNamesLayers},
      {{"run.time_limit"}, TimeLimitIsATime},
      {{"run.stop_margin_s"}, StopMarginIsATime},
      {{"report.trace"}, TraceIsARange},
      {{"data.paths"}, TrainsOnSomething},
      {{"data.weights", "data.paths"}, EachSourceHasAWeight},
      {{"data.validation_weights", "data.validation"}, EachValidationSourceHasAWeight},
      {{"data.end_token", "model.vocab"}, EndTokenIsInTheVocabulary},
      {{"data.isolate_documents", "data.end_token", "data.format"}, DocumentsAreKnown},
      {{"data.chat_template", "data.tokenizer", "data.format"}, ConversationsHaveATemplate},
      {{"run.watchdog_s"}, WatchdogWaitsASecond},
      {{"run.watchdog_slow_s", "run.watchdog_s"}, SlowWatchdogWaitsLonger},
      {{"data.validate_every_steps", "data.validation"}, ValidatesOnSomething},
      {{"data.validate_sequences", "data.validate_every_steps", "batch.global"}, ValidatesWholeBatches},
      {{"batch.ramp_start", "batch.global"}, RampStartsBelowGlobal},
      {{"batch.ramp_step", "batch.ramp_start", "batch.global", "batch.micro", "parallel.dp_replicate",
        "parallel.dp_shard"},
       RampEndsAtGlobal},
  };
  static const std::vector<Relation> all = Together(Together(ModelRelations(), rank_free), MeshRelations());
  return all;
}

}  // namespace espalier
