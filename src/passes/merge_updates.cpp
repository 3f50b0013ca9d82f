// One AdamW for all tensors of a chunk instead of one for each: on a GPU every launch has its price, and most tensors
// are small. Those that decay come first. The joint op stands where the last of them stood, since all wait for the norm
// of all gradients anyway.
#include <algorithm>
#include <map>

#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

bool Decays(const Op& op) { return op.attributes.Number("decaying") > 0; }

void Append(Op& joint, const Op& op) {
  const auto tensor = op.inputs.begin() + static_cast<ptrdiff_t>(Define(op.kind).per_tensor.shared);
  CHECK(std::equal(op.inputs.begin(), tensor, joint.inputs.begin()), "updates of one step with different scalars");
  joint.inputs.insert(joint.inputs.end(), tensor, op.inputs.end());
  joint.outputs.insert(joint.outputs.end(), op.outputs.begin(), op.outputs.end());
}

Op Joined(std::vector<Op> updates) {
  std::stable_partition(updates.begin(), updates.end(), Decays);
  Op joint = updates[0];
  for (size_t i = 1; i < updates.size(); ++i) Append(joint, updates[i]);
  joint.attributes.numbers["decaying"] = static_cast<double>(std::count_if(updates.begin(), updates.end(), Decays));
  return joint;
}

}  // namespace

void MergeUpdates(Graph& graph) {
  std::map<int, std::vector<Op>> updates;  // by chunk
  std::map<int, size_t> last;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.kind != "adamw") continue;
    updates[op.chunk].push_back(op);
    last[op.chunk] = i;
  }
  std::vector<Op> ops;
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    Op& op = graph.ops[i];
    if (op.kind != "adamw")
      ops.push_back(std::move(op));
    else if (last.at(op.chunk) == i)
      ops.push_back(Joined(std::move(updates.at(op.chunk))));
  }
  graph.ops = std::move(ops);
  graph.Renumber();
}

}  // namespace espalier
