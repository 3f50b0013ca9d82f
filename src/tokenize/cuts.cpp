// A place is good if the text around it, encoded as a whole, ends with the ids of the text after it alone. Words,
// merges and normalization look ahead at most a few words, so a place that is good for 16 KiB on both sides is good for
// the whole text.
#include "tokenize/cuts.hpp"

#include <algorithm>

#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"
#include "tokenize/text_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kContext = int64_t{16} << 10, kReach = int64_t{64} << 20;

bool IsAlphanumeric(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9'); }

bool IsSpace(char c) { return c == ' ' || ('\t' <= c && c <= '\r'); }

bool EndsWith(const std::vector<int32_t>& ids, const std::vector<int32_t>& end) {
  return ids.size() >= end.size() && std::equal(end.rbegin(), end.rend(), ids.rbegin());
}

/// Removes characters at the beginning or end of which a part is missing.
std::string WholeCharacters(std::string text) {
  text.resize(text.size() - UnfinishedBytes(text));
  size_t begin = 0;
  while (begin < text.size() && begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) ++begin;
  return text.substr(begin);
}

}  // namespace

std::string LongText::Valid(int64_t begin, int64_t end) const {
  std::string text = ReadRange(path_, begin, end);
  if (end < bytes_) text.resize(text.size() - UnfinishedBytes(text));
  if (const std::optional<size_t> bad = FindBadUtf8(text))
    throw UserError(ExitStatus::kData,
                    fmt::format("{}:{}: is not UTF-8: byte {} of the file is 0x{:02x}", path_,
                                LineOf(path_, begin + static_cast<int64_t>(*bad)), begin + static_cast<int64_t>(*bad),
                                static_cast<unsigned char>(text[*bad])));
  return text;
}

bool LongText::IsGood(const CutPlace& place) const {
  const std::string before = WholeCharacters(ReadRange(path_, std::max<int64_t>(0, place.at - kContext), place.at));
  const std::string after = WholeCharacters(ReadRange(path_, place.at, std::min(bytes_, place.at + kContext)));
  if (FindBadUtf8(before) || FindBadUtf8(after)) return false;
  return EndsWith(tokenizer_.Encode(before + after),
                  tokenizer_.Encode(after.substr(static_cast<size_t>(place.text - place.at))));
}

CutPlace LongText::Find(int64_t nominal) const {
  if (nominal <= 0) return {};
  if (!tokenizer_.IsLocal()) {
    if (bytes_ <= kReach) return {bytes_, bytes_};
    throw UserError(ExitStatus::kData,
                    fmt::format("{}: has {} bytes, and a unigram model must read a text as a whole (at most {} bytes): "
                                "split it, or make it a .jsonl of documents",
                                path_, bytes_, kReach));
  }
  for (int64_t from = (nominal + grid_ - 1) / grid_ * grid_; from < bytes_; from += grid_) {
    if (from > nominal + kReach)
      throw UserError(
          ExitStatus::kData,
          fmt::format("{}: this text cannot be cut between the bytes {} and {} without a change of its ids, "
                      "and is too long to be tokenized as a whole: split the file",
                      path_, nominal, from));
    const std::string text = ReadRange(path_, from - 1, std::min(bytes_, from + grid_ + 1));
    std::vector<CutPlace> places;  // the first line, and the first word, that begin here
    bool line = false, word = false;
    for (size_t i = 1; i + 1 < text.size() && !(line && word); ++i) {
      const int64_t at = from - 1 + static_cast<int64_t>(i);
      if (!line && text[i - 1] == '\n' && !IsSpace(text[i])) line = true, places.push_back({at, at});
      if (!word && text[i] == ' ' && IsAlphanumeric(text[i - 1]) && IsAlphanumeric(text[i + 1]))
        word = true, places.insert(places.end(), {{at, at}, {at, at + 1}});
    }
    const auto good = std::ranges::find_if(places, [&](const CutPlace& place) { return IsGood(place); });
    if (good != places.end()) return *good;
  }
  return {bytes_, bytes_};
}

std::vector<int32_t> LongText::Encode(int64_t nominal_begin, int64_t nominal_end) const {
  const CutPlace begin = Find(nominal_begin), end = Find(nominal_end);
  if (begin.at >= end.at) return {};
  const std::string text = Valid(begin.text, std::min(bytes_, end.at + kContext));
  std::vector<int32_t> ids = tokenizer_.Encode(text);
  if (end.at == bytes_) return ids;
  const std::vector<int32_t> rest =
      tokenizer_.Encode(std::string_view(text).substr(static_cast<size_t>(end.text - begin.text)));
  CHECK(EndsWith(ids, rest), "{}: the text around byte {} has other ids than alone", path_, end.at);
  ids.resize(ids.size() - rest.size());
  return ids;
}

}  // namespace espalier
