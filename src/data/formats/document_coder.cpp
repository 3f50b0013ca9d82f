#include "data/formats/document_coder.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/formats/file_reader.hpp"
#include "data/samples_of_files.hpp"
#include "espalier/text/chat_template.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

namespace {

uint64_t FoldText(uint64_t key, const std::string& text) {
  return Fold(Fold(key, text.size()), Crc32c(text.data(), text.size()));
}

/// "is no JSON object": the caller puts the place before it.
[[noreturn]] void RefuseLine(const std::string& what) { throw UserError(ExitStatus::kData, what); }

}  // namespace

DocumentCoder::DocumentCoder(const DataSettings& settings, DataFormat format)
    : format_(format),
      field_(settings.text_field),
      template_(settings.chat_template),
      train_on_(settings.train_on),
      tokenizer_(settings.tokenizer) {
  CHECK(IsText(format), "{} is no text", DeckName(format));
  CHECK(format != DataFormat::kChat || template_ != nullptr, "conversations without a template");
}

uint64_t DocumentCoder::Key() const {
  const bool json = format_ == DataFormat::kJsonl;
  uint64_t key = Fold(1, json ? Crc32c(field_.data(), field_.size()) + (uint64_t{1} << 32) : 0);
  if (format_ == DataFormat::kChat) key = FoldText(Fold(2, static_cast<uint64_t>(train_on_)), template_->identity());
  return tokenizer_ == nullptr ? key : FoldText(key, tokenizer_->bytes());
}

void DocumentCoder::AddText(std::string_view text, BlockTokens& out) const {
  if (tokenizer_ != nullptr) return tokenizer_->Encode(text, out.ids);
  for (const char c : text) out.ids.push_back(static_cast<uint8_t>(c));
}

void DocumentCoder::EndDocument(BlockTokens& out) const {
  if (tokenizer_ == nullptr) return out.ids.push_back(0);
  if (tokenizer_->end_of_text()) out.ids.push_back(*tokenizer_->end_of_text());
}

void DocumentCoder::AddLine(std::string_view line, BlockTokens& out) const {
  const auto object = nlohmann::json::parse(line);
  if (!object.is_object()) RefuseLine("is no JSON object");
  const auto field = object.find(field_);
  if (field == object.end())
    RefuseLine(fmt::format("has no field \"{}\" (data.text_field){}", field_,
                           object.contains("messages") || object.contains("conversations")
                               ? "; conversations are read with data.format = \"chat\""
                               : ""));
  if (!field->is_string()) RefuseLine(fmt::format("field \"{}\" is a {}, not a string", field_, field->type_name()));
  AddText(field->get_ref<const std::string&>(), out);
  EndDocument(out);
}

/// The first token of a document is never a target, since no token precedes it.
void DocumentCoder::AddConversation(std::string_view line, BlockTokens& out) const {
  const auto object = nlohmann::ordered_json::parse(line);
  if (!object.is_object()) RefuseLine("is no JSON object");
  const auto first = static_cast<std::ptrdiff_t>(out.ids.size());
  if (train_on_ == TrainOn::kAll) {
    EncodeMarked(tokenizer_.get(), {template_->Render(object), {}}, SpanEnds::kExact, out.ids, out.targets);
    std::fill(out.targets.begin() + first, out.targets.end(), uint8_t{1});
  } else {
    EncodeMarked(tokenizer_.get(), template_->RenderMarked(object),
                 template_->MarksItself() ? SpanEnds::kExact : SpanEnds::kAtSpecialToken, out.ids, out.targets);
  }
  if (std::ssize(out.ids) == first) RefuseLine("the template makes no text of it");
  out.targets[static_cast<size_t>(first)] = 0;
}

void DocumentCoder::Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
                           BlockTokens& out) const {
  if (format_ == DataFormat::kText) {
    try {
      AddText(lines, out);
    } catch (const UserError& error) {
      RefuseData(path, fmt::format("from byte {} on: {}", offset, error.what()));
    }
    if (at_end) EndDocument(out);
    return;
  }
  for (size_t begin = 0, end = 0; begin<lines.size(); begin = end + 1, line += line> 0 ? 1 : 0) {
    end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view text = lines.substr(begin, end - begin);
    if (text.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string place = line > 0 ? fmt::format("line {}", line)
                                       : fmt::format("the line at byte {}", offset + static_cast<int64_t>(begin));
    try {
      out.documents.push_back(std::ssize(out.ids));
      out.lines.push_back(static_cast<int64_t>(begin));
      format_ == DataFormat::kChat ? AddConversation(text, out) : AddLine(text, out);
    } catch (const nlohmann::json::exception& error) {
      RefuseData(path, fmt::format("{} is no JSON object: {}", place, error.what()));
    } catch (const UserError& error) {
      RefuseData(path, fmt::format("{}: {}", place, error.what()));
    }
  }
}

}  // namespace espalier
