#include "text/splitter.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// GPT-2's pattern, which ByteLevel has built in.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// White_Space beyond ASCII.
constexpr std::array<std::string_view, 19> kSpaces = {
    "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005", "\u2006",
    "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};

bool IsAsciiSpace(char c) { return c == ' ' || ('\t' <= c && c <= '\r'); }

/// How matches are merged with their neighbours.
using Join = std::function<void(std::vector<Part>& parts)>;

/// Merges each part with the previous one if `with_previous` is true, in order.
Join JoinForward(bool (*with_previous)(bool is_match, bool previous_is_match)) {
  return [with_previous](std::vector<Part>& parts) {
    size_t count = 0;
    bool previous = false;
    for (const Part& part : parts) {
      Part* last = count == 0 ? nullptr : &parts[count - 1];
      if (last != nullptr && with_previous(part.matches, previous)) {
        last->text = {last->text.data(), last->text.size() + part.text.size()};
      } else {
        parts[count++] = {part.text, part.matches};
      }
      previous = part.matches;
    }
    parts.resize(count, Part{});
  };
}

/// Merges each match with the part after it.
void JoinWithNext(std::vector<Part>& parts) {
  std::vector<Part> joined;
  bool previous = false;
  for (const Part& part : std::vector<Part>(parts.rbegin(), parts.rend())) {
    if (part.matches && !previous && !joined.empty()) {
      joined.back().text = {part.text.data(), part.text.size() + joined.back().text.size()};
    } else {
      joined.push_back(part);
    }
    previous = part.matches;
  }
  parts.assign(joined.rbegin(), joined.rend());
}

void Remove(std::vector<Part>& parts) {
  std::erase_if(parts, [](const Part& part) { return part.matches; });
}

Join ReadBehavior(const JsonReader& json) {
  const std::string name = json.Text();
  if (name == "Isolated") return [](std::vector<Part>&) {};
  if (name == "Removed") return Remove;
  if (name == "Contiguous") return JoinForward([](bool is_match, bool previous) { return is_match == previous; });
  if (name == "MergedWithPrevious")
    return JoinForward([](bool is_match, bool previous) { return is_match && !previous; });
  if (name == "MergedWithNext") return JoinWithNext;
  json.Refuse("must be Isolated, Removed, Contiguous, MergedWithPrevious or MergedWithNext");
}

SplitStep SplitBy(Cut cut, Join join) {
  return [cut = std::move(cut), join = std::move(join)](Words& words) {
    std::vector<Word> list;
    std::vector<Part> parts;
    for (const Word& word : words.list) {
      parts.clear();
      cut(word.text, parts);
      join(parts);
      for (const Part& part : parts) list.push_back({part.text, word.first && part.text.data() == word.text.data()});
    }
    words.list = std::move(list);
  };
}

Cut CutBy(std::string_view regex) {
  const auto pattern = std::make_shared<const Pattern>(regex);
  return [pattern](std::string_view text, std::vector<Part>& parts) { pattern->Split(text, parts); };
}

/// Cuts a text at the matches of a string.
Cut CutByString(const std::string& what) {
  return [what](std::string_view text, std::vector<Part>& parts) {
    size_t done = 0;
    for (size_t at; !what.empty() && (at = text.find(what, done)) != text.npos; done = at + what.size()) {
      if (done < at) parts.push_back({text.substr(done, at - done), false});
      parts.push_back({text.substr(at, what.size()), true});
    }
    if (done < text.size()) parts.push_back({text.substr(done), false});
  };
}

Cut Inverted(Cut cut) {
  return [cut = std::move(cut)](std::string_view text, std::vector<Part>& parts) {
    cut(text, parts);
    for (Part& part : parts) part.matches = !part.matches;
  };
}

/// Adds a space before every word, or before the first one, unless it has one.
SplitStep PrependTo(bool first_only, const std::string& what) {
  return [=](Words& words) {
    for (Word& word : words.list)
      if (!word.text.starts_with(what) && (word.first || !first_only))
        word.text = words.changed.emplace_back(what + std::string(word.text));
  };
}

SplitStep ReplaceSpaces(const std::string& by) {
  return [by](Words& words) {
    for (Word& word : words.list) {
      if (word.text.find(' ') == word.text.npos) continue;
      std::string& text = words.changed.emplace_back();
      for (char c : word.text) c == ' ' ? text += by : text += c;
      word.text = text;
    }
  };
}

void AddByteLevel(const JsonReader& json, Splitter& splitter) {
  json.RequireObject({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (json["add_prefix_space"].BoolOr(true)) splitter.steps.push_back(PrependTo(false, " "));
  if (json["use_regex"].BoolOr(true)) splitter.steps.push_back(SplitBy(CutBy(kGpt2), [](std::vector<Part>&) {}));
  splitter.bytes = true;
}

void AddMetaspace(const JsonReader& json, Splitter& splitter) {
  json.RequireObject({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  const std::string replacement = json["replacement"].Text();
  if (replacement == " ") json["replacement"].Refuse("a space cannot stand for itself");
  const bool legacy = json["add_prefix_space"].BoolOr(true);
  const std::string scheme = json["prepend_scheme"].TextOr(legacy ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    json["prepend_scheme"].Refuse("must be always, first or never");
  splitter.steps.push_back(ReplaceSpaces(replacement));
  if (scheme != "never") splitter.steps.push_back(PrependTo(scheme == "first", replacement));
  if (json["split"].BoolOr(true)) splitter.steps.push_back(SplitBy(CutByString(replacement), JoinWithNext));
}

void AddSplit(const JsonReader& json, Splitter& splitter) {
  json.RequireObject({"type", "pattern", "behavior", "invert"});
  Cut cut = ReadPattern(json["pattern"]);
  if (json["invert"].BoolOr(false)) cut = Inverted(std::move(cut));
  splitter.steps.push_back(SplitBy(std::move(cut), ReadBehavior(json["behavior"])));
}

void AddPart(const JsonReader& json, Splitter& splitter) {
  const std::string type = json["type"].Text();
  if (splitter.bytes) json["type"].Refuse("cannot follow ByteLevel, which must be the last pre_tokenizer");
  if (type == "Sequence") {
    json.RequireObject({"type", "pretokenizers"});
    for (const JsonReader& part : json["pretokenizers"].Elements()) AddPart(part, splitter);
  } else if (type == "ByteLevel") {
    AddByteLevel(json, splitter);
  } else if (type == "Split") {
    AddSplit(json, splitter);
  } else if (type == "Digits") {
    json.RequireObject({"type", "individual_digits"});
    const bool each = json["individual_digits"].BoolOr(false);
    splitter.steps.push_back(SplitBy(CutBy(each ? "\\p{N}" : "\\p{N}+"), [](std::vector<Part>&) {}));
  } else if (type == "Metaspace") {
    AddMetaspace(json, splitter);
  } else {
    json["type"].Refuse("is not supported (supported: ByteLevel, Split, Digits, Metaspace, Sequence)");
  }
}

}  // namespace

size_t SpaceBytes(std::string_view text, size_t at) {
  if (at < text.size() && IsAsciiSpace(text[at])) return 1;
  for (std::string_view space : kSpaces)
    if (text.substr(at).starts_with(space)) return space.size();
  return 0;
}

size_t SpaceBytesBefore(std::string_view text, size_t at) {
  if (at > 0 && IsAsciiSpace(text[at - 1])) return 1;
  for (std::string_view space : kSpaces)
    if (text.substr(0, at).ends_with(space)) return space.size();
  return 0;
}

Cut ReadPattern(const JsonReader& json) {
  json.RequireObject({"String", "Regex"});
  if (json.value().size() != 1) json.Refuse("must have String or Regex");
  if (!json["String"].IsNull()) return CutByString(json["String"].Text());
  const JsonReader regex = json["Regex"];
  try {
    return CutBy(regex.Text());
  } catch (const std::invalid_argument& error) {
    regex.Refuse(fmt::format("is not supported in patterns: {}", error.what()));
  }
}

Splitter ReadSplitter(const JsonReader& json) {
  Splitter splitter;
  if (!json.IsNull()) AddPart(json, splitter);
  return splitter;
}

}  // namespace espalier
