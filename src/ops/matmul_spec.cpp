#include "espalier/ops/matmul_spec.hpp"

#include <algorithm>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// Weights [out, in] and [in, out], each forward, gradient of the input and of the weight; the latter of operands that
/// are contiguous along the tokens (fp8); two matrices, and as many pairs of them as e has (Muon).
constexpr std::string_view kMatmulSpecs[] = {
    "bsk,nk->bsn", "bsn,nk->bsk", "bsn,bsk->nk", "bsk,kn->bsn", "bsn,kn->bsk",  "bsk,bsn->kn",  "nbs,kbs->nk",
    "kbs,nbs->kn", "sk,nk->sn",   "sk,kn->sn",   "sk,sn->kn",   "esk,enk->esn", "esk,ekn->esn", "esk,esn->ekn"};
/// Weights of experts, forward and both gradients; the gradient of rows by weights that are contiguous along n (fp8).
constexpr std::string_view kGroupedSpecs[] = {"ebsk,enk->ebsn", "ebsn,enk->ebsk", "ebsn,ebsk->enk", "ebsn,ekn->ebsk"};
constexpr std::string_view kQuantizeSpecs[] = {
    "bsk->bsk,y", "bsk->kbs,y", "nk->nk,y",    "nk->kn,y",       "bsk->bsk,bsy", "bsk->kbs,ky",
    "nk->nk,ny",  "nk->kn,ky",  "bsk->bsk,yu", "bsk->kbs,yu",    "nk->nk,yu",    "nk->kn,yu",
    "enk->enk,e", "enk->ekn,e", "enk->enk,en", "ebsk->ebsk,ebs", "enk->ekn,ek"};

template <size_t kCount>
bool IsOneOf(const std::string_view (&specs)[kCount], std::string_view text) {
  return std::ranges::find(specs, text) != std::end(specs);
}

MatmulSpec Parse(const std::string& text) {
  const size_t comma = text.find(','), arrow = text.find("->");
  return {text.substr(0, comma), text.substr(comma + 1, arrow - comma - 1), text.substr(arrow + 2)};
}

}  // namespace

size_t MatmulSpec::InnerDims(std::string_view operand) const {
  const auto other = std::find_if(operand.rbegin(), operand.rend(),
                                  [&](char dim) { return IsContracted(dim) != IsContracted(operand.back()); });
  return static_cast<size_t>(other - operand.rbegin());
}

bool IsMatmulSpec(std::string_view text) { return IsOneOf(kMatmulSpecs, text); }
bool IsGroupedSpec(std::string_view text) { return IsOneOf(kGroupedSpecs, text); }
bool IsQuantizeSpec(std::string_view text) { return IsOneOf(kQuantizeSpecs, text); }

MatmulSpec MatmulSpecOf(const Attributes& attributes) {
  const std::string& text = attributes.Text("spec");
  CHECK(IsMatmulSpec(text), "matmul: spec {} is unknown", text);
  return Parse(text);
}

MatmulSpec GroupedSpecOf(const Attributes& attributes) {
  const std::string& text = attributes.Text("spec");
  CHECK(IsGroupedSpec(text), "grouped_matmul of {}", text);
  return Parse(text);
}

QuantizeSpec QuantizeSpecOf(const Attributes& attributes) {
  const std::string& text = attributes.Text("spec");
  CHECK(IsQuantizeSpec(text), "quantize: spec {} is unknown", text);
  const size_t arrow = text.find("->"), comma = text.find(',');
  return {text.substr(0, arrow), text.substr(arrow + 2, comma - arrow - 2), text.substr(comma + 1)};
}

}  // namespace espalier
