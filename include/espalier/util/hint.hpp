// Advice and details that follow an error.
#pragma once

#include <string>
#include <string_view>

namespace espalier {

/// A message of a UserError that belongs to the one before it: advice, or a detail. It is printed indented and is not
/// counted as an error. It stays a hint where messages travel between ranks.
inline std::string Hint(std::string_view text) { return "  " + std::string(text); }

inline bool IsHint(std::string_view message) { return message.starts_with("  "); }

}  // namespace espalier
