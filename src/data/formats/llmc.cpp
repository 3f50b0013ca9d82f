// llm.c's token files: a header of 256 int32 (magic, version, number of tokens), then flat ids. GPT-2's are uint16
// (version 1), Llama 3's uint32 (version 7). Source: dev/data/data_common.py of github.com/karpathy/llm.c.
#include <array>

#include "data/formats/flat_ids.hpp"
#include "data/formats/magic.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kLlmcHeaderBytes = 1024;

}  // namespace

std::unique_ptr<FileReader> OpenLlmc(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  const InputFile& file = open.Get(path);
  if (file.bytes() < kLlmcHeaderBytes)
    RefuseData(path, fmt::format("{} bytes are too few for the header of llm.c ({})", file.bytes(), kLlmcHeaderBytes));
  std::array<int32_t, 3> header{};
  file.ReadAt(0, header.data(), sizeof header);
  const auto [magic, version, tokens] = header;
  const bool gpt2 = magic == kLlmcGpt2, llama = magic == kLlmcLlama3;
  if (!gpt2 && !llama)
    RefuseData(path, fmt::format("is not a token file of llm.c (it begins with {}, not with {} or {})", magic,
                                 kLlmcGpt2, kLlmcLlama3));
  if (version != (gpt2 ? 1 : 7))
    RefuseData(path, fmt::format("version {} of llm.c's tokens of {}; known: {}", version, gpt2 ? "GPT-2" : "Llama 3",
                                 gpt2 ? 1 : 7));
  const IdType type = gpt2 ? IdType::kU16 : IdType::kU32;
  const int64_t count = CountIds(file, kLlmcHeaderBytes, type);
  if (count != tokens) RefuseData(path, fmt::format("has {} tokens; its header says {}", count, tokens));
  return std::make_unique<FlatReader>(FlatIds{path, type, kLlmcHeaderBytes, count, settings.vocab});
}

}  // namespace espalier
