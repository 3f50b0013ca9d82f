// Converts between the user's text and token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/text/tokenizer.hpp"

namespace espalier {

/// How a model's tokens are read and printed: as ids, by a tokenizer, or as bytes.
class TextForm {
 public:
  /// Uses the tokenizer from the command line, else the one in the checkpoint `dir`. Throws UserError: kDeck if the
  /// model needs a tokenizer and there is none, kData if the tokenizer cannot be read or has more tokens than the
  /// model.
  TextForm(const SampleOptions& options, const Deck& deck, const std::string& dir);

  /// The prompts, each with its tokens. Reads stdin if a prompt is "-".
  struct Prompt {
    std::string shown;
    std::vector<int32_t> tokens;
  };
  std::vector<Prompt> Prompts() const;

  /// Upper bound of the tokens that may be drawn.
  int64_t vocab() const { return tokenizer_ ? tokenizer_->vocab() : vocab_; }
  /// The token that ends a text, if there is one.
  std::optional<int32_t> end() const;

  /// Shows the tokens of one continuation, in order; text appears in whole characters.
  class Shower {
   public:
    explicit Shower(const TextForm& form);
    std::string Push(int32_t token);
    std::string Finish() { return stream_ ? stream_->Finish() : ""; }

   private:
    const TextForm& form_;
    std::optional<TextStream> stream_;
  };

 private:
  Prompt Read(const std::string& text) const;

  const SampleOptions& options_;
  int64_t vocab_;
  std::shared_ptr<const Tokenizer> tokenizer_;
};

}  // namespace espalier
