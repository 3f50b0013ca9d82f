#include "train/selftest/decks.hpp"

#include <fmt/core.h>

#include <cstdint>

namespace espalier {
namespace {

constexpr int kSequencesPerRank = 4;
constexpr int kWords = 20'000;
constexpr const char* kVocabulary[8] = {"rank ", "mesh ", "deck ", "shard ", "stage ", "lane ", "axis ", "step "};

}  // namespace

std::string SelfTestDeck(int ranks) {
  return fmt::format(R"([run]
steps = 8
[model]
layers   = 4
dim      = 64
heads    = 4
kv_heads = 2
ffn_dim  = 128
vocab    = 256
seq_len  = 64
[parallel]
dp_shard = -1
[batch]
global = {}
micro  = 2
[precision]
compute = "fp32"
[optimizer]
lr = 1e-3
[data]
format = "text"
paths  = ["DATA.txt"]
[checkpoint]
every_steps = 4
)",
                     kSequencesPerRank * ranks);
}

std::string SelfTestData() {
  std::string text;
  uint64_t state = 1;
  for (int i = 0; i < kWords; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX
    text += kVocabulary[state >> 61];
  }
  return text;
}

std::vector<std::string> LayoutAlone() { return {"batch.micro=1", "run.device=cpu"}; }

std::vector<std::string> FirstLayout() { return {"run.device=auto"}; }

std::vector<std::string> SecondLayout(int ranks) {
  if (ranks % 4 == 0) return {"parallel.pp=2", "parallel.tp=2"};
  if (ranks % 2 == 0) return {"parallel.pp=2"};
  if (ranks > 1) return {"parallel.dp_shard=1", "parallel.dp_replicate=" + std::to_string(ranks)};
  return {"batch.micro=4", "recompute.mode=\"full\""};
}

}  // namespace espalier
