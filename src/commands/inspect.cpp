#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "commands.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/report/text.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr int kMaxTries = 5;

std::string Verify(const std::string& dir) {
  const VerifyReport report = VerifyCheckpoint(dir);
  if (!report.damage.empty()) {
    std::vector<std::string> messages = {fmt::format("{} is damaged", dir)};
    messages.insert(messages.end(), report.damage.begin(), report.damage.end());
    throw UserError(ExitStatus::kData, std::move(messages));
  }
  return fmt::format(
      "verified    every byte agrees with its checksum: {} ({} bytes) in {:.2f} s, {:.1f} GB/s\n            {}\n",
      HumanBytes(report.bytes), report.bytes, report.seconds,
      static_cast<double>(report.bytes) * 1e-9 / std::max(report.seconds, 1e-9), kNotProved);
}

/// True if the run has removed or replaced the checkpoint since its id was read.
bool IsGone(const std::string& dir, const std::string& id) {
  std::error_code error;
  if (!std::filesystem::exists(dir + "/MANIFEST", error)) return true;
  try {
    return !id.empty() && ReadManifest(dir).id != id;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

int InspectCommand(const InspectOptions& options) {
  for (int tries = 1;; ++tries) {
    const std::string dir = Resolve(options.checkpoint, options.checkpoint);
    std::string id;
    try {
      id = ReadManifest(dir).id;
      const std::string verdict = options.verify ? Verify(dir) : "";
      fmt::print("{}{}", verdict, Describe(dir, {options.tensors, options.deck}));
      return static_cast<int>(ExitStatus::kDone);
    } catch (const UserError&) {
      if (!IsGone(dir, id)) throw;
    }
    // `latest` of a run: look at its next checkpoint.
    if (dir == options.checkpoint || tries == kMaxTries)
      throw UserError(ExitStatus::kData, fmt::format("{}: its run has removed it meanwhile", dir));
  }
}

}  // namespace espalier
