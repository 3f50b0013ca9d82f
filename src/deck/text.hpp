// Small helpers on text: UTF-8, names of keys, lists of numbers for messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

inline constexpr char32_t kNotUtf8 = 0xffffffff;

/// Decodes the code point at `position` and moves `position` after it; kNotUtf8 (and one byte further) if there is
/// none.
char32_t DecodeUtf8(std::string_view text, size_t& position);

/// True if the text is UTF-8 without control characters.
bool IsPlainText(std::string_view text);

/// The text as it may be printed on a terminal: '?' for control characters and for invalid UTF-8.
std::string Printable(std::string_view text);

/// Our name for another framework's value ("gpu", "bfloat16"); empty if there is none.
std::string OtherName(std::string_view value);

/// The product, capped at the largest int64; factors >= 1.
int64_t Product(std::initializer_list<int64_t> factors);

/// "1, 2, 4, 8": at most ten, then "...".
std::string ListNumbers(const std::vector<int64_t>& numbers);

/// Divisors of n >= 1, rising.
std::vector<int64_t> Divisors(int64_t n);

/// "6, 12, 18, ..."; only n if its multiples exceed an int64.
std::string MultiplesText(int64_t n);

}  // namespace espalier
