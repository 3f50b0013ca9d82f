// The changes that tokenizer.json makes to a text before it is cut into words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "text/json_reader.hpp"

namespace espalier {

/// Changes a text in place.
using TextChange = std::function<void(std::string& text)>;

/// The normalizer of a file, as a list of changes. Throws UserError (kData) if it is not supported.
std::vector<TextChange> ReadNormalizer(const JsonReader& json);

/// Replaces every part of `text` that matches {"String": ...} or {"Regex": ...}. Throws like ReadNormalizer.
TextChange ReadReplace(const JsonReader& json);

}  // namespace espalier
