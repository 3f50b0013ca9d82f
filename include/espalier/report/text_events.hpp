// Texts for TensorBoard in a folder of their own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier {

struct TextEvent {
  std::string name;  ///< texts of one name are shown together, by step
  std::string text;  ///< Markdown; bytes that are not UTF-8 are replaced
};

/// Writes texts of one step, at `time` (seconds since 1970), as a new event file in `folder`, which must exist. It
/// replaces no other file. Throws UserError (kFault) if it cannot be written.
void WriteTextEvents(const std::string& folder, int64_t step, double time, const std::vector<TextEvent>& texts);

}  // namespace espalier
