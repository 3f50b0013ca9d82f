// Files and sources of tokens for one test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "espalier/data/token_source.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

namespace fs = std::filesystem;

/// A folder of its own for each test, removed at its end.
class DataTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "espalier-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& bytes) const {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  /// Paths without the folder.
  std::vector<std::string> Expand(const std::vector<std::string>& patterns) const {
    std::vector<std::string> full, names;
    for (const std::string& p : patterns) full.push_back(Path(p));
    for (const std::string& f : ExpandPaths(full)) names.push_back(f.substr(folder_.size() + 1));
    return names;
  }

  std::string folder_;
};

inline std::string Message(const std::function<void()>& action, ExitStatus status = ExitStatus::kData) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), status);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

inline std::vector<int32_t> ReadSample(TokenSource& source, int64_t sample) {
  Sample out;
  source.Read(sample, out);
  return out.tokens;
}

inline std::vector<int64_t> ReadDocuments(TokenSource& source, int64_t sample) {
  Sample out;
  source.Read(sample, out);
  return out.documents;
}

/// Tokens 1000 + 0, 1, 2, ..., so that a value tells its place; a test may make it fail or slow.
class CountingSource final : public TokenSource {
 public:
  CountingSource(int64_t samples, int64_t seq_len) : samples_(samples), seq_len_(seq_len) {}
  int64_t samples() const override { return samples_; }
  int64_t tokens() const override { return samples_ * seq_len_ + 1; }
  int64_t seq_len() const override { return seq_len_; }
  void Read(int64_t sample, Sample& out) override {
    if (reads_.fetch_add(1) == fail_at_) throw UserError(ExitStatus::kData, "f: token 3 is 9");
    std::this_thread::sleep_for(delay_);
    out = {};
    for (int64_t k = sample * seq_len_; k <= (sample + 1) * seq_len_; ++k) {
      if (out.tokens.empty() || k % document_ == 0) out.documents.push_back(std::ssize(out.tokens));
      out.tokens.push_back(static_cast<int32_t>(1000 + k));
    }
  }
  int64_t fail_at_ = -1;
  int64_t document_ = int64_t{1} << 40;  ///< tokens of each
  std::chrono::microseconds delay_{0};
  std::atomic<int64_t> reads_{0};

 private:
  int64_t samples_, seq_len_;
};

}  // namespace espalier
