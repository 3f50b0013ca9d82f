#include "commands/sample/logits_file.hpp"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>

#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr size_t kBytesPerPrompt = 256;  // header bytes per prompt: two entries, whose numbers have at most 20 digits

}  // namespace

LogitsFile::LogitsFile(std::string path, size_t prompts, int64_t vocab)
    : path_(std::move(path)),
      file_(path_, std::ios::binary | std::ios::trunc),
      header_bytes_((prompts + 1) * kBytesPerPrompt),
      vocab_(vocab) {
  Write(std::string(sizeof(uint64_t) + header_bytes_, ' ').data(), sizeof(uint64_t) + header_bytes_);
}

void LogitsFile::Append(int32_t id, const std::vector<float>& logits) {
  ids_.push_back(id);
  Write(logits.data(), logits.size() * sizeof(float));
}

void LogitsFile::EndPrompt() {
  const auto tokens = std::ssize(ids_);
  AddTensor("logits", "F32", fmt::format("{},{}", tokens, vocab_), tokens * vocab_ * int64_t{sizeof(float)});
  AddTensor("ids", "I32", fmt::format("{}", tokens), tokens * int64_t{sizeof(int32_t)});
  Write(ids_.data(), ids_.size() * sizeof(int32_t));
  ids_.clear();
  ++prompt_;
}

void LogitsFile::Close() {
  header_ = "{" + header_ + "}";
  CHECK(header_.size() <= header_bytes_, "a header of {} bytes in {}", header_.size(), header_bytes_);
  header_.resize(header_bytes_, ' ');
  const uint64_t length = header_bytes_;
  file_.seekp(0);
  Write(&length, sizeof length);
  Write(header_.data(), header_.size());
  file_.flush();
  Write(nullptr, 0);
}

void LogitsFile::Write(const void* data, size_t bytes) {
  if (file_ && bytes > 0) file_.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!file_) throw UserError(ExitStatus::kFault, fmt::format("{}: {}", path_, std::strerror(errno)));
}

void LogitsFile::AddTensor(const std::string& word, const char* dtype, const std::string& shape, int64_t bytes) {
  header_ += fmt::format(R"({}"prompt.{}.{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                         header_.empty() ? "" : ",", prompt_, word, dtype, shape, end_, end_ + bytes);
  end_ += bytes;
}

}  // namespace espalier
