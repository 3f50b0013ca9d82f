// espalier tokenize: text files to token files.
#include "espalier/tokenize/tokenize.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands.hpp"
#include "commands/refuse.hpp"
#include "espalier/data/token_source.hpp"
#include "espalier/report/text.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/clock.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr double kProgressMs = 10000;

/// Files, globs, and all files in folders.
std::vector<std::string> FindFiles(const std::vector<std::string>& paths) {
  std::vector<std::string> patterns;
  for (const std::string& path : paths) patterns.push_back(std::filesystem::is_directory(path) ? path + "/**" : path);
  return ExpandPaths(patterns);
}

/// A token by its name or id.
int32_t FindToken(const Tokenizer& tokenizer, const char* option, const std::string& text) {
  if (const std::optional<int32_t> id = tokenizer.Find(text)) return *id;
  char* end = nullptr;
  const long id = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || id < 0 || id >= tokenizer.vocab())
    Refuse(fmt::format("{}: {} is no token of this tokenizer (allowed: the name of a token, an id from 0 to {}, none)",
                       option, text, tokenizer.vocab() - 1));
  return static_cast<int32_t>(id);
}

std::optional<int32_t> EndToken(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.end_token == "none") return std::nullopt;
  if (!options.end_token.empty()) return FindToken(tokenizer, "--end-token", options.end_token);
  if (tokenizer.end_of_text()) return tokenizer.end_of_text();
  Refuse("--end-token: this tokenizer does not say which token ends a text: name it, or none");
}

std::optional<int32_t> BeginToken(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (!options.bos) return std::nullopt;
  if (!tokenizer.bos()) Refuse("--bos: this tokenizer has no token that begins a text");
  return tokenizer.bos();
}

std::string Shown(const Tokenizer& tokenizer, const std::optional<int32_t>& id) {
  return id ? fmt::format("{} ({})", *id, tokenizer.Name(*id)) : "none";
}

/// {"ids": ..., "text": ...} of each document.
void ShowTokens(const Tokenizer& tokenizer, const TokenizeJob& job) {
  TokenizeDocuments(tokenizer, job, [&](const std::vector<int32_t>& ids) {
    const nlohmann::json line = {{"ids", ids}, {"text", tokenizer.Decode(ids)}};
    fmt::print("{}\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  });
}

/// Prints a line from time to time.
class PartsProgress {
 public:
  void operator()(int64_t done, int64_t parts) {
    const std::lock_guard lock(mutex_);
    if (MillisecondsSince(said_) < kProgressMs) return;
    said_ = std::chrono::steady_clock::now();
    fmt::print(stderr, "{} of {} parts\n", done, parts);
  }

 private:
  std::mutex mutex_;
  std::chrono::steady_clock::time_point said_ = std::chrono::steady_clock::now();
};

void PrintResult(const TokenizeResult& result, size_t files, double seconds) {
  if (result.parts_before > 0) fmt::print("{} of {} parts were done before\n", result.parts_before, result.parts);
  for (const std::string& path : result.bad_files) fmt::print("skipped {}: it is not UTF-8\n", path);
  if (result.bad_lines > 0) fmt::print("skipped {} that are no document\n", Counted(result.bad_lines, "line"));
  const double share =
      result.parts == 0 ? 0
                        : static_cast<double>(result.parts - result.parts_before) / static_cast<double>(result.parts);
  const auto plural = [](auto count) { return count == 1 ? "" : "s"; };
  const size_t good = files - result.bad_files.size();
  fmt::print("{} file{}, {} document{}, {} token{}, {} of text, {:.1f} s ({:.1f} MB/s, {} tokens/s)\n", good,
             plural(good), result.documents, plural(result.documents), result.tokens, plural(result.tokens),
             HumanBytes(result.bytes), seconds, share * static_cast<double>(result.bytes) * 1e-6 / seconds,
             HumanCount(share * static_cast<double>(result.tokens) / seconds));
  if (result.outputs.size() == 1) {
    fmt::print("wrote {}\n", result.outputs.front());
  } else {
    fmt::print("wrote {} files, {} to {}\n", result.outputs.size(), result.outputs.front(), result.outputs.back());
  }
}

}  // namespace

int TokenizeCommand(const TokenizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::Load(options.tokenizer);
  for (const std::string& note : tokenizer->notes()) fmt::print(stderr, "{}: {}\n", options.tokenizer, note);
  TokenizeJob job;
  job.files = FindFiles(options.files);
  job.output = options.output;
  job.field = options.field;
  job.end_token = EndToken(*tokenizer, options);
  job.begin_token = BeginToken(*tokenizer, options);
  job.shard_tokens = options.shard_tokens;
  job.part_bytes = options.part_bytes;
  job.threads =
      options.threads > 0 ? options.threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  job.skip_bad = options.skip_bad;
  if (options.show) return ShowTokens(*tokenizer, job), static_cast<int>(ExitStatus::kDone);
  if (options.output.empty()) Refuse("-o is missing: the token file to write, or --show");
  fmt::print("{}: {} tokens; end of document {}, begin of document {}; {} threads\n", options.tokenizer,
             tokenizer->vocab(), Shown(*tokenizer, job.end_token), Shown(*tokenizer, job.begin_token), job.threads);
  std::fflush(stdout);
  job.progress = [progress = std::make_shared<PartsProgress>()](int64_t done, int64_t parts) {
    (*progress)(done, parts);
  };
  const TokenizeResult result = Tokenize(*tokenizer, job);
  PrintResult(result, job.files.size(), std::max(1e-3, MillisecondsSince(start) * 1e-3));
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
