#include "espalier/graph/changes.hpp"

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

namespace espalier {
namespace {

std::vector<std::string_view> LinesOf(std::string_view text) {
  std::vector<std::string_view> lines;
  for (size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1))
    lines.push_back(text.substr(0, end));
  return lines;
}

/// The names of the values that a line defines; the whole line if it defines none.
std::string_view Defined(std::string_view line) { return line.substr(0, std::min(line.find(" = "), line.find(" : "))); }

/// The fewest numbers without which the others ascend: all that are not in the longest ascending sequence.
int64_t OutOfOrder(const std::vector<size_t>& numbers) {
  std::vector<size_t> lowest;  // by length: the lowest last number of an ascending sequence
  for (size_t number : numbers) {
    const auto longer = std::ranges::lower_bound(lowest, number);
    if (longer == lowest.end())
      lowest.push_back(number);
    else
      *longer = number;
  }
  return std::ssize(numbers) - std::ssize(lowest);
}

}  // namespace

Changes Compare(std::string_view before, std::string_view after) {
  std::map<std::string_view, std::deque<size_t>> places;  // by line before
  std::map<std::string_view, int64_t> gone;               // by what lines define that are not there after
  size_t place = 0;
  for (std::string_view line : LinesOf(before)) {
    places[line].push_back(place++);
    ++gone[Defined(line)];
  }
  std::vector<size_t> kept;
  std::vector<std::string_view> fresh;
  for (std::string_view line : LinesOf(after)) {
    std::deque<size_t>& same = places[line];
    if (same.empty()) {
      fresh.push_back(line);
      continue;
    }
    kept.push_back(same.front());
    same.pop_front();
    --gone[Defined(line)];
  }
  Changes changes{.moved = OutOfOrder(kept)};
  for (std::string_view line : fresh) ++(gone[Defined(line)]-- > 0 ? changes.changed : changes.added);
  for (const auto& [defined, count] : gone) changes.removed += std::max<int64_t>(count, 0);
  return changes;
}

}  // namespace espalier
