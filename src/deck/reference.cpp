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

std::string KeyHelp(const DeckKey& key) {
  const std::string fallback = DefaultText(key), allowed = AllowedText(key);
  std::string text = fmt::format("  {} ({}", key.FullName(), TypeName(key));
  text += fallback.empty() ? ", required" : fmt::format(", default {}", fallback);
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
  const std::string fallback = DefaultText(key), allowed = Code(AllowedText(key));
  return fmt::format("| `{}` | {} | {} | {} | {} |\n", key.name, TypeName(key),
                     fallback.empty() ? "**required**" : Code(fallback), allowed, key.sentence);
}

constexpr std::string_view kIntroduction = R"(# The deck

*Made by `espalier doc-deck` from the schema table (`src/deck/schema.cpp`); do not edit it by hand.*

A deck is a TOML file in UTF-8, of at most 1 MiB. Every key is listed below; unknown keys, wrong types and broken
relations between keys are errors, and all mistakes are reported at once, each with its place and what is allowed.

- `include = ["base.toml"]` at the top takes over other decks, relative to this one; what comes later wins: included
  decks in their order, then the deck itself, then `key=value` arguments.
- `key=value` on the command line sets any key by its dotted name: `espalier inputs/llama/tiny.toml run.steps=20`. The
  value is TOML; a bare word is a string.
- Deck and command line alone decide what a run does, on a restart too: defaults < deck < command line. What follows from
  other keys (the defaults in words below) is derived anew. A checkpoint's deck is only compared: the keys that its weights
  belong to must agree, every other difference is reported at the start.
- An integer will do where a number is wanted; `3.0` will not do for an integer.
- `espalier check DECK` prints all values with their origin, `espalier --help SECTION` prints a table of this page.
)";

constexpr std::string_view kClosing = R"(
## Relations

Checked when the deck is read: `model.heads` divides `model.dim` and, for llama, leaves an even head size;
`model.kv_heads` divides `model.heads` and for gpt2 equals it; `model.vocab` is at least 256 for text; `batch.micro`
divides `batch.global`; every pipeline chunk gets a layer, as many chunks as the schedule can run, and `pipeline.split` names `pp * chunks` chunks that
add up to `model.layers`; validation needs files, and whole global batches.

Checked against the number of ranks: the degrees multiply to it (`dp_shard = -1` takes what is left); `tp` divides
`heads`, and it divides `kv_heads` or is a multiple of it (then ranks share kv heads); `batch.global` is a multiple of
`micro * dp_replicate * dp_shard`. The quotient is the number of microbatches: at least `pp` of them for interleaved,
`2 pp` for dualpipev.
)";

/// The bounds of sizes.cpp.
std::string Limits() {
  return fmt::format(R"(
## Limits

What a deck implies is checked as one list of relations before anything is computed or allocated, so that no product
wraps and every command ends. All limits are far above real use (405 billion parameters have 126 layers):

| what | limit |
|---|---|
| bytes of all parameters, their state, and what of them travels in a step, all ranks together | 2^58 = {:.2g} |
| bytes of all activations of a step, all ranks together | the same |
| tokens of a run | 2^62 |
| `model.layers` | {} |
| microbatches of a step x `model.layers` (x `cp` where keys travel in a ring); `pp` x `model.layers` | {} |
| `model.layers` x `dp_replicate` x `dp_shard` x `cp` x `tp` | {} |
| ranks | {} |

Bytes are estimated from above. What holds but needs more memory than there is ends a run with exit status 4. `plan`
compiles every different program of a world and says so if those are too many for one process.

## Settings without effect

A setting that differs from its default and yet changes nothing beside the others (`recompute.regather` with `zero = 2`,
`guard.max_skips` without `skip`, ...) is named once, with the reason, by `check` and at the start of a run. Of a key
that the command line gives twice the last value counts, which is said too.
)",
                     kMostStepBytes, kMostLayers, kMostPasses, kMostPeers, kMostRanks);
}

constexpr std::string_view kStatuses = R"(
## Exit status

| status | meaning |
|---|---|
| 0 | every step of the deck is done |
| 75 | stopped early, a checkpoint is committed: run me again |
| 2 | the deck or the command line is wrong: all mistakes are listed |
| 3 | data or checkpoint refused: what, where, why |
| 4 | it does not fit: which rank, how many bytes, of what |
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
  const std::string nearest = topic.find('.') == topic.npos ? Nearest(topic, Topics()) : NearestKey(topic);
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
