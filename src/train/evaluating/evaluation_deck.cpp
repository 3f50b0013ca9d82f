#include "train/evaluating/evaluation_deck.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/train/saved_deck.hpp"

namespace espalier {
namespace {

using Keys = std::vector<std::string>;

bool Gives(const Keys& keys, const std::string& prefix) {
  return std::ranges::any_of(keys, [&](const std::string& text) { return text.starts_with(prefix); });
}

/// The number that the last setting of the key gives; a wrong one is left to the reader of decks.
int64_t NumberOf(const Keys& keys, const std::string& key, int64_t otherwise) {
  for (const std::string& text : keys)
    if (text.starts_with(key + "=")) {
      int64_t number = 0;
      const char* begin = text.data() + key.size() + 1;
      const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
      if (error == std::errc() && number > 0) otherwise = number;
    }
  return otherwise;
}

bool ReadsConversations(const Keys& keys) {
  return Gives(keys, "data.format=chat") || Gives(keys, "data.format=\"chat\"");
}

/// A row for each rank that has its own rows, and twice as many as a pipeline has stages.
int64_t RowsOfStep(const Keys& keys, int ranks) {
  const int64_t pp = NumberOf(keys, "parallel.pp", 1);
  const int64_t parts = pp * NumberOf(keys, "parallel.cp", 1) * NumberOf(keys, "parallel.tp", 1);
  const int64_t microbatches = pp > 1 ? 2 * pp : 1;
  return std::max<int64_t>(1, ranks / parts) * NumberOf(keys, "batch.micro", 1) * microbatches;
}

Keys KeysOf(const EvaluateOptions& options, int ranks) {
  const bool parts = Gives(options.overrides, "parallel.");
  Keys keys = {"parallel.pp=1",
               "parallel.cp=1",
               "parallel.tp=1",
               "parallel.ep=1",
               fmt::format("parallel.dp_replicate={}", parts ? 1 : ranks),
               fmt::format("parallel.dp_shard={}", parts ? -1 : 1),
               fmt::format("batch.global={}", RowsOfStep(options.overrides, ranks)),
               "batch.micro=1",
               "batch.ramp_start=0",
               "pipeline.schedule=1f1b",
               "pipeline.chunks=1",
               "pipeline.split=[]",
               "run.device=auto",
               "run.transport=auto",
               "run.costs=\"\"",
               "loss.chunks=0",
               "data.format=auto",
               fmt::format("data.isolate_documents={}", ReadsConversations(options.overrides)),  // see below
               "data.validate_every_steps=0"};
  keys.insert(keys.end(), options.overrides.begin(), options.overrides.end());
  return keys;
}

}  // namespace

Deck EvaluationDeck(const std::string& dir, const EvaluateOptions& options, int ranks) {
  const std::string saved = ReadMetadata(dir).deck;
  SavedDeck(dir, saved);  // the saved deck is readable, so an error below is the user's
  Deck deck = ParseDeck(saved, dir + "/deck.toml", KeysOf(options, ranks), KeyNames::kOfAnyVersion).deck;
  deck.data.isolate_documents = true;  // isolates windows, whatever documents the files have
  return deck;
}

}  // namespace espalier
