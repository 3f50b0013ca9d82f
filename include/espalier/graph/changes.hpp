// How much a pass has changed.
#pragma once

#include <cstdint>
#include <string_view>

namespace espalier {

/// Lines of the text of a graph (Print): its ops, and its values that no op makes.
struct Changes {
  int64_t added = 0, removed = 0;
  int64_t changed = 0;  ///< another line that defines the same values
  int64_t moved = 0;    ///< of the lines that are as before: the fewest whose moves give the new order

  bool operator==(const Changes&) const = default;
};

/// Compares the texts of a graph before and after.
Changes Compare(std::string_view before, std::string_view after);

}  // namespace espalier
