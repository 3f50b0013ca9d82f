// Token files: any bytes are refused or give samples whose tokens lie in the vocabulary. The same bytes are read as a
// text too.
#include <algorithm>
#include <fstream>
#include <vector>

#include "checkpoint_testing.hpp"
#include "espalier/data/token_source.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {
namespace {

constexpr int64_t kVocab = 300, kSeqLen = 3;

int64_t Allowance(size_t bytes) { return (int64_t{1} << 16) + 16 * static_cast<int64_t>(bytes); }

/// Reads every sample.
void ReadAll(TokenSource& source) {
  Sample read;
  for (int64_t sample = 0; sample < source.samples(); ++sample) {
    source.Read(sample, read);
    Require(std::ranges::all_of(read.tokens, [](int32_t id) { return 0 <= id && id < kVocab; }),
            "a token beyond the vocabulary");
  }
}

void TryTokens(const std::string& bytes) {
  static const TemporaryDirectory home;
  static const std::string path = home.path() + "/tokens.bin";
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  for (DataFormat format : {DataFormat::kTokens, DataFormat::kText}) {
    std::unique_ptr<TokenSource> source;
    const bool refused = Within(Allowance(bytes.size()), [&] {
      return IsRefused(ExitStatus::kData, [&] { source = OpenTokenSource({format, {path}, kSeqLen, kVocab}); });
    });
    if (refused) continue;
    tally.accepted += format == DataFormat::kTokens;
    Within(Allowance(bytes.size()), [&] {
      const bool bad_id = IsRefused(ExitStatus::kData, [&] { ReadAll(*source); });
      Require(!bad_id || format == DataFormat::kTokens, "opened, and refused later");
    });
  }
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryTokens(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
