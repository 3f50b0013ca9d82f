// GPT-2 as Hugging Face's GPT2LMHeadModel without dropout: learned positions, LayerNorm before each half of a layer,
// attention with as many key heads as query heads, GELU, biases everywhere, tied or untied head. Names and [in, out]
// layouts of the weights are Hugging Face's; q, k and v are parts of one stored c_attn, each sharded by its own heads.
//
//   x = wte(ids) + wpe(positions);  per layer:  x += c_proj(attention(c_attn(n))), n = ln_1(x)
//                                               x += c_proj(gelu(c_fc(n))),        n = ln_2(x)
//   logits = wte^T(ln_f(x));  loss = sum of token cross-entropies
#include <cmath>

#include "builder.hpp"
#include "families.hpp"

namespace espalier {
namespace {

constexpr const char* kStream = "batch,stream,embed";  // the residual stream

class Gpt2 {
 public:
  Gpt2(const Deck& deck, const Split& split, int64_t batch, Purpose purpose)
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
  static constexpr ParameterInit kOnes{ParameterInit::Kind::kOnes, 0}, kZeros{ParameterInit::Kind::kZeros, 0};

  /// x W. `out` is where it is wanted before the bias comes to it: a product that tp leaves partial is joined there.
  int Product(int x, int w, const std::string& name, const char* out = "") {
    return b_.Emit("matmul", {x, w}, {name + ".product"}, {{}, {{"spec", "bsk,kn->bsn"}}}, out);
  }
  int Biased(int product, int bias, const std::string& name) {
    return b_.Emit("add_bias", {product, bias}, {name + ".out"});
  }
  /// From the residual stream to what tp cuts by `to`.
  int Widen(int x, const std::string& name, int64_t width, const std::string& to) {
    const int w = b_.Parameter(name + ".weight", {m_.dim, width}, "embed," + to, normal_);
    return Biased(Product(x, w, name), b_.Parameter(name + ".bias", {width}, to, kZeros), name);
  }
  /// And back.
  int Narrow(int x, const std::string& name, int64_t width, const std::string& from) {
    const int w = b_.Parameter(name + ".weight", {width, m_.dim}, from + ",embed", output_);
    return Biased(Product(x, w, name, kStream), b_.Parameter(name + ".bias", {m_.dim}, "embed", kZeros), name);
  }
  /// The i-th third of c_attn.
  int Third(int n, const std::string& name, const char* word, int64_t i) {
    const StoredPart weight{name + ".weight", {m_.dim, 3 * m_.dim}, {0, i * m_.dim}};
    const StoredPart bias{name + ".bias", {3 * m_.dim}, {i * m_.dim}};
    const int w = b_.Parameter(word, weight, {m_.dim, m_.dim}, "embed,heads", normal_);
    const int product = b_.Cheap(Product(n, w, name + "." + word));
    return b_.Cheap(Biased(product, b_.Parameter(word, bias, {m_.dim}, "heads", kZeros), name + "." + word));
  }
  int Norm(int x, const std::string& name) {
    const int w = b_.Parameter(name + ".weight", {m_.dim}, "embed", kOnes);
    const int bias = b_.Parameter(name + ".bias", {m_.dim}, "embed", kZeros);
    return b_.Cheap(b_.Emit("layer_norm", {x, w, bias}, {name + ".out", name + ".mean", name + ".rstd"},
                            {{{"eps", m_.norm_eps}}, {}}));
  }

  int Embed() {
    b_.Layer(0);
    const int positions = b_.StepInput("positions", {m_.seq_len}, "seq");
    const int ids = b_.MicrobatchInput("ids", {batch_, m_.seq_len}, "batch,seq");
    embedding_ = b_.Parameter("transformer.wte.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    const int x =
        b_.Emit("embedding", {ids, embedding_}, {"transformer.wte.out"}, {{{"vocab", double(m_.vocab)}}, {}}, kStream);
    const int table = b_.Parameter("transformer.wpe.weight", {m_.seq_len, m_.dim}, "position,embed", normal_);
    return b_.Emit("position_embedding", {x, positions, table}, {"transformer.wpe.out"},
                   {{{"positions", double(m_.seq_len)}}, {}}, kStream);
  }

  int Layer(int x, int l) {
    b_.Layer(l);
    const std::string at = "transformer.h." + std::to_string(l - 1) + ".";
    x = b_.Emit("add", {x, Attention(Norm(x, at + "ln_1"), at + "attn.")}, {at + "attention_residual"}, {}, kStream);
    return b_.Emit("add", {x, FeedForward(Norm(x, at + "ln_2"), at + "mlp.")}, {at + "residual"}, {}, kStream);
  }

  int Attention(int n, const std::string& at) {
    const int q = Third(n, at + "c_attn", "q", 0), k = Third(n, at + "c_attn", "k", 1),
              v = Third(n, at + "c_attn", "v", 2);
    const int o = b_.Emit("attention", {q, k, v}, {at + "out", at + "lse"},
                          {{{"head_dim", double(m_.dim / m_.heads)}, {"causal", 1}}, {}});
    return Narrow(o, at + "c_proj", m_.dim, "heads");
  }

  int FeedForward(int n, const std::string& at) {
    const int h = b_.Cheap(b_.Emit("gelu", {Widen(n, at + "c_fc", m_.ffn_dim, "ffn")}, {at + "act"}));
    return Narrow(h, at + "c_proj", m_.ffn_dim, "ffn");
  }

  void Head(int x) {
    b_.Layer(static_cast<int>(m_.layers) + 1);
    x = Norm(x, "transformer.ln_f");
    const int w =
        m_.tie_embeddings ? embedding_ : b_.Parameter("lm_head.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
    b_.Loss(b_.Emit("matmul", {x, w}, {"logits"}, {{}, {{"spec", "bsk,nk->bsn"}}}, "batch,seq,logits"), purpose_);
  }

  const Deck::Model& m_;
  int64_t batch_;
  Purpose purpose_;
  Builder b_;
  ParameterInit normal_, output_;
  int embedding_ = -1;
};

}  // namespace

Model BuildGpt2(const Deck& deck, const Split& split, int64_t batch, Purpose purpose) {
  return Gpt2(deck, split, batch, purpose).Build();
}

}  // namespace espalier
