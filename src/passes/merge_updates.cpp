// One AdamW for all tensors of a chunk with the same settings (optimizer.groups) instead of one per tensor: on a GPU
// every launch has a cost, and most tensors are small. Tensors with weight decay come first. The merged op is placed
// where the last update was; no update is delayed by that, since all of them wait for the norm of all gradients. Keys
// of random bits (attribute `rounding`) are listed in the order of the tensors. Updates whose states are on the host
// are merged up to the size of a chunk (pass `stream_states`).
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "espalier/graph/local_range.hpp"
#include "espalier/graph/transfers.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/passes/pipeline.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

bool Decays(const Op& op) { return op.attributes.Number("decaying") > 0; }

void Append(Op& merged, const Op& op) {
  const auto tensor = op.inputs.begin() + static_cast<ptrdiff_t>(Define(op.kind).per_tensor.shared);
  CHECK(std::equal(op.inputs.begin(), tensor, merged.inputs.begin()), "updates of one step with different scalars");
  merged.inputs.insert(merged.inputs.end(), tensor, op.inputs.end());
  merged.outputs.insert(merged.outputs.end(), op.outputs.begin(), op.outputs.end());
  if (const auto keys = op.attributes.texts.find("rounding"); keys != op.attributes.texts.end())
    merged.attributes.texts.at("rounding") += keys->second;
}

/// Updates with equal keys become one.
using UpdateKey = std::tuple<int, bool, std::map<std::string, double, std::less<>>, int>;
UpdateKey UpdateKeyOf(const Op& op, int batch) {
  auto settings = op.attributes.numbers;
  settings.erase("decaying");
  return {op.chunk, op.attributes.texts.contains("copy"), settings, batch};
}

/// Shares out updates whose states are on the host: those of a batch bring at most a chunk of them, or are one.
class Batches {
 public:
  Batches(const Graph& graph, const PassContext& context) : graph_(graph), context_(context) {}
  /// The batch of an update; -1: all of its states are on the device.
  int Of(const Op& update) {
    int64_t bytes = 0;
    for (int v : HostOperands(graph_, update))
      bytes += LocalVolume(graph_.value(v).type, context_.mesh, {}) * SizeOf(graph_.value(v).type.dtype);
    if (bytes == 0) return -1;
    if (std::exchange(chunk_, update.chunk) != update.chunk || bytes_ + bytes > context_.deck.offload.chunk_bytes) {
      ++batch_;
      bytes_ = 0;
    }
    bytes_ += bytes;
    return batch_;
  }

 private:
  const Graph& graph_;
  const PassContext& context_;
  int batch_ = 0, chunk_ = kAllChunks;
  int64_t bytes_ = 0;
};

Op Merged(std::vector<Op> updates) {
  std::stable_partition(updates.begin(), updates.end(), Decays);
  Op merged = updates[0];
  for (size_t i = 1; i < updates.size(); ++i) Append(merged, updates[i]);
  merged.attributes.numbers["decaying"] = static_cast<double>(std::count_if(updates.begin(), updates.end(), Decays));
  return merged;
}

}  // namespace

void MergeUpdates(Graph& graph, const PassContext& context) {
  Batches batches(graph, context);
  std::map<UpdateKey, std::vector<Op>> updates;
  std::map<UpdateKey, Op*> last;
  for (Op& op : graph.ops) {
    if (op.kind != OpKind::kAdamw) continue;
    const UpdateKey key = UpdateKeyOf(op, batches.Of(op));
    last[key] = &op;
    updates[key].push_back(std::exchange(op, {}));
  }
  for (auto& [key, ops] : updates) *last.at(key) = Merged(std::move(ops));
  graph.Renumber();
}

}  // namespace espalier
