// LLMQ's token files: a header of 1024 bytes ("BIN.TOK\n", then int32 version, bytes of a token, number of tokens, and
// from version 2 on vocabulary and whether there are masks), int32 ids, then one bit for each token, lowest bit first:
// 1 if it is counted as a target. Source: scripts/tokenize_data.py of github.com/IST-DASLab/llmq.
#include <array>
#include <cstring>

#include "data/formats/flat_ids.hpp"
#include "data/formats/magic.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kLlmqHeaderBytes = 1024;

struct LlmqHeader {
  std::array<char, 8> magic{};
  int32_t version = 0, width = 0, tokens = 0, vocab = 0, masks = 0;
};
static_assert(sizeof(LlmqHeader) == 28);

class MaskedReader final : public FlatReader {
 public:
  using FlatReader::FlatReader;

  void Read(OpenFiles& open, int64_t first, const SamplePart& part) override {
    FlatReader::Read(open, first, part);
    const int64_t begin = first / 8, end = (first + part.count + 7) / 8;
    std::vector<uint8_t> bits(static_cast<size_t>(end - begin));
    open.Get(ids().path).ReadAt(ids().offset + ids().count * Width(ids().type) + begin, bits.data(), end - begin);
    part.sample.uncounted.resize(part.sample.tokens.size());
    for (int64_t i = 0; i < part.count; ++i) {
      const int64_t bit = first - 8 * begin + i;
      const bool counted = (bits[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1) != 0;
      part.sample.uncounted[static_cast<size_t>(part.begin + i)] = counted ? 0 : 1;
    }
  }
};

}  // namespace

std::unique_ptr<FileReader> OpenLlmq(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  const InputFile& file = open.Get(path);
  if (file.bytes() < kLlmqHeaderBytes)
    RefuseData(path, fmt::format("{} bytes are too few for the header of LLMQ ({})", file.bytes(), kLlmqHeaderBytes));
  LlmqHeader h;
  file.ReadAt(0, &h, sizeof h);
  if (std::string_view(h.magic.data(), h.magic.size()) != kLlmqMagic)
    RefuseData(path, "is not a token file of LLMQ (its first bytes are not \"BIN.TOK\")");
  if (h.version != 1 && h.version != 2)
    RefuseData(path, fmt::format("version {} of LLMQ's tokens; known: 1 and 2", h.version));
  if (h.width != 4) RefuseData(path, fmt::format("{} bytes a token; allowed: 4", h.width));
  if (h.tokens < 0) RefuseData(path, fmt::format("its header says {} tokens", h.tokens));
  // Ids of added tokens may exceed the vocabulary that the header names.
  if (h.version == 2) CheckVocabulary(path, h.vocab, " (byte 20)", settings);
  const bool masks = h.version == 2 && h.masks != 0;
  const int64_t wanted = 4 * int64_t{h.tokens} + (masks ? (int64_t{h.tokens} + 7) / 8 : 0);
  if (file.bytes() - kLlmqHeaderBytes != wanted)
    RefuseData(path, fmt::format("has {} bytes after its header, which says {} tokens {} masks: {} bytes",
                                 file.bytes() - kLlmqHeaderBytes, h.tokens, masks ? "with" : "without", wanted));
  FlatIds ids{path, IdType::kI32, kLlmqHeaderBytes, h.tokens, settings.vocab};
  if (masks) return std::make_unique<MaskedReader>(std::move(ids));
  return std::make_unique<FlatReader>(std::move(ids));
}

}  // namespace espalier
