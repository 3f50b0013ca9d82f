// The data of a run: opened before any memory is taken, and the same on every rank.
#pragma once

#include <memory>
#include <string>

#include "espalier/checkpoint/manifest.hpp"
#include "espalier/comm/world.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/report/report.hpp"

namespace espalier {

class Tokenizer;

struct RunData {
  std::shared_ptr<TokenSource> training;       ///< null if the device only waits
  std::unique_ptr<TokenSource> validation;     ///< null if the deck does not evaluate
  std::shared_ptr<const Tokenizer> tokenizer;  ///< data.tokenizer; null if there is none

  /// The training data in the form that checkpoints record.
  DataSeen Seen() const {
    return training == nullptr ? DataSeen{} : DataSeen{training->tokens(), training->Fingerprint()};
  }
  /// The same in the form that metrics.jsonl records.
  DataRecord Record(const Deck& deck) const;
};

/// Opens data.paths and data.validation. Throws UserError with the place of the key: kData if they cannot be read or
/// differ between ranks, kStopped if a signal asks the run to end meanwhile. Collective.
RunData OpenRunData(const LoadedDeck& loaded, World& world);

/// "317 files, 1.90M tokens, 14.8k samples; 240 steps x 16 = 0.26 epochs"; a blend has one more line for each source.
std::vector<std::string> Describe(const RunData& data, const Deck& deck);

/// "1901233 tokens, fingerprint 4c4b7c0d7c1f02a9".
std::string Describe(const DataSeen& data);

}  // namespace espalier
