// Functions of templates on strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/template/argument_reader.hpp"
#include "text/template/functions.hpp"

namespace espalier::jinja {

enum class Side : uint8_t { kLeft, kRight, kBoth };
enum class Letters : uint8_t { kUpper, kLower, kCapitalized };

/// Removes characters of `set`, or white space, at the ends.
std::string Strip(std::string_view text, const std::optional<std::string>& set, Side side);
/// Fails for letters beyond ASCII; `name` is the caller's name for the message.
std::string InCase(std::string_view name, std::string text, Letters letters);
/// The filter `title`: words begin after a blank, a hyphen or an open bracket.
std::string Titled(std::string text);
/// The method `title`: words begin after any character but a letter.
std::string MethodTitled(std::string text);
/// `most` < 0: all.
std::string Replaced(const std::string& text, const std::string& from, const std::string& to, int64_t most,
                     Budget& budget);
Value Split(const std::string& text, Reader& reader, bool from_right);
/// Whether the text begins or ends with one text, or with one of a tuple's.
bool HasEdge(const std::string& text, const Value& edges, bool at_end);
std::string Indented(const std::string& text, Reader& reader, Budget& budget);

}  // namespace espalier::jinja
