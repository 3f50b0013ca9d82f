#include "espalier/passes/pipeline.hpp"

#include "espalier/ops/verify.hpp"

namespace espalier {

void RunPasses(Graph& graph, const PassContext& context, Purpose purpose,
               const std::function<void(const std::string& pass, const Graph&)>& observe) {
  const auto run = [&](const std::string& name, const auto& pass) {
    pass();
    Verify(graph, name);
    if (observe) observe(name, graph);
  };
  Verify(graph, "model");
  // Backward ops, input gradients (B) apart from weight gradients (W).
  if (purpose == Purpose::kTrain) run("differentiate", [&] { Differentiate(graph); });
  // Gradients, loss and count become sums over the microbatches of a step.
  if (purpose != Purpose::kSample) run("merge_gradients", [&] { MergeGradients(graph, context.deck); });
  // Norm, clipping, AdamW; for evaluation the mean loss alone.
  if (purpose != Purpose::kSample) run("optimize", [&] { Optimize(graph, context.deck, purpose); });
  // Attention over sequences that cp cuts: where keys travel, how queries see them.
  run("context_parallel", [&] { ContextParallel(graph, context); });
  // Placements for every value; reshards where they differ.
  run("partition", [&] { Partition(graph, context); });
  // Compute activations again instead of keeping them.
  run("recompute", [&] { Recompute(graph, context.deck); });
  // Gather sharded parameters again instead of keeping them.
  run("rematerialize", [&] { Rematerialize(graph, context); });
  // Reshards become collectives.
  run("lower_reshards", [&] { LowerReshards(graph, context.mesh); });
  // Collectives of one layer share a message.
  run("coalesce", [&] { Coalesce(graph); });
  // The tensors of a chunk are updated at once.
  run("merge_updates", [&] { MergeUpdates(graph); });
  // Parameters are gathered ahead of their use.
  run("prefetch", [&] { Prefetch(graph, context.deck); });
  // Backward tp communication under weight-gradient products.
  run("overlap_tensor", [&] { OverlapTensor(graph, context); });
  // Additions join the norms and products beside them.
  run("fuse", [&] { Fuse(graph); });
  // Values that cross stages become send and recv.
  run("cut", [&] { Cut(graph, context.stage_of_chunk); });
}

}  // namespace espalier
