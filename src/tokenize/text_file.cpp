#include "tokenize/text_file.hpp"

#include <algorithm>

#include "espalier/util/input_file.hpp"

namespace espalier {
namespace {

constexpr int64_t kSearchBytes = int64_t{1} << 20;

}  // namespace

std::string ReadRange(const std::string& path, int64_t begin, int64_t end) {
  const InputFile file(path, {"text"});
  std::string text(static_cast<size_t>(std::max<int64_t>(0, end - begin)), '\0');
  text.resize(static_cast<size_t>(file.ReadSome(begin, text.data(), std::ssize(text))));
  return text;
}

int64_t FileBytes(const std::string& path) { return InputFile(path, {"text"}).bytes(); }

int64_t LineOf(const std::string& path, int64_t offset) {
  int64_t line = 1;
  for (int64_t at = 0; at < offset; at += kSearchBytes) {
    const std::string block = ReadRange(path, at, std::min(offset, at + kSearchBytes));
    line += std::ranges::count(block, '\n');
  }
  return line;
}

bool HasLines(const std::string& path) { return path.ends_with(".jsonl") || path.ends_with(".ndjson"); }

}  // namespace espalier
