#include "espalier/deck/recompute.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "espalier/util/error.hpp"
#include "espalier/util/split.hpp"
#include "text.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxNumber = 1'000'000;  // of a layer

std::optional<int64_t> LayerNumberOf(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > kMaxNumber)
    return std::nullopt;
  return number;
}

std::vector<std::string_view> ModesOfLayers() {
  std::vector<std::string_view> modes = ChoiceNames<RecomputeMode>();
  std::erase(modes, DeckName(RecomputeMode::kAuto));
  return modes;
}

constexpr const char* kLayerForms = "(allowed: \"first 4\", \"every 2\", or layers such as \"0-3, 8\")";

/// Reads "norm+mlp"; returns what is wrong, or "".
std::string ReadWhat(std::string_view text, LayerRecompute& what) {
  for (std::string_view word : SplitAt(text, '+')) {
    const auto mode = ParseChoice<RecomputeMode>(word);
    if (const auto op = ParseChoice<RecomputeOp>(word)) {
      what.ops.Add(*op);
    } else if (mode && *mode != RecomputeMode::kAuto) {
      if (what.mode != RecomputeMode::kNone) return "WHAT names two modes";
      what.mode = *mode;
    } else {
      return fmt::format("\"{}\" is no mode and no op (allowed: {}, {})", word, fmt::join(ModesOfLayers(), ", "),
                         fmt::join(ChoiceNames<RecomputeOp>(), ", "));
    }
  }
  return "";
}

}  // namespace

std::string ToString(const LayerRecompute& what) {
  std::vector<std::string_view> words;
  if (what.mode != RecomputeMode::kNone || what.ops.Empty()) words.push_back(DeckName(what.mode));
  for (const auto& [op, name] : kChoices<RecomputeOp>)
    if (what.ops.Has(op)) words.push_back(name);
  return fmt::format("{}", fmt::join(words, "+"));
}

bool LayerSet::Names(int64_t layer, int64_t place) const {
  switch (which) {
    case Which::kFirst:
      return place < number;
    case Which::kEvery:
      return (place + 1) % number == 0;
    case Which::kListed:
      return std::ranges::any_of(ranges, [&](const auto& r) { return r.first <= layer && layer <= r.second; });
  }
  CHECK(false, "a set of layers names them in no known way");
}

ParsedLayerSet ParseLayerSet(std::string_view text, int64_t layers) {
  LayerSet set;
  for (const auto& [word, which] :
       {std::pair(std::string_view("first "), LayerSet::Which::kFirst), {"every ", LayerSet::Which::kEvery}}) {
    if (!text.starts_with(word)) continue;
    const auto number = LayerNumberOf(Trimmed(text.substr(word.size())));
    if (!number || *number < 1) return {{}, fmt::format("\"{}\" has no number of layers {}", text, kLayerForms)};
    set.which = which;
    set.number = *number;
    return {set, ""};
  }
  for (std::string_view part : SplitAt(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = LayerNumberOf(Trimmed(part.substr(0, dash)));
    const auto last = dash == part.npos ? first : LayerNumberOf(Trimmed(part.substr(dash + 1)));
    if (!first || !last || *last < *first)
      return {{}, fmt::format("\"{}\" is no layer and no range of layers {}", part, kLayerForms)};
    if (*last >= layers) return {{}, fmt::format("there is no layer {} (allowed: 0 to {})", *last, layers - 1)};
    set.ranges.emplace_back(*first, *last);
  }
  return {set, ""};
}

std::string LayerRanges(const std::vector<int>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += end - i > 1 ? fmt::format("{}-{}", layers[i], layers[end - 1]) : fmt::format("{}", layers[i]);
    i = end;
  }
  return text;
}

ParsedRecomputeRule ParseRecomputeRule(std::string_view entry, int64_t layers) {
  const size_t colon = entry.find(':');
  if (colon == entry.npos)
    return {{},
            "there is no colon (allowed: \"WHAT: LAYERS\", such as \"full: first 4\", \"norm+mlp: every 2\" or "
            "\"none: 0-3, 8\")"};
  LayerRecompute what;
  if (std::string fault = ReadWhat(Trimmed(entry.substr(0, colon)), what); !fault.empty())
    return {{}, std::move(fault)};
  ParsedLayerSet set = ParseLayerSet(Trimmed(entry.substr(colon + 1)), layers);
  return {{what, std::move(set.set)}, std::move(set.fault)};
}

RecomputePlan::RecomputePlan(const Deck::Recompute& recompute) {
  CHECK(recompute.mode != RecomputeMode::kAuto, "recompute.mode = \"auto\" has not been resolved");
  others_.mode = recompute.mode;
  for (const std::string& name : recompute.ops) {
    const auto op = ParseChoice<RecomputeOp>(name);
    CHECK(op, "recompute.ops names \"{}\"", name);
    others_.ops.Add(*op);
  }
  for (const std::string& entry : recompute.layers) rules_.push_back(ParseRecomputeRule(entry, kMaxNumber).rule);
}

const LayerRecompute& RecomputePlan::Of(int64_t layer, int64_t place) const {
  const auto rule = std::ranges::find_if(rules_, [&](const RecomputeRule& r) { return r.layers.Names(layer, place); });
  return rule == rules_.end() ? others_ : rule->what;
}

bool RecomputePlan::Empty() const {
  const LayerRecompute nothing;
  return others_ == nothing && std::ranges::all_of(rules_, [&](const RecomputeRule& r) { return r.what == nothing; });
}

}  // namespace espalier
