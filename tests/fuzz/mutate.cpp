#include "mutate.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace espalier::fuzz {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

constexpr std::array kNumbers = {"0",
                                 "1",
                                 "-1",
                                 "-0",
                                 "2",
                                 "7",
                                 "256",
                                 "65535",
                                 "65536",
                                 "2147483647",
                                 "2147483648",
                                 "4294967296",
                                 "1e999",
                                 "1e-999",
                                 "0x10",
                                 "1.5",
                                 "nan",
                                 "inf",
                                 "00",
                                 "1099511627776",
                                 "288230376151711744",
                                 "9007199254740993",
                                 "9223372036854775807",
                                 "9223372036854775808",
                                 "18446744073709551616",
                                 "99999999999999999999999"};
constexpr std::array<uint64_t, 12> kIntegers = {0,
                                                1,
                                                0x7f,
                                                0xff,
                                                0x7fff,
                                                0xffff,
                                                0x7fffffff,
                                                0x80000000,
                                                0xffffffff,
                                                uint64_t{1} << 40,
                                                ~uint64_t{0} >> 1,
                                                ~uint64_t{0}};

}  // namespace

Mutator::Mutator(std::vector<std::string> corpus, std::vector<std::string> words, uint64_t seed)
    : corpus_(std::move(corpus)), words_(std::move(words)), state_(seed) {}

/// splitmix64 (Steele, Lea, Flood 2014).
uint64_t Mutator::Draw(uint64_t below) {
  uint64_t x = state_ += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) % std::max<uint64_t>(below, 1);
}

std::string Mutator::Next() {
  std::string text = Pick(corpus_);
  for (uint64_t changes = 1 + Draw(8) * Draw(2); changes > 0; --changes) Change(text);
  if (text.size() > kMaxBytes) text.resize(kMaxBytes);
  return text;
}

std::pair<size_t, size_t> Mutator::Part(const std::string& text) {
  const size_t begin = Draw(text.size() + 1);
  const size_t most = Draw(4) == 0 ? text.size() : 16;
  return {begin, Draw(std::min(most, text.size() - begin) + 1)};
}

std::pair<size_t, size_t> Mutator::Lines(const std::string& text) {
  const size_t middle = Draw(text.size() + 1);
  const size_t before = middle == 0 ? std::string::npos : text.rfind('\n', middle - 1);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  const size_t end = std::min(text.find('\n', middle), text.size() - 1);
  return {begin, text.empty() ? 0 : end + 1 - begin};
}

void Mutator::ChangeByte(std::string& text) {
  if (text.empty()) return;
  char& c = text[Draw(text.size())];
  switch (Draw(3)) {
    case 0:
      c = static_cast<char>(c ^ (1 << Draw(8)));
      break;
    case 1:
      c = static_cast<char>(Draw(256));
      break;
    default:
      c = "\n\t \"'[]{}=#,.:-+_\\/"[Draw(20)];
  }
}

void Mutator::ReplaceNumber(std::string& text) {
  const size_t from = Draw(text.size() + 1);
  const auto begin = std::find_if(text.begin() + static_cast<std::ptrdiff_t>(from), text.end(), IsDigit);
  const auto end = std::find_if_not(begin, text.end(), IsDigit);
  text.replace(begin, end, kNumbers[Draw(kNumbers.size())]);
}

void Mutator::OverwriteInteger(std::string& text) {
  const size_t bytes = size_t{1} << Draw(4);
  if (text.size() < bytes) return;
  // Headers are at the start, at multiples of their size.
  const size_t place =
      Draw(2) == 0 ? Draw(std::min<size_t>(text.size(), 64) / bytes) * bytes : Draw(text.size() - bytes + 1);
  const uint64_t value = kIntegers[Draw(kIntegers.size())];
  std::memcpy(text.data() + std::min(place, text.size() - bytes), &value, bytes);
}

void Mutator::Repeat(std::string& text) {
  const auto [begin, length] = Draw(2) == 0 ? Lines(text) : Part(text);
  const std::string part = text.substr(begin, length);
  // Rarely very often, to expose more than linear time or memory.
  const uint64_t times = Draw(64) == 0 ? Draw(kMaxBytes) : 1 + Draw(4);
  std::string many;
  for (uint64_t i = 0; i < times && many.size() < kMaxBytes && !part.empty(); ++i) many += part;
  text.insert(begin, many);
}

void Mutator::Splice(std::string& text) {
  const std::string& other = Pick(corpus_);
  const auto [begin, length] = Draw(2) == 0 ? Lines(other) : Part(other);
  text.insert(Draw(text.size() + 1), other, begin, length);
}

void Mutator::Change(std::string& text) {
  switch (Draw(10)) {
    case 0:
    case 1:
      return ChangeByte(text);
    case 2:
      return ReplaceNumber(text);
    case 3:
      return OverwriteInteger(text);
    case 4:
      return Repeat(text);
    case 5:
      return Splice(text);
    case 6:
      if (!words_.empty()) text.insert(Draw(text.size() + 1), Pick(words_));
      return;
    case 7: {
      const auto [begin, length] = Part(text);
      text.erase(begin, length);
      return;
    }
    case 8: {
      const auto [begin, length] = Lines(text);
      const std::string line = text.substr(begin, length);
      text.erase(begin, length);
      if (Draw(2) == 0) text.insert(Lines(text).first, line);
      return;
    }
    default:
      text.resize(Draw(4) == 0 ? Draw(text.size() + 1) : text.size());
  }
}

}  // namespace espalier::fuzz
