// The loss of a trained model on files, document by document.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/util/error.hpp"

namespace espalier {

struct EvaluateOptions {
  std::string checkpoint;
  std::vector<std::string> files;      ///< files and globs, in any format of data.format
  std::vector<std::string> overrides;  ///< keys of the checkpoint's deck
  std::string tokenizer;               ///< empty: the checkpoint's; without one tokens are bytes
  int64_t stride = 0;                  ///< tokens from one window to the next; 0: model.seq_len
  bool bos = false;                    ///< each document begins with the beginning-of-text token
};

/// Sums over the counted targets of a document, of a file, or of all files.
struct Score {
  int64_t targets = 0;
  double loss = 0;               ///< sum of -ln p
  std::optional<int64_t> bytes;  ///< bytes of text that the targets stand for; nothing: unknown

  double MeanLoss() const;
  double Perplexity() const;
  /// Nothing if the bytes are unknown, or there are none.
  std::optional<double> BitsPerByte() const;
  /// Adds the sums of a part. If the bytes of a part are unknown, they are unknown for the whole.
  void Add(const Score& part);
};

struct DocumentScore {
  int64_t tokens = 0;  ///< tokens in it
  Score score;
};

struct FileScore {
  std::string path;
  std::vector<DocumentScore> documents;
  Score total;

  /// Documents without a counted target, such as documents of one token.
  int64_t WithoutTarget() const;
};

struct Evaluated {
  std::string checkpoint;  ///< its folder
  int64_t step = 0;
  std::string model;   ///< "llama, 803968 (0.804 M) parameters, fp32 compute"
  std::string tokens;  ///< origin of the tokens: "tokenizer.json of the checkpoint", "bytes"
  int64_t seq_len = 0, stride = 0;
  int ranks = 1;
  std::string mesh;
  std::vector<FileScore> files;
  Score total;
};

/// Evaluates on all ranks of the job, and calls `report` on rank 0. The scores do not depend on the number of ranks,
/// bit for bit, unless keys split the model among ranks. Starts and ends MPI. Throws UserError: kDeck for wrong options
/// and keys, kData for a checkpoint, tokenizer or file that cannot be used, kDoesNotFit.
ExitStatus EvaluateFiles(const EvaluateOptions& options, const std::function<void(const Evaluated&)>& report);

}  // namespace espalier
