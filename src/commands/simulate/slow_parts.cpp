#include "commands/simulate/slow_parts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int kMaxSlow = 1'000'000;
constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

struct NumberAndFactor {
  int number = 0;
  double factor = 1;
};

/// The number that the whole text denotes.
template <typename T>
std::optional<T> ReadNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class SlowReader {
 public:
  SlowReader(int ranks, int ranks_per_node) : ranks_(ranks), ranks_per_node_(ranks_per_node) {}

  std::vector<Slow> Read(const SlowArguments& arguments) {
    for (const std::string& text : arguments.ranks)
      if (const auto read = ReadOne("--slow-rank", text, "rank", ranks_)) Add(Slow::What::kCompute, *read, 1);
    for (const std::string& text : arguments.links)
      if (const auto read = ReadOne("--slow-link", text, "rank", ranks_)) Add(Slow::What::kLinks, *read, 1);
    const int nodes = (ranks_ + ranks_per_node_ - 1) / ranks_per_node_;
    for (const std::string& text : arguments.nodes)
      if (const auto read = ReadOne("--slow-node", text, "node", nodes)) {
        Add(Slow::What::kCompute, *read, ranks_per_node_);
        Add(Slow::What::kLinks, *read, ranks_per_node_);
      }
    if (!errors_.empty()) throw UserError(ExitStatus::kDeck, std::move(errors_));
    return std::move(slow_);
  }

 private:
  std::optional<NumberAndFactor> ReadOne(std::string_view option, std::string_view text, std::string_view what,
                                         int count) {
    const auto refuse = [&](const std::string& why) {
      errors_.push_back(fmt::format("command line: {} {}: {}", option, text, why));
      return std::nullopt;
    };
    const size_t sign = text.find('=');
    const std::optional<int> number = ReadNumber<int>(text.substr(0, sign));
    const double factor = sign == text.npos ? kNoNumber : ReadNumber<double>(text.substr(sign + 1)).value_or(kNoNumber);
    if (!number || std::isnan(factor))
      return refuse(fmt::format("must be the number of a {} and a factor, such as 3=1.5", what));
    if (*number < 0 || *number >= count)
      return refuse(fmt::format("{} {} is not below the number of {}s, {}", what, *number, what, count));
    if (!(factor >= 1 && factor <= kMaxSlow)) return refuse(fmt::format("the factor must be from 1 to {}", kMaxSlow));
    return NumberAndFactor{*number, factor};
  }

  void Add(Slow::What what, const NumberAndFactor& read, int ranks_of_one) {
    const int first = read.number * ranks_of_one;
    slow_.push_back({what, first, std::min(first + ranks_of_one, ranks_) - 1, read.factor});
  }

  int ranks_, ranks_per_node_;
  std::vector<Slow> slow_;
  std::vector<std::string> errors_;
};

}  // namespace

std::vector<Slow> ReadSlowParts(const SlowArguments& arguments, int ranks, int ranks_per_node) {
  return SlowReader(ranks, ranks_per_node).Read(arguments);
}

}  // namespace espalier
