#include "text/added_tokens.hpp"

#include <utf8proc.h>

#include <algorithm>

#include "text/splitter.hpp"

namespace espalier {
namespace {

/// Letters of the category So that Unicode calls alphabetic.
bool IsAlphabeticSymbol(int32_t c) {
  return (0x24b6 <= c && c <= 0x24e9) || (0x1f130 <= c && c <= 0x1f149) || (0x1f150 <= c && c <= 0x1f169) ||
         (0x1f170 <= c && c <= 0x1f189);
}

/// \w of Unicode: Alphabetic, marks, decimal digits, connectors, joiners.
bool IsWordCharacter(int32_t c) {
  if (c == 0x200c || c == 0x200d) return true;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return IsAlphabeticSymbol(c);
  }
}

bool StartsWithWord(std::string_view text) {
  if (text.empty()) return false;
  int32_t c = 0;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &c);
  return IsWordCharacter(c);
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) --at;
  return StartsWithWord(text.substr(at));
}

}  // namespace

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), nodes_(1) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    size_t node = 0;
    for (char c : tokens_[i].content) {
      const auto [found, is_new] = nodes_[node].next.try_emplace(c, nodes_.size());
      node = found->second;
      if (is_new) nodes_.emplace_back();
    }
    if (node == 0) continue;
    if (nodes_[node].token < 0) nodes_[node].token = static_cast<int32_t>(i);
    begins_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
}

const AddedToken* AddedTokens::LongestAt(std::string_view text, size_t at) const {
  const AddedToken* longest = nullptr;
  size_t node = 0;
  for (; at < text.size(); ++at) {
    const auto next = nodes_[node].next.find(text[at]);
    if (next == nodes_[node].next.end()) break;
    node = next->second;
    if (nodes_[node].token >= 0) longest = &tokens_[static_cast<size_t>(nodes_[node].token)];
  }
  return longest;
}

void AddedTokens::Split(std::string_view text, std::vector<Section>& sections) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token = begins_[static_cast<unsigned char>(text[at])] ? LongestAt(text, at) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) continue;
    while (token->lstrip && begin > done && SpaceBytesBefore(text, begin) > 0) begin -= SpaceBytesBefore(text, begin);
    while (token->rstrip && SpaceBytes(text, end) > 0) end += SpaceBytes(text, end);
    if (done < begin) sections.push_back({text.substr(done, begin - done)});
    sections.push_back({text.substr(begin, end - begin), token->id});
    done = end;
  }
  if (done < text.size()) sections.push_back({text.substr(done)});
}

}  // namespace espalier
