#include "rope_attributes.hpp"

#include <algorithm>
#include <cmath>

namespace espalier {
namespace {

constexpr double kTwoPi = 6.283185307179586;

/// The index, of frequencies twice as dense, that makes so many turns in the original length (Peng et al. 2023, eq. 17
/// and 18).
double IndexOfTurns(const Deck::Model& m, double turns) {
  return double(m.rope_dim) * std::log(double(m.rope_original_seq_len) / (turns * kTwoPi)) /
         (2 * std::log(m.rope_theta));
}

/// Hugging Face's ramp: of whole indices if they are truncated, and not of width 0.
void SetYarn(const Deck::Model& m, Attributes& a) {
  const double first = IndexOfTurns(m, m.rope_beta_fast), last = IndexOfTurns(m, m.rope_beta_slow);
  const double low = std::max(0.0, m.rope_truncate ? std::floor(first) : first);
  const double high = std::min(double(m.rope_dim - 1), m.rope_truncate ? std::ceil(last) : last);
  a.numbers["low"] = low;
  a.numbers["high"] = low == high ? high + 0.001 : high;
  a.numbers["amplitude"] =
      m.rope_attention_factor > 0 ? m.rope_attention_factor : 0.1 * std::log(std::max(1.0, m.rope_factor)) + 1;
}

}  // namespace

Attributes RopeAttributes(const Deck::Model& m) {
  Attributes a{{{"theta", m.rope_theta}, {"head_dim", double(m.rope_dim)}}, {}};
  if (m.rope_scaling == RopeScaling::kNone) return a;
  a.texts["stretch"] = DeckName(m.rope_scaling);
  a.numbers["factor"] = m.rope_factor;
  if (m.rope_scaling == RopeScaling::kYarn) SetYarn(m, a);
  if (m.rope_scaling == RopeScaling::kLlama3) {
    a.numbers["low"] = m.rope_low_freq_factor;
    a.numbers["high"] = m.rope_high_freq_factor;
    a.numbers["original_length"] = double(m.rope_original_seq_len);
  }
  return a;
}

}  // namespace espalier
