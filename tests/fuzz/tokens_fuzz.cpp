// Data files: any bytes are refused, or give samples whose tokens are in the vocabulary, and whose documents begin in
// rising order. The same bytes are read in every format but HDF5, and as the index of Megatron for a fixed .bin.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
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
    Require(read.tokens.size() == kSeqLen + 1, "a sample of another size");
    Require(read.documents.front() == 0 && read.documents.back() <= kSeqLen, "a document outside the sample");
    Require(std::ranges::adjacent_find(read.documents, std::greater_equal<>()) == read.documents.end(),
            "documents out of order");
  }
}

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

void Try(const DataSettings& settings, size_t bytes) {
  std::unique_ptr<TokenSource> source;
  const bool refused = Within(
      Allowance(bytes), [&] { return IsRefused(ExitStatus::kData, [&] { source = OpenTokenSource(settings); }); });
  if (refused) return;
  const bool of_bytes = settings.format == DataFormat::kText || settings.format == DataFormat::kJsonl;
  tally.accepted += settings.format == DataFormat::kTokens;
  Within(Allowance(bytes), [&] {
    const bool bad_id = IsRefused(ExitStatus::kData, [&] { ReadAll(*source); });
    Require(!bad_id || !of_bytes, "opened, and refused later");
  });
}

void TryTokens(const std::string& bytes) {
  static const TemporaryDirectory home;
  static const std::string path = home.path() + "/tokens.bin", bin = home.path() + "/m.bin";
  Write(path, bytes);
  Write(bin, std::string(48, '\1'));
  Write(home.path() + "/m.idx", bytes);
  for (DataFormat format : {DataFormat::kTokens, DataFormat::kText, DataFormat::kLlmc, DataFormat::kLlmq,
                            DataFormat::kFlat16, DataFormat::kFlat32})
    Try({format, {path}, kSeqLen, kVocab}, bytes.size());
  Try({DataFormat::kMegatron, {bin}, kSeqLen, kVocab}, bytes.size());
  DataSettings jsonl{DataFormat::kJsonl, {path}, kSeqLen, kVocab};
  jsonl.index_dir = home.path() + "/indices";
  Try(jsonl, bytes.size());
  std::filesystem::remove_all(jsonl.index_dir);
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryTokens(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
