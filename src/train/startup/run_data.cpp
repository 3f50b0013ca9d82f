#include "train/startup/run_data.hpp"

#include <fmt/format.h>

#include "espalier/comm/agreement.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/text.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "train/startup/same_start.hpp"

namespace espalier {
namespace {

const FaultStages kFaultStages = {"open-data"};

/// Obeys signals while data are opened, once that takes long: after a short opening the run ends with a checkpoint.
BeforeFile ObeySignals() {
  constexpr double kPatienceMs = 1000;
  return [began = std::chrono::steady_clock::now()] {
    FaultPoint("open-data");
    if (const int signal = StopSignal(); signal != 0 && MillisecondsSince(began) > kPatienceMs)
      throw UserError(ExitStatus::kStopped, fmt::format("{} while the data were opened: this start has trained nothing",
                                                        StopSignalName(signal)));
  };
}

/// Messages with the place of the key, and what to do.
UserError At(const LoadedDeck& loaded, const std::string& key, const UserError& error) {
  if (error.status() != ExitStatus::kData) return error;
  std::vector<std::string> messages;
  for (const std::string& message : error.messages())
    messages.push_back(fmt::format("{}: {}: {}", loaded.origins.at(key), key, message));
  messages.emplace_back("doc/data.md says what data files are and how to make them");
  return {error.status(), std::move(messages)};
}

std::unique_ptr<TokenSource> Open(const LoadedDeck& loaded, World& world, const std::string& key,
                                  const std::vector<std::string>& paths) {
  const Deck& deck = loaded.deck;
  std::unique_ptr<TokenSource> source;
  OnAllRanks(world, [&] {
    try {
      source = OpenTokenSource({deck.data.format, paths, deck.model.seq_len, deck.model.vocab, deck.data.end_token},
                               ObeySignals());
    } catch (const UserError& error) {
      throw At(loaded, key, error);
    }
  });
  AgreeOnData(world, key, *source);
  return source;
}

std::string Count(int64_t count, const char* what) {
  return fmt::format("{} {}{}", HumanCount(static_cast<double>(count)), what, count == 1 ? "" : "s");
}

}  // namespace

RunData OpenRunData(const LoadedDeck& loaded, World& world) {
  RunData data;
  data.training = Open(loaded, world, "data.paths", loaded.deck.data.paths);
  if (Evaluates(loaded.deck)) data.validation = Open(loaded, world, "data.validation", loaded.deck.data.validation);
  return data;
}

DataRecord RunData::Record(const Deck& deck) const {
  if (training == nullptr) return {};
  const double consumed = static_cast<double>(deck.run.steps) * static_cast<double>(deck.batch.global);
  return {std::ssize(training->files()), training->tokens(), training->samples(),
          consumed / static_cast<double>(training->samples()), DataFingerprint(*training)};
}

std::string Describe(const DataSeen& data) {
  return fmt::format("{} tokens, fingerprint {:016x}", data.tokens, data.fingerprint);
}

std::string Describe(const RunData& data, const Deck& deck) {
  const DataRecord record = data.Record(deck);
  return fmt::format("{}, {}, {}; {} steps x {} = {:.3g} epochs", Count(record.files, "file"),
                     Count(record.tokens, "token"), Count(record.samples, "sample"), deck.run.steps, deck.batch.global,
                     record.epochs);
}

}  // namespace espalier
