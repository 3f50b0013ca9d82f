// Llama and its relatives, as Hugging Face's LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM
// and Olmo2ForCausalLM: grouped-query attention with rotary positions, SwiGLU, RMSNorm, tied or untied head. Keys of
// the deck choose biases, norms of queries and keys, and where a layer normalises. Names and [out, in] layouts of the
// weights are Hugging Face's.
//
//   x = embed(ids);  per layer:  x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(x)
//                                x += down(swiglu(gate(n), up(n))),               n = norm(x)
//   logits = head(norm(x));  loss = sum of token cross-entropies
//
// With model.norm_placement = "post" (OLMo 2):
//
//   x += norm(o(attention(rope(q(x)), rope(k(x)), v(x)))),  x += norm(down(swiglu(gate(x), up(x))))
//
// In layers with experts (Mixtral, Qwen3-MoE, OLMoE), with the rows that the router r makes of the tokens:
//
//   x += combine(down(swiglu(gate(rows), up(rows)) weights)),  rows, weights = dispatch(n, route(r(n)))
//
// With model.attention = "mla" (DeepSeek-V2 and V3), q, k and v come from latents a and c (LatentAttention below):
//
//   q = rope(q_b(norm(q_a(n)))),  [c, r] = kv_a(n),  k, v = kv_b(norm(c)), and every head of k ends with rope(r)
//
// Layers for further tokens (model.mtp_layers) are in the programs of training alone. With h(0) = norm(x), depth k is
//
//   h(k) = norm(layer(eh_proj [norm(embed(ids k places ahead)), norm(h(k - 1))])),  logits = head(h(k))
//
// In training, dropout drops probabilities of attention.
#include <fmt/core.h>

#include <cmath>

#include "espalier/deck/expert_parallel.hpp"
#include "espalier/model/further_tokens.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/model/router_losses.hpp"
#include "families.hpp"
#include "rope_attributes.hpp"
#include "transformer_writer.hpp"

namespace espalier {
namespace {

class Llama final : public TransformerWriter {
 public:
  using TransformerWriter::TransformerWriter;

 private:
  static constexpr ParameterInit kOnes{ParameterInit::Kind::kOnes, 0}, kZeros{ParameterInit::Kind::kZeros, 0};

  int Matmul(int x, const std::string& name, Shape shape, const char* layout, ParameterInit init,
             const std::string& product, const char* out = "") {
    const int w = b_.Parameter(name + ".weight", std::move(shape), layout, init);
    return WeightMatmul(x, w, name + ".weight", name + product, "bsk,nk->bsn", out);
  }
  int AddBias(int product, const std::string& name, int64_t width, const char* layout) {
    const int bias = b_.Parameter(name + ".bias", {width}, layout, kZeros);
    return b_.Emit(OpKind::kAddBias, {product, bias}, {name + ".out"});
  }
  /// From the residual stream to `width` features that tp shards as `to` (column parallel).
  int UpProjection(int x, const std::string& name, int64_t width, const std::string& to, bool bias, bool cheap) {
    const int product = Matmul(x, name, {width, m_.dim}, (to + ",embed").c_str(), normal_, bias ? ".product" : ".out");
    if (cheap) b_.Cheap(product);
    if (!bias) return product;
    const int sum = AddBias(product, name, width, to.c_str());
    return cheap ? b_.Cheap(sum) : sum;
  }
  /// From `width` features that tp shards as `from` back to the residual stream (row parallel). What tp leaves partial
  /// is reduced before anything but the residual is added.
  int DownProjection(int x, const std::string& name, int64_t width, const std::string& from, bool bias) {
    const char* out = bias || IsPost() ? kStream : "";
    const int product =
        Matmul(x, name, {m_.dim, width}, ("embed," + from).c_str(), output_, bias ? ".product" : ".out", out);
    return bias ? AddBias(product, name, m_.dim, "embed") : product;
  }

  bool IsPost() const { return m_.norm_placement == NormPlacement::kPost; }
  int Norm(int x, const std::string& name) {
    const int w = b_.Parameter(name + ".weight", {m_.dim}, "embed", kOnes);
    return b_.Emit(OpKind::kRmsNorm, {x, w}, {name + ".out", name + ".rstd"}, {{{"eps", m_.norm_eps}}, {}});
  }
  /// The norm of what a matmul reads.
  int InputNorm(int x, const std::string& name) { return b_.Cheap(Norm(x, name)); }

  int Embed() override {
    rope_table_ = b_.Prepare(OpKind::kRopeTable, {SequencePositions()}, "rope_table", RopeAttributes(m_));
    embedding_ = b_.Parameter("model.embed_tokens.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    return EmbedIds("ids", "model.embed_tokens.out");
  }
  /// The embeddings of the tokens of an input.
  int EmbedIds(const std::string& input, const std::string& name) {
    const int ids = b_.MicrobatchInput(input, {forward_.batch, forward_.tokens}, "batch,seq");
    return b_.Emit(OpKind::kEmbedding, {ids, embedding_}, {name}, {{{"vocab", double(m_.vocab)}}, {}}, kStream);
  }

  int Layer(int x, int l) override {
    const std::string at = NameOf(l);
    const auto residual = [&](int branch, const char* name) {
      return b_.Emit(OpKind::kAdd, {x, branch}, {at + name}, {}, kStream);
    };
    if (IsPost()) {
      x = residual(Norm(Attention(x, at, l), at + ".post_attention_layernorm"), ".attention_residual");
      return residual(Norm(FeedForward(x, at, l), at + ".post_feedforward_layernorm"), ".residual");
    }
    x = residual(Attention(InputNorm(x, at + ".input_layernorm"), at, l), ".attention_residual");
    return residual(FeedForward(InputNorm(x, at + ".post_attention_layernorm"), at, l), ".residual");
  }

  int Attention(int n, const std::string& at, int l) {
    const std::string self = at + ".self_attn.";
    return m_.attention == AttentionKind::kMla ? LatentAttention(n, self, l) : AttentionOfHeads(n, self, l);
  }

  int AttentionOfHeads(int n, const std::string& self, int l) {
    const int64_t e = m_.head_dim, q_width = m_.heads * e, kv_width = m_.kv_heads * e;
    const int q = Rotate(NormOfHeads(UpProjection(n, self + "q_proj", q_width, "heads", m_.qkv_bias, true),
                                     self + "q_norm", q_width, "heads"),
                         self + "q");
    const int k = Rotate(NormOfHeads(UpProjection(n, self + "k_proj", kv_width, "kv_heads", m_.qkv_bias, true),
                                     self + "k_norm", kv_width, "kv_heads"),
                         self + "k");
    const int v = UpProjection(n, self + "v_proj", m_.kv_heads * m_.v_dim, "kv_heads", m_.qkv_bias, true);
    return OutputOf(q, k, v, self, l);
  }

  int OutputOf(int q, int k, int v, const std::string& self, int l) {
    return ProjectOut(CausalAttention(q, k, v, l, {self + "out", self + "lse"}), self);
  }
  int ProjectOut(int o, const std::string& self) {
    return DownProjection(Sinks(o, self), self + "o_proj", m_.heads * m_.v_dim, "heads", m_.o_bias);
  }

  /// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, eq. 9 to 19). Each rank of tp computes the latents of
  /// its tokens of the residual stream; gathered are the latents, which are narrower than the stream. Keys and values
  /// of a head are neighbours in one projection, and the rotated part of the keys is one for all heads.
  int LatentAttention(int n, const std::string& self, int l) {
    const int64_t nope = m_.head_dim - m_.rope_dim, q_width = m_.heads * m_.head_dim;
    const std::string kv_a = self + "kv_a_proj_with_mqa";
    const Shape both = {m_.kv_rank + m_.rope_dim, m_.dim};
    const StoredPart latent{kv_a + ".weight", both, {0, 0}}, rotated{kv_a + ".weight", both, {m_.kv_rank, 0}};
    int q = n;
    if (m_.q_rank > 0) {
      const std::string name = self + "q_a_proj.weight";
      q = NormOfLatent(Latent(n, b_.Parameter(name, {m_.q_rank, m_.dim}, "whole,embed", normal_), name, self + "q_a"),
                       self + "q_a_layernorm", m_.q_rank);
    }
    q = Rotate(QueriesOfLatent(q, self + (m_.q_rank > 0 ? "q_b_proj" : "q_proj"), q_width), self + "q", m_.head_dim,
               nope);
    const int projection = b_.Parameter("latent", latent, {m_.kv_rank, m_.dim}, "whole,embed", normal_);
    const int kv_latent =
        NormOfLatent(Latent(n, projection, latent.name, kv_a + ".latent"), self + "kv_a_layernorm", m_.kv_rank);
    const std::string up = self + "kv_b_proj";
    const int w = b_.Parameter(up + ".weight", {m_.heads * (nope + m_.v_dim), m_.kv_rank}, "kv_heads,embed", normal_);
    const bool from_cache = Samples() && forward_.tokens == 1;
    const int kv =
        from_cache ? -1 : b_.Cheap(WeightMatmul(kv_latent, w, up + ".weight", up + ".out", "bsk,nk->bsn", ""));
    const int rope = b_.Parameter("rope", rotated, {m_.rope_dim, m_.dim}, "whole,embed", normal_);
    const int shared = Rotate(Latent(n, rope, rotated.name, kv_a + ".rope"), self + "k_rope", m_.rope_dim, 0);
    const int latents = Samples() ? Cached(kv_latent, l, "latent") : -1;
    const int rotations = Samples() ? Cached(shared, l, "rope") : -1;
    if (from_cache) return ProjectOut(AttentionToLatents(q, w, latents, rotations, l), self);
    const int k = b_.Cheap(b_.Emit(OpKind::kLatentKeys, {kv, shared}, {self + "k", self + "v"},
                                   {{{"nope_dim", double(nope)}, {"value_dim", double(m_.v_dim)}}, {}}));
    return OutputOf(q, k, b_.Output(k, 1), self, l);
  }

  /// The next token of a text, in sampling: keys and values of earlier tokens are not made again from their latents. A
  /// prompt makes its own, since it begins the text.
  int AttentionToLatents(int q, int w, int latents, int rotations, int l) {
    Attributes attributes{{{"nope_dim", double(m_.head_dim - m_.rope_dim)}, {"value_dim", double(m_.v_dim)}}, {}};
    AddScoreRule(l, attributes);
    const std::string self = NameOf(l) + ".self_attn.";
    return b_.Emit(OpKind::kLatentAttention, {q, w, latents, rotations, positions()}, {self + "out", self + "lse"},
                   std::move(attributes));
  }

  /// Features of a token that keys, values or queries of all heads are made of.
  int Latent(int n, int w, const std::string& weight, const std::string& name) {
    return WeightMatmul(n, w, weight, name, "bsk,nk->bsn", "batch,stream,whole");
  }
  /// As in Hugging Face's DeepSeek-V3, whose latents have an epsilon of their own.
  int NormOfLatent(int x, const std::string& name, int64_t width) {
    constexpr double kEps = 1e-6;
    const int w = b_.Parameter(name + ".weight", {width}, "whole", kOnes);
    return b_.Cheap(b_.Emit(OpKind::kRmsNorm, {x, w}, {name + ".out", name + ".rstd"}, {{{"eps", kEps}}, {}}));
  }
  /// From a latent, or the residual stream, to `width` features of queries.
  int QueriesOfLatent(int x, const std::string& name, int64_t width) {
    return b_.Cheap(Matmul(x, name, {width, b_.WidthOf(x)}, "heads,embed", normal_, ".out"));
  }

  /// model.sinks: the results of attention, scaled for a logit of each head in the denominators.
  int Sinks(int o, const std::string& self) {
    if (!m_.sinks) return o;
    const int sinks = b_.Parameter(self + "sinks", {m_.heads}, "heads", normal_);
    return b_.Emit(OpKind::kAttentionSink, {o, b_.Output(o, 1), sinks}, {self + "sunk", self + "sunk_lse"},
                   {{{"head_dim", double(m_.v_dim)}}, {}});
  }

  /// model.qk_norm of queries or keys: of each head by itself, or of all heads together, which tp shards. The sums of
  /// squares are kept for backward: they are small, and over all heads they took a reduction.
  int NormOfHeads(int x, const std::string& name, int64_t width, const char* layout) {
    if (m_.qk_norm == QkNorm::kNone) return x;
    const bool each = m_.qk_norm == QkNorm::kHead;
    const auto head_dim = double(m_.head_dim);
    const Attributes squares = each ? Attributes{{{"head_dim", head_dim}}, {}} : Attributes{};
    Attributes norm = squares;
    norm.numbers["eps"] = m_.norm_eps;
    norm.numbers["width"] = each ? head_dim : double(width);
    const int w = b_.Parameter(name + ".weight", {each ? m_.head_dim : width}, each ? "head_dim" : layout, kOnes);
    const int sums = b_.Emit(OpKind::kRowSquares, {x}, {name + ".squares"}, squares);
    return b_.Cheap(b_.Emit(OpKind::kRowNorm, {x, w, sums}, {name + ".out"}, norm));
  }

  int Rotate(int x, const std::string& name) { return Rotate(x, name, m_.head_dim, 0); }
  /// Columns from `first` on of each head of `head_dim`.
  int Rotate(int x, const std::string& name, int64_t head_dim, int64_t first) {
    Attributes attributes{{{"head_dim", double(head_dim)}, {"inverse", 0}}, {}};
    if (first > 0) attributes.numbers["first"] = double(first);
    if (m_.rope_adjacent) attributes.numbers["adjacent"] = 1;
    return b_.Cheap(b_.Emit(OpKind::kRope, {x, rope_table_}, {name}, std::move(attributes)));
  }

  int FeedForward(int n, const std::string& at, int l) {
    const std::string mlp = at + ".mlp.";
    if (!KindOf(m_, l).experts) return Dense(n, mlp, m_.ffn_dim);
    const int routed = Experts(n, m_.experts, mlp + "gate", mlp + "experts.");
    if (m_.experts.shared_ffn_dim == 0) return routed;
    return b_.Emit(OpKind::kAdd, {routed, SharedExpert(n, mlp)}, {mlp + "out"}, {}, kStream);
  }

  /// The network that serves every token. With a gate it is a mixture of one expert, whose weight is the gate's
  /// sigmoid.
  int SharedExpert(int n, const std::string& mlp) {
    if (!m_.experts.shared_gate) return Dense(n, mlp + "shared_experts.", m_.experts.shared_ffn_dim);
    Deck::Model::Experts one{};
    one.count = one.per_token = one.groups = 1;
    one.ffn_dim = m_.experts.shared_ffn_dim;
    one.scores = RouterScores::kSigmoid;
    one.scale = 1;
    return Experts(n, one, mlp + "shared_expert_gate", mlp + "shared_expert.");
  }

  int Dense(int n, const std::string& mlp, int64_t width) {
    const int gate = UpProjection(n, mlp + "gate_proj", width, "ffn", m_.mlp_bias, false);
    const int up = UpProjection(n, mlp + "up_proj", width, "ffn", m_.mlp_bias, false);
    const int h = b_.Cheap(b_.Emit(OpKind::kSwiglu, {gate, up}, {mlp + "act"}));
    return DownProjection(h, mlp + "down_proj", width, "ffn", m_.mlp_bias);
  }

  /// Each token goes to the experts that the router chooses for it. Ranks of ep have different experts and the same
  /// tokens. All others, also along tp, have the same experts, whole, and different tokens. A single expert is not
  /// shared out. `gate` and `experts` begin the names of the weights.
  int Experts(int n, const Deck::Model::Experts& e, const std::string& gate, const std::string& experts) {
    const int router = b_.Parameter(gate + ".weight", {e.count, m_.dim}, "whole,embed", normal_);
    int logits = b_.Emit(OpKind::kMatmul, {n, router}, {gate + (e.router_bias ? ".product" : ".out")},
                         {{}, {{"spec", "bsk,nk->bsn"}}}, "batch,rows,whole");
    if (e.router_bias) logits = AddBias(logits, gate, e.count, "whole");
    const int weights = Route(logits, e, gate);
    const Attributes pool = RowPool(e);
    const bool one = e.count == 1;
    const int rows =
        b_.Cheap(b_.Emit(OpKind::kDispatch, {n, b_.Output(weights, 1), weights},
                         {experts + "rows", experts + "row_weights", experts + "row_experts", experts + "places"}, pool,
                         one ? "expert,batch,rows,whole" : "experts,expert_batch,expert_rows,whole"));
    const auto grouped = [&](int x, const char* name, Shape matrix, ParameterInit init) {
      const int w = b_.Parameter(experts + name + ".weight", {e.count, matrix[0], matrix[1]},
                                 one ? "expert,whole,whole" : "experts,whole,whole", init);
      Attributes attributes = pool;
      attributes.texts["spec"] = "ebsk,enk->ebsn";
      MarkFp8(experts + name + ".weight", attributes);
      return b_.Emit(OpKind::kGroupedMatmul, {x, w, b_.Output(rows, 2)},
                     {experts + name + (e.mlp_bias ? ".product" : ".out")}, attributes);
    };
    // `weights`: of rows, for a bias that is added after they were applied.
    const auto biased = [&](int x, const char* name, int64_t width, std::vector<int> weights = {}) {
      if (!e.mlp_bias) return x;
      std::vector<int> inputs = {
          x, b_.Parameter(experts + name + ".bias", {e.count, width}, one ? "expert,whole" : "experts,whole", kZeros),
          b_.Output(rows, 2)};
      inputs.insert(inputs.end(), weights.begin(), weights.end());
      return b_.Emit(OpKind::kAddRowBias, std::move(inputs), {experts + name + ".out"}, pool);
    };
    Attributes form = pool;
    if (e.swiglu_limit > 0) form.numbers["limit"] = e.swiglu_limit;
    const int gates = biased(grouped(rows, "gate_proj", {e.ffn_dim, m_.dim}, normal_), "gate_proj", e.ffn_dim);
    const int up = biased(grouped(rows, "up_proj", {e.ffn_dim, m_.dim}, normal_), "up_proj", e.ffn_dim);
    const int h = b_.Cheap(
        b_.Emit(OpKind::kWeightedSwiglu, {gates, up, b_.Output(rows, 1), b_.Output(rows, 2)}, {experts + "act"}, form));
    const int down =
        biased(grouped(h, "down_proj", {m_.dim, e.ffn_dim}, output_), "down_proj", m_.dim, {b_.Output(rows, 1)});
    return b_.Emit(OpKind::kCombine, {down, b_.Output(rows, 3)}, {experts + "out"}, pool, kStream);
  }

  /// The attributes of ops on rows (src/ops/dispatch.cpp). Every rank has a pool for the largest share of a sequence;
  /// no pool is larger than any routing needs.
  Attributes RowPool(const Deck::Model::Experts& e) const {
    const ExpertParallel shared = ExpertParallelOf(parallel_);
    const bool one = e.count == 1;
    const int64_t ranks = one ? 1 : parallel_.ep, here = e.count / ranks,
                  cuts = (shared.tp && !one ? 1 : parallel_.tp) * (shared.cp && !one ? 1 : parallel_.cp),
                  tokens = (forward_.tokens + cuts - 1) / cuts;
    const double balanced = double(tokens * e.per_token) / double(e.count),
                 worst = double(tokens * std::min(e.per_token, here)) / double(here),
                 rows = std::ceil(std::min(balanced * m_.experts.buffer, worst));
    return {{{"experts", double(e.count)},
             {"rows", rows * double(cuts)},
             {"ranks", double(ranks)},
             {"load", std::round(100 * balanced / rows)}},
            {}};
  }

  /// A single expert, such as a shared network with a gate, is chosen by all tokens anyway.
  bool Balanced(const Deck::Model::Experts& e) const {
    return e.count > 1 && m_.experts.routing == ExpertRouting::kBalanced;
  }

  /// The weights of each token's experts; the experts are the second output.
  int Route(int logits, const Deck::Model::Experts& e, const std::string& gate) {
    const std::string bias_name = gate + ".e_score_correction_bias";
    std::vector<int> inputs = {logits};
    if (e.bias) inputs.push_back(b_.Untrained(bias_name, {e.count}, "whole"));
    Attributes attributes{
        {{"per_token", double(e.per_token)}, {"normalize", e.normalize ? 1.0 : 0.0}, {"scale", e.scale}},
        {{"scores", std::string(DeckName(e.scores))}}};
    if (Balanced(e)) inputs.push_back(positions()), attributes.numbers["balanced"] = 1;
    if (e.groups > 1) attributes.numbers.insert({{"groups", double(e.groups)}, {"top_groups", double(e.top_groups)}});
    if (e.groups > 1 && e.group_best != 2) attributes.numbers["group_best"] = double(e.group_best);
    const int weights = b_.Emit(OpKind::kRoute, std::move(inputs), {gate + ".weights", gate + ".chosen"}, attributes);
    const int chosen = b_.Output(weights, 1);
    if (!HasBackward(forward_.purpose)) return weights;
    if (e.count > 1 || e.bias) {  // loads steer the bias
      b_.Emit(OpKind::kExpertLoad, {chosen}, {LoadName(gate)}, {{{"experts", double(e.count)}}, {}});
      b_.Emit(OpKind::kRouterEntropy, {logits}, {gate + std::string(kEntropySuffix)},
              {{}, {{"scores", std::string(DeckName(e.scores))}}});
    }
    RouterLosses(logits, chosen, e, gate);
    return weights;
  }

  void RouterLosses(int logits, int chosen, const Deck::Model::Experts& e, const std::string& gate) {
    if (e.balance_loss == 0 && e.z_loss == 0) return;
    const double balance = e.balance_loss * double(e.count) / double(e.per_token * m_.seq_len);
    const Attributes factors{{{"balance", balance}, {"z_loss", e.z_loss}}, {}};
    Attributes attributes = factors;
    attributes.texts["scores"] = DeckName(e.scores);
    const int sums = b_.Emit(OpKind::kBalance, {logits, chosen},
                             {gate + ".score_sums", gate + ".score_counts", gate + ".log_squares"}, attributes);
    b_.Emit(OpKind::kRouterLoss, {sums, b_.Output(sums, 1), b_.Output(sums, 2)},
            {fmt::format("{}.{}", gate, kBalanceLoss), fmt::format("{}.{}", gate, kRouterZLoss)}, factors);
  }

  static std::string NameOf(int l) { return "model.layers." + std::to_string(l - 1); }
  std::string NameOfDepth(int depth) const { return NameOf(m_.layers + depth); }

  int FinalNorm(int x, int depth) override {
    return InputNorm(x, depth == 0 ? "model.norm" : NameOfDepth(depth) + ".shared_head.norm");
  }

  int FurtherInput(int normed, int depth) override {
    const std::string at = NameOfDepth(depth), name = at + ".eh_proj";
    const int token = EmbedIds(IdsOfDepth(depth), at + ".embed_tokens.out");
    const auto project = [&](int x, const char* word, int64_t column) {
      const int w = b_.Parameter(word, {name + ".weight", {m_.dim, 2 * m_.dim}, {0, column}}, {m_.dim, m_.dim},
                                 "embed,embed", normal_);
      return WeightMatmul(x, w, fmt::format("{}.weight[{}]", name, word), fmt::format("{}.{}", name, word),
                          "bsk,nk->bsn", kStream);
    };
    const int of_token = project(InputNorm(token, at + ".enorm"), "token", 0);
    const int of_stream = project(InputNorm(normed, at + ".hnorm"), "stream", m_.dim);
    return b_.Emit(OpKind::kAdd, {of_token, of_stream}, {name + ".out"}, {}, kStream);
  }

  int rope_table_ = -1;
};

}  // namespace

Model BuildLlama(const Deck& deck, const Split& split, const Forward& forward) {
  return Llama(deck, split, forward).Build();
}

}  // namespace espalier
