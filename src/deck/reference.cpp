// Help and doc/deck.md, from the schema table.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "espalier/deck/print.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/spelling.hpp"
#include "espalier/util/wrap.hpp"
#include "relations.hpp"
#include "text.hpp"

namespace espalier {
namespace {

constexpr size_t kHelpWidth = 100;

std::string DefaultText(const DeckKey& key) {
  if (const auto* value = std::get_if<DeckValue>(&key.fallback)) return ToToml(*value);
  if (const auto* derived = std::get_if<Derived>(&key.fallback)) return std::string(derived->text);
  return "";
}

/// For a key without a default: "required", or the key that may be set instead.
std::string RequiredText(const DeckKey& key) {
  const std::string_view unless = std::get<Required>(key.fallback).unless;
  return unless.empty() ? "required" : fmt::format("required, or {}", unless);
}

std::string KeyHelp(const DeckKey& key) {
  const std::string fallback = DefaultText(key), allowed = AllowedText(key.allowed);
  std::string text = fmt::format("  {} ({}", key.FullName(), TypeName(key));
  text += fallback.empty() ? ", " + RequiredText(key) : fmt::format(", default {}", fallback);
  if (!allowed.empty()) text += fmt::format("; allowed: {}", allowed);
  return Wrap(text + ")", kHelpWidth, 6) + "\n" + Wrap(fmt::format("      {}", key.sentence), kHelpWidth, 6) + "\n";
}

std::string SectionHelp(const DeckSection& section) {
  std::string text = fmt::format("[{}] {}\n", section.name, section.sentence);
  for (const DeckKey& key : DeckSchema())
    if (key.section == section.name) text += KeyHelp(key);
  return text;
}

std::vector<std::string> SectionNames() {
  std::vector<std::string> names = {"all"};
  for (const DeckSection& section : DeckSections()) names.emplace_back(section.name);
  return names;
}

std::vector<std::string> Topics() {
  std::vector<std::string> topics = SectionNames();
  for (const DeckKey& key : DeckSchema()) topics.push_back(key.FullName());
  return topics;
}

std::string Code(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

std::string TableRow(const DeckKey& key) {
  const std::string fallback = DefaultText(key), allowed = Code(AllowedText(key.allowed));
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, TypeName(key),
                     fallback.empty() ? "**" + RequiredText(key) + "**" : Code(fallback), allowed, key.sentence);
}

constexpr std::string_view kIntroduction = R"(# The deck

*Made by `espalier doc-deck` from the schema table (`src/deck/schema.cpp`); do not edit it by hand.*

A deck is a TOML file in UTF-8, of at most 1 MiB. Every key is listed below. Unknown keys, wrong types and broken
relations between keys are errors. All errors are reported at once, each with its place and what is allowed.

- `include = ["base.toml"]` at the top includes other decks, by paths relative to this one. Later values win: included
  decks in their order, then the deck itself, then `key=value` arguments.
- Further decks on the command line do the same: `espalier plan 8b.toml best.toml`. Later ones win, and name only what
  they change.
- `key=value` on the command line sets any key by its dotted name: `espalier inputs/llama/tiny.toml run.steps=20`. The
  value is TOML; a bare word is a string.
- Where a list of strings is expected, a string is a list of one: `data.paths=my.txt`. A leading `~/` of a path is the
  home of the user. Both hold in decks and on the command line.
- A deck that is not there as typed is looked for below the inputs of the clone or installation: `llama/tiny.toml` works
  in any folder.
- Deck and command line alone decide what a run does, also on a restart: defaults < deck < command line. Defaults that
  follow from other keys (given in words below) are derived again. The deck of a checkpoint is only compared: the keys
  that determine its weights must agree, and every other difference is reported at the start.
- A number may be written as an integer, but an integer not as a number: `3.0` is refused.
- `espalier check DECK` prints all values with their origin, `espalier --help SECTION` prints a table of this page.
)";

constexpr std::string_view kClosing = R"(
## Relations

Checked when the deck is read:

- `model.heads` divides `model.dim`, unless `model.head_dim` is set; for llama the head size is even.
- gpt2 has no `model.head_dim` of its own, no `model.qk_norm`, and norms before each half of a layer only.
- `model.rope_factor` is at least 1 where it is used; the two factors of llama3, and the two betas of yarn, differ in
  the right direction.
- `model.kv_heads` divides `model.heads`, and equals it for gpt2.
- Either `run.steps` or `run.epochs` is set. A later deck or the command line may set the other one instead.
- `model.vocab` is at least 256 for text.
- `batch.micro` divides `batch.global`, and the sizes of a ramp. `batch.ramp_start` is at most `batch.global`, and
  `batch.ramp_step` divides what is between them.
- The schedule can run `pipeline.chunks`, and every chunk gets a layer. `pipeline.split` names `pp * chunks` chunks that
  add up to `model.layers`. Only in it the first and the last chunk may have no layer.
- With `parallel.zero = 2` gradients are never whole, so `parallel.reduce` is not `step`.
- Validation needs files, and a whole number of global batches.

Checked against the number of ranks:

- The product of the degrees is the number of ranks; `dp_shard = -1` takes the remaining ranks.
- `tp` divides `heads`, and divides `kv_heads` or is a multiple of it; then ranks share kv heads.
- `ep` divides `experts.count`. It is the product of `tp`, if that divides it, of `cp`, if that divides the rest, and of
  a divisor of `dp_shard`. If it has a part of `dp_shard`, `regather_group` is 0.
- `batch.global` is a multiple of `micro * dp_replicate * dp_shard`. The quotient is the number of microbatches: at
  least `pp` for interleaved and zb-interleaved, `2 pp` for dualpipev.
- `batch.ramp_start` and `batch.ramp_step` are such multiples too, and `batch.ramp_start` makes enough microbatches.
)";

/// The bounds of sizes.cpp.
std::string Limits() {
  return fmt::format(R"(
## Limits

The sizes that follow from a deck are checked before anything is computed or allocated, so that no integer overflows and
every command ends. All limits are far above real use (405 billion parameters have 126 layers):

| what | limit |
|---|---|
| bytes of all parameters, their state and their messages in a step, all ranks together | 2^58 = {:.2g} |
| bytes of all activations of a step, all ranks together | the same |
| tokens of a run | 2^62 |
| `model.layers` | {} |
| microbatches of a step x `model.layers` (x `cp` where keys travel in a ring); `pp` x `model.layers` | {} |
| sizes of a ramp (`batch.ramp_start`) | {} |
| microbatches of all sizes of a ramp together x `model.layers` | {} |
| `model.layers` x `dp_replicate` x `dp_shard` x `cp` x `tp` | {} |
| ranks | {} |

Bytes are upper estimates. A run within the limits that needs more memory than the nodes have ends with exit status 4.
`plan` compiles every distinct program of all ranks, and says so if they are too many for one process.

## Settings without effect

A setting that differs from its default but has no effect together with the others (`recompute.regather` with
`zero = 2`, `guard.max_skips` without `skip`, ...) is reported once, with the reason, by `check` and at the start of a
run. If the command line gives a key twice, the last value counts, which is reported too.
)",
                     kMaxStepBytes, kMaxLayers, kMaxPasses, kMaxRampSizes, kMaxRampPasses, kMaxPeers, kMaxRanks);
}

constexpr std::string_view kStatuses = R"(
## Exit status

| status | meaning |
|---|---|
| 0 | every step of the deck is done |
| 75 | stopped early with a committed checkpoint: the same command continues the run |
| 2 | the deck or the command line is wrong: all errors are listed |
| 3 | data or checkpoint refused: what, where, why |
| 4 | not enough memory: which rank, how many bytes, for what |
| 1 | anything else: a folder that cannot be written, a full disk, a lost rank, numbers that are not finite, a fault |
)";

}  // namespace

std::string HelpText(std::string_view topic) {
  std::string text;
  for (const DeckSection& section : DeckSections())
    if (topic == "all" || topic == section.name) text += (text.empty() ? "" : "\n") + SectionHelp(section);
  if (!text.empty()) return text;
  for (const DeckKey& key : DeckSchema())
    if (topic == key.FullName() || topic == key.name) text += KeyHelp(key);
  if (!text.empty()) return text;
  std::string nearest = topic.find('.') == topic.npos ? Nearest(topic, Topics()) : "";
  if (nearest.empty()) nearest = NearestKey(topic);
  throw UserError(ExitStatus::kDeck, fmt::format("help on {}: no such section or key{} (allowed: {})", topic,
                                                 DidYouMean(nearest), fmt::join(SectionNames(), ", ")));
}

std::string SectionList() {
  std::string text;
  for (const DeckSection& section : DeckSections()) text += fmt::format("  {:<12}{}\n", section.name, section.sentence);
  return text;
}

std::string DeckReference() {
  std::string text(kIntroduction);
  for (const DeckSection& section : DeckSections()) {
    text += fmt::format("\n## `[{}]`: {}\n\n| key | type | default | allowed | meaning |\n|---|---|---|---|---|\n",
                        section.name, section.sentence);
    for (const DeckKey& key : DeckSchema())
      if (key.section == section.name) text += TableRow(key);
  }
  return text + std::string(kClosing) + Limits() + std::string(kStatuses);
}

}  // namespace espalier
