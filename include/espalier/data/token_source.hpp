// The source of tokens: files, concatenated and split into samples. doc/data.md describes the formats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/data/permutation.hpp"
#include "espalier/deck/choices.hpp"

namespace espalier {

class ChatTemplate;
class Tokenizer;
class World;

/// A file of a source, as it was when the source was opened.
struct DataFile {
  std::string path;
  int64_t bytes = 0;
  uint64_t sample = 0;  ///< hash of a bounded part of its bytes (doc/data.md)
};

/// A sample: consecutive tokens of a source, and where its documents begin.
struct Sample {
  std::vector<int32_t> tokens;     ///< seq_len + 1
  std::vector<int64_t> documents;  ///< tokens at which a document begins, rising; 0 is the first, also if the document
                                   ///< continues from the previous sample
  std::vector<uint8_t> uncounted;  ///< 1 for each token that is not a counted target; empty: all count
};

/// The order in which a run reads its samples.
struct SampleOrder {
  int64_t seed = 0;
  Order order = Order::kShuffled;
  int64_t first = 0;  ///< position of step 0's first sample; not 0 if samples were skipped
};

/// A source of a blend, as printed at the start of a run.
struct BlendPart {
  std::string name;     ///< the entry of paths
  double share = 0;     ///< share of the samples
  int64_t samples = 0;  ///< samples in an epoch of this source
};

/// How conversations fill the samples of a source. All zero if there are none.
struct Packing {
  int64_t documents = 0;
  int64_t cut = 0;             ///< documents that are longer than a sample
  int64_t without_target = 0;  ///< documents
  int64_t tokens = 0;          ///< tokens of the documents before they are cut
  int64_t targets = 0;         ///< among them
  int64_t room = 0;            ///< tokens of all samples
  int64_t padding = 0;         ///< among them

  Packing& operator+=(const Packing& other);
};

/// A sequence of tokens, split into samples: sample k is tokens [k s, (k + 1) s], both ends included, s = seq_len.
/// Conversations are packed into samples instead (src/data/conversations.cpp).
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  /// (tokens - 1) / seq_len, except for conversations; at least 1.
  virtual int64_t samples() const = 0;
  virtual int64_t tokens() const = 0;
  virtual int64_t seq_len() const = 0;
  /// In order; empty if tokens do not come from files.
  virtual const std::vector<DataFile>& files() const;
  /// Reads 0 <= sample < samples(). Throws UserError (kData) with file and place if a file can no longer be read, or a
  /// token id is out of range. One thread at a time.
  virtual void Read(int64_t sample, Sample& out) = 0;
  /// Reads the sample at `position` >= 0 of a run: the same for every layout and independent of earlier reads.
  virtual void ReadAt(int64_t position, const SampleOrder& order, Sample& out);
  /// Empty unless this is a blend.
  virtual std::vector<BlendPart> parts() const { return {}; }
  virtual Packing packing() const { return {}; }
  /// Identifies the data independently of paths: number of tokens, sizes and sampled bytes of the files in order;
  /// shares of a blend.
  virtual uint64_t Fingerprint() const;
};

/// Called before every directory and file that is read when data are opened; throws to stop.
using BeforeFile = std::function<void()>;

/// Settings of the data, named as in a deck.
struct DataSettings {
  DataFormat format = DataFormat::kText;
  std::vector<std::string> paths;  ///< files or globs
  int64_t seq_len = 0;
  int64_t vocab = 0;
  int64_t end_token = -1;            ///< the last token of a document, besides the end token of the format; -1: none
  std::vector<double> weights = {};  ///< one per entry of paths: a blend of these sources; empty: one source
  std::string hdf5_dataset = "tokens";
  std::string text_field = "text";  ///< field of each line of jsonl that holds the text
  std::string index_dir = {};       ///< folder of indices that are computed once; empty: the folder of each file
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;  ///< for text and jsonl; null: a byte is a token
  bool isolate_documents = false;  ///< refuses files that do not mark the ends of documents, unless end_token does
  std::shared_ptr<const ChatTemplate> chat_template = nullptr;  ///< template of conversations
  TrainOn train_on = TrainOn::kAssistant;                       ///< targets of chat
};

/// Counts the tokens of files whose format does not state their number (jsonl; text with a tokenizer) and keeps the
/// counts in index files, unless that was done before. Collective: each rank reads its share of the bytes, to the end
/// of its last line, and rank 0 writes the indices, whose bytes are the same for any number of ranks. Calls
/// `before_part` often. Returns the number of indices made. Throws AgreedError (kData) with file and line.
int64_t MakeIndices(const DataSettings& settings, World& world, const BeforeFile& before_part = {});

/// Whether MakeIndices would count anything. Throws UserError (kData) if a file cannot be read.
bool NeedIndices(const DataSettings& settings);

/// Opens files or globs (ExpandPaths) as one source, in the formats of doc/data.md. Files follow one another in byte
/// order of their paths. With weights, each entry of paths is a source of its own, and this is their blend. Reads a
/// bounded part of every file (DataFile::sample); token ids are checked as samples are read. Throws UserError (kData)
/// listing every path that cannot be read, every damaged header, every header whose vocabulary is larger than `vocab`,
/// and too few tokens for one sample.
std::unique_ptr<TokenSource> OpenTokenSource(const DataSettings& settings, const BeforeFile& before_file = {});

/// The files that paths and globs name, sorted by byte, each once. A path without `*?[` is taken literally. In a glob
/// `*` and `?` stay inside a name, `**` as a whole name is any number of directories, and a name with a leading dot
/// matches only a pattern with a leading dot. Like Python's glob.glob(p, recursive=True) without directories, except
/// that `**` visits each directory once, however many links lead there. Throws UserError (kData) naming every path that
/// is not a readable file and every glob that matches none.
std::vector<std::string> ExpandPaths(const std::vector<std::string>& paths, const BeforeFile& before_file = {});

/// Bytes of one token in a token file.
enum class TokenWidth : uint32_t { kU16 = 2, kU32 = 4 };

/// Writes a file of format "tokens". Throws UserError: kData if an id is not in [0, vocab) or does not fit the width,
/// kFault if the file cannot be written.
void WriteTokens(const std::string& path, std::span<const int32_t> ids, int64_t vocab, TokenWidth width);

}  // namespace espalier
