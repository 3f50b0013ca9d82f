// tokenizer.json: any bytes.
#include "reads_tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryTokenizer(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
