// As ops_rules.hpp, of the same extents: the backward ops of every op, its flops, and where axes go that inputs
// disagree about.
#pragma once

#include <string_view>
#include <vector>

namespace espalier {

/// The backward ops of an op: x inputs, y outputs, dy adjoints of outputs, dx adjoints of inputs. `adjoint` is what
/// arrives for output 0: "dy0", or 1 for a loss. Empty: nothing flows back.
struct GradientRule {
  std::string_view op, adjoint, backward;
};

inline const std::vector<GradientRule> kGradients = {
    {"embedding vocab=13", "dy0", "dx1 = embedding_grad(x0, dy0) vocab=13"},
    {"rms_norm eps=1e-5", "dy0", "dx0 = rms_norm_grad(x0, x1, y1, dy0)\ndx1 = rms_norm_weight_grad(x0, y1, dy0)"},
    {"row_squares", "dy0", "dx0 = row_squares_grad(dy0, x0)"},
    {"row_norm eps=1e-5 width=10", "dy0",
     "dx0 = row_norm_grad(dy0, x1, x2) eps=1e-05 width=10\ndx2 = row_norm_squares_grad(dy0, x0, x1, x2) eps=1e-05 "
     "width=10\ndx1 = row_norm_weight_grad(dy0, x0, x2) eps=1e-05 width=10"},
    {"layer_norm eps=1e-5", "dy0",
     "dx0 = layer_norm_grad(x0, x1, y1, y2, dy0)\ndx1, dx2 = layer_norm_weight_grad(x0, y1, y2, dy0)"},
    {"position_embedding positions=17", "dy0", "dx0 = dy0\ndx2 = position_embedding_grad(x1, dy0) positions=17"},
    {"add_bias", "dy0", "dx0 = dy0\ndx1 = bias_grad(dy0)"},
    {"gelu", "dy0", "dx0 = gelu_grad(x0, dy0)"},
    {"dropout rate=0.5 key=00000000000000ab", "dy0", "dx0 = dropout(dy0, x1, x2) rate=0.5 key=00000000000000ab"},
    {"matmul spec=bsk,nk->bsn", "dy0",
     "dx0 = matmul(dy0, x1) spec=bsn,nk->bsk\ndx1 = matmul(dy0, x0) spec=bsn,bsk->nk"},
    {"matmul spec=bsk,kn->bsn", "dy0",
     "dx0 = matmul(dy0, x1) spec=bsn,kn->bsk\ndx1 = matmul(x0, dy0) spec=bsk,bsn->kn"},
    {"matmul spec=bsn,bsk->nk", "dy0", "error: only the forward matmul has a gradient"},
    {"rope head_dim=10 inverse=0", "dy0", "dx0 = rope(dy0, x1) head_dim=10 inverse=1"},
    {"rope head_dim=10 inverse=1", "dy0", "dx0 = rope(dy0, x1) head_dim=10 inverse=0"},
    {"latent_keys nope_dim=4 value_dim=3", "dy0", "dx0, dx1 = latent_keys_grad(dy0, dy1) nope_dim=4 value_dim=3"},
    {"attention head_dim=5 causal=1", "dy0",
     "dx0, dx1, dx2 = attention_grad(x0, x1, x2, y0, y1, dy0) causal=1 head_dim=5"},
    {"attention_sink head_dim=5", "dy0", "dx0 = dy0\ndx2 = attention_sink_grad(y1, x2, y0, dy0) head_dim=5"},
    {"add", "dy0", "dx0 = dy0\ndx1 = dy0\ndx2 = dy0"},
    {"swiglu", "dy0", "dx0, dx1 = swiglu_grad(x0, x1, dy0)"},
    {"route per_token=2", "dy0", "dx0 = route_grad(x0, y1, dy0) per_token=2"},
    {"dispatch experts=13 ranks=2 rows=2", "dy0", "dx0, dx2 = dispatch_grad(dy0, dy1, y3) experts=13 ranks=2 rows=2"},
    {"combine experts=13 ranks=2 rows=2", "dy0", "dx0 = combine_grad(dy0, x1) experts=13 ranks=2 rows=2"},
    {"weighted_swiglu", "dy0", "dx0, dx1, dx2 = weighted_swiglu_grad(x0, x1, x2, dy0, x3)"},
    {"add_row_bias load=50", "dy0", "dx0 = dy0\ndx1 = row_bias_grad(dy0, x2) load=50"},
    {"grouped_matmul load=50 spec=ebsk,enk->ebsn", "dy0",
     "dx0 = grouped_matmul(dy0, x1, x2) load=50 spec=ebsn,enk->ebsk\ndx1 = grouped_matmul(dy0, x0, x2) load=50 "
     "spec=ebsn,ebsk->enk"},
    {"grouped_matmul fp8=1 spec=ebsk,enk->ebsn", "dy0",
     "dx0 = grouped_matmul(dy0, x1, x2) fp8=1 spec=ebsn,enk->ebsk\ndx1 = grouped_matmul(dy0, x0, x2) fp8=1 "
     "spec=ebsn,ebsk->enk"},
    {"grouped_matmul spec=ebsn,enk->ebsk", "dy0", "error: only the forward grouped_matmul has a gradient"},
    // A router's losses: the adjoint of a sum of scores is how often its expert was chosen.
    {"router_loss", "1", "dx0 = x1\ndx2 = 1"},
    {"balance", "dy0", "dx0 = balance_grad(x0, dy0)"},
    // The loss goes straight back to the logits: the adjoint 1 passes through token_loss to the sums, which know the
    // softmax.
    {"token_loss", "1", "dx1 = 1"},
    {"token_loss", "dy0", ""},
    {"logits_sum", "1", "dx0 = cross_entropy_grad(x0, x1, y0, x2)"},
    {"logits_sum", "dy0", "error: its sums may feed token_loss only"},
};

/// Floating-point operations of one rank, rank 0, whose pieces are the largest: a multiplication and an addition are
/// two.
struct FlopsRule {
  std::string_view op, inputs;
  double flops;
};

inline const std::vector<FlopsRule> kFlops = {
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7] bf16[11,7]", 2.0 * 3 * 5 * 7 * 11},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7] bf16[11{tp},7]", 2.0 * 3 * 5 * 7 * 6},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7{tp}] bf16[11,7{tp}]", 2.0 * 3 * 5 * 4 * 11},
    {"matmul spec=bsk,nk->bsn", "bf16[3{dp_shard},5{cp},7] bf16[11,7] bf16[11]", 2.0 * 2 * 3 * 7 * 11},
    {"matmul spec=bsn,bsk->nk", "bf16[3{dp_shard},5{cp},11] bf16[3{dp_shard},5{cp},7]", 2.0 * 2 * 3 * 7 * 11},
    {"matmul spec=bsk,bsn->kn", "bf16[3,5,7] bf16[3,5,11{tp}]", 2.0 * 3 * 5 * 7 * 6},
    // Two products over half of the scores: 2 (b s heads e t).
    {"attention head_dim=5 causal=1", "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10]", 2.0 * 3 * 5 * 30 * 5},
    {"attention head_dim=5 causal=1",
     "bf16[3{dp_shard},5,30{tp}] bf16[3{dp_shard},5,10{tp}] bf16[3{dp_shard},5,10{tp}]", 2.0 * 2 * 5 * 15 * 5},
    {"attention head_dim=5 causal=1 cp=2 length=12", "bf16[3,12{cp},30] bf16[3,12,10] bf16[3,12,10]",
     2.0 * 3 * 6 * 30 * 12},
    {"attention_grad head_dim=5 causal=1",
     "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10] bf16[3,5,30] f32[3,6,5] bf16[3,5,30]", 5.0 * 3 * 5 * 30 * 5},
    // A head projects a query and its result (4 + 3 by 11); half of 9 latents count twice (11), and once (2).
    {"latent_attention nope_dim=4 value_dim=3", "bf16[3,1,36] bf16[42,11] bf16[3,9,11] bf16[3,9,2] i32[1]",
     2.0 * 3 * 6 * (7 * 11 + 4.5 * 24)},
    // For the rows that balanced routing fills.
    {"grouped_matmul spec=ebsk,enk->ebsn", "bf16[13,3,2,7] bf16[13,11,7] i32[13,3,2]", 2.0 * 13 * 3 * 2 * 7 * 11},
    {"grouped_matmul spec=ebsk,enk->ebsn load=75", "bf16[13,3,2,7] bf16[13,11,7] i32[13,3,2]",
     2.0 * 13 * 3 * 2 * 7 * 11 * 0.75},
    {"grouped_matmul spec=ebsk,enk->ebsn load=125 pass=1", "bf16[13,3,2,7] bf16[13,11,7] i32[13,3,2]",
     2.0 * 13 * 3 * 2 * 7 * 11 * 0.25},
    {"grouped_matmul spec=ebsk,enk->ebsn load=75 pass=1", "bf16[13,3,2,7] bf16[13,11,7] i32[13,3,2]", 0.0},
    {"grouped_matmul spec=ebsn,ebsk->enk",
     "bf16[13{ep},3{dp_shard},2,11] bf16[13{ep},3{dp_shard},2,7] i32[13{ep},3{dp_shard},2]", 2.0 * 7 * 2 * 2 * 7 * 11},
    {"grouped_matmul spec=ebsn,ekn->ebsk scales=tensor load=75",
     "f8e5m2[13,3,2,11] f8e4m3[13,7,11] i32[13,3,2] f32[13,3,2] f32[13]", 2.0 * 13 * 3 * 2 * 7 * 11 * 0.75},
    // A window w leaves w - w^2 / 2t keys of a query.
    {"attention head_dim=5 causal=1 window=4 cp=2 length=16", "bf16[3,16{cp},30] bf16[3,16,10] bf16[3,16,10]",
     4.0 * 3 * 8 * 30 * 3.5},
    {"attention head_dim=5 causal=1 window=9", "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10]", 2.0 * 3 * 5 * 30 * 5},
};

/// The partitioner's result for an op on a mesh of 2 along each axis that `inputs` name and of 1 along the others. An
/// input with "w:" is a weight (known once a step). `moved` are the inputs as the op gets them. `asked` is the layout
/// of output 0, which a weight gradient has of its weight, and rows of experts have
/// of the model.
struct PartitionRule {
  std::string_view op, inputs, moved, outputs, asked = "";
};

inline const std::vector<PartitionRule> kPartitions = {
    // Nobody disagrees: nothing moves.
    {"gelu", "bf16[3{dp_shard},5{cp},11{tp}]", "bf16[3{dp_shard},5{cp},11{tp}]", "bf16[3{dp_shard},5{cp},11{tp}]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7{tp}] w:bf16[11,7{tp}]", "bf16[3,5,7{tp}] bf16[11,7{tp}]",
     "bf16[3,5,11]+sum{tp}"},
    // dp and cp: the batch or the sequence keeps the axis, weights are gathered.
    {"matmul spec=bsk,nk->bsn", "bf16[3{dp_shard},5,7] w:bf16[11{dp_shard},7]", "bf16[3{dp_shard},5,7] bf16[11,7]",
     "bf16[3{dp_shard},5,11]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5{cp},7] w:bf16[11{tp,cp},7]", "bf16[3,5{cp},7] bf16[11{tp},7]",
     "bf16[3,5{cp},11{tp}]"},
    {"add_bias", "bf16[3{dp_shard},5,11{tp}] w:bf16[11{tp,dp_shard}]", "bf16[3{dp_shard},5,11{tp}] bf16[11{tp}]",
     "bf16[3{dp_shard},5,11{tp}]"},
    // tp: the weight keeps the axis, the sequence is gathered.
    {"matmul spec=bsk,nk->bsn", "bf16[3,5{tp},7] w:bf16[11{tp},7]", "bf16[3,5,7] bf16[11{tp},7]", "bf16[3,5,11{tp}]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5{cp,tp},7] w:bf16[11,7{tp}]", "bf16[3,5{cp},7{tp}] bf16[11,7{tp}]",
     "bf16[3,5{cp},11]+sum{tp}"},
    {"embedding", "i32[3{dp_shard},5] w:bf16[13{tp,dp_shard},7]", "i32[3{dp_shard},5] bf16[13{tp},7]",
     "bf16[3{dp_shard},5,7]+sum{tp}"},
    // Rows of experts stay where they are: weights are gathered, and tokens too, over the ranks that share experts.
    {"grouped_matmul spec=ebsk,enk->ebsn",
     "bf16[13,3{dp_shard},2{tp},7] w:bf16[13{dp_shard,tp},11,7] "
     "i32[13,3{dp_shard},2{tp}]",
     "bf16[13,3{dp_shard},2{tp},7] bf16[13,11,7] i32[13,3{dp_shard},2{tp}]", "bf16[13,3{dp_shard},2{tp},11]"},
    {"grouped_matmul spec=ebsk,enk->ebsn", "bf16[13{ep},3,2,7] w:bf16[13{ep,dp_shard},11,7] i32[13{ep},3,2]",
     "bf16[13{ep},3,2,7] bf16[13{ep},11,7] i32[13{ep},3,2]", "bf16[13{ep},3,2,11]"},
    {"combine_grad experts=13 ranks=2 rows=2", "bf16[3{ep},5,7] i32[2{ep},3,5,2]", "bf16[3,5,7] i32[2{ep},3,5,2]",
     "bf16[13{ep},3,2,7]"},
    {"dispatch experts=13 ranks=2 rows=2", "bf16[3{ep},5,7] i32[3{ep},5,2] f32[3{ep},5,2]",
     "bf16[3{ep},5,7] i32[3{ep},5,2] f32[3{ep},5,2]",
     "bf16[13,3{ep},2,7] f32[13,3{ep},2] i32[13,3{ep},2] i32[2,3{ep},5,2]"},
    {"dispatch experts=13 ranks=2 rows=2", "bf16[3{ep},5,7] i32[3{ep},5,2] f32[3{ep},5,2]",
     "bf16[3,5,7] i32[3,5,2] f32[3,5,2]", "bf16[13{ep},3,2,7] f32[13{ep},3,2] i32[13{ep},3,2] i32[2{ep},3,5,2]",
     "experts,expert_batch,expert_rows,whole"},
    // A dim that may not be sharded is gathered, whichever input has it.
    {"rms_norm eps=1e-5", "bf16[3,5{cp},7{tp}] w:bf16[7{tp}]", "bf16[3,5{cp},7] bf16[7]",
     "bf16[3,5{cp},7] f32[3,5{cp}]"},
    {"position_embedding positions=17", "bf16[3{dp_shard},5{tp},7] i32[5{tp}] w:bf16[17{dp_shard},7]",
     "bf16[3{dp_shard},5{tp},7] i32[5{tp}] bf16[17,7]", "bf16[3{dp_shard},5{tp},7]"},
    {"attention head_dim=5 causal=1", "bf16[3,5{cp},30{tp}] bf16[3,5{cp},10{tp}] bf16[3,5{cp},10{tp}]",
     "bf16[3,5,30{tp}] bf16[3,5,10{tp}] bf16[3,5,10{tp}]", "bf16[3,5,30{tp}] f32[3,6{tp},5]"},
    // An input with the whole dim is sliced: no communication.
    {"rope head_dim=10 inverse=0", "bf16[3,5{cp},30] f32[5,10]", "bf16[3,5{cp},30] f32[5{cp},10]", "bf16[3,5{cp},30]"},
    // Partial values are completed, except for addition of what is partial alike, and of kv_replicate where the op is
    // linear.
    {"gelu", "bf16[3,5,11]+sum{tp}", "bf16[3,5,11]", "bf16[3,5,11]"},
    {"add", "bf16[3,5,7]+sum{tp} bf16[3,5,7]+sum{tp}", "bf16[3,5,7]+sum{tp} bf16[3,5,7]+sum{tp}",
     "bf16[3,5,7]+sum{tp}"},
    {"add", "bf16[3,5,7]+sum{tp} bf16[3,5{tp},7]", "bf16[3,5{tp},7] bf16[3,5{tp},7]", "bf16[3,5{tp},7]"},
    {"add_bias", "bf16[3,5,11]+sum{tp} w:bf16[11]", "bf16[3,5,11] bf16[11]", "bf16[3,5,11]"},
    {"rope head_dim=10 inverse=1", "f32[3,5,30]+sum{kv_replicate} f32[5,10]", "f32[3,5,30]+sum{kv_replicate} f32[5,10]",
     "f32[3,5,30]+sum{kv_replicate}"},
    {"dropout rate=0.5 key=00000000000000ab", "bf16[3,5{cp,tp},11] i32[3,5{cp}] f32[]",
     "bf16[3,5{cp,tp},11] i32[3,5{cp,tp}] f32[]", "bf16[3,5{cp,tp},11]"},
    {"dropout rate=0.5 key=00000000000000ab", "bf16[3,5,11]+sum{tp} i32[3,5] f32[]", "bf16[3,5,11] i32[3,5] f32[]",
     "bf16[3,5,11]"},
    {"row_squares_grad", "f32[3,5]+sum{kv_replicate} f32[3,5,10{tp}]", "f32[3,5]+sum{kv_replicate} f32[3,5,10{tp}]",
     "f32[3,5,10{tp}]+sum{kv_replicate}"},
    {"row_squares_grad", "f32[3,5]+sum{kv_replicate} f32[3,5,30{tp,kv_replicate}]",
     "f32[3,5] f32[3,5,30{tp,kv_replicate}]", "f32[3,5,30{tp,kv_replicate}]"},
    {"row_norm eps=1e-5 width=10", "bf16[3,5{cp},10{tp}] w:bf16[10{tp,cp}] f32[3,5{cp}]+sum{tp}",
     "bf16[3,5{cp},10{tp}] bf16[10{tp}] f32[3,5{cp}]", "bf16[3,5{cp},10{tp}]"},
    {"logits_sum", "bf16[3,5,13{tp}] f32[3,5]+max{tp} i32[3,5]", "bf16[3,5,13{tp}] f32[3,5] i32[3,5]",
     "f32[3,5]+sum{tp} f32[3,5]+sum{tp}"},
    // Activations disagree: the dim with the least traffic wins, here that of the larger tensor.
    {"swiglu", "bf16[3,5{tp},11] bf16[3,5,11{tp}]", "bf16[3,5{tp},11] bf16[3,5{tp},11]", "bf16[3,5{tp},11]"},
    {"matmul spec=bsn,bsk->nk", "bf16[3,5,11{dp_shard}] bf16[3,5{dp_shard},7]",
     "bf16[3,5{dp_shard},11] bf16[3,5{dp_shard},7]", "f32[11,7]+sum{dp_shard}"},
    // A weight gradient is made where its weight is on tp, and stays a sum over what cuts tokens.
    {"matmul spec=bsn,bsk->nk", "bf16[3{dp_shard},5,11{tp}] bf16[3{dp_shard},5{tp},7]",
     "bf16[3{dp_shard},5,11{tp}] bf16[3{dp_shard},5,7]", "f32[11{tp},7]+sum{dp_shard}", "ffn,embed"},
    {"embedding_grad vocab=13", "i32[3{dp_shard},5{tp}] bf16[3{dp_shard},5{tp},7]",
     "i32[3{dp_shard},5] bf16[3{dp_shard},5,7]", "f32[13{tp},7]+sum{dp_shard}", "vocab,embed"},
};

}  // namespace espalier
