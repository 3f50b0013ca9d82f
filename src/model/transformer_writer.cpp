#include "transformer_writer.hpp"

#include <fmt/core.h>

#include <cmath>

#include "espalier/model/dropout_inputs.hpp"
#include "espalier/model/layer_kinds.hpp"
#include "espalier/model/matmul_patterns.hpp"
#include "espalier/ops/op.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

namespace {

/// "auto" is planned as the default way, until a start has replaced it.
std::string_view BackwardOf(const Deck::Run& run) {
  if (!run.deterministic || !run.deterministic_attention) return kUnorderedBackward;
  return DeckName(run.attention_backward == AttentionBackward::kAuto ? AttentionBackward::kParts
                                                                     : run.attention_backward);
}

}  // namespace

TransformerWriter::TransformerWriter(const Deck& deck, const Split& split, const Forward& forward)
    : m_(deck.model),
      parallel_(deck.parallel),
      dropout_(HasBackward(forward.purpose) ? deck.dropout : Deck::Dropout{}),
      // A prompt is one document.
      isolate_documents_(deck.data.isolate_documents && forward.purpose != Purpose::kSample),
      forward_(forward),
      b_(split, deck.precision.compute, forward.purpose),
      normal_{ParameterInit::Kind::kNormal, m_.init_std},
      output_{ParameterInit::Kind::kNormal, m_.init_std / std::sqrt(2.0 * double(m_.layers))},
      seed_(deck.run.seed),
      precision_(deck.precision),
      z_loss_(deck.loss.z_loss),
      mtp_weight_(deck.loss.mtp_weight),
      backward_(BackwardOf(deck.run)) {}

Model TransformerWriter::Build() {
  b_.Layer(0);
  if (isolate_documents_)
    documents_ = b_.SharedMicrobatchInput("documents", {forward_.batch, forward_.tokens}, "batch,seq");
  int x = Embed();
  for (int l = 1; l <= m_.layers; ++l) {
    b_.Layer(l);
    x = Layer(x, l);
  }
  std::vector<int> normed;  // by depth
  for (int depth = 0;; ++depth) {
    const int l = m_.layers + 1 + depth;
    b_.Layer(l);
    normed.push_back(FinalNorm(x, depth));
    if (depth == Depths()) break;
    x = Layer(FurtherInput(normed.back(), depth + 1), l);
  }
  Head(normed);
  if (Depths() > 0 && !HasBackward(forward_.purpose)) b_.DropUnread();
  return b_.Finish();
}

int TransformerWriter::Depths() const { return KeepsComputeType(forward_.purpose) ? 0 : m_.mtp_layers; }

int TransformerWriter::FurtherInput(int, int) { CHECK(false, "this family predicts no further tokens"); }

int TransformerWriter::CausalAttention(int q, int k, int v, int l, std::vector<std::string> names) {
  Attributes attributes{{{"head_dim", double(m_.head_dim)}, {"causal", 1}}, {}};
  if (m_.v_dim != m_.head_dim) attributes.numbers["value_dim"] = double(m_.v_dim);
  AddScoreRule(l, attributes);
  if (backward_ != DeckName(AttentionBackward::kParts)) attributes.texts["backward"] = backward_;
  std::vector<int> inputs = {q, k, v};
  if (isolate_documents_) inputs.push_back(documents_);
  if (dropout_.attention > 0)
    AddDropout(dropout_.attention, names[0], Numbers(query_numbers_, kQueryNumbers, "batch,seq"), inputs, attributes);
  if (Samples() && m_.attention == AttentionKind::kHeads) {
    attributes.numbers["cached"] = 1;
    inputs = {q, Cached(k, l, "k"), Cached(v, l, "v"), positions_};
  }
  return b_.Emit(OpKind::kAttention, std::move(inputs), std::move(names), std::move(attributes));
}

void TransformerWriter::AddScoreRule(int l, Attributes& attributes) const {
  if (m_.score_factor != 1) attributes.numbers["score_factor"] = m_.score_factor;
  if (KindOf(m_, l).window) attributes.numbers["window"] = double(m_.sliding_window);
}

int TransformerWriter::Drop(int x, double rate, const std::string& name) {
  if (rate == 0) return x;
  std::vector<int> inputs = {x};
  Attributes attributes;
  AddDropout(rate, name, Numbers(stream_numbers_, kStreamNumbers, "batch,stream"), inputs, attributes);
  return b_.Emit(OpKind::kDropout, std::move(inputs), {name}, std::move(attributes), kStream);
}

void TransformerWriter::AddDropout(double rate, const std::string& name, int tokens, std::vector<int>& inputs,
                                   Attributes& attributes) {
  inputs.insert(inputs.end(), {tokens, b_.StepNumber()});
  attributes.numbers["rate"] = rate;
  attributes.texts["key"] = fmt::format("{:016x}", StreamKey(seed_, "dropout/" + name));
}

int TransformerWriter::Numbers(int& input, std::string_view name, const char* layout) {
  if (input < 0) input = b_.SharedMicrobatchInput(std::string(name), {forward_.batch, forward_.tokens}, layout);
  return input;
}

int TransformerWriter::WeightMatmul(int x, int w, const std::string& name, const std::string& product, const char* spec,
                                    const std::string& out) {
  Attributes attributes{{}, {{"spec", spec}}};
  MarkFp8(name, attributes);
  return b_.Emit(OpKind::kMatmul, {x, w}, {product}, std::move(attributes), out);
}

void TransformerWriter::MarkFp8(const std::string& weight, Attributes& attributes) const {
  if (IsInFp8(precision_, weight)) attributes.numbers[std::string(kFp8Mark)] = 1;
}

int TransformerWriter::Cached(int x, int l, std::string_view name) {
  return b_.WriteCache(b_.Cache(fmt::format("cache/{}/{}", l - 1, name), x, m_.seq_len), x, positions_);
}

int TransformerWriter::SequencePositions() { return positions_ = b_.StepInput("positions", {forward_.tokens}, "seq"); }

int TransformerWriter::Positions() {
  return isolate_documents_ ? b_.MicrobatchInput("document_positions", {forward_.batch, forward_.tokens}, "batch,seq")
                            : SequencePositions();
}

void TransformerWriter::Head(const std::vector<int>& normed) {
  const int w =
      m_.tie_embeddings ? embedding_ : b_.Parameter("lm_head.weight", {m_.vocab, m_.dim}, "vocab,embed", normal_);
  const auto logits = [&](int x, const std::string& name) {
    return WeightMatmul(x, w, std::string(kHeadMatmul), name, "bsk,nk->bsn", "batch,seq,logits");
  };
  b_.Loss(logits(normed[0], "logits"), z_loss_);
  for (int depth = 1; depth <= Depths(); ++depth)
    b_.FurtherLoss(logits(normed[static_cast<size_t>(depth)], fmt::format("logits.{}", depth)), depth,
                   mtp_weight_ / Depths());
}

}  // namespace espalier
