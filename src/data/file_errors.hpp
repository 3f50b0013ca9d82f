// Errors of many files, reported together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/util/error.hpp"
#include "espalier/util/hint.hpp"

namespace espalier {

/// Keeps the first messages and counts the rest: a corpus may have a hundred thousand files.
class FileErrors {
 public:
  /// Calls `work`. Keeps a data error; other exceptions pass through.
  template <typename Work>
  void Collect(const Work& work) {
    try {
      work();
    } catch (const UserError& error) {
      if (error.status() != ExitStatus::kData) throw;
      Add(error);
    }
  }
  void ThrowAny() {
    if (more_ > 0) messages_.push_back(Hint(fmt::format("... and {} more", more_)));
    if (!messages_.empty()) throw UserError(ExitStatus::kData, messages_);
  }

 private:
  void Add(const UserError& error) {
    constexpr size_t kMaxMessages = 20;
    for (const std::string& message : error.messages()) {
      if (messages_.size() < kMaxMessages) {
        messages_.push_back(message);
      } else {
        ++more_;
      }
    }
  }

  std::vector<std::string> messages_;
  int64_t more_ = 0;
};

}  // namespace espalier
