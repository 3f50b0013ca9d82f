// Joined values: tensors [b,s,n] side by side in one, each in columns of its own, so that one matmul makes them or
// reads them (pass `join`). Ops of joined values have the attribute `columns`: the global widths of the parts, in order
// ("64,32,32"). Every rank holds the same share of each part.
#pragma once

#include <charconv>
#include <numeric>
#include <string>
#include <vector>

#include "espalier/util/attributes.hpp"

namespace espalier {

inline constexpr std::string_view kColumns = "columns";

/// The attribute of an op; empty if it has none.
inline std::vector<int64_t> ColumnsOf(const Attributes& attributes) {
  std::vector<int64_t> widths;
  const auto found = attributes.texts.find(kColumns);
  if (found == attributes.texts.end()) return widths;
  const char* at = found->second.data();
  for (const char* const end = at + found->second.size(); at < end; ++at) {
    const auto [next, error] = std::from_chars(at, end, widths.emplace_back());
    CHECK(error == std::errc{} && (next == end || *next == ',') && widths.back() > 0, "columns \"{}\"", found->second);
    at = next;
  }
  return widths;
}

inline void SetColumns(Attributes& attributes, const std::vector<int64_t>& widths) {
  std::string text;
  for (int64_t width : widths) text += (text.empty() ? "" : ",") + std::to_string(width);
  attributes.texts[std::string(kColumns)] = text;
}

/// The widths of the parts on a rank that holds `width` columns of the joined value.
inline std::vector<int64_t> LocalColumns(const Attributes& attributes, int64_t width) {
  std::vector<int64_t> widths = ColumnsOf(attributes);
  const int64_t whole = std::accumulate(widths.begin(), widths.end(), int64_t{0});
  for (int64_t& part : widths) {
    CHECK(part * width % whole == 0, "{} of {} columns hold no share of {}", width, whole, part);
    part = part * width / whole;
  }
  return widths;
}

}  // namespace espalier
