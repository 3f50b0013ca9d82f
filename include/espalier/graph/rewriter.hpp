// How a pass replaces the ops of a graph. One that keeps their places edits them where they are: an op set to {} is
// dropped by Graph::Renumber.
#pragma once

#include <utility>
#include <vector>

#include "espalier/graph/graph.hpp"

namespace espalier {

/// Takes the ops out of a graph. The pass walks `ops` and appends to Graph::ops what comes in their place: an op as it
/// was, another one, more before or after it, or nothing. At the end of its life the new ops are numbered.
class Rewriter {
 public:
  explicit Rewriter(Graph& graph) : ops(std::exchange(graph.ops, {})), graph_(graph) {}
  ~Rewriter() { graph_.Renumber(); }
  Rewriter(const Rewriter&) = delete;
  Rewriter& operator=(const Rewriter&) = delete;

  std::vector<Op> ops;  ///< as they were; may be moved from

 private:
  Graph& graph_;
};

}  // namespace espalier
