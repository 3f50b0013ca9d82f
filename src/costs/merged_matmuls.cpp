#include "merged_matmuls.hpp"

#include <algorithm>
#include <string>
#include <tuple>

namespace espalier {
namespace {

/// A shared operand at its position in matmuls of equal einsum dims, in one job.
using Shared = std::tuple<int, size_t, std::string, Role, int, int>;  // value, position, spec, role, chunk, strip

int StripIndex(const Op& op) {
  const std::optional<Strip> strip = StripOf(op);
  return strip ? strip->index : -1;
}

bool IsMatmul(const Graph& graph, int value, Role role) {
  const int producer = graph.value(value).producer;
  return producer >= 0 && graph.op(producer).kind == OpKind::kMatmul && graph.op(producer).role == role;
}

}  // namespace

MergedMatmuls::MergedMatmuls(const Program& program) {
  const Graph& graph = *program.graph;
  std::map<Shared, std::vector<const Op*>> readers;
  for (const Op& op : graph.ops) {
    if (op.kind == OpKind::kMatmul)
      for (size_t i = 0; i < 2; ++i)
        readers[{op.inputs[i], i, op.attributes.Text("spec"), op.role, op.chunk, StripIndex(op)}].push_back(&op);
    // If a sum is computed in strips, each of its terms has several matmuls; they are priced one by one.
    if (StripIndex(op) >= 0) continue;
    const auto is_matmul = [&](int value) { return IsMatmul(graph, value, op.role); };
    if (op.kind != OpKind::kAdd || !std::ranges::all_of(op.inputs, is_matmul)) continue;
    MergedMatmul group{{}, &MatmulShape::k};
    for (int value : op.inputs) group.parts.push_back(&graph.op(graph.value(value).producer));
    sums_[&op] = groups_.size();
    Add(std::move(group));
  }
  // The second operand of a weight's gradient may be the shared one: [out, in] = dy' x.
  for (auto& [shared, ops] : readers)
    if (ops.size() > 1 && !group_of_.contains(ops[0]))
      Add({std::move(ops), std::get<1>(shared) == 0 ? &MatmulShape::n : &MatmulShape::m});
}

void MergedMatmuls::Add(MergedMatmul group) {
  for (const Op* op : group.parts) group_of_[op] = groups_.size();
  groups_.push_back(std::move(group));
}

const MergedMatmul* MergedMatmuls::Find(const Op& op) const {
  const auto found = group_of_.find(&op);
  return found == group_of_.end() ? nullptr : &groups_[found->second];
}

}  // namespace espalier
