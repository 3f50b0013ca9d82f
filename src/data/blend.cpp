// The turns are a fair schedule of unit jobs: source i's j-th sample may be taken from position floor((j - 1) / w_i) on
// and must be taken before position ceil(j / w_i). A schedule that meets all these limits exists (Baruah, Cohen,
// Plaxton, Varvel, "Proportionate progress", Algorithmica 1996), and taking the job with the earliest limit finds it,
// since jobs are units and limits whole numbers. So each source is always within one sample of its share.
#include "data/blend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "data/samples_of_files.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kMaxTurns = int64_t{1} << 53;

/// digits x 10^exponent.
struct Decimal {
  int64_t digits = 0;
  int exponent = 0;
};

/// The shortest decimal that gives `value`, as in a deck.
Decimal Parse(double value) {
  const std::string shortest = fmt::format("{}", value);
  Decimal decimal;
  bool fraction = false;
  for (const char c : shortest) {
    if (c == 'e') {
      decimal.exponent += std::stoi(shortest.substr(shortest.find('e') + 1));
      break;
    }
    if (c == '.') {
      fraction = true;
      continue;
    }
    decimal.digits = 10 * decimal.digits + (c - '0');
    decimal.exponent -= fraction ? 1 : 0;
  }
  for (; decimal.digits != 0 && decimal.digits % 10 == 0; decimal.digits /= 10) ++decimal.exponent;
  return decimal;
}

/// Exact integers, or none if they would be too large.
std::vector<int64_t> Exact(const std::vector<double>& weights) {
  std::vector<Decimal> decimals;
  int least = std::numeric_limits<int>::max();
  for (const double weight : weights) {
    decimals.push_back(Parse(weight));
    least = std::min(least, decimals.back().exponent);
  }
  std::vector<int64_t> whole;
  int64_t total = 0;
  for (const Decimal& decimal : decimals) {
    int64_t number = decimal.digits;
    for (int e = decimal.exponent; e > least; --e) {
      if (number > kMaxTurns / 10) return {};
      number *= 10;
    }
    if (number > kMaxTurns - total) return {};
    total += number;
    whole.push_back(number);
  }
  return whole;
}

}  // namespace

std::vector<int64_t> WholeWeights(const std::vector<double>& weights) {
  std::vector<int64_t> whole = Exact(weights);
  if (whole.empty()) {
    constexpr double kScale = 4503599627370496.0;  // 2^52
    double largest = *std::ranges::max_element(weights), sum = 0;
    for (const double weight : weights) sum += weight / largest;
    for (const double weight : weights)
      whole.push_back(std::max<int64_t>(1, std::llround(weight / largest / sum * kScale)));
  }
  int64_t divisor = 0;
  for (const int64_t number : whole) divisor = std::gcd(divisor, number);
  for (int64_t& number : whole) number /= divisor;
  return whole;
}

Turns::Turns(std::vector<int64_t> weights) {
  for (const int64_t weight : weights) {
    CHECK(weight >= 1, "a weight of {}", weight);
    total_ += weight;
    sources_.push_back({weight});
  }
  Restart(0);
}

void Turns::Restart(int64_t round) {
  round_ = round;
  next_ = 0;
  for (Source& source : sources_) {
    source.taken = source.credit = 0;
    SetDeadline(source);
  }
}

/// The least n with n x weight >= (taken + 1) x total.
void Turns::SetDeadline(Source& source) const {
  const int64_t missing = total_ - source.credit;  // from next_ on
  source.deadline = next_ + (missing + source.weight - 1) / source.weight;
}

/// Takes the turn at position next_.
size_t Turns::Advance() {
  size_t best = sources_.size();
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.credit += source.weight;
    if (source.credit > 0 && (best == sources_.size() || source.deadline < sources_[best].deadline)) best = i;
  }
  CHECK(best < sources_.size(), "no source may give sample {} of a round of {}", next_, total_);
  ++next_;
  Source& source = sources_[best];
  ++source.taken;
  source.credit -= total_;
  SetDeadline(source);
  return best;
}

Turns::Turn Turns::At(int64_t position) {
  CHECK(position >= 0, "position {}", position);
  const int64_t round = position / total_, in_round = position % total_;
  if (round != round_ || in_round < next_) Restart(round);
  while (next_ < in_round) Advance();
  const size_t source = Advance();
  const Source& taken = sources_[source];
  return {source, round * taken.weight + taken.taken - 1};
}

namespace {

class Blend final : public TokenSource {
 public:
  Blend(std::vector<std::unique_ptr<TokenSource>> sources, std::vector<std::string> names, std::vector<int64_t> weights)
      : sources_(std::move(sources)), names_(std::move(names)), weights_(std::move(weights)), turns_(weights_) {
    for (const auto& source : sources_) files_.insert(files_.end(), source->files().begin(), source->files().end());
  }

  int64_t samples() const override { return Sum(&TokenSource::samples); }
  int64_t tokens() const override { return Sum(&TokenSource::tokens); }
  int64_t seq_len() const override { return sources_.front()->seq_len(); }
  const std::vector<DataFile>& files() const override { return files_; }

  void Read(int64_t sample, Sample& out) override {
    CHECK(0 <= sample && sample < samples(), "sample {} of {}", sample, samples());
    auto source = sources_.begin();
    for (; sample >= (*source)->samples(); ++source) sample -= (*source)->samples();
    (*source)->Read(sample, out);
  }

  /// Each source has its own seed for shuffling.
  void ReadAt(int64_t position, const SampleOrder& order, Sample& out) override {
    const Turns::Turn turn = turns_.At(position);
    SampleOrder own = order;
    own.seed = static_cast<int64_t>(Fold(static_cast<uint64_t>(order.seed), turn.source));
    sources_[turn.source]->ReadAt(turn.position, own, out);
  }

  std::vector<BlendPart> parts() const override {
    const auto total = static_cast<double>(std::accumulate(weights_.begin(), weights_.end(), int64_t{0}));
    std::vector<BlendPart> parts;
    for (size_t i = 0; i < sources_.size(); ++i)
      parts.push_back({names_[i], static_cast<double>(weights_[i]) / total, sources_[i]->samples()});
    return parts;
  }

  Packing packing() const override {
    Packing all;
    for (const auto& source : sources_) all += source->packing();
    return all;
  }

  uint64_t Fingerprint() const override {
    uint64_t hash = Fold(0, sources_.size());
    for (size_t i = 0; i < sources_.size(); ++i)
      hash = Fold(Fold(hash, sources_[i]->Fingerprint()), static_cast<uint64_t>(weights_[i]));
    return hash;
  }

 private:
  int64_t Sum(int64_t (TokenSource::*count)() const) const {
    int64_t sum = 0;
    for (const auto& source : sources_) sum += (*source.*count)();
    return sum;
  }

  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::vector<std::string> names_;
  std::vector<int64_t> weights_;
  std::vector<DataFile> files_;
  Turns turns_;
};

}  // namespace

std::unique_ptr<TokenSource> MakeBlend(std::vector<std::unique_ptr<TokenSource>> sources,
                                       std::vector<std::string> names, const std::vector<double>& weights) {
  return std::make_unique<Blend>(std::move(sources), std::move(names), WholeWeights(weights));
}

}  // namespace espalier
