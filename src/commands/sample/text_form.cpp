#include "commands/sample/text_form.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <sstream>

#include "commands/refuse.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/deck/print.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int64_t kBytes = 256;
constexpr const char* kDefaultPrompt = "\n";

/// "1 2 3" or "1,2,3".
std::vector<int32_t> ReadIds(const std::string& text, int64_t vocab) {
  std::string words = text;
  std::ranges::replace(words, ',', ' ');
  std::istringstream stream(words);
  std::vector<int32_t> ids;
  for (std::string word; stream >> word;) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= vocab)
      Refuse(fmt::format("--ids: {} is not a token id (allowed: 0 to {})", word, vocab - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  if (ids.empty()) Refuse("--ids: no token id");
  return ids;
}

void RequireTokenizer(const SampleOptions& options, const Deck& deck) {
  if (IsText(deck.data.format)) return;
  Refuse(
      fmt::format("sample: this model was trained on token ids (data.format = \"{}\"), and its checkpoint has no "
                  "tokenizer: give --tokenizer FILE, or --ids, such as --ids \"1 2 3\"{}",
                  DeckName(deck.data.format), options.prompts.empty() ? "" : ", instead of --prompt"));
}

}  // namespace

TextForm::TextForm(const SampleOptions& options, const Deck& deck, const std::string& dir)
    : options_(options), vocab_(deck.model.vocab) {
  if (options.ids) return;
  tokenizer_ = options.tokenizer.empty() ? ReadTokenizer(dir) : Tokenizer::Load(options.tokenizer);
  if (!tokenizer_) {
    RequireTokenizer(options, deck);
  } else if (tokenizer_->vocab() > vocab_) {
    throw UserError(ExitStatus::kData,
                    fmt::format("the tokenizer has {} tokens, more than the model (model.vocab = {}): it is another "
                                "model's",
                                tokenizer_->vocab(), vocab_));
  }
}

std::optional<int32_t> TextForm::end() const {
  if (tokenizer_) return tokenizer_->end_of_text();
  if (options_.ids) return std::nullopt;
  return 0;  // the byte that separates two files
}

TextForm::Prompt TextForm::Read(const std::string& text) const {
  Prompt prompt{text, {}};
  if (!tokenizer_) {
    const std::string& bytes = text.empty() ? kDefaultPrompt : text;
    for (char c : bytes) prompt.tokens.push_back(static_cast<unsigned char>(c));
    return prompt;
  }
  if (options_.bos) {
    if (!tokenizer_->bos()) Refuse("--bos: the tokenizer has no token that begins a text");
    prompt.tokens.push_back(*tokenizer_->bos());
  }
  tokenizer_->Encode(text, prompt.tokens);
  if (!prompt.tokens.empty()) return prompt;
  // A new text begins after the end of another one.
  if (tokenizer_->end_of_text()) {
    prompt.tokens = {*tokenizer_->end_of_text()};
  } else {
    tokenizer_->Encode(kDefaultPrompt, prompt.tokens);
  }
  return prompt;
}

std::vector<TextForm::Prompt> TextForm::Prompts() const {
  if (options_.ids) {
    const std::vector<int32_t> ids = ReadIds(*options_.ids, vocab_);
    return {{fmt::format("{}", fmt::join(ids, " ")), ids}};
  }
  std::vector<Prompt> prompts;
  for (const std::string& text : options_.prompts) {
    if (text != "-") {
      prompts.push_back(Read(text));
      continue;
    }
    for (std::string line; std::getline(std::cin, line);) prompts.push_back(Read(line));
  }
  if (options_.prompts.empty()) prompts.push_back(Read(""));
  return prompts;
}

TextForm::Shower::Shower(const TextForm& form) : form_(form) {
  if (!form.tokenizer_) return;
  stream_.emplace(*form.tokenizer_, SpecialTokens::kShow);
}

std::string TextForm::Shower::Push(int32_t token) {
  if (form_.options_.ids) return fmt::format(" {}", token);
  if (stream_) return stream_->Push(token);
  return token < kBytes ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
}

}  // namespace espalier
