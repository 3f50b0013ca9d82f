// Shared by the targets of tokenizers: any bytes are refused, or are a tokenizer whose ids are in its vocabulary, and
// which decodes all of them.
#pragma once

#include <algorithm>
#include <vector>

#include "espalier/text/tokenizer.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {

/// Parsed JSON takes some hundred bytes for a value of one byte; an encoder has a cache of words of 2 MiB.
inline int64_t TokenizerAllowance(size_t bytes) { return (int64_t{16} << 20) + 400 * static_cast<int64_t>(bytes); }

/// Encodes and decodes.
inline void UseTokenizer(const Tokenizer& tokenizer) {
  for (const char* text :
       {"", " ", "the cat  sat on\r\n\tthe mat, 1234 times.", "<s>a<|endoftext|> </s>b <0x41>",
        "caf\u00e9 e\u0301 \u4e2d\u6587 \U0001f600\u200d \u00a0\u2581x", "aaaaaaaaaaaaaaaaaaaaaaaa"}) {
    std::vector<int32_t> ids;
    if (IsRefused(ExitStatus::kData, [&] { tokenizer.Encode(text, ids); })) continue;
    Require(std::ranges::all_of(ids, [&](int32_t id) { return 0 <= id && id < tokenizer.vocab(); }),
            "an id beyond the vocabulary");
    tokenizer.Decode(ids);
  }
  for (int32_t id = 0; id < tokenizer.vocab(); ++id) {
    const std::string& name = tokenizer.Name(id);
    Require(name.empty() || tokenizer.Find(name) == id, "a name that is another token's");
    tokenizer.Decode({&id, 1}, SpecialTokens::kShow);
  }
  for (const auto& id : {tokenizer.end_of_text(), tokenizer.bos()})
    Require(!id || (0 <= *id && *id < tokenizer.vocab()), "an end of texts beyond the vocabulary");
}

inline void TryTokenizer(const std::string& bytes) {
  Within(TokenizerAllowance(bytes.size()), [&] {
    std::shared_ptr<const Tokenizer> tokenizer;
    if (IsRefused(ExitStatus::kData, [&] { tokenizer = Tokenizer::FromBytes("fuzz", bytes); })) return;
    ++tally.accepted;
    Require(tokenizer->bytes() == bytes, "the tokenizer keeps other bytes");
    UseTokenizer(*tokenizer);
  });
}

}  // namespace espalier::fuzz
