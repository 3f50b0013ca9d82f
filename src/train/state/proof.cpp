#include "train/state/proof.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "espalier/deck/schema.hpp"
#include "espalier/util/build_info.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/philox.hpp"

namespace espalier {

void FixedTokens::Read(int64_t index, Sample& out) {
  out.tokens.resize(static_cast<size_t>(seq_len_) + 1);
  const uint64_t first = key_ + static_cast<uint64_t>(index * (seq_len_ + 1));
  for (size_t i = 0; i < out.tokens.size(); ++i)
    out.tokens[i] = static_cast<int32_t>(Mix64(first + i) % static_cast<uint64_t>(vocab_));
  out.documents = {0};
}

uint32_t ConditionsOf(const Deck& deck, const Programs& programs, World& world) {
  const std::vector<std::string> ranks = world.Gather(programs.device().Conditions());
  if (world.Rank() != 0) return 0;
  std::string text = fmt::format("{} {} {}", kVersion, kGitHash, programs.compilation().mesh.ToString());
  for (const std::string& rank : ranks) text += "\n" + rank;
  for (const DeckKey& key : DeckSchema())
    for (std::string_view section : {"model", "parallel", "pipeline", "precision", "recompute", "overlap", "fusion"})
      if (key.section == section) text += fmt::format("\n{} = {}", key.FullName(), ToToml(Get(deck, key)));
  text += fmt::format("\nbatch.micro = {}", deck.batch.micro);
  text += fmt::format("\ndata.isolate_documents = {}", deck.data.isolate_documents);  // the key selects kernels of GPUs
  return Crc32c(text.data(), text.size());
}

Proof MakeProof(const Deck& deck, const Programs& programs, uint32_t conditions) {
  FixedTokens tokens(deck.model, 1, StreamKey(0, "proof"));
  BatchLayout layout = programs.layout();
  layout.microbatches = 1;
  Batch batch;
  LoadBatch(tokens, {0, Order::kSequential}, layout, 0, batch);
  programs.proof().Fill(batch, layout.positions);
  programs.proof().executor->RunStep();
  return {programs.proof().executor->GetScalar("mean_loss"), std::string(DeckName(deck.precision.compute)), conditions};
}

std::string ProofError(const Proof& saved, const Proof& now) {
  const bool same = saved.conditions == now.conditions && saved.compute == now.compute;
  const double tolerance = same ? 0 : saved.compute == "fp32" && now.compute == "fp32" ? 1e-5 : 1e-2;
  const double difference = std::abs(double{saved.loss} - double{now.loss});
  if (same ? std::bit_cast<uint32_t>(saved.loss) == std::bit_cast<uint32_t>(now.loss)
           : difference <= tolerance * std::abs(saved.loss))
    return "";
  return fmt::format(
      "the loss of the fixed microbatch was {:.9g} when these weights were saved and is {:.9g} with those loaded ({}): "
      "either they are not the same, or this program computes otherwise",
      saved.loss, now.loss,
      same ? "equal bits are expected, all conditions being equal"
           : fmt::format("at most {:.0e} of it is allowed", tolerance));
}

}  // namespace espalier
