// MANIFESTs, each tested twice: unchanged, when only a right checksum passes; and with a corrected checksum, so that
// the code after the check is reached too. A MANIFEST that passes is then verified and loaded from.
#include "small_checkpoint.hpp"

namespace espalier::fuzz {
namespace {

constexpr size_t kEndLine = std::string_view("end 00000000\n").size();

std::string EndLine(std::string_view body) { return fmt::format("end {:08x}\n", ChecksumOf(body)); }

/// Everything before the last line, which is replaced if it exists.
std::string Seal(const std::string& text) {
  const bool ended = text.size() >= kEndLine && text.compare(text.size() - kEndLine, 4, "end ") == 0;
  const std::string body = ended ? text.substr(0, text.size() - kEndLine) : text;
  return body + EndLine(body);
}

/// True if the text can be read; then its printed form must read the same.
bool Reads(const std::string& text) {
  Manifest manifest;
  const bool refused = Within(Allowance(text.size()), [&] {
    return IsRefused(ExitStatus::kData, [&] { manifest = ParseManifest(text, "MANIFEST"); });
  });
  if (refused) return false;
  const std::string printed = Print(manifest);
  Require(Print(ParseManifest(printed, "MANIFEST")) == printed, "what was read prints as something else");
  return true;
}

void TryManifest(const std::string& text) {
  static SmallCheckpoint checkpoint;
  const bool right = text.size() >= kEndLine && text.substr(text.size() - kEndLine) ==
                                                    EndLine(std::string_view(text).substr(0, text.size() - kEndLine));
  const bool reads = Reads(text);
  Require(right || !reads, "a wrong checksum was not noticed");
  const std::string sealed = Seal(text);
  if (!Reads(sealed)) return;
  ++tally.accepted;
  checkpoint.Write("MANIFEST", sealed);
  Within(LoadAllowance(sealed.size()), [&] {
    const bool loads = checkpoint.Loads();
    // A load checks every byte, as a verification does.
    Require(checkpoint.Verifies() || !loads, "a damaged checkpoint was loaded");
  });
}

}  // namespace
}  // namespace espalier::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  espalier::fuzz::TryManifest(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
