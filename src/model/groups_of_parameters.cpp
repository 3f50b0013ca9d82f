#include "espalier/model/groups_of_parameters.hpp"

#include <fmt/core.h>

#include "espalier/deck/parameter_groups.hpp"
#include "espalier/graph/provenance.hpp"
#include "espalier/model/matmul_patterns.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

Model ModelOf(const Deck& deck) {
  return BuildModel(deck, SplitLayers(deck, deck.parallel.pp * deck.pipeline.chunks), deck.batch.micro,
                    Purpose::kTrain);
}

/// Empty if the pattern matches a parameter.
std::string NearestUnlessMatched(const std::string& pattern, const std::vector<std::string>& names) {
  std::string nearest;
  int least = 0;
  for (const std::string& name : names) {
    if (MatchesParameter(pattern, name)) return "";
    const int edits = EditsToMatch(pattern, name);
    if (nearest.empty() || edits < least) nearest = name, least = edits;
  }
  return nearest;
}

struct Members {
  int64_t tensors = 0, elements = 0;
};

std::string Text(const std::string& who, const Members& members) {
  return fmt::format("{}: {} tensor{}, {} parameter{}", who, members.tensors, members.tensors == 1 ? "" : "s",
                     members.elements, members.elements == 1 ? "" : "s");
}

}  // namespace

void RequirePatternsMatch(const LoadedDeck& loaded) {
  const std::vector<std::string>& groups = loaded.deck.optimizer.groups;
  const Deck::Precision& precision = loaded.deck.precision;
  const bool fp8 = precision.matmul == MatmulPrecision::kFp8;
  if (groups.empty() && !fp8) return;
  const Model model = ModelOf(loaded.deck);
  std::vector<std::string> errors;
  for (const std::string& entry : groups) {
    const std::string pattern = ParseGroup(entry).group.pattern;
    if (const std::string nearest = NearestUnlessMatched(pattern, model.parameters); !nearest.empty())
      errors.push_back(
          fmt::format("{}: optimizer.groups: \"{}\": {} matches no parameter (the nearest name is {}; * "
                      "stands for any characters, dots included)",
                      loaded.origins.find("optimizer.groups")->second, entry, pattern, nearest));
  }
  if (fp8)
    for (const std::string& pattern : precision.bf16_matmuls)
      if (const std::string nearest = NearestUnlessMatched(pattern, MatmulNames(model)); !nearest.empty())
        errors.push_back(
            fmt::format("{}: precision.bf16_matmuls: \"{}\" matches no weight of a matmul (the nearest name is {}; * "
                        "stands for any characters, dots included)",
                        loaded.origins.find("precision.bf16_matmuls")->second, pattern, nearest));
  if (!errors.empty()) throw UserError(ExitStatus::kDeck, std::move(errors));
}

std::vector<std::string> DescribeGroups(const Deck& deck) {
  const std::vector<std::string>& groups = deck.optimizer.groups;
  if (groups.empty()) return {};
  const Model model = ModelOf(deck);
  std::vector<Members> members(groups.size() + 1);  // the last: of no group
  for (const std::string& name : model.parameters) {
    const int group = GroupOf(deck, name);
    Members& of = members[group < 0 ? groups.size() : static_cast<size_t>(group)];
    ++of.tensors;
    of.elements += Volume(model.graph.value(model.graph.Find(StateName(name))).type.shape);
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < groups.size(); ++i)
    lines.push_back(Text(fmt::format("\"{}\"", groups[i]), members[i]) +
                    (members[i].tensors == 0 ? "; entries before it have all that it matches" : ""));
  lines.push_back(Text("in no group", members.back()));
  return lines;
}

}  // namespace espalier
