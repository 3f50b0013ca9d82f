// Cluster files of tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "espalier/costs/cluster.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

/// A folder for cluster files, removed at the end.
class ClusterFiles {
 public:
  ClusterFiles() : folder_(std::filesystem::temp_directory_path() / ("cluster_files." + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ClusterFiles() { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

 private:
  std::filesystem::path folder_;
};

/// All required keys of a file, each on its own line.
inline const std::string kMachine = R"([cluster]
name = "two nodes"
device = "cpu"
ranks_per_node = 2
[device]
name = "some CPU"
memory_bytes = 1000000000
bf16_tflops = 0.5
fp32_tflops = 0.25
memory_bytes_per_us = 20000
)";

/// The errors of a file, without its folder; none if it is fine.
inline std::vector<std::string> ErrorsOf(const std::string& path) {
  try {
    LoadCluster(path);
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kDeck);
    std::vector<std::string> messages = error.messages();
    const std::string folder = std::filesystem::path(path).parent_path().string() + "/";
    for (std::string& message : messages)
      for (size_t at; (at = message.find(folder)) != message.npos;) message.erase(at, folder.size());
    return messages;
  }
  return {};
}

}  // namespace espalier
