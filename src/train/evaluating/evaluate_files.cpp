// espalier evaluate: rank 0 reads documents and adds up their losses; all ranks compute. The loss of a document does
// not depend on the ranks: its rows are filled, and its losses added, in one order.
#include "espalier/train/evaluate_files.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/comm/agreement.hpp"
#include "espalier/data/document_file.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/chat_template.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/train/choose_device.hpp"
#include "espalier/train/saved_deck.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"
#include "espalier/util/clock.hpp"
#include "train/evaluating/evaluation_deck.hpp"
#include "train/evaluating/rows.hpp"
#include "train/evaluating/token_scorer.hpp"
#include "train/job.hpp"
#include "train/startup/same_start.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;

/// A folder for indices of files, which are not written next to other people's data.
class ScratchFolder {
 public:
  ScratchFolder() : path_((fs::temp_directory_path() / "espalier-evaluate-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr)
      throw UserError(ExitStatus::kFault, fmt::format("{}: cannot be made: {}; TMPDIR names another place for it",
                                                      path_, std::strerror(errno)));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::shared_ptr<const Tokenizer> TokenizerOf(const EvaluateOptions& options, const std::string& dir, const Deck& deck) {
  auto tokenizer = options.tokenizer.empty() ? ReadTokenizer(dir) : Tokenizer::Load(options.tokenizer);
  if (tokenizer && tokenizer->vocab() > deck.model.vocab)
    throw UserError(ExitStatus::kData,
                    fmt::format("the tokenizer has {} tokens, more than the model (model.vocab = {}): it is another "
                                "model's",
                                tokenizer->vocab(), deck.model.vocab));
  return tokenizer;
}

std::optional<int32_t> FirstToken(const EvaluateOptions& options, const Tokenizer* tokenizer) {
  if (!options.bos) return std::nullopt;
  if (tokenizer == nullptr || !tokenizer->bos())
    throw UserError(ExitStatus::kDeck, tokenizer == nullptr
                                           ? "command line: --bos: there is no tokenizer"
                                           : "command line: --bos: the tokenizer has no token that begins a text");
  return tokenizer->bos();
}

std::shared_ptr<const ChatTemplate> TemplateOf(const Deck& deck, const Tokenizer* tokenizer) {
  return deck.data.format == DataFormat::kChat ? ChatTemplate::Load(deck.data.chat_template, tokenizer) : nullptr;
}

/// On rank 0: the files, their documents, and the sums of their losses.
class Documents {
 public:
  Documents(const EvaluateOptions& options, const std::string& dir, const Deck& deck, int64_t stride)
      : tokenizer_(TokenizerOf(options, dir, deck)),
        first_(FirstToken(options, tokenizer_.get())),
        filler_(deck.model.seq_len, stride),
        tokens_(DescribeTokens(options)) {
    files_ = OpenDocumentFiles({.format = deck.data.format,
                                .paths = options.files,
                                .seq_len = deck.model.seq_len,
                                .vocab = deck.model.vocab,
                                .end_token = deck.data.end_token,
                                .hdf5_dataset = deck.data.hdf5_dataset,
                                .text_field = deck.data.text_field,
                                .index_dir = scratch_.path(),
                                .tokenizer = tokenizer_,
                                .chat_template = TemplateOf(deck, tokenizer_.get()),
                                .train_on = deck.data.train_on});
    RequireTokenizer(SavedDeck(dir, ReadMetadata(dir).deck).data.format);
    for (const DocumentFile& file : files_) {
      scores_.push_back({file.path(), {}, {0, 0, BytesAreKnown(file) ? std::optional(int64_t{0}) : std::nullopt}});
      all_tokens_ += file.tokens();
    }
  }

  /// Up to `most` rows; none after the last document.
  std::vector<Row> Take(int64_t most) {
    std::vector<Row> rows;
    owners_.clear();
    while (std::ssize(rows) < most) {
      Row row;
      Owners owners;
      while (filler_.Fill(row, owners) && NextDocument()) {
      }
      if (row.tokens.empty()) break;
      rows.push_back(std::move(row));
      owners_.push_back(std::move(owners));
    }
    return rows;
  }

  /// The losses of the rows that were taken last, `seq_len` per row.
  void Add(const std::vector<double>& losses, int64_t seq_len) {
    for (size_t r = 0; r < owners_.size(); ++r)
      for (size_t t = 0; t < owners_[r].size(); ++t)
        if (const int64_t owner = owners_[r][t]; owner >= 0) {
          Score& score = places_[static_cast<size_t>(owner)].In(scores_).score;
          score.loss += losses[r * static_cast<size_t>(seq_len) + t];
          ++score.targets;
        }
  }

  /// Tokens of the files read so far; and tokens of all files.
  int64_t taken() const { return taken_; }
  int64_t all_tokens() const { return all_tokens_; }
  const std::string& tokens() const { return tokens_; }

  std::vector<FileScore> Finish() {
    for (FileScore& file : scores_)
      for (const DocumentScore& document : file.documents) file.total.Add(document.score);
    if (std::ranges::all_of(scores_, [](const FileScore& file) { return file.total.targets == 0; }))
      throw UserError(ExitStatus::kData,
                      "no document has a target: the first token of a document is none (--bos makes "
                      "it one), and others do not count where the data say so");
    return std::move(scores_);
  }

 private:
  struct Place {
    size_t file, document;
    DocumentScore& In(std::vector<FileScore>& files) const { return files[file].documents[document]; }
  };

  std::string DescribeTokens(const EvaluateOptions& options) const {
    if (tokenizer_ == nullptr) return "bytes of text, and ids of token files as they are";
    return options.tokenizer.empty() ? fmt::format("{} of the checkpoint", tokenizer_->file_name()) : options.tokenizer;
  }

  /// Text cannot be evaluated by a model with other tokens.
  void RequireTokenizer(DataFormat trained) const {
    if (tokenizer_ != nullptr || IsText(trained) || trained == DataFormat::kAuto) return;
    for (const DocumentFile& file : files_)
      if (file.IsText())
        throw UserError(ExitStatus::kDeck,
                        fmt::format("command line: {} is text, but this model was trained on token ids (data.format = "
                                    "\"{}\"), and its checkpoint has no tokenizer: give --tokenizer FILE",
                                    file.path(), DeckName(trained)));
  }

  bool BytesAreKnown(const DocumentFile& file) const { return tokenizer_ != nullptr || file.IsText(); }

  /// False after the last document of the last file.
  bool NextDocument() {
    Document document;
    while (file_ < files_.size() && !files_[file_].Next(document)) ++file_;
    if (file_ == files_.size()) return false;
    taken_ += std::ssize(document.tokens);
    DocumentScore score{std::ssize(document.tokens), {}};
    if (first_ && document.tokens.front() != *first_) Begin(document);
    if (BytesAreKnown(files_[file_])) score.score.bytes = BytesOfTargets(document);
    places_.push_back({file_, scores_[file_].documents.size()});
    scores_[file_].documents.push_back(score);
    filler_.Begin(std::ssize(places_) - 1, std::move(document));
    return true;
  }

  void Begin(Document& document) const {
    document.tokens.insert(document.tokens.begin(), *first_);
    if (!document.uncounted.empty()) document.uncounted.insert(document.uncounted.begin(), 1);
  }

  /// Bytes of the tokens that count as targets: all but the first one and the masked ones. Without a tokenizer a zero
  /// ends a document and is not one of its bytes.
  int64_t BytesOfTargets(const Document& document) const {
    std::optional<TextStream> stream;
    if (tokenizer_ != nullptr) stream.emplace(*tokenizer_);
    int64_t bytes = 0;
    for (size_t i = 0; i < document.tokens.size(); ++i) {
      const int32_t id = document.tokens[i];
      const int64_t own = stream ? std::ssize(stream->Push(id)) : id != 0 ? 1 : 0;
      const bool counts = i > 0 && (document.uncounted.empty() || document.uncounted[i] == 0);
      if (counts) bytes += own;
    }
    return bytes;
  }

  ScratchFolder scratch_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<int32_t> first_;  ///< the token that begins a document
  std::vector<DocumentFile> files_;
  std::vector<FileScore> scores_;
  std::vector<Place> places_;  ///< places of the documents, in the order in which they are read
  size_t file_ = 0;
  RowFiller filler_;
  std::vector<Owners> owners_;  ///< owners of the rows that were taken last
  std::string tokens_;
  int64_t taken_ = 0, all_tokens_ = 0;
};

/// Prints a line on standard error from time to time.
class EvaluationProgress {
 public:
  void Say(const Documents& documents) {
    constexpr double kEveryMs = 10000;
    if (MillisecondsSince(said_) < kEveryMs) return;
    said_ = std::chrono::steady_clock::now();
    fmt::print(stderr, "espalier: {} of {}, {} tokens/s\n", HumanCount(double(documents.taken())),
               Counted(documents.all_tokens(), "token"),
               HumanCount(double(documents.taken()) / MillisecondsSince(began_) * 1e3));
  }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now(), said_ = began_;
};

int64_t StrideOf(const EvaluateOptions& options, const Deck& deck) {
  if (options.stride <= deck.model.seq_len) return options.stride == 0 ? deck.model.seq_len : options.stride;
  throw UserError(ExitStatus::kDeck, fmt::format("command line: --stride {}: leaves tokens out (allowed: 1 to {}, "
                                                 "model.seq_len)",
                                                 options.stride, deck.model.seq_len));
}

std::string FindCheckpoint(const EvaluateOptions& options) {
  return Resolve(options.checkpoint, fs::path(options.checkpoint).parent_path());
}

/// The collective part of the evaluation.
class EvaluationJob {
 public:
  EvaluationJob(const EvaluateOptions& options, World& world, MpiWorld* mpi, Parts& parts)
      : options_(options), world_(world), mpi_(mpi), parts_(parts) {}

  void Run(const std::function<void(const Evaluated&)>& report) {
    const std::string dir = OnRankZero(world_, [&] { return FindCheckpoint(options_); });
    Deck deck;
    OnAllRanks(world_, [&] {
      deck = EvaluationDeck(dir, options_, world_.Size());
      ResolveMesh(deck, world_.Size());
    });
    AgreeOnOrder(world_, deck);
    Documents* documents = nullptr;
    OnAllRanks(world_, [&] {
      const int64_t stride = StrideOf(options_, deck);
      if (IsRankZero()) documents = &parts_.Make<Documents>(options_, dir, deck, stride);
      RequireFit(dir, ParameterTensors(deck), Coverage::kSome);
    });
    const Threads threads = AgreeOnThreads(deck, world_);
    Device& device = parts_.Keep(ChooseDevice(deck, world_, mpi_, threads.count));
    TokenScorer& scorer = parts_.Make<TokenScorer>(deck, dir, world_, mpi_, device);
    Compute(scorer, documents, deck.model.seq_len);
    OnAllRanks(world_, [&] {
      if (IsRankZero()) report(Finish(*documents, dir, deck, scorer.compilation()));
    });
  }

 private:
  bool IsRankZero() const { return world_.Rank() == 0; }

  void Compute(TokenScorer& scorer, Documents* documents, int64_t seq_len) {
    EvaluationProgress progress;
    while (true) {
      const std::vector<Row> rows = OnRankZero(world_, [&] { return documents->Take(scorer.rows()); });
      if (rows.empty()) return;
      const std::vector<double> losses = scorer.Losses(rows);
      if (!IsRankZero()) continue;
      documents->Add(losses, seq_len);
      progress.Say(*documents);
    }
  }

  Evaluated Finish(Documents& documents, const std::string& dir, const Deck& deck,
                   const Compilation& compilation) const {
    Evaluated all;
    all.checkpoint = dir;
    all.step = ReadMetadata(dir).step;
    all.model = fmt::format("{}, {} parameters, {} compute", DeckName(deck.model.family),
                            ExactCount(compilation.parameter_count), DeckName(deck.precision.compute));
    all.tokens = documents.tokens();
    all.seq_len = deck.model.seq_len;
    all.stride = StrideOf(options_, deck);
    all.ranks = world_.Size();
    all.mesh = compilation.mesh.ToString();
    all.files = documents.Finish();
    all.total.bytes = 0;
    for (const FileScore& file : all.files) all.total.Add(file.total);
    return all;
  }

  const EvaluateOptions& options_;
  World& world_;
  MpiWorld* mpi_;
  Parts& parts_;
};

/// Must be called before anything starts a thread. All ranks report errors together later.
void ChooseHowThreadsWait(const EvaluateOptions& options) {
  try {
    WaitBriefly(EvaluationDeck(FindCheckpoint(options), options, 1));
  } catch (const UserError&) {
  }
}

}  // namespace

ExitStatus EvaluateFiles(const EvaluateOptions& options, const std::function<void(const Evaluated&)>& report) {
  ChooseHowThreadsWait(options);
  InitializeStorage();
  return RunJob([&](World& world, MpiWorld* mpi, Parts& parts) {
    EvaluationJob(options, world, mpi, parts).Run(report);
    return ExitStatus::kDone;
  });
}

}  // namespace espalier
