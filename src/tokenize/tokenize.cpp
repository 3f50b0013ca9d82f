#include "espalier/tokenize/tokenize.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>

#include "espalier/data/token_writer.hpp"
#include "espalier/text/utf8.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/parallel.hpp"
#include "tokenize/documents.hpp"
#include "tokenize/part_files.hpp"
#include "tokenize/text_file.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using Parts = std::vector<std::vector<Slice>>;

// Limits of the memory of --show: lines of documents, or a text.
constexpr int64_t kShownBytes = int64_t{64} << 20;
constexpr FileKind kShownText = {.what = "text to show", .most_bytes = int64_t{1} << 30};

/// Cuts files into slices of at most `bytes`, and collects slices of small files into parts of about as many.
Parts PlanParts(const std::vector<std::string>& files, int64_t bytes) {
  Parts parts;
  int64_t room = 0;
  for (const std::string& path : files) {
    const int64_t size = FileBytes(path);
    for (int64_t begin = 0; begin == 0 || begin < size; begin += bytes) {
      const Slice slice{path, size, begin, std::min(size, begin + bytes)};
      if (parts.empty() || slice.end - slice.begin > room) {
        parts.emplace_back();
        room = bytes;
      }
      parts.back().push_back(slice);
      room -= std::max<int64_t>(1, slice.end - slice.begin);
    }
  }
  return parts;
}

/// Everything on which the ids depend, one item per line.
std::string Describe(const Tokenizer& tokenizer, const TokenizeJob& job, const std::vector<std::string>& files) {
  const auto token = [](const std::optional<int32_t>& id) { return id ? fmt::format("{}", *id) : "none"; };
  std::string text =
      fmt::format("tokenizer {:08x}\nend token {}\nbegin token {}\nfield {}\npart bytes {}\nskip bad {}\n",
                  Crc32c(tokenizer.bytes().data(), tokenizer.bytes().size()), token(job.end_token),
                  token(job.begin_token), job.field, job.part_bytes, job.skip_bad);
  for (const std::string& path : files)
    text += fmt::format("file {} bytes {} changed {}\n", path, FileBytes(path),
                        fs::last_write_time(path).time_since_epoch().count());
  return text;
}

bool IsUtf8(const std::string& path) {
  constexpr int64_t kBlock = int64_t{1} << 22;
  std::string carried;
  for (int64_t at = 0, size = FileBytes(path); at < size; at += kBlock) {
    std::string text = carried + ReadRange(path, at, at + kBlock);
    carried = at + kBlock < size ? text.substr(text.size() - UnfinishedBytes(text)) : "";
    text.resize(text.size() - carried.size());
    if (FindBadUtf8(text)) return false;
  }
  return true;
}

/// The files of a job, without texts that are not UTF-8 if those are skipped.
std::vector<std::string> GoodFiles(const TokenizeJob& job, std::vector<std::string>& bad) {
  std::vector<std::string> good;
  for (const std::string& path : job.files)
    (job.skip_bad && !HasLines(path) && !IsUtf8(path) ? bad : good).push_back(path);
  return good;
}

std::string ShardPath(const std::string& output, int64_t shard) {
  constexpr std::string_view kEnding = ".tokens";
  const std::string stem = output.ends_with(kEnding) ? output.substr(0, output.size() - kEnding.size()) : output;
  return fmt::format("{}-{:05}{}", stem, shard, kEnding);
}

std::vector<std::string> OutputPaths(const TokenizeJob& job, int64_t tokens) {
  if (job.shard_tokens == 0) return {job.output};
  std::vector<std::string> paths;
  for (int64_t shard = 0; shard == 0 || shard * job.shard_tokens < tokens; ++shard)
    paths.push_back(ShardPath(job.output, shard));
  return paths;
}

/// Encodes the remaining parts, on several threads; the first error stops the others.
void DoParts(const Tokenizer& tokenizer, const TokenizeJob& job, const Parts& parts, const PartFiles& files,
             TokenizeResult& result) {
  std::vector<size_t> left;
  for (size_t k = 0; k < parts.size(); ++k)
    if (!files.Find(static_cast<int64_t>(k))) left.push_back(k);
  result.parts = std::ssize(parts);
  result.parts_before = result.parts - std::ssize(left);
  std::atomic<bool> failed = false;
  std::atomic<int64_t> done = result.parts_before;
  const auto work = [&](size_t i) {
    if (failed) return;
    try {
      files.Write(static_cast<int64_t>(left[i]), EncodePart(tokenizer, job, parts[left[i]]));
      job.progress(++done, result.parts);
    } catch (...) {
      failed = true;
      throw;
    }
  };
  ParallelFor(left.size(), work, job.threads);
}

/// Flushes the names in a folder to the disk.
void SyncFolder(const std::string& file) {
  const std::string folder = fs::absolute(file).parent_path().string();
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

/// Writes all parts, in order, to the outputs: each is complete when it gets its name.
void Merge(const Tokenizer& tokenizer, const TokenizeJob& job, const PartFiles& files, const TokenizeResult& result) {
  const TokenWidth width = WidthFor(tokenizer.vocab());
  const int64_t most = job.shard_tokens > 0 ? job.shard_tokens : std::max<int64_t>(1, result.tokens);
  const std::string temporary = files.Temporary("output");
  size_t shard = 0;
  int64_t room = 0;
  std::unique_ptr<TokenWriter> writer;
  const auto open_next = [&](int64_t begun) {
    room = std::min(most, result.tokens - begun);
    writer = std::make_unique<TokenWriter>(temporary, room, tokenizer.vocab(), width);
  };
  const auto commit = [&] {
    writer->Finish();
    fs::rename(temporary, result.outputs[shard++]);
  };
  int64_t written = 0;
  open_next(0);
  for (int64_t part = 0; part < result.parts; ++part)
    files.Read(part, [&](std::span<const int32_t> ids) {
      while (!ids.empty()) {
        if (room == 0) commit(), open_next(written);
        const auto some = ids.first(static_cast<size_t>(std::min<int64_t>(room, std::ssize(ids))));
        writer->Append(some);
        ids = ids.subspan(some.size());
        room -= std::ssize(some);
        written += std::ssize(some);
      }
    });
  commit();
  SyncFolder(job.output);
}

}  // namespace

TokenizeResult Tokenize(const Tokenizer& tokenizer, const TokenizeJob& job) {
  TokenizeResult result;
  const std::vector<std::string> good = GoodFiles(job, result.bad_files);
  const Parts parts = PlanParts(good, job.part_bytes);
  const std::string folder = job.output + ".parts";
  const std::string first = OutputPaths(job, 0).front();
  // If the folder with parts exists, the output was committed just before the job ended.
  if (fs::exists(first) && !fs::exists(folder))
    throw UserError(ExitStatus::kDeck, fmt::format("command line: -o: {} exists: remove it, or choose another", first));
  const PartFiles files(folder, Describe(tokenizer, job, good));
  DoParts(tokenizer, job, parts, files, result);
  for (int64_t part = 0; part < result.parts; ++part) {
    const std::optional<PartSummary> summary = files.Find(part);
    CHECK(summary, "part {} is missing", part);
    result.tokens += summary->tokens;
    result.documents += summary->documents;
    result.bad_lines += summary->bad_lines;
  }
  for (const std::string& path : good) result.bytes += FileBytes(path);
  result.outputs = OutputPaths(job, result.tokens);
  Merge(tokenizer, job, files, result);
  files.Remove();
  return result;
}

void TokenizeDocuments(const Tokenizer& tokenizer, const TokenizeJob& job, const OnDocument& on_document) {
  for (const std::string& path : job.files) {
    const int64_t bytes = FileBytes(path);
    const auto encode = [&](std::string_view text) {
      std::vector<int32_t> ids;
      if (job.begin_token) ids.push_back(*job.begin_token);
      tokenizer.Encode(text, ids);
      if (job.end_token) ids.push_back(*job.end_token);
      on_document(ids);
    };
    if (!HasLines(path)) encode(ReadFile(path, kShownText));
    for (int64_t begin = 0; HasLines(path) && begin < bytes; begin += kShownBytes)
      ReadLines({path, bytes, begin, std::min(bytes, begin + kShownBytes)}, job, encode);
  }
}

}  // namespace espalier
