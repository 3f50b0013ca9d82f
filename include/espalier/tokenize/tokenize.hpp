// Text to token files: in parts, on several threads, and restartable. doc/tokenize.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "espalier/text/tokenizer.hpp"

namespace espalier {

struct TokenizeJob {
  std::vector<std::string> files;  ///< sorted; NAME.jsonl has a document in every line, any other file is one document
  std::string output;              ///< the token file; with shard_tokens > 0 NAME-00000.tokens for NAME.tokens
  std::string field = "text";      ///< field of the objects in .jsonl
  std::optional<int32_t> end_token, begin_token;  ///< tokens around each document
  int64_t shard_tokens = 0;                       ///< 0: one file
  int64_t part_bytes = int64_t{4} << 20;          ///< bytes of text that a thread takes at a time
  int threads = 1;
  bool skip_bad = false;  ///< skip and count lines that are not documents, and files that are not UTF-8
  std::function<void(int64_t done, int64_t parts)> progress = [](int64_t, int64_t) {};  ///< called from any thread
};

struct TokenizeResult {
  std::vector<std::string> outputs;
  int64_t documents = 0, tokens = 0, bytes = 0;
  int64_t bad_lines = 0;                ///< skipped
  std::vector<std::string> bad_files;   ///< skipped
  int64_t parts = 0, parts_before = 0;  ///< parts that an earlier run has finished
};

/// Tokenizes all files into OUTPUT. Finished parts are kept in OUTPUT.parts until a rename commits the output. If the
/// job ends early, the same job started again continues from the parts, with the same output. Throws UserError (kFault)
/// for failed writes; (kData) for an invalid input, with file and line, for a damaged or foreign OUTPUT.parts, and for
/// a text that cannot be cut anywhere; (kDeck) if the output exists.
TokenizeResult Tokenize(const Tokenizer& tokenizer, const TokenizeJob& job);

/// One document and its ids.
using OnDocument = std::function<void(const std::vector<int32_t>& ids)>;

/// Calls `on_document` for each document, in order, on this thread; writes nothing.
void TokenizeDocuments(const Tokenizer& tokenizer, const TokenizeJob& job, const OnDocument& on_document);

}  // namespace espalier
