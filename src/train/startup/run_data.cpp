#include "train/startup/run_data.hpp"

#include <fmt/core.h>
#include <spdlog/spdlog.h>

#include "espalier/comm/agreement.hpp"
#include "espalier/deck/batch_ramp.hpp"
#include "espalier/deck/epochs.hpp"
#include "espalier/program/plan.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/chat_template.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/train/count_steps.hpp"
#include "espalier/train/stop_signals.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/fault.hpp"
#include "espalier/util/hint.hpp"
#include "train/startup/same_start.hpp"

namespace espalier {
namespace {

const FaultStages kRunDataStages = {"open-data"};

/// Obeys signals while data are opened, if that takes long: after a short opening the run ends with a checkpoint
/// instead.
BeforeFile ObeySignals() {
  constexpr double kPatienceMs = 1000;
  return [began = std::chrono::steady_clock::now()] {
    FaultPoint("open-data");
    if (const int signal = StopSignal(); signal != 0 && MillisecondsSince(began) > kPatienceMs)
      throw UserError(ExitStatus::kStopped, fmt::format("{} while the data were opened: this start has trained nothing",
                                                        StopSignalName(signal)));
  };
}

/// The messages with the place of the key, and a remedy.
UserError At(const LoadedDeck& loaded, const std::string& key, const UserError& error) {
  if (error.status() != ExitStatus::kData) return error;
  std::vector<std::string> messages;
  for (const std::string& message : error.messages())
    messages.push_back(IsHint(message) ? message : fmt::format("{}: {}: {}", loaded.origins.at(key), key, message));
  messages.push_back(Hint("doc/data.md says what data files are and how to make them"));
  return {error.status(), std::move(messages)};
}

/// Whether the data may be text, which data.tokenizer encodes; otherwise they are already ids.
bool CutsText(const Deck& deck) { return IsText(deck.data.format) || deck.data.format == DataFormat::kAuto; }

/// data.tokenizer, which must not have more tokens than the model; null if there is none.
std::shared_ptr<const Tokenizer> TokenizerOf(const LoadedDeck& loaded) {
  const Deck& deck = loaded.deck;
  if (deck.data.tokenizer.empty()) return nullptr;
  try {
    auto tokenizer = Tokenizer::Load(deck.data.tokenizer);
    if (tokenizer->vocab() > deck.model.vocab)
      throw UserError(ExitStatus::kData, fmt::format("{}: has {} tokens, more than model.vocab = {}: raise model.vocab",
                                                     deck.data.tokenizer, tokenizer->vocab(), deck.model.vocab));
    return tokenizer;
  } catch (const UserError& error) {
    throw At(loaded, "data.tokenizer", error);
  }
}

/// data.chat_template; null if the data are no conversations.
std::shared_ptr<const ChatTemplate> TemplateOf(const LoadedDeck& loaded, const Tokenizer* tokenizer) {
  if (loaded.deck.data.format != DataFormat::kChat) return nullptr;
  try {
    return ChatTemplate::Load(loaded.deck.data.chat_template, tokenizer);
  } catch (const UserError& error) {
    throw At(loaded, "data.chat_template", error);
  }
}

/// How text and conversations become tokens.
struct TextSettings {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatTemplate> chat_template;
};

TextSettings TextSettingsOf(const LoadedDeck& loaded, const std::shared_ptr<const Tokenizer>& tokenizer) {
  TextSettings text{CutsText(loaded.deck) ? tokenizer : nullptr, nullptr};
  text.chat_template = TemplateOf(loaded, text.tokenizer.get());
  return text;
}

DataSettings SettingsOf(const Deck& deck, const std::vector<std::string>& paths, const std::vector<double>& weights,
                        const TextSettings& text) {
  const Deck::Data& data = deck.data;
  return {data.format,    paths,          deck.model.seq_len,     deck.model.vocab,
          data.end_token, weights,        data.hdf5_dataset,      data.text_field,
          data.index_dir, text.tokenizer, data.isolate_documents, text.chat_template,
          data.train_on};
}

std::unique_ptr<TokenSource> Open(const LoadedDeck& loaded, World& world, const std::string& key,
                                  const DataSettings& settings) {
  std::unique_ptr<TokenSource> source;
  int64_t indices = 0;
  try {
    indices = MakeIndices(settings, world, ObeySignals());
    OnAllRanks(world, [&] { source = OpenTokenSource(settings, ObeySignals()); });
  } catch (const AgreedError& error) {
    const UserError at = At(loaded, key, error);
    throw AgreedError(at.status(), at.messages());
  }
  if (world.Rank() == 0 && indices > 0)
    spdlog::info("data: counted the tokens of {} of {}; their indices are {}", Counted(indices, "file"), key,
                 settings.index_dir.empty() ? "beside them" : "in " + settings.index_dir);
  AgreeOnData(world, key, *source);
  return source;
}

DataSettings TrainingSettings(const Deck& deck, const TextSettings& text) {
  return SettingsOf(deck, deck.data.paths, deck.data.weights, text);
}

int64_t SequencesOfRun(const Deck& deck) { return BatchRamp(deck.batch).SequencesUpTo(deck.run.steps); }

/// Passes over `samples`, if the run takes this share of its samples from them.
double Epochs(const Deck& deck, double share, int64_t samples) {
  return share * static_cast<double>(SequencesOfRun(deck)) / static_cast<double>(samples);
}

/// "240 steps x 16", "240 steps of 4 to 16".
std::string StepsOfDeck(const Deck& deck) {
  const std::vector<RampSize> sizes = BatchRamp(deck.batch).SizesWithin(deck.run.steps);
  if (sizes.size() == 1) return fmt::format("{} x {}", Counted(deck.run.steps, "step"), sizes[0].sequences);
  return fmt::format("{} steps of {} to {}", deck.run.steps, sizes.front().sequences, sizes.back().sequences);
}

}  // namespace

RunData OpenRunData(const LoadedDeck& loaded, World& world) {
  const Deck& deck = loaded.deck;
  RunData data;
  OnAllRanks(world, [&] { data.tokenizer = TokenizerOf(loaded); });
  if (world.Rank() == 0 && data.tokenizer)
    for (const std::string& why : data.tokenizer->left_out()) spdlog::warn("{}: not kept with the tokenizer", why);
  TextSettings text;
  OnAllRanks(world, [&] { text = TextSettingsOf(loaded, data.tokenizer); });
  data.training = Open(loaded, world, "data.paths", TrainingSettings(deck, text));
  if (Evaluates(deck))
    data.validation = Open(loaded, world, "data.validation",
                           SettingsOf(deck, deck.data.validation, deck.data.validation_weights, text));
  return data;
}

CountedSteps CountSteps(LoadedDeck loaded) {
  if (!AwaitsData(loaded.deck)) return {std::move(loaded), ""};
  std::string why_not = "a run counts the tokens of data.paths at its first start";
  int64_t samples = 0;
  try {
    const DataSettings settings = TrainingSettings(loaded.deck, TextSettingsOf(loaded, TokenizerOf(loaded)));
    if (!NeedIndices(settings)) samples = OpenTokenSource(settings)->samples();
  } catch (const UserError& error) {
    why_not = error.messages().front();
  }
  if (samples == 0)
    return {loaded,
            fmt::format("not known before the data are open (run.epochs = {}): {}", loaded.deck.run.epochs, why_not)};
  LoadedDeck counted = WithStepsOfEpochs(std::move(loaded), samples);
  std::string words = fmt::format("{}, {}", counted.deck.run.steps, counted.origins.at("run.steps"));
  return {std::move(counted), std::move(words)};
}

LoadedDeck RequireSteps(LoadedDeck loaded) {
  CountedSteps counted = CountSteps(std::move(loaded));
  if (AwaitsData(counted.loaded.deck))
    throw UserError(ExitStatus::kDeck, fmt::format("{}: run.steps is {}; set run.steps instead",
                                                   counted.loaded.origins.at("run.epochs"), counted.words));
  return std::move(counted.loaded);
}

DataRecord RunData::Record(const Deck& deck) const {
  if (training == nullptr) return {};
  DataRecord record{std::ssize(training->files()), training->tokens(), training->samples(),
                    Epochs(deck, 1, training->samples()), training->Fingerprint()};
  for (const BlendPart& part : training->parts())
    record.sources.push_back({part.name, part.share, part.samples, Epochs(deck, part.share, part.samples)});
  return record;
}

std::string Describe(const DataSeen& data) {
  return fmt::format("{} tokens, fingerprint {:016x}", data.tokens, data.fingerprint);
}

std::string DescribePacking(const Packing& packing, int64_t seq_len) {
  if (packing.documents == 0) return "";
  const auto percent = [](int64_t part, int64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::string line = fmt::format("{}, {:.3g} % of whose tokens are targets; {:.3g} % of the samples is padding",
                                 Counted(packing.documents, "conversation"), percent(packing.targets, packing.tokens),
                                 percent(packing.padding, packing.room));
  if (packing.without_target > 0)
    line += fmt::format("; {} without a target", Counted(packing.without_target, "conversation"));
  if (packing.cut > 0)
    line += fmt::format("; {} cut to {} tokens (model.seq_len + 1)", Counted(packing.cut, "conversation"), seq_len + 1);
  return line;
}

std::vector<std::string> Describe(const RunData& data, const Deck& deck) {
  const DataRecord record = data.Record(deck);
  const std::string all =
      fmt::format("{}, {}, {}; {} = ", Counted(record.files, "file"), Counted(record.tokens, "token"),
                  Counted(record.samples, "sample"), StepsOfDeck(deck));
  std::vector<std::string> lines = {
      all + (record.sources.empty()
                 ? fmt::format("{:.3g} epochs", record.epochs)
                 : Counted(SequencesOfRun(deck), "sample") + fmt::format(" of {} sources", record.sources.size()))};
  const std::string packing = DescribePacking(data.training->packing(), deck.model.seq_len);
  if (!packing.empty()) lines.push_back(packing);
  for (const SourceRecord& source : record.sources)
    lines.push_back(fmt::format("{:.4g} % from {}: {} = {:.3g} epochs", 100 * source.share, source.name,
                                Counted(source.samples, "sample"), source.epochs));
  return lines;
}

}  // namespace espalier
