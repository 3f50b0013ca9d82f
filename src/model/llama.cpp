// Llama as Hugging Face's LlamaForCausalLM: RMSNorm before each half of a layer, grouped-query attention with rotary
// positions, SwiGLU, no biases, tied or untied head. Names and [out, in] layouts of the weights are Hugging Face's.
//
//   x = embed(ids);  per layer:  x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(x)
//                                x += down(swiglu(gate(n), up(n))),               n = norm(x)
//   logits = head(norm(x));  loss = sum of token cross-entropies
#include <cmath>

#include "builder.hpp"
#include "families.hpp"

namespace espalier {
namespace {

constexpr const char* kStream = "batch,stream,embed";  // the residual stream

class Llama {
 public:
  Llama(const Deck& deck, const Split& split, int64_t batch, Purpose purpose)
      : m_(deck.model),
        batch_(batch),
        purpose_(purpose),
        b_(split, deck.precision.compute == "bf16" ? Dtype::kBf16 : Dtype::kF32),
        normal_{ParameterInit::Kind::kNormal, m_.init_std},
        output_{ParameterInit::Kind::kNormal, m_.init_std / std::sqrt(2.0 * double(m_.layers))} {}

  Model Build() {
    int x = Embed();
    for (int l = 1; l <= m_.layers; ++l) x = Layer(x, l);
    Head(x);
    return b_.Finish();
  }

 private:
  int Linear(int x, const std::string& name, Shape shape, const char* layout, ParameterInit init) {
    const int w = b_.Parameter(name + ".weight", std::move(shape), layout, init);
    return b_.Emit("matmul", {x, w}, {name + ".out"}, {{}, {{"spec", "bsk,nk->bsn"}}});
  }
  int Norm(int x, const std::string& name) {
    const int w = b_.Parameter(name + ".weight", {m_.dim}, "embed", {ParameterInit::Kind::kOnes, 0});
    return b_.Cheap(b_.Emit("rms_norm", {x, w}, {name + ".out", name + ".rstd"}, {{{"eps", m_.norm_eps}}, {}}));
  }

  int Embed() {
    b_.Layer(0);
    const int positions = b_.StepInput("positions", {m_.seq_len}, "seq");
    rope_table_ = b_.Prepare("rope_table", {positions}, "rope_table",
                             {{{"theta", m_.rope_theta}, {"head_dim", double(m_.dim / m_.heads)}}, {}});
    const int ids = b_.MicrobatchInput("ids", {batch_, m_.seq_len}, "batch,seq");
    embedding_ = b_.Parameter("model.embed_tokens.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    return b_.Emit("embedding", {ids, embedding_}, {"model.embed_tokens.out"}, {{{"vocab", double(m_.vocab)}}, {}},
                   kStream);
  }

  int Layer(int x, int l) {
    b_.Layer(l);
    const std::string at = "model.layers." + std::to_string(l - 1);
    const int attended = Attention(Norm(x, at + ".input_layernorm"), at);
    x = b_.Emit("add", {x, attended}, {at + ".attention_residual"}, {}, kStream);
    const int fed = FeedForward(Norm(x, at + ".post_attention_layernorm"), at);
    return b_.Emit("add", {x, fed}, {at + ".residual"}, {}, kStream);
  }

  int Attention(int n, const std::string& at) {
    const double e = double(m_.dim / m_.heads);
    const Shape q_shape = {m_.dim, m_.dim}, kv_shape = {m_.kv_heads * m_.dim / m_.heads, m_.dim};
    const std::string self = at + ".self_attn.";
    const int q = Rotated(b_.Cheap(Linear(n, self + "q_proj", q_shape, "heads,embed", normal_)), self + "q", e);
    const int k = Rotated(b_.Cheap(Linear(n, self + "k_proj", kv_shape, "kv_heads,embed", normal_)), self + "k", e);
    const int v = b_.Cheap(Linear(n, self + "v_proj", kv_shape, "kv_heads,embed", normal_));
    const int o = b_.Emit("attention", {q, k, v}, {self + "out", self + "lse"}, {{{"head_dim", e}, {"causal", 1}}, {}});
    return Linear(o, self + "o_proj", q_shape, "embed,heads", output_);
  }

  int Rotated(int x, const std::string& name, double head_dim) {
    return b_.Cheap(b_.Emit("rope", {x, rope_table_}, {name}, {{{"head_dim", head_dim}, {"inverse", 0}}, {}}));
  }

  int FeedForward(int n, const std::string& at) {
    const std::string mlp = at + ".mlp.";
    const int gate = Linear(n, mlp + "gate_proj", {m_.ffn_dim, m_.dim}, "ffn,embed", normal_);
    const int up = Linear(n, mlp + "up_proj", {m_.ffn_dim, m_.dim}, "ffn,embed", normal_);
    const int h = b_.Cheap(b_.Emit("swiglu", {gate, up}, {mlp + "act"}));
    return Linear(h, mlp + "down_proj", {m_.dim, m_.ffn_dim}, "embed,ffn", output_);
  }

  void Head(int x) {
    b_.Layer(static_cast<int>(m_.layers) + 1);
    x = Norm(x, "model.norm");
    const int w =
        m_.tie_embeddings ? embedding_ : b_.Parameter("lm_head.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    b_.Loss(b_.Emit("matmul", {x, w}, {"logits"}, {{}, {{"spec", "bsk,nk->bsn"}}}, "batch,seq,logits"), purpose_);
  }

  const Deck::Model& m_;
  int64_t batch_;
  Purpose purpose_;
  Builder b_;
  ParameterInit normal_, output_;
  int rope_table_ = -1, embedding_ = -1;
};

}  // namespace

Model BuildLlama(const Deck& deck, const Split& split, int64_t batch, Purpose purpose) {
  return Llama(deck, split, batch, purpose).Build();
}

}  // namespace espalier
