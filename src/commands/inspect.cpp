#include <fmt/format.h>

#include <algorithm>

#include "commands.hpp"
#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

void Verify(const std::string& dir) {
  const VerifyReport report = VerifyCheckpoint(dir);
  if (!report.damage.empty()) {
    std::vector<std::string> messages = {fmt::format("{} is damaged", dir)};
    messages.insert(messages.end(), report.damage.begin(), report.damage.end());
    throw UserError(ExitStatus::kData, std::move(messages));
  }
  fmt::print("\nverified: every byte agrees with its checksum ({} bytes, {:.2f} s, {:.1f} GB/s)\n", report.bytes,
             report.seconds, static_cast<double>(report.bytes) * 1e-9 / std::max(report.seconds, 1e-9));
}

}  // namespace

int InspectCommand(const InspectOptions& options) {
  const std::string dir = Resolve(options.checkpoint, options.checkpoint);
  fmt::print("{}", Describe(dir));
  if (options.verify) Verify(dir);
  return static_cast<int>(ExitStatus::kDone);
}

}  // namespace espalier
