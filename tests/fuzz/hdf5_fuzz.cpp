// HDF5 token files: any bytes are refused or give samples whose tokens are in the vocabulary.
#include <algorithm>
#include <fstream>

#include "checkpoint_testing.hpp"
#include "espalier/data/token_source.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {
namespace {

constexpr int64_t kVocab = 300, kSeqLen = 3, kMaxSamples = 64;

/// The library's own memory does not count; ids are converted to 8 bytes.
int64_t Allowance(size_t bytes) { return (int64_t{1} << 20) + 16 * static_cast<int64_t>(bytes); }

/// Reads samples from both ends: a dataset may have any number, since unwritten parts read as zeros.
void ReadEnds(TokenSource& source) {
  Sample read;
  const int64_t most = std::min(source.samples(), kMaxSamples);
  for (int64_t k = 0; k < most; ++k)
    for (const int64_t sample : {k, source.samples() - 1 - k}) {
      source.Read(sample, read);
      Require(read.tokens.size() == kSeqLen + 1, "a sample of another size");
      Require(std::ranges::all_of(read.tokens, [](int32_t id) { return 0 <= id && id < kVocab; }),
              "a token beyond the vocabulary");
    }
}

void TryFile(const std::string& bytes) {
  static const TemporaryDirectory home;
  static const std::string path = home.path() + "/tokens.h5";
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Within(Allowance(bytes.size()), [&] {
    IsRefused(ExitStatus::kData, [&] {
      const auto source = OpenTokenSource({DataFormat::kHdf5, {path}, kSeqLen, kVocab});
      ++tally.accepted;
      ReadEnds(*source);
    });
  });
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryFile(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
