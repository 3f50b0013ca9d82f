// Who reads and who writes each value of a graph, by op id. (The op that makes an activation is Value::producer.)
#pragma once

#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// As the graph was when this was made: ops that are edited in place keep their ids, and new values have no entry.
class Uses {
 public:
  explicit Uses(const Graph& graph)
      : end_(static_cast<int>(graph.ops.size())), readers_(graph.values.size()), last_writer_(graph.values.size(), -1) {
    for (int i = 0; i < end_; ++i) {
      for (int v : graph.op(i).inputs) readers_[v].push_back(i);
      for (int v : graph.op(i).outputs) last_writer_[v] = i;
    }
    for (int v : graph.results) readers_[v].push_back(end_);
  }

  /// The ops that read a value, in order, once for each input. A result is read by one op past the last.
  const std::vector<int>& Readers(int value) const { return readers_[value]; }
  /// The first of them; one past the last op if there is none.
  int FirstReader(int value) const { return Readers(value).empty() ? end_ : Readers(value).front(); }
  /// The last op that writes a value of any kind; -1: none.
  int LastWriter(int value) const { return last_writer_[value]; }
  /// One past the last op.
  int End() const { return end_; }

 private:
  int end_;
  std::vector<std::vector<int>> readers_;
  std::vector<int> last_writer_;
};

}  // namespace espalier
