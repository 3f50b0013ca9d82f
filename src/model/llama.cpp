// Llama as Hugging Face's LlamaForCausalLM: RMSNorm before each half of a layer, grouped-query attention with rotary
// positions, SwiGLU, no biases, tied or untied head. Names and [out, in] layouts of the weights are Hugging Face's.
//
//   x = embed(ids);  per layer:  x += o(attention(rope(q(n)), rope(k(n)), v(n))), n = norm(x)
//                                x += down(swiglu(gate(n), up(n))),               n = norm(x)
//   logits = head(norm(x));  loss = sum of token cross-entropies
#include "families.hpp"
#include "transformer_writer.hpp"

namespace espalier {
namespace {

class Llama final : public TransformerWriter {
 public:
  using TransformerWriter::TransformerWriter;

 private:
  int Linear(int x, const std::string& name, Shape shape, const char* layout, ParameterInit init) {
    const int w = b_.Parameter(name + ".weight", std::move(shape), layout, init);
    return b_.Emit(OpKind::kMatmul, {x, w}, {name + ".out"}, {{}, {{"spec", "bsk,nk->bsn"}}});
  }
  int Norm(int x, const std::string& name) {
    const int w = b_.Parameter(name + ".weight", {m_.dim}, "embed", {ParameterInit::Kind::kOnes, 0});
    return b_.Cheap(b_.Emit(OpKind::kRmsNorm, {x, w}, {name + ".out", name + ".rstd"}, {{{"eps", m_.norm_eps}}, {}}));
  }

  int Embed() override {
    const int positions = b_.StepInput("positions", {m_.seq_len}, "seq");
    rope_table_ = b_.Prepare(OpKind::kRopeTable, {positions}, "rope_table",
                             {{{"theta", m_.rope_theta}, {"head_dim", double(m_.dim / m_.heads)}}, {}});
    const int ids = b_.MicrobatchInput("ids", {batch_, m_.seq_len}, "batch,seq");
    embedding_ = b_.Parameter("model.embed_tokens.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    return b_.Emit(OpKind::kEmbedding, {ids, embedding_}, {"model.embed_tokens.out"},
                   {{{"vocab", double(m_.vocab)}}, {}}, kStream);
  }

  int Layer(int x, int l) override {
    const std::string at = "model.layers." + std::to_string(l - 1);
    const int attended = Attention(Norm(x, at + ".input_layernorm"), at, l);
    x = b_.Emit(OpKind::kAdd, {x, attended}, {at + ".attention_residual"}, {}, kStream);
    const int fed = FeedForward(Norm(x, at + ".post_attention_layernorm"), at);
    return b_.Emit(OpKind::kAdd, {x, fed}, {at + ".residual"}, {}, kStream);
  }

  int Attention(int n, const std::string& at, int l) {
    const double e = double(m_.dim / m_.heads);
    const Shape q_shape = {m_.dim, m_.dim}, kv_shape = {m_.kv_heads * m_.dim / m_.heads, m_.dim};
    const std::string self = at + ".self_attn.";
    const int q = Rotate(b_.Cheap(Linear(n, self + "q_proj", q_shape, "heads,embed", normal_)), self + "q", e);
    const int k = Rotate(b_.Cheap(Linear(n, self + "k_proj", kv_shape, "kv_heads,embed", normal_)), self + "k", e);
    const int v = b_.Cheap(Linear(n, self + "v_proj", kv_shape, "kv_heads,embed", normal_));
    const int o = CausalAttention(q, k, v, l, {self + "out", self + "lse"});
    return Linear(o, self + "o_proj", q_shape, "embed,heads", output_);
  }

  int Rotate(int x, const std::string& name, double head_dim) {
    return b_.Cheap(b_.Emit(OpKind::kRope, {x, rope_table_}, {name}, {{{"head_dim", head_dim}, {"inverse", 0}}, {}}));
  }

  int FeedForward(int n, const std::string& at) {
    const std::string mlp = at + ".mlp.";
    const int gate = Linear(n, mlp + "gate_proj", {m_.ffn_dim, m_.dim}, "ffn,embed", normal_);
    const int up = Linear(n, mlp + "up_proj", {m_.ffn_dim, m_.dim}, "ffn,embed", normal_);
    const int h = b_.Cheap(b_.Emit(OpKind::kSwiglu, {gate, up}, {mlp + "act"}));
    return Linear(h, mlp + "down_proj", {m_.dim, m_.ffn_dim}, "embed,ffn", output_);
  }

  int FinalNorm(int x) override { return Norm(x, "model.norm"); }

  int rope_table_ = -1;
};

}  // namespace

Model BuildLlama(const Deck& deck, const Split& split, int64_t batch, Purpose purpose) {
  return Llama(deck, split, batch, purpose).Build();
}

}  // namespace espalier
