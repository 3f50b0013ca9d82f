#include "transformer_writer.hpp"

#include <cmath>

namespace espalier {

TransformerWriter::TransformerWriter(const Deck& deck, const Split& split, int64_t batch, Purpose purpose)
    : m_(deck.model),
      batch_(batch),
      b_(split, deck.precision.compute),
      normal_{ParameterInit::Kind::kNormal, m_.init_std},
      output_{ParameterInit::Kind::kNormal, m_.init_std / std::sqrt(2.0 * double(m_.layers))},
      purpose_(purpose),
      z_loss_(deck.loss.z_loss) {}

Model TransformerWriter::Build() {
  b_.Layer(0);
  int x = Embed();
  for (int l = 1; l <= m_.layers; ++l) {
    b_.Layer(l);
    x = Layer(x, l);
  }
  b_.Layer(m_.layers + 1);
  Head(FinalNorm(x));
  return b_.Finish();
}

void TransformerWriter::Head(int x) {
  const int w =
      m_.tie_embeddings ? embedding_ : b_.Parameter("lm_head.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
  b_.Loss(b_.Emit(OpKind::kMatmul, {x, w}, {"logits"}, {{}, {{"spec", "bsk,nk->bsn"}}}, "batch,seq,logits"), purpose_,
          z_loss_);
}

}  // namespace espalier
