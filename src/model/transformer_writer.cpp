#include "transformer_writer.hpp"

#include <cmath>

#include "espalier/model/flops.hpp"

namespace espalier {

TransformerWriter::TransformerWriter(const Deck& deck, const Split& split, int64_t batch, Purpose purpose)
    : m_(deck.model),
      // A prompt is one document.
      isolate_documents_(deck.data.isolate_documents && purpose != Purpose::kSample),
      batch_(batch),
      b_(split, deck.precision.compute),
      normal_{ParameterInit::Kind::kNormal, m_.init_std},
      output_{ParameterInit::Kind::kNormal, m_.init_std / std::sqrt(2.0 * double(m_.layers))},
      purpose_(purpose),
      z_loss_(deck.loss.z_loss) {}

Model TransformerWriter::Build() {
  b_.Layer(0);
  if (isolate_documents_) documents_ = b_.SharedMicrobatchInput("documents", {batch_, m_.seq_len}, "batch,seq");
  int x = Embed();
  for (int l = 1; l <= m_.layers; ++l) {
    b_.Layer(l);
    x = Layer(x, l);
  }
  b_.Layer(m_.layers + 1);
  Head(FinalNorm(x));
  return b_.Finish();
}

int TransformerWriter::CausalAttention(int q, int k, int v, int l, std::vector<std::string> names) {
  Attributes attributes{{{"head_dim", double(m_.head_dim)}, {"causal", 1}}, {}};
  if (HasWindow(m_, l)) attributes.numbers["window"] = double(m_.sliding_window);
  std::vector<int> inputs = {q, k, v};
  if (isolate_documents_) inputs.push_back(documents_);
  return b_.Emit(OpKind::kAttention, std::move(inputs), std::move(names), std::move(attributes));
}

int TransformerWriter::Positions() {
  return isolate_documents_ ? b_.MicrobatchInput("document_positions", {batch_, m_.seq_len}, "batch,seq")
                            : b_.StepInput("positions", {m_.seq_len}, "seq");
}

void TransformerWriter::Head(int x) {
  const int w =
      m_.tie_embeddings ? embedding_ : b_.Parameter("lm_head.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
  b_.Loss(b_.Emit(OpKind::kMatmul, {x, w}, {"logits"}, {{}, {{"spec", "bsk,nk->bsn"}}}, "batch,seq,logits"), purpose_,
          z_loss_);
}

}  // namespace espalier
