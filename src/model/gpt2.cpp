// GPT-2 as Hugging Face's GPT2LMHeadModel: learned positions, LayerNorm before each half of a layer, attention with as
// many key heads as query heads, GELU, biases everywhere, tied or untied head. Names and [in, out] layouts of the
// weights are Hugging Face's; q, k and v are parts of one stored c_attn, each sharded by its own heads.
//
//   x = wte(ids) + wpe(positions);  per layer:  x += c_proj(attention(c_attn(n))), n = ln_1(x)
//                                               x += c_proj(gelu(c_fc(n))),        n = ln_2(x)
//   logits = wte^T(ln_f(x));  loss = sum of token cross-entropies
//
// In training, dropout drops elements of the first x, of the probabilities of attention, and of what a layer adds to x.
#include "families.hpp"
#include "transformer_writer.hpp"

namespace espalier {
namespace {

class Gpt2 final : public TransformerWriter {
 public:
  using TransformerWriter::TransformerWriter;

 private:
  static constexpr ParameterInit kOnes{ParameterInit::Kind::kOnes, 0}, kZeros{ParameterInit::Kind::kZeros, 0};

  /// x W, under the layout `out`: a matmul that tp leaves partial is reduced here, before its bias is added.
  int Matmul(int x, int w, const std::string& weight, const std::string& name, const char* out = "") {
    return WeightMatmul(x, w, weight, name + ".product", "bsk,kn->bsn", out);
  }
  int AddBias(int x, int bias, const std::string& name) {
    return b_.Emit(OpKind::kAddBias, {x, bias}, {name + ".out"});
  }
  /// From the residual stream to a dim that tp shards as `to` (column parallel).
  int UpProjection(int x, const std::string& name, int64_t width, const std::string& to) {
    const int w = b_.Parameter(name + ".weight", {m_.dim, width}, "embed," + to, normal_);
    return AddBias(Matmul(x, w, name + ".weight", name), b_.Parameter(name + ".bias", {width}, to, kZeros), name);
  }
  /// From a dim that tp shards as `from` back to the residual stream (row parallel).
  int DownProjection(int x, const std::string& name, int64_t width, const std::string& from) {
    const int w = b_.Parameter(name + ".weight", {width, m_.dim}, from + ",embed", output_);
    return AddBias(Matmul(x, w, name + ".weight", name, kStream),
                   b_.Parameter(name + ".bias", {m_.dim}, "embed", kZeros), name);
  }
  /// The i-th third of c_attn: q, k or v.
  int Third(int n, const std::string& name, const char* word, int64_t i) {
    const StoredPart weight{name + ".weight", {m_.dim, 3 * m_.dim}, {0, i * m_.dim}};
    const StoredPart bias{name + ".bias", {3 * m_.dim}, {i * m_.dim}};
    const int w = b_.Parameter(word, weight, {m_.dim, m_.dim}, "embed,heads", normal_);
    const int projected = b_.Cheap(Matmul(n, w, name + ".weight[" + word + "]", name + "." + word));
    return b_.Cheap(AddBias(projected, b_.Parameter(word, bias, {m_.dim}, "heads", kZeros), name + "." + word));
  }
  int Norm(int x, const std::string& name) {
    const int w = b_.Parameter(name + ".weight", {m_.dim}, "embed", kOnes);
    const int bias = b_.Parameter(name + ".bias", {m_.dim}, "embed", kZeros);
    return b_.Cheap(b_.Emit(OpKind::kLayerNorm, {x, w, bias}, {name + ".out", name + ".mean", name + ".rstd"},
                            {{{"eps", m_.norm_eps}}, {}}));
  }

  int Embed() override {
    const int positions = Positions();
    const int ids = b_.MicrobatchInput("ids", {forward_.batch, forward_.tokens}, "batch,seq");
    embedding_ = b_.Parameter("transformer.wte.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    const int x = b_.Emit(OpKind::kEmbedding, {ids, embedding_}, {"transformer.wte.out"},
                          {{{"vocab", double(m_.vocab)}}, {}}, kStream);
    const int table = b_.Parameter("transformer.wpe.weight", {m_.seq_len, m_.dim}, "position,embed", normal_);
    const int sum = b_.Emit(OpKind::kPositionEmbedding, {x, positions, table}, {"transformer.wpe.out"},
                            {{{"positions", double(m_.seq_len)}}, {}}, kStream);
    return Drop(sum, dropout_.embedding, "transformer.drop");
  }

  int Layer(int x, int l) override {
    const std::string at = "transformer.h." + std::to_string(l - 1) + ".";
    x = b_.Emit(OpKind::kAdd, {x, Attention(Norm(x, at + "ln_1"), at + "attn.", l)}, {at + "attention_residual"}, {},
                kStream);
    return b_.Emit(OpKind::kAdd, {x, FeedForward(Norm(x, at + "ln_2"), at + "mlp.")}, {at + "residual"}, {}, kStream);
  }

  int Attention(int n, const std::string& at, int l) {
    const int q = Third(n, at + "c_attn", "q", 0), k = Third(n, at + "c_attn", "k", 1),
              v = Third(n, at + "c_attn", "v", 2);
    const int o = CausalAttention(q, k, v, l, {at + "out", at + "lse"});
    return Drop(DownProjection(o, at + "c_proj", m_.dim, "heads"), dropout_.residual, at + "resid_dropout");
  }

  int FeedForward(int n, const std::string& at) {
    const int h = b_.Cheap(b_.Emit(OpKind::kGelu, {UpProjection(n, at + "c_fc", m_.ffn_dim, "ffn")}, {at + "act"}));
    return Drop(DownProjection(h, at + "c_proj", m_.ffn_dim, "ffn"), dropout_.residual, at + "dropout");
  }

  int FinalNorm(int x, int) override { return Norm(x, "transformer.ln_f"); }
};

}  // namespace

Model BuildGpt2(const Deck& deck, const Split& split, const Forward& forward) {
  return Gpt2(deck, split, forward).Build();
}

}  // namespace espalier
