// What every op makes of its inputs, as text: one row per rule. Extents are odd and distinct, and each dim has the
// same extent in all rows:
//   b 3   s 5   d and k 7   n 11   v (vocabulary) 13   p (table of positions) 17
//   6 heads of queries and 2 of keys, of 5 elements each
// (zigzag order wants rows in multiples of 2 cp: s 12).
#pragma once

#include <string_view>
#include <vector>

namespace espalier {

/// `op` is a kind and its attributes. `outputs` is what its rule says of such inputs, or "error: <part of the
/// message>". `asked` are outputs whose placements the consumer or the layout asks for: an op can grant them on dims
/// that no input has.
struct Rule {
  std::string_view op, inputs, outputs, asked = "";
};

inline const std::vector<Rule> kRules = {
    // Token ids pick rows: each rank of a sharded vocabulary adds its own, zeros for the others'.
    {"embedding", "i32[3,5] bf16[13,7]", "bf16[3,5,7]"},
    {"embedding", "i32[3{tp},5] bf16[13,7]", "bf16[3{tp},5,7]"},
    {"embedding", "i32[3,5{tp}] bf16[13,7]", "bf16[3,5{tp},7]"},
    {"embedding", "i32[3,5] bf16[13{tp},7]", "bf16[3,5,7]+sum{tp}"},
    {"embedding", "i32[3,5] bf16[13,7{tp}]", "error: dim d may not be sharded"},
    {"embedding", "i32[3{dp_replicate,dp_shard},5{cp}] f32[13{tp,kv_replicate},7]",
     "f32[3{dp_replicate,dp_shard},5{cp},7]+sum{tp,kv_replicate}"},
    {"embedding", "i32[3,5] bf16[13,7]+sum{tp}", "error: partial inputs are not allowed"},
    {"embedding_grad vocab=13", "i32[3,5] bf16[3,5,7]", "f32[13,7]"},
    {"embedding_grad vocab=13", "i32[3{tp},5] bf16[3{tp},5,7]", "f32[13,7]+sum{tp}"},
    {"embedding_grad vocab=13", "i32[3,5{tp}] bf16[3,5{tp},7]", "f32[13,7]+sum{tp}"},
    {"embedding_grad vocab=13", "i32[3{dp_shard},5{cp}] f32[3{dp_shard},5{cp},7]", "f32[13,7]+sum{dp_shard,cp}"},
    {"embedding_grad vocab=13", "i32[3,5] bf16[3,5,7]", "f32[13{tp},7]", "f32[13{tp},7]"},
    {"embedding_grad vocab=13", "i32[3{dp_shard},5] f32[3{dp_shard},5,7]", "f32[13{tp},7]+sum{dp_shard}",
     "f32[13{tp},7]"},
    {"embedding_grad vocab=13", "i32[3,5] bf16[3,5,7{tp}]", "error: dim d may not be sharded"},
    {"embedding_grad vocab=13", "i32[3{tp},5] bf16[3,5,7]", "error: inputs disagree on the axes of dim b"},

    // Norms need whole rows. What is summed over tokens is partial where tokens are sharded.
    {"rms_norm eps=1e-5", "bf16[3,5,7] bf16[7]", "bf16[3,5,7] f32[3,5]"},
    {"rms_norm eps=1e-5", "bf16[3{tp},5,7] bf16[7]", "bf16[3{tp},5,7] f32[3{tp},5]"},
    {"rms_norm eps=1e-5", "bf16[3,5{tp},7] bf16[7]", "bf16[3,5{tp},7] f32[3,5{tp}]"},
    {"rms_norm eps=1e-5", "bf16[3,5,7{tp}] bf16[7{tp}]", "error: dim d may not be sharded"},
    {"rms_norm eps=1e-5", "bf16[3,5,7] bf16[7{tp}]", "error: inputs disagree on the axes of dim d"},
    {"rms_norm eps=1e-5", "bf16[3,5,7]+sum{tp} bf16[7]", "error: partial inputs are not allowed"},
    {"rms_norm eps=1e-5", "f32[3{dp_shard},5{cp,tp},7] f32[7] f32[3{dp_shard},5{cp,tp},7]",
     "f32[3{dp_shard},5{cp,tp},7] f32[3{dp_shard},5{cp,tp}] f32[3{dp_shard},5{cp,tp},7]"},
    {"rms_norm eps=1e-5", "f32[3,5{tp},7] f32[7] f32[3,5,7]", "error: inputs disagree on the axes of dim s"},
    {"rms_norm eps=1e-5", "f32[3,5,7] f32[7] f32[3,5,7{tp}]", "error: inputs disagree on the axes of dim d"},
    {"rms_norm_grad", "bf16[3,5,7] bf16[7] f32[3,5] bf16[3,5,7]", "bf16[3,5,7]"},
    {"rms_norm_grad", "bf16[3{tp},5,7] bf16[7] f32[3{tp},5] bf16[3{tp},5,7]", "bf16[3{tp},5,7]"},
    {"rms_norm_grad", "bf16[3,5{tp},7] bf16[7] f32[3,5{tp}] bf16[3,5{tp},7]", "bf16[3,5{tp},7]"},
    {"rms_norm_grad", "bf16[3,5,7{tp}] bf16[7{tp}] f32[3,5] bf16[3,5,7{tp}]", "error: dim d may not be sharded"},
    {"rms_norm_grad", "f32[3{tp},5,7] f32[7] f32[3{tp},5] f32[3{tp},5,7] f32[3{tp},5,7]", "f32[3{tp},5,7]"},
    {"rms_norm_grad", "f32[3,5{tp},7] f32[7] f32[3,5{tp}] f32[3,5{tp},7] f32[3,5{tp},7]", "f32[3,5{tp},7]"},
    {"rms_norm_grad", "f32[3,5,7] f32[7] f32[3,5] f32[3,5,7] f32[3,5,7{tp}]",
     "error: inputs disagree on the axes of dim d"},
    {"rms_norm_weight_grad", "bf16[3,5,7] f32[3,5] bf16[3,5,7]", "f32[7]"},
    // In two steps, rows may be sharded: their squares are then partial. Each head is a row of its own where head_dim
    // is
    // given. Gradients of keys may be partial over the ranks that share them.
    {"row_squares", "bf16[3,5,10]", "f32[3,5]"},
    {"row_squares", "bf16[3{dp_shard},5{cp},10{tp}]", "f32[3{dp_shard},5{cp}]+sum{tp}"},
    {"row_squares", "f32[3,5,30{tp,kv_replicate}]", "f32[3,5]+sum{tp,kv_replicate}"},
    {"row_squares head_dim=5", "f32[3{dp_shard},5{cp},30{tp,kv_replicate}]",
     "f32[3{dp_shard},5{cp},6{tp,kv_replicate}]"},
    {"row_squares", "bf16[3,5,10]+sum{tp}", "error: partial inputs are not allowed"},
    {"row_squares_grad", "f32[3,5] bf16[3,5,10]", "bf16[3,5,10]"},
    {"row_squares_grad", "f32[3{dp_shard},5{cp}] bf16[3{dp_shard},5{cp},10{tp}]", "bf16[3{dp_shard},5{cp},10{tp}]"},
    {"row_squares_grad head_dim=5", "f32[3,5,6{tp}] f32[3,5,30{tp}]", "f32[3,5,30{tp}]"},
    {"row_squares_grad", "f32[3,5]+sum{kv_replicate} f32[3,5,10{tp}]", "f32[3,5,10{tp}]+sum{kv_replicate}"},
    {"row_squares_grad", "f32[3,5]+sum{tp} f32[3,5,10{tp}]", "error: partial inputs are not allowed"},
    {"row_squares_grad", "f32[3,5]+sum{kv_replicate} f32[3,5,30{tp,kv_replicate}]",
     "error: partial inputs are not allowed"},
    {"row_norm eps=1e-5 width=10", "bf16[3,5,10] bf16[10] f32[3,5]", "bf16[3,5,10]"},
    {"row_norm eps=1e-5 width=10", "bf16[3{dp_shard},5{cp},10{tp}] bf16[10{tp}] f32[3{dp_shard},5{cp}]",
     "bf16[3{dp_shard},5{cp},10{tp}]"},
    {"row_norm eps=1e-5 width=5 head_dim=5", "f32[3,5,30{tp}] f32[5] f32[3,5,6{tp}]", "f32[3,5,30{tp}]"},
    {"row_norm eps=1e-5 width=5 head_dim=5", "f32[3,5,30] f32[5{tp}] f32[3,5,6]", "error: dim e may not be sharded"},
    {"row_norm eps=1e-5 width=10", "bf16[3,5,10{tp}] bf16[10{tp}] f32[3,5]+sum{tp}",
     "error: partial inputs are not allowed"},
    {"row_norm_grad eps=1e-5 width=10", "bf16[3,5,10] bf16[10] f32[3,5]", "bf16[3,5,10]"},
    {"row_norm_grad eps=1e-5 width=10", "bf16[3{dp_shard},5{cp},10{tp}] bf16[10{tp}] f32[3{dp_shard},5{cp}]",
     "bf16[3{dp_shard},5{cp},10{tp}]"},
    {"row_norm_grad eps=1e-5 width=5 head_dim=5", "f32[3,5,10{tp}]+sum{kv_replicate} f32[5] f32[3,5,2{tp}]",
     "f32[3,5,10{tp}]+sum{kv_replicate}"},
    {"row_norm_squares_grad eps=1e-5 width=10", "bf16[3,5,10] bf16[3,5,10] bf16[10] f32[3,5]", "f32[3,5]"},
    {"row_norm_squares_grad eps=1e-5 width=10",
     "bf16[3{dp_shard},5{cp},10{tp}] bf16[3{dp_shard},5{cp},10{tp}] bf16[10{tp}] f32[3{dp_shard},5{cp}]",
     "f32[3{dp_shard},5{cp}]+sum{tp}"},
    {"row_norm_squares_grad eps=1e-5 width=10",
     "f32[3,5,10{tp}]+sum{kv_replicate} f32[3,5,10{tp}] f32[10{tp}] f32[3,5]", "f32[3,5]+sum{tp,kv_replicate}"},
    {"row_norm_squares_grad eps=1e-5 width=5 head_dim=5", "f32[3,5,30{tp}] f32[3,5,30{tp}] f32[5] f32[3,5,6{tp}]",
     "f32[3,5,6{tp}]"},
    {"row_norm_weight_grad eps=1e-5 width=10", "bf16[3,5,10] bf16[3,5,10] f32[3,5]", "f32[10]"},
    {"row_norm_weight_grad eps=1e-5 width=10",
     "bf16[3{dp_shard},5{cp},10{tp}] bf16[3{dp_shard},5{cp},10{tp}] f32[3{dp_shard},5{cp}]",
     "f32[10{tp}]+sum{dp_shard,cp}"},
    {"row_norm_weight_grad eps=1e-5 width=10", "f32[3,5,10{tp}]+sum{kv_replicate} f32[3,5,10{tp}] f32[3,5]",
     "f32[10{tp}]+sum{kv_replicate}"},
    {"row_norm_weight_grad eps=1e-5 width=5 head_dim=5", "f32[3,5,30{tp}] f32[3,5,30{tp}] f32[3,5,6{tp}]",
     "f32[5]+sum{tp}"},
    {"rms_norm_weight_grad", "bf16[3{tp},5,7] f32[3{tp},5] bf16[3{tp},5,7]", "f32[7]+sum{tp}"},
    {"rms_norm_weight_grad", "bf16[3,5{tp},7] f32[3,5{tp}] bf16[3,5{tp},7]", "f32[7]+sum{tp}"},
    {"rms_norm_weight_grad", "f32[3{dp_shard},5{tp},7] f32[3{dp_shard},5{tp}] f32[3{dp_shard},5{tp},7]",
     "f32[7]+sum{dp_shard,tp}"},
    {"rms_norm_weight_grad", "bf16[3,5,7{tp}] f32[3,5] bf16[3,5,7{tp}]", "error: dim d may not be sharded"},
    {"layer_norm eps=1e-5", "bf16[3,5,7] bf16[7] bf16[7]", "bf16[3,5,7] f32[3,5] f32[3,5]"},
    {"layer_norm eps=1e-5", "bf16[3{tp},5,7] bf16[7] bf16[7]", "bf16[3{tp},5,7] f32[3{tp},5] f32[3{tp},5]"},
    {"layer_norm eps=1e-5", "bf16[3,5{tp},7] bf16[7] bf16[7]", "bf16[3,5{tp},7] f32[3,5{tp}] f32[3,5{tp}]"},
    {"layer_norm eps=1e-5", "bf16[3,5,7{tp}] bf16[7{tp}] bf16[7{tp}]", "error: dim d may not be sharded"},
    {"layer_norm eps=1e-5", "f32[3{tp},5,7] f32[7] f32[7] f32[3{tp},5,7]",
     "f32[3{tp},5,7] f32[3{tp},5] f32[3{tp},5] f32[3{tp},5,7]"},
    {"layer_norm eps=1e-5", "f32[3,5{tp},7] f32[7] f32[7] f32[3,5{tp},7]",
     "f32[3,5{tp},7] f32[3,5{tp}] f32[3,5{tp}] f32[3,5{tp},7]"},
    {"layer_norm eps=1e-5", "f32[3,5,7] f32[7] f32[7] f32[3,5,7{tp}]", "error: inputs disagree on the axes of dim d"},
    {"layer_norm_grad", "bf16[3,5,7] bf16[7] f32[3,5] f32[3,5] bf16[3,5,7]", "bf16[3,5,7]"},
    {"layer_norm_grad", "bf16[3{tp},5,7] bf16[7] f32[3{tp},5] f32[3{tp},5] bf16[3{tp},5,7]", "bf16[3{tp},5,7]"},
    {"layer_norm_grad", "bf16[3,5{tp},7] bf16[7] f32[3,5{tp}] f32[3,5{tp}] bf16[3,5{tp},7]", "bf16[3,5{tp},7]"},
    {"layer_norm_grad", "bf16[3,5,7{tp}] bf16[7{tp}] f32[3,5] f32[3,5] bf16[3,5,7{tp}]",
     "error: dim d may not be sharded"},
    {"layer_norm_grad", "f32[3{tp},5,7] f32[7] f32[3{tp},5] f32[3{tp},5] f32[3{tp},5,7] f32[3{tp},5,7]",
     "f32[3{tp},5,7]"},
    {"layer_norm_grad", "f32[3,5{tp},7] f32[7] f32[3,5{tp}] f32[3,5{tp}] f32[3,5{tp},7] f32[3,5{tp},7]",
     "f32[3,5{tp},7]"},
    {"layer_norm_grad", "f32[3,5,7] f32[7] f32[3,5] f32[3,5] f32[3,5,7] f32[3,5,7{tp}]",
     "error: inputs disagree on the axes of dim d"},
    {"layer_norm_weight_grad", "bf16[3,5,7] f32[3,5] f32[3,5] bf16[3,5,7]", "f32[7] f32[7]"},
    {"layer_norm_weight_grad", "bf16[3{tp},5,7] f32[3{tp},5] f32[3{tp},5] bf16[3{tp},5,7]",
     "f32[7]+sum{tp} f32[7]+sum{tp}"},
    {"layer_norm_weight_grad", "bf16[3,5{tp},7] f32[3,5{tp}] f32[3,5{tp}] bf16[3,5{tp},7]",
     "f32[7]+sum{tp} f32[7]+sum{tp}"},
    {"layer_norm_weight_grad", "bf16[3,5,7{tp}] f32[3,5] f32[3,5] bf16[3,5,7{tp}]", "error: dim d may not be sharded"},

    // The table of positions is whole while it is read: a row is picked by a position's value.
    {"position_embedding positions=17", "bf16[3,5,7] i32[5] bf16[17,7]", "bf16[3,5,7]"},
    {"position_embedding positions=17", "bf16[3{tp},5,7] i32[5] bf16[17,7]", "bf16[3{tp},5,7]"},
    {"position_embedding positions=17", "bf16[3,5{tp},7] i32[5{tp}] bf16[17,7]", "bf16[3,5{tp},7]"},
    {"position_embedding positions=17", "bf16[3,5{tp},7] i32[5] bf16[17,7]",
     "error: inputs disagree on the axes of dim s"},
    {"position_embedding positions=17", "bf16[3,5,7] i32[5] bf16[17{tp},7]", "error: dim p may not be sharded"},
    {"position_embedding positions=17", "bf16[3,5,7{tp}] i32[5] bf16[17,7{tp}]", "error: dim d may not be sharded"},
    // Positions of each sequence by itself.
    {"position_embedding positions=17", "bf16[3{dp_shard},5{tp},7] i32[3{dp_shard},5{tp}] bf16[17,7]",
     "bf16[3{dp_shard},5{tp},7]"},
    {"position_embedding positions=17", "bf16[3{dp_shard},5,7] i32[3,5] bf16[17,7]",
     "error: inputs disagree on the axes of dim b"},
    {"position_embedding_grad positions=17", "i32[3{dp_shard},5{tp}] bf16[3{dp_shard},5{tp},7]",
     "f32[17,7]+sum{dp_shard,tp}"},
    {"position_embedding_grad positions=17", "i32[5] bf16[3,5,7]", "f32[17,7]"},
    {"position_embedding_grad positions=17", "i32[5] bf16[3{tp},5,7]", "f32[17,7]+sum{tp}"},
    {"position_embedding_grad positions=17", "i32[5{tp}] bf16[3,5{tp},7]", "f32[17,7]+sum{tp}"},
    {"position_embedding_grad positions=17", "i32[5] bf16[3,5,7{tp}]", "error: dim d may not be sharded"},
    {"position_embedding_grad positions=17", "i32[5] bf16[3,5,7]", "error: dim p may not be sharded", "f32[17{tp},7]"},

    // A bias is not linear in the tokens alone: a partial product is completed first, or the bias would be added once
    // per rank.
    {"add_bias", "bf16[3,5,11] bf16[11]", "bf16[3,5,11]"},
    {"add_bias", "bf16[3{tp},5,11] bf16[11]", "bf16[3{tp},5,11]"},
    {"add_bias", "bf16[3,5{tp},11] bf16[11]", "bf16[3,5{tp},11]"},
    {"add_bias", "bf16[3,5,11{tp}] bf16[11{tp}]", "bf16[3,5,11{tp}]"},
    {"add_bias", "bf16[3,5,11{tp}] bf16[11]", "error: inputs disagree on the axes of dim n"},
    {"add_bias", "bf16[3,5,11]+sum{tp} bf16[11]", "error: partial inputs are not allowed"},
    {"bias_grad", "bf16[3,5,11]", "f32[11]"},
    {"bias_grad", "bf16[3{tp},5,11]", "f32[11]+sum{tp}"},
    {"bias_grad", "bf16[3,5{tp},11]", "f32[11]+sum{tp}"},
    {"bias_grad", "bf16[3,5,11{tp}]", "f32[11{tp}]"},
    {"bias_grad", "f32[3,5,11{tp}]+sum{kv_replicate}", "f32[11{tp}]+sum{kv_replicate}"},
    {"bias_grad", "f32[3{dp_shard},5{cp},11{tp,kv_replicate}]", "f32[11{tp,kv_replicate}]+sum{dp_shard,cp}"},

    // Matmuls: a contracted dim that is sharded leaves a partial sum. Weights are [out, in] (nk, Llama) or
    // [in, out] (kn, GPT-2).
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7] bf16[11,7]", "bf16[3,5,11]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3{tp},5,7] bf16[11,7]", "bf16[3{tp},5,11]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5{tp},7] bf16[11,7]", "bf16[3,5{tp},11]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7] bf16[11{tp},7]", "bf16[3,5,11{tp}]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7{tp}] bf16[11,7{tp}]", "bf16[3,5,11]+sum{tp}"},
    {"matmul spec=bsk,nk->bsn", "f32[3{dp_shard},5{cp},7{kv_replicate}] f32[11{tp},7{kv_replicate}]",
     "f32[3{dp_shard},5{cp},11{tp}]+sum{kv_replicate}"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7{tp}] bf16[11,7]", "error: inputs disagree on the axes of dim k"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7]+sum{tp} bf16[11,7]", "error: partial inputs are not allowed"},
    {"matmul spec=bsk,nk->bsn", "f32[3,5,7]+sum{kv_replicate} f32[11{tp},7]", "f32[3,5,11{tp}]+sum{kv_replicate}"},
    {"matmul spec=bsk,nk->bsn", "f32[3,5,7]+sum{kv_replicate} f32[11,7]+sum{kv_replicate}",
     "error: partial inputs are not allowed"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7] bf16[11{tp},7] bf16[11{tp}]", "bf16[3,5,11{tp}]"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5,7]", "error: 1 inputs"},
    {"matmul spec=bsk,nk->bsn", "bf16[3,5] bf16[11,7]", "error: input 0 has 2 dims, expected 'bsk'"},
    {"matmul spec=bsn,nk->bsk", "bf16[3{dp_shard},5,11{tp}] bf16[11{tp},7]", "bf16[3{dp_shard},5,7]+sum{tp}"},
    {"matmul spec=bsn,bsk->nk", "bf16[3{dp_shard},5{cp},11{tp}] bf16[3{dp_shard},5{cp},7]",
     "f32[11{tp},7]+sum{dp_shard,cp}"},
    {"matmul spec=bsn,bsk->nk", "bf16[3,5,11] bf16[3,5,7{tp}]", "f32[11,7{tp}]"},
    {"matmul spec=bsn,bsk->nk", "f32[3,5,11]+sum{kv_replicate} f32[3,5,7]", "f32[11,7]+sum{kv_replicate}"},
    {"matmul spec=bsk,kn->bsn", "bf16[3,5,7] bf16[7,11{tp}]", "bf16[3,5,11{tp}]"},
    {"matmul spec=bsk,kn->bsn", "bf16[3,5,7{tp}] bf16[7{tp},11]", "bf16[3,5,11]+sum{tp}"},
    {"matmul spec=bsn,kn->bsk", "bf16[3,5,11{tp}] bf16[7,11{tp}]", "bf16[3,5,7]+sum{tp}"},
    {"matmul spec=bsk,bsn->kn", "bf16[3,5,7{tp}] bf16[3,5,11]", "f32[7{tp},11]"},
    {"matmul spec=bsk,bsn->kn", "bf16[3,5{cp},7] bf16[3,5{cp},11]", "f32[7,11]+sum{cp}"},

    // A rotation is linear in the heads; its table is of whole heads.
    {"rope head_dim=10 inverse=0", "bf16[3,5,30] f32[5,10]", "bf16[3,5,30]"},
    {"rope head_dim=10 inverse=0", "bf16[3{tp},5,30] f32[5,10]", "bf16[3{tp},5,30]"},
    {"rope head_dim=10 inverse=0", "bf16[3,5{tp},30] f32[5{tp},10]", "bf16[3,5{tp},30]"},
    {"rope head_dim=10 inverse=0", "bf16[3,5,30{kv_replicate}] f32[5,10]", "bf16[3,5,30{kv_replicate}]"},
    {"rope head_dim=10 inverse=1", "f32[3{dp_shard},5{cp},30{kv_replicate}] f32[5{cp},10]",
     "f32[3{dp_shard},5{cp},30{kv_replicate}]"},
    {"rope head_dim=10 inverse=1", "f32[3,5,30]+sum{kv_replicate} f32[5,10]", "f32[3,5,30]+sum{kv_replicate}"},
    {"rope head_dim=10 inverse=0", "bf16[3,5,30]+sum{tp} f32[5,10]", "error: partial inputs are not allowed"},
    {"rope head_dim=10 inverse=0", "bf16[3,5,30] f32[5,10]+sum{kv_replicate}", "error: partial inputs are not allowed"},
    {"rope head_dim=10 inverse=0", "bf16[3,5,30] f32[5,10{tp}]", "error: dim e may not be sharded"},
    {"rope_table head_dim=10 theta=10000", "i32[5]", "f32[5,10]"},
    {"rope_table head_dim=10 theta=10000", "i32[5{tp}]", "f32[5{tp},10]"},
    {"rope_table head_dim=10 theta=10000", "i32[5]", "error: dim e may not be sharded", "f32[5,10{tp}]"},

    // Attention: sequences and heads are independent; queries may be cut under context parallelism alone, keys only in
    // a ring.
    {"attention head_dim=5 causal=1", "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10]", "bf16[3,5,30] f32[3,6,5]"},
    {"attention head_dim=5 causal=1", "bf16[3{tp},5,30] bf16[3{tp},5,10] bf16[3{tp},5,10]",
     "bf16[3{tp},5,30] f32[3{tp},6,5]"},
    {"attention head_dim=5 causal=1", "bf16[3,5{tp},30] bf16[3,5,10] bf16[3,5,10]", "error: dim s may not be sharded"},
    {"attention head_dim=5 causal=1", "bf16[3,5,30] bf16[3,5{tp},10] bf16[3,5{tp},10]",
     "error: dim t may not be sharded"},
    {"attention head_dim=5 causal=1", "f32[3,5,30{tp}] f32[3,5,10{tp}] f32[3,5,10{tp}]",
     "f32[3,5,30{tp}] f32[3,6{tp},5]"},
    {"attention head_dim=5 causal=1",
     "f32[3{dp_shard},5,30{tp,kv_replicate}] f32[3{dp_shard},5,10{tp}] f32[3{dp_shard},5,10{tp}]",
     "f32[3{dp_shard},5,30{tp,kv_replicate}] f32[3{dp_shard},6{tp,kv_replicate},5]"},
    {"attention head_dim=5 causal=1", "bf16[3,5,30{tp}] bf16[3,5,10] bf16[3,5,10]",
     "error: inputs disagree on the axes of dim H"},
    {"attention head_dim=5 causal=1", "bf16[3,5,30] bf16[3,5,10]+sum{kv_replicate} bf16[3,5,10]",
     "error: partial inputs are not allowed"},
    {"attention head_dim=5 causal=1 cp=2 length=12", "f32[3,12{cp},30{tp}] f32[3,12,10{tp}] f32[3,12,10{tp}]",
     "f32[3,12{cp},30{tp}] f32[3,6{tp},12{cp}]"},
    {"attention head_dim=5 causal=1 cp=2 length=12", "f32[3,12{cp},30] f32[3,12{cp},10] f32[3,12{cp},10]",
     "error: dim t may not be sharded"},
    {"attention head_dim=5 causal=1 cp=2 length=12 hop=1",
     "bf16[3,12{cp},30{tp}] bf16[3,12{cp},10{tp}] bf16[3,12{cp},10{tp}]", "f32[3,12{cp},30{tp}] f32[3,6{tp},12{cp}]"},
    {"attention head_dim=5 causal=1 cp=2 length=12 hop=1", "bf16[3,12{cp},30] bf16[3,12,10] bf16[3,12,10]",
     "error: inputs disagree on the axes of dim s"},
    {"attention_grad head_dim=5 causal=1",
     "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10] bf16[3,5,30] f32[3,6,5] bf16[3,5,30]",
     "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10]"},
    {"attention_grad head_dim=5 causal=1",
     "bf16[3{tp},5,30] bf16[3{tp},5,10] bf16[3{tp},5,10] bf16[3{tp},5,30] f32[3{tp},6,5] bf16[3{tp},5,30]",
     "bf16[3{tp},5,30] bf16[3{tp},5,10] bf16[3{tp},5,10]"},
    {"attention_grad head_dim=5 causal=1",
     "bf16[3,5{tp},30] bf16[3,5,10] bf16[3,5,10] bf16[3,5{tp},30] f32[3,6,5{tp}] bf16[3,5{tp},30]",
     "error: dim s may not be sharded"},
    {"attention_grad head_dim=5 causal=1",
     "bf16[3,5,30] bf16[3,5{tp},10] bf16[3,5{tp},10] bf16[3,5,30] f32[3,6,5] bf16[3,5,30]",
     "error: dim t may not be sharded"},
    // Heads of queries share keys: along kv_replicate each rank adds what its own heads send back.
    {"attention_grad head_dim=5 causal=1",
     "f32[3,5,30{tp,kv_replicate}] f32[3,5,10{tp}] f32[3,5,10{tp}] f32[3,5,30{tp,kv_replicate}] "
     "f32[3,6{tp,kv_replicate},5] f32[3,5,30{tp,kv_replicate}]",
     "f32[3,5,30{tp,kv_replicate}] f32[3,5,10{tp}]+sum{kv_replicate} f32[3,5,10{tp}]+sum{kv_replicate}"},
    // Queries that are cut leave sums over them in the gradients of keys and values.
    {"attention_grad head_dim=5 causal=1 cp=2 length=12",
     "f32[3,12{cp},30] f32[3,12,10] f32[3,12,10] f32[3,12{cp},30] f32[3,6,12{cp}] f32[3,12{cp},30]",
     "f32[3,12{cp},30] f32[3,12,10]+sum{cp} f32[3,12,10]+sum{cp}"},
    {"attention_grad head_dim=5 causal=1 cp=2 length=12 hop=1",
     "bf16[3,12{cp},30] bf16[3,12{cp},10] bf16[3,12{cp},10] bf16[3,12{cp},30] f32[3,6,12{cp}] bf16[3,12{cp},30]",
     "f32[3,12{cp},30] f32[3,12{cp},10] f32[3,12{cp},10]"},
    // A last input, the documents, has the rows of the queries.
    {"attention head_dim=5 causal=1 window=3", "bf16[3{tp},5,30] bf16[3{tp},5,10] bf16[3{tp},5,10] i32[3{tp},5]",
     "bf16[3{tp},5,30] f32[3{tp},6,5]"},
    {"attention head_dim=5 causal=1", "f32[3,5,30{tp}] f32[3,5,10{tp}] f32[3,5,10{tp}] i32[3,5]",
     "f32[3,5,30{tp}] f32[3,6{tp},5]"},
    {"attention head_dim=5 causal=1 cp=2 length=12",
     "f32[3,12{cp},30{tp}] f32[3,12,10{tp}] f32[3,12,10{tp}] i32[3,12{cp}]",
     "f32[3,12{cp},30{tp}] f32[3,6{tp},12{cp}]"},
    {"attention head_dim=5 causal=1 cp=2 length=12", "f32[3,12{cp},30] f32[3,12,10] f32[3,12,10] i32[3,12]",
     "error: inputs disagree on the axes of dim s"},
    {"attention head_dim=5 causal=1 cp=2 length=12 hop=1",
     "bf16[3,12{cp},30] bf16[3,12{cp},10] bf16[3,12{cp},10] i32[3,12{cp}]", "f32[3,12{cp},30] f32[3,6,12{cp}]"},
    {"attention_grad head_dim=5 causal=1 cp=2 length=12",
     "f32[3,12{cp},30] f32[3,12,10] f32[3,12,10] f32[3,12{cp},30] f32[3,6,12{cp}] f32[3,12{cp},30] i32[3,12{cp}]",
     "f32[3,12{cp},30] f32[3,12,10]+sum{cp} f32[3,12,10]+sum{cp}"},
    {"attention_grad head_dim=5 causal=1 window=3",
     "f32[3{tp},5,30] f32[3{tp},5,10] f32[3{tp},5,10] f32[3{tp},5,30] f32[3{tp},6,5] f32[3{tp},5,30] i32[3{tp},5]",
     "f32[3{tp},5,30] f32[3{tp},5,10] f32[3{tp},5,10]"},
    // Over caches: positions of the queries come last.
    {"attention head_dim=5 causal=1 cached=1", "bf16[1,3,30] bf16[1,7,10] bf16[1,7,10] i32[3]",
     "bf16[1,3,30] f32[1,6,3]"},
    {"cache_write", "bf16[1,7,10] bf16[1,3,10] i32[3]", "bf16[1,7,10]"},
    {"cache_write", "f32[3{dp_shard},7,10{tp}] f32[3{dp_shard},3,10{tp}] i32[3]", "f32[3{dp_shard},7,10{tp}]"},
    {"cache_write", "bf16[1,7,10] f32[1,3,10] i32[3]", "error: cache_write: the types of cache and rows differ"},
    {"attention_merge to=bf16", "f32[3,5,30] f32[3,6,5] f32[3,5,30] f32[3,6,5]", "bf16[3,5,30] f32[3,6,5]"},
    {"attention_merge to=f32", "f32[3{tp},5,30] f32[3{tp},6,5] f32[3{tp},5,30] f32[3{tp},6,5]",
     "f32[3{tp},5,30] f32[3{tp},6,5]"},
    {"attention_merge to=f32", "f32[3,5{tp},30] f32[3,6,5{tp}] f32[3,5{tp},30] f32[3,6,5{tp}]",
     "f32[3,5{tp},30] f32[3,6,5{tp}]"},
    {"attention_merge to=f32", "f32[3,5,30{tp}] f32[3,6{tp},5] f32[3,5,30{tp}] f32[3,6{tp},5]",
     "f32[3,5,30{tp}] f32[3,6{tp},5]"},
    {"attention_merge to=f64", "f32[3,5,30] f32[3,6,5] f32[3,5,30] f32[3,6,5]", "error: attention_merge to f64"},

    // Element by element: any dim, the same in all tensors. Only addition, casts in kv_replicate, and casts that say so
    // pass partial sums on.
    {"add", "bf16[3,5,7] bf16[3,5,7]", "bf16[3,5,7]"},
    {"add", "bf16[3{tp},5,7] bf16[3{tp},5,7]", "bf16[3{tp},5,7]"},
    {"add", "bf16[3,5{tp},7] bf16[3,5{tp},7] bf16[3,5{tp},7]", "bf16[3,5{tp},7]"},
    {"add", "f32[3,5{cp},7{tp}] f32[3,5{cp},7{tp}]", "f32[3,5{cp},7{tp}]"},
    {"add", "f32[3{dp_shard},5,7{tp}] f32[3{dp_shard},5,7{tp}] f32[3{dp_shard},5,7{tp}]", "f32[3{dp_shard},5,7{tp}]"},
    {"add", "f32[3,5,7]+sum{tp} f32[3,5,7]+sum{tp}", "f32[3,5,7]+sum{tp}"},
    {"add", "f32[3,5{cp},7]+sum{tp} f32[3,5{cp},7]+sum{tp} f32[3,5{cp},7]+sum{tp}", "f32[3,5{cp},7]+sum{tp}"},
    {"add", "f32[3,5,7]+sum{tp} f32[3,5,7]", "error: partial inputs are not allowed"},
    {"add", "f32[3,5,7]+max{tp} f32[3,5,7]+max{tp}", "error: partial inputs are not allowed"},
    {"add", "bf16[3,5,7{tp}] bf16[3,5,7]", "error: inputs disagree on the axes of dim c"},
    {"swiglu", "bf16[3,5,11] bf16[3,5,11]", "bf16[3,5,11]"},
    {"swiglu", "bf16[3{tp},5,11] bf16[3{tp},5,11]", "bf16[3{tp},5,11]"},
    {"swiglu", "bf16[3,5{tp},11] bf16[3,5{tp},11]", "bf16[3,5{tp},11]"},
    {"swiglu", "bf16[3,5,11{tp}] bf16[3,5,11{tp}]", "bf16[3,5,11{tp}]"},
    {"swiglu", "bf16[3,5,11]+sum{tp} bf16[3,5,11]+sum{tp}", "error: partial inputs are not allowed"},
    {"swiglu_grad", "bf16[3,5,11] bf16[3,5,11] bf16[3,5,11]", "bf16[3,5,11] bf16[3,5,11]"},
    {"swiglu_grad", "bf16[3{tp},5,11] bf16[3{tp},5,11] bf16[3{tp},5,11]", "bf16[3{tp},5,11] bf16[3{tp},5,11]"},
    {"swiglu_grad", "bf16[3,5{tp},11] bf16[3,5{tp},11] bf16[3,5{tp},11]", "bf16[3,5{tp},11] bf16[3,5{tp},11]"},
    {"swiglu_grad", "f32[3,5,11{tp}] f32[3,5,11{tp}] f32[3,5,11{tp}]", "f32[3,5,11{tp}] f32[3,5,11{tp}]"},
    {"gelu", "bf16[3,5,11]", "bf16[3,5,11]"},
    {"gelu", "bf16[3{tp},5,11]", "bf16[3{tp},5,11]"},
    {"gelu", "bf16[3,5{tp},11]", "bf16[3,5{tp},11]"},
    {"gelu", "bf16[3,5,11{tp,kv_replicate}]", "bf16[3,5,11{tp,kv_replicate}]"},
    {"gelu", "bf16[3,5,11]+sum{tp}", "error: partial inputs are not allowed"},
    {"gelu_grad", "bf16[3,5,11] bf16[3,5,11]", "bf16[3,5,11]"},
    {"gelu_grad", "bf16[3{tp},5,11] bf16[3{tp},5,11]", "bf16[3{tp},5,11]"},
    {"gelu_grad", "bf16[3,5{tp},11] bf16[3,5{tp},11]", "bf16[3,5{tp},11]"},
    {"gelu_grad", "f32[3,5,11{tp}] f32[3,5,11{tp}]", "f32[3,5,11{tp}]"},
    {"cast to=bf16", "f32[11,7]", "bf16[11,7]"},
    {"cast to=bf16", "f32[11{tp,dp_shard},7]", "bf16[11{tp,dp_shard},7]"},
    {"cast to=f32", "bf16[11,7{tp}]", "f32[11,7{tp}]"},
    {"cast to=f32", "f32[11,7]+sum{kv_replicate}", "f32[11,7]+sum{kv_replicate}"},
    {"cast to=bf16", "f32[11,7]+sum{tp}", "error: partial inputs are not allowed"},
    {"cast parts=1 to=bf16", "f32[11{tp},7]+sum{dp_shard}", "bf16[11{tp},7]+sum{dp_shard}"},
    {"cast parts=1 to=bf16", "f32[11,7]+max{tp}", "error: partial inputs are not allowed"},
    {"cast to=i32", "f32[11,7]", "error: cast to i32"},
    {"accumulate", "f32[11,7]", "f32[11,7]"},
    {"accumulate", "f32[11{tp},7]", "f32[11{tp},7]"},
    {"accumulate", "f32[11,7{tp}]", "f32[11,7{tp}]"},

    // The loss over a sharded vocabulary: a partial maximum, then two partial sums; the loss itself is a sum over
    // tokens.
    {"logits_max", "bf16[3,5,13]", "f32[3,5]"},
    {"logits_max", "bf16[3{tp},5,13]", "f32[3{tp},5]"},
    {"logits_max", "bf16[3,5{tp},13]", "f32[3,5{tp}]"},
    {"logits_max", "bf16[3,5,13{tp}]", "f32[3,5]+max{tp}"},
    {"logits_max", "f32[3{dp_shard},5{cp},13{tp,kv_replicate}]", "f32[3{dp_shard},5{cp}]+max{tp,kv_replicate}"},
    {"logits_sum", "bf16[3,5,13] f32[3,5] i32[3,5]", "f32[3,5] f32[3,5]"},
    {"logits_sum", "bf16[3{tp},5,13] f32[3{tp},5] i32[3{tp},5]", "f32[3{tp},5] f32[3{tp},5]"},
    {"logits_sum", "bf16[3,5{tp},13] f32[3,5{tp}] i32[3,5{tp}]", "f32[3,5{tp}] f32[3,5{tp}]"},
    {"logits_sum", "f32[3,5,13{tp}] f32[3,5] i32[3,5]", "f32[3,5]+sum{tp} f32[3,5]+sum{tp}"},
    {"logits_sum", "f32[3,5,13{tp}] f32[3,5]+max{tp} i32[3,5]", "error: partial inputs are not allowed"},
    {"token_loss z_loss=0.1", "f32[3{tp},5] f32[3{tp},5] f32[3{tp},5] i32[3{tp},5]",
     "f32[]+sum{tp} f32[]+sum{tp} f32[]+sum{tp}"},
    {"token_loss", "f32[3,5] f32[3,5] f32[3,5] i32[3,5]", "f32[] f32[]"},
    {"token_loss", "f32[3{tp},5] f32[3{tp},5] f32[3{tp},5] i32[3{tp},5]", "f32[]+sum{tp} f32[]+sum{tp}"},
    {"token_loss", "f32[3{dp_shard},5{tp}] f32[3{dp_shard},5{tp}] f32[3{dp_shard},5{tp}] i32[3{dp_shard},5{tp}]",
     "f32[]+sum{dp_shard,tp} f32[]+sum{dp_shard,tp}"},
    {"token_loss", "f32[3,5] f32[3,5]+sum{tp} f32[3,5] i32[3,5]", "error: partial inputs are not allowed"},
    {"cross_entropy_grad", "bf16[3,5,13] f32[3,5] f32[3,5] i32[3,5]", "bf16[3,5,13]"},
    {"cross_entropy_grad", "bf16[3{tp},5,13] f32[3{tp},5] f32[3{tp},5] i32[3{tp},5]", "bf16[3{tp},5,13]"},
    {"cross_entropy_grad", "bf16[3,5{tp},13] f32[3,5{tp}] f32[3,5{tp}] i32[3,5{tp}]", "bf16[3,5{tp},13]"},
    {"cross_entropy_grad", "f32[3,5,13{tp}] f32[3,5] f32[3,5] i32[3,5]", "f32[3,5,13{tp}]"},

    // Once a step. The update is element by element, over any number of tensors of any shapes after the scalars that
    // all share.
    {"sum_squares", "f32[11,7]", "f32[]"},
    {"sum_squares", "f32[11{tp,dp_shard},7]", "f32[]+sum{dp_shard,tp}"},
    {"sum_squares", "f32[11,7{tp}]", "f32[]+sum{tp}"},
    {"sum_squares", "f32[11,7]+sum{tp}", "error: partial inputs are not allowed"},
    {"clip clip_norm=1", "f32[] f32[] f32[] f32[]", "f32[] f32[] f32[] f32[] f32[]"},
    {"clip clip_norm=1 z_loss=0.1", "f32[] f32[] f32[] f32[] f32[]", "f32[] f32[] f32[] f32[] f32[] f32[]"},
    {"clip clip_norm=1 limits=1", "f32[] f32[] f32[] f32[] f32[]", "f32[] f32[] f32[] f32[] f32[]"},
    {"clip clip_norm=1", "f32[]+sum{dp_shard} f32[] f32[]", "error: partial inputs are not allowed"},
    {"adamw", "f32[] f32[] f32[] f32[] f32[11,7] f32[11,7] f32[11,7] f32[11,7]", "f32[11,7] f32[11,7] f32[11,7]"},
    {"adamw",
     "f32[] f32[] f32[] f32[] f32[11{tp,dp_shard},7] f32[11{tp,dp_shard},7] f32[11{tp,dp_shard},7] "
     "f32[11{tp,dp_shard},7]",
     "f32[11{tp,dp_shard},7] f32[11{tp,dp_shard},7] f32[11{tp,dp_shard},7]"},
    {"adamw", "f32[] f32[] f32[] f32[] f32[11,7{tp}] f32[11,7{tp}] f32[11,7{tp}] f32[11,7{tp}]",
     "f32[11,7{tp}] f32[11,7{tp}] f32[11,7{tp}]"},
    {"adamw",
     "f32[] f32[] f32[] f32[] f32[11,7] f32[11,7] f32[11,7] f32[11,7] f32[13{tp}] f32[13{tp}] f32[13{tp}] f32[13{tp}]",
     "f32[11,7] f32[11,7] f32[11,7] f32[13{tp}] f32[13{tp}] f32[13{tp}]"},
    {"adamw", "f32[] f32[] f32[] f32[] f32[11,7] f32[11,7] f32[11,7] f32[11,7]+sum{dp_shard}",
     "error: partial inputs are not allowed"},
    {"adamw", "f32[] f32[] f32[] f32[] f32[11,7] f32[11,7] f32[11,7] f32[11{tp},7]",
     "error: inputs disagree on the axes of dim a"},
    // Muon: matrices sharded on any dim; a product over a sharded dim is a sum.
    {"muon_direction beta=0.9 nesterov=1", "f32[] f32[] f32[11{dp_shard},7{tp}] f32[11{dp_shard},7{tp}]",
     "f32[11{dp_shard},7{tp}] f32[11{dp_shard},7{tp}]"},
    {"muon_direction beta=0.9 nesterov=1", "f32[] f32[] f32[11,7] f32[11,7]+sum{tp}",
     "error: partial inputs are not allowed"},
    {"normalize to=bf16 eps=1e-7", "f32[11{dp_shard},7{tp}] f32[]", "bf16[11{dp_shard},7{tp}]"},
    {"normalize to=bf16 eps=1e-7", "f32[11,7{tp}] f32[]+sum{tp}", "error: partial inputs are not allowed"},
    {"normalize to=i32 eps=1e-7", "f32[11,7] f32[]", "error: normalize to i32"},
    {"weighted_sum alpha=2 beta=3", "bf16[11{tp},7{dp_shard}] bf16[11{tp},7{dp_shard}]", "bf16[11{tp},7{dp_shard}]"},
    {"weighted_sum alpha=2 beta=3", "bf16[11{tp},7] bf16[11,7]", "error: inputs disagree on the axes of dim a"},
    {"muon_update weight_decay=0.1 factor=2", "f32[] f32[] f32[11{dp_shard},7{tp}] bf16[11{dp_shard},7{tp}]",
     "f32[11{dp_shard},7{tp}]"},
    {"matmul spec=sk,sn->kn", "bf16[11{tp,dp_shard},7] bf16[11{tp,dp_shard},7]", "bf16[7,7]+sum{dp_shard,tp}"},
    {"matmul spec=sk,nk->sn", "bf16[7,11{dp_shard}] bf16[7,11{dp_shard}]", "bf16[7,7]+sum{dp_shard}"},
    {"matmul spec=sk,nk->sn", "bf16[7{dp_shard},7] bf16[7,7]", "bf16[7{dp_shard},7]"},
    {"matmul spec=sk,kn->sn", "bf16[7,7] bf16[7,11{dp_shard}]", "bf16[7,11{dp_shard}]"},

    // A ring passes on whatever its members hold.
    {"ring_shift", "bf16[3,12{cp},10] f32[3,12{cp},10]", "bf16[3,12{cp},10] f32[3,12{cp},10]"},
    {"ring_shift", "f32[3{dp_shard},12,10{tp}] f32[3{dp_shard},12,10{tp}]",
     "f32[3{dp_shard},12,10{tp}] f32[3{dp_shard},12,10{tp}]"},
    {"ring_shift", "f32[3,12{cp},10]+sum{kv_replicate}", "f32[3,12{cp},10]+sum{kv_replicate}"},
};

/// Rules that nobody states, since they are wrong: the comparison with kernels must see it.
inline const std::vector<Rule> kWrong = {
    {"gelu", "f32[3,5,11]+sum{tp}", "f32[3,5,11]+sum{tp}"},
    {"rms_norm eps=1e-5", "f32[3,5,7{tp}] f32[7{tp}]", "f32[3,5,7{tp}] f32[3,5]"},
    {"matmul spec=bsk,nk->bsn", "f32[3,5,7{tp}] f32[11,7{tp}]", "f32[3,5,11]"},
    {"embedding", "i32[3,5] f32[13{tp},7]", "f32[3,5,7]"},
    {"add_bias", "f32[3,5,11]+sum{tp} f32[11]", "f32[3,5,11]+sum{tp}"},
    {"attention head_dim=5 causal=1", "f32[3,5,30] f32[3,5{tp},10] f32[3,5{tp},10]",
     "f32[3,5,30]+sum{tp} f32[3,6,5]+sum{tp}"},
    {"attention_grad head_dim=5 causal=1",
     "f32[3,5,30{tp,kv_replicate}] f32[3,5,10{tp}] f32[3,5,10{tp}] f32[3,5,30{tp,kv_replicate}] "
     "f32[3,6{tp,kv_replicate},5] f32[3,5,30{tp,kv_replicate}]",
     "f32[3,5,30{tp,kv_replicate}] f32[3,5,10{tp}] f32[3,5,10{tp}]"},
    {"logits_max", "f32[3,5,13{tp}]", "f32[3,5]+sum{tp}"},
    {"sum_squares", "f32[11,7]", "f32[]+sum{tp}", "f32[]+sum{tp}"},
    {"row_squares", "f32[3,5,10{tp}]", "f32[3,5]"},
};

/// Ops whose output placements are stated by the pass that inserts them. They keep element types and shapes: `outputs`
/// is "allowed" or "error: ...".
inline const std::vector<Rule> kStated = {
    {"reshard", "bf16[3{dp_shard},5,7]+sum{tp}", "allowed", "bf16[3,5{tp},7]"},
    {"reshard", "bf16[3,5,7]", "error: keeps element type and shape", "f32[3,5,7]"},
    {"slice axes=16", "f32[3,5]", "allowed", "f32[3{tp},5]"},
    {"slice axes=16", "f32[3,5]", "error: keeps element type and shape", "f32[2,5]"},
    {"pad axes=16", "f32[3{tp},5]", "allowed", "f32[3,5]+sum{tp}"},
    {"all_gather axes=16", "bf16[3,5{tp}] f32[7{tp}]", "allowed", "bf16[3,5] f32[7]"},
    {"all_gather axes=16", "bf16[3,5{tp}] f32[7{tp}]", "error: as many outputs as inputs", "bf16[3,5]"},
    {"reduce_scatter axes=16", "f32[3,5]+sum{tp}", "allowed", "f32[3,5{tp}]"},
    {"all_reduce axes=16", "f32[3,5]+max{tp}", "allowed", "f32[3,5]"},
    {"all_to_all axes=16", "bf16[3,5{tp},7]", "allowed", "bf16[3,5,7{tp}]"},
    {"gather_stages", "f32[]", "allowed", "f32[]"},
    {"send to=1", "bf16[3,5{tp},7] f32[7]", "allowed", ""},
    {"recv from=0", "", "allowed", "bf16[3,5{tp},7] f32[7]"},
};

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
    {"matmul spec=bsk,nk->bsn", "dy0",
     "dx0 = matmul(dy0, x1) spec=bsn,nk->bsk\ndx1 = matmul(dy0, x0) spec=bsn,bsk->nk"},
    {"matmul spec=bsk,kn->bsn", "dy0",
     "dx0 = matmul(dy0, x1) spec=bsn,kn->bsk\ndx1 = matmul(x0, dy0) spec=bsk,bsn->kn"},
    {"matmul spec=bsn,bsk->nk", "dy0", "error: only the forward matmul has a gradient"},
    {"rope head_dim=10 inverse=0", "dy0", "dx0 = rope(dy0, x1) head_dim=10 inverse=1"},
    {"rope head_dim=10 inverse=1", "dy0", "dx0 = rope(dy0, x1) head_dim=10 inverse=0"},
    {"attention head_dim=5 causal=1", "dy0",
     "dx0, dx1, dx2 = attention_grad(x0, x1, x2, y0, y1, dy0) causal=1 head_dim=5"},
    {"add", "dy0", "dx0 = dy0\ndx1 = dy0"},
    {"swiglu", "dy0", "dx0, dx1 = swiglu_grad(x0, x1, dy0)"},
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
    // A window w leaves w - w^2 / 2t keys of a query.
    {"attention head_dim=5 causal=1 window=4 cp=2 length=16", "bf16[3,16{cp},30] bf16[3,16,10] bf16[3,16,10]",
     4.0 * 3 * 8 * 30 * 3.5},
    {"attention head_dim=5 causal=1 window=9", "bf16[3,5,30] bf16[3,5,10] bf16[3,5,10]", 2.0 * 3 * 5 * 30 * 5},
};

/// What the partitioner makes of an op on a mesh of 2 along each axis that `inputs` name and of 1 along the others. An
/// input with "w:" is a weight (known once a step). `moved` are the inputs as the op gets them. `asked` is the layout
/// of output 0, which a weight gradient has of its weight.
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
