#include <algorithm>
#include <cmath>
#include <numbers>

#include "espalier/train/evaluate_files.hpp"

namespace espalier {

double Score::MeanLoss() const { return loss / static_cast<double>(targets); }

double Score::Perplexity() const { return std::exp(MeanLoss()); }

std::optional<double> Score::BitsPerByte() const {
  if (!bytes || *bytes == 0) return std::nullopt;
  return loss / std::numbers::ln2 / static_cast<double>(*bytes);
}

void Score::Add(const Score& part) {
  targets += part.targets;
  loss += part.loss;
  bytes = bytes && part.bytes ? std::optional(*bytes + *part.bytes) : std::nullopt;
}

int64_t FileScore::WithoutTarget() const {
  return std::ranges::count_if(documents, [](const DocumentScore& document) { return document.score.targets == 0; });
}

}  // namespace espalier
