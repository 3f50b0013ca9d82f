#include "data/formats/document_coder.hpp"

#include <nlohmann/json.hpp>

#include "data/formats/file_reader.hpp"
#include "data/samples_of_files.hpp"
#include "espalier/text/tokenizer.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

DocumentCoder::DocumentCoder(const DataSettings& settings, bool json)
    : json_(json), field_(settings.text_field), tokenizer_(settings.tokenizer) {}

uint64_t DocumentCoder::Key() const {
  uint64_t key = Fold(1, json_ ? Crc32c(field_.data(), field_.size()) + (uint64_t{1} << 32) : 0);
  if (tokenizer_ == nullptr) return key;
  const std::string& bytes = tokenizer_->bytes();
  return Fold(Fold(key, bytes.size()), Crc32c(bytes.data(), bytes.size()));
}

void DocumentCoder::AddText(std::string_view text, BlockTokens& out) const {
  if (tokenizer_ != nullptr) return tokenizer_->Encode(text, out.ids);
  for (const char c : text) out.ids.push_back(static_cast<uint8_t>(c));
}

void DocumentCoder::EndDocument(BlockTokens& out) const {
  if (tokenizer_ == nullptr) return out.ids.push_back(0);
  if (tokenizer_->end_of_text()) out.ids.push_back(*tokenizer_->end_of_text());
}

void DocumentCoder::Encode(const std::string& path, std::string_view lines, int64_t line, int64_t offset, bool at_end,
                           BlockTokens& out) const {
  if (!json_) {
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
      const auto object = nlohmann::json::parse(text);
      if (!object.is_object()) RefuseData(path, fmt::format("{} is no JSON object", place));
      const auto field = object.find(field_);
      if (field == object.end())
        RefuseData(path, fmt::format("{} has no field \"{}\" (data.text_field)", place, field_));
      if (!field->is_string())
        RefuseData(path, fmt::format("{}: field \"{}\" is a {}, not a string", place, field_, field->type_name()));
      out.documents.push_back(std::ssize(out.ids));
      AddText(field->get_ref<const std::string&>(), out);
      EndDocument(out);
    } catch (const nlohmann::json::exception& error) {
      RefuseData(path, fmt::format("{} is no JSON object: {}", place, error.what()));
    }
  }
}

}  // namespace espalier
