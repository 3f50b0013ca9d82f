// The output of `espalier sample --logits`: a file in Hugging Face's safetensors format with the tensors
// "prompt.K.logits" f32[tokens, vocab], where row i holds the logits after token i, and "prompt.K.ids" i32[tokens].
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace espalier {

class LogitsFile {
 public:
  /// Creates the file. Throws UserError (kFault) if that, or any later write, fails.
  LogitsFile(std::string path, size_t prompts, int64_t vocab);

  void Append(int32_t id, const std::vector<float>& logits);
  /// Call it after the last token of a prompt's text.
  void EndPrompt();
  /// Call it after the last prompt.
  void Close();

 private:
  void Write(const void* data, size_t bytes);
  void AddTensor(const std::string& word, const char* dtype, const std::string& shape, int64_t bytes);

  std::string path_;
  std::ofstream file_;
  size_t header_bytes_;  ///< reserved; the header is written last
  int64_t vocab_;
  std::string header_;
  std::vector<int32_t> ids_;  ///< ids of this prompt
  int prompt_ = 0;
  int64_t end_ = 0;  ///< end of the tensors, in bytes
};

}  // namespace espalier
