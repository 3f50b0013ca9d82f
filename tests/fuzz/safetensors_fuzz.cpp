// Safetensors: any bytes are refused, or are a file whose tensors are inside it and can be read.
#include <fstream>
#include <vector>

#include "checkpoint_testing.hpp"
#include "espalier/huggingface/safetensors.hpp"
#include "fuzz.hpp"

namespace espalier::fuzz {
namespace {

/// JSON takes some hundred bytes for a value of one byte.
int64_t Allowance(size_t bytes) { return (int64_t{1} << 20) + 400 * static_cast<int64_t>(bytes); }

void TryFile(const std::string& bytes) {
  static const TemporaryDirectory home;
  static const std::string path = home.path() + "/x.safetensors";
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Within(Allowance(bytes.size()), [&] {
    IsRefused(ExitStatus::kData, [&] {
      const SafetensorsFile file(path);
      ++tally.accepted;
      for (const SafeTensor& tensor : file.tensors()) {
        Require(tensor.begin >= 8 && tensor.begin + tensor.bytes <= std::ssize(bytes), "a tensor outside of its file");
        std::vector<float> values(static_cast<size_t>(tensor.bytes / SizeOf(ReadableDtype(file, tensor))));
        file.Read(tensor, 0, std::ssize(values), values.data());
      }
    });
  });
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryFile(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
