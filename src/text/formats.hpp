// The two formats of tokenizers. Both throw UserError (kData) and call the file `name` in messages.
#pragma once

#include <memory>
#include <string>

#include "espalier/text/tokenizer.hpp"

namespace espalier {

/// Hugging Face's tokenizer.json.
std::shared_ptr<Tokenizer> ReadTokenizerJson(const std::string& name, std::string bytes);

/// SentencePiece's tokenizer.model.
std::shared_ptr<Tokenizer> ReadSentencePiece(const std::string& name, std::string bytes);

}  // namespace espalier
