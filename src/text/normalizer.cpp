#include "text/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "espalier/text/utf8.hpp"
#include "espalier/util/error.hpp"
#include "text/pattern.hpp"
#include "text/splitter.hpp"

namespace espalier {
namespace {

bool IsAscii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// NFC, NFD, NFKC, NFKD by the flags of utf8proc.
TextChange Unicode(int flags) {
  return [flags](std::string& text) {
    if (IsAscii(text)) return;
    utf8proc_uint8_t* result = nullptr;
    const auto bytes =
        utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                     &result, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | flags));
    const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(result, std::free);
    if (bytes < 0)
      throw UserError(ExitStatus::kData, fmt::format("Unicode normalization fails: {}", utf8proc_errmsg(bytes)));
    text.assign(reinterpret_cast<const char*>(result), static_cast<size_t>(bytes));
  };
}

TextChange Strip(bool left, bool right) {
  return [=](std::string& text) {
    size_t begin = 0, end = text.size();
    while (left && begin < end && SpaceBytes(text, begin) > 0) begin += SpaceBytes(text, begin);
    while (right && begin < end && SpaceBytesBefore(text, end) > 0) end -= SpaceBytesBefore(text, end);
    text = text.substr(begin, end - begin);
  };
}

TextChange Prepend(std::string what) {
  return [what = std::move(what)](std::string& text) {
    if (!text.empty()) text.insert(0, what);
  };
}

void AddChange(const JsonReader& json, std::vector<TextChange>& changes) {
  const std::string type = json["type"].Text();
  if (type == "Sequence") {
    json.RequireObject({"type", "normalizers"});
    for (const JsonReader& part : json["normalizers"].Elements()) AddChange(part, changes);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    json.RequireObject({"type"});
    const int form = type.ends_with("C") ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    changes.push_back(Unicode(form | (type.size() == 4 ? UTF8PROC_COMPAT : 0)));
  } else if (type == "Replace") {
    json.RequireObject({"type", "pattern", "content"});
    changes.push_back(ReadReplace(json));
  } else if (type == "Prepend") {
    json.RequireObject({"type", "prepend"});
    changes.push_back(Prepend(json["prepend"].Text()));
  } else if (type == "Strip") {
    json.RequireObject({"type", "strip_left", "strip_right"});
    changes.push_back(Strip(json["strip_left"].Bool(), json["strip_right"].Bool()));
  } else {
    json["type"].Refuse("is not supported (supported: NFC, NFD, NFKC, NFKD, Replace, Prepend, Strip, Sequence)");
  }
}

}  // namespace

TextChange ReadReplace(const JsonReader& json) {
  const auto split = ReadPattern(json["pattern"]);
  return [split, content = json["content"].Text()](std::string& text) {
    std::vector<Part> parts;
    split(text, parts);
    if (std::ranges::none_of(parts, &Part::matches)) return;
    std::string result;
    for (const Part& part : parts) result += part.matches ? std::string_view(content) : part.text;
    text = std::move(result);
  };
}

std::vector<TextChange> ReadNormalizer(const JsonReader& json) {
  std::vector<TextChange> changes;
  if (!json.IsNull()) AddChange(json, changes);
  return changes;
}

}  // namespace espalier
