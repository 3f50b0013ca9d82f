#include "tokenize/documents.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "espalier/util/error.hpp"
#include "tokenize/cuts.hpp"
#include "tokenize/text_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxGrid = int64_t{64} << 10, kMaxLine = int64_t{1} << 30, kBlock = int64_t{1} << 20;

/// The whole lines that begin in a slice: from the first line end before it to the first one at its end.
std::string WholeLines(const Slice& slice, int64_t& begin) {
  begin = std::max<int64_t>(0, slice.begin - 1);
  std::string text = ReadRange(slice.path, begin, slice.end);
  const auto end = [&] { return begin + std::ssize(text); };
  while (!text.empty() && text.back() != '\n' && end() < slice.bytes) {
    const std::string block = ReadRange(slice.path, end(), std::min(slice.bytes, end() + kBlock));
    const size_t line_end = block.find('\n');
    text += block.substr(0, line_end == block.npos ? line_end : line_end + 1);
    if (block.empty() || std::ssize(text) > kMaxLine + slice.end - slice.begin)
      throw UserError(ExitStatus::kData, fmt::format("{}:{}: a line of more than {} bytes", slice.path,
                                                     LineOf(slice.path, slice.begin), kMaxLine));
  }
  if (slice.begin > 0) {
    const size_t first = text.find('\n');
    const size_t skipped = first == text.npos ? text.size() : first + 1;
    text.erase(0, skipped);
    begin += static_cast<int64_t>(skipped);
  }
  return text;
}

/// The text of a line; if there is none, `why` gives the reason.
bool TextOf(std::string_view line, const std::string& field, std::string& text, std::string& why) {
  try {
    const nlohmann::json object = nlohmann::json::parse(line);
    if (!object.is_object() || !object.contains(field) || !object[field].is_string()) {
      why = fmt::format("is no object with a string \"{}\"", field);
      return false;
    }
    text = object[field].get<std::string>();
    return true;
  } catch (const nlohmann::json::exception& error) {
    why = fmt::format("is not JSON: {}", error.what());
    return false;
  }
}

void EncodeLines(const Tokenizer& tokenizer, const TokenizeJob& job, const Slice& slice, PartTokens& part) {
  part.bad_lines += ReadLines(slice, job, [&](std::string_view text) {
    if (job.begin_token) part.ids.push_back(*job.begin_token);
    tokenizer.Encode(text, part.ids);
    if (job.end_token) part.ids.push_back(*job.end_token);
    ++part.documents;
  });
}

void EncodeText(const Tokenizer& tokenizer, const TokenizeJob& job, const Slice& slice, PartTokens& part) {
  if (job.begin_token && slice.begin == 0) part.ids.push_back(*job.begin_token);
  const LongText text(tokenizer, slice.path, slice.bytes, std::min(kMaxGrid, job.part_bytes));
  const std::vector<int32_t> ids = text.Encode(slice.begin, slice.end);
  part.ids.insert(part.ids.end(), ids.begin(), ids.end());
  if (slice.end < slice.bytes) return;
  if (job.end_token) part.ids.push_back(*job.end_token);
  ++part.documents;
}

}  // namespace

int64_t ReadLines(const Slice& slice, const TokenizeJob& job, const std::function<void(std::string_view)>& on_text) {
  int64_t begin = 0, bad = 0;
  const std::string lines = WholeLines(slice, begin);
  std::string text, why;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line(lines.data() + at, end - at);
    const int64_t offset = begin + static_cast<int64_t>(at);
    at = end + 1;
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    if (TextOf(line, job.field, text, why)) {
      on_text(text);
    } else if (job.skip_bad) {
      ++bad;
    } else {
      throw UserError(ExitStatus::kData, fmt::format("{}:{}: {} (--skip-bad skips and counts such lines)", slice.path,
                                                     LineOf(slice.path, offset), why));
    }
  }
  return bad;
}

PartTokens EncodePart(const Tokenizer& tokenizer, const TokenizeJob& job, const std::vector<Slice>& slices) {
  PartTokens part;
  for (const Slice& slice : slices)
    HasLines(slice.path) ? EncodeLines(tokenizer, job, slice, part) : EncodeText(tokenizer, job, slice, part);
  return part;
}

}  // namespace espalier
