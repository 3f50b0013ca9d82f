// A folder and a console for a reporter, and a step to report.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "espalier/report/report.hpp"

namespace espalier {

class ReporterTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "espalier-report-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    console_ = std::tmpfile();
  }
  void TearDown() override {
    std::fclose(console_);
    std::filesystem::remove_all(folder_);
  }

  std::string MetricsPath() const { return folder_ + "/run/metrics.jsonl"; }
  ReportOptions Options() const {
    ReportOptions options;
    options.metrics_path = MetricsPath();
    options.console = console_;
    options.now = [] { return 1763890123.25; };
    options.steps = 12;
    options.flops_per_token = {2e9, 3e9};
    return options;
  }
  static StepRecord Record(int64_t step) {
    StepRecord r;
    r.step = step;
    r.loss = 5.54321098f;
    r.grad_norm = 1.0f / 3.0f;
    r.lr = 3e-4;
    r.tokens = step * 1001;
    r.step_ms = 250;
    r.tokens_per_s = 4004;
    r.peak_bytes = 123456789;
    r.host_bytes = 234567;
    r.compute_ms = 200.1234;
    r.exposed_comm_ms = 30;
    r.idle_ms = 20;
    r.comm.emplace();
    r.comm->exposed_ms = {12.5, 0, 0, 17.5, 0};
    r.comm->hidden_ms = {37.5, 0, 0, 0, 2};
    r.data_ms = 0.5;
    r.checkpoint_ms = 7;
    return r;
  }
  std::vector<std::string> Lines() const {
    std::ifstream file(MetricsPath());
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  /// A line without its time, which Options() sets.
  static std::string Untimed(const std::string& line) {
    const std::string end = ",\"time\":1763890123.250}";
    EXPECT_TRUE(line.ends_with(end)) << line;
    return line.substr(0, line.size() - std::min(line.size(), end.size())) + "}";
  }
  std::vector<std::string> Console() const {
    std::rewind(console_);
    std::vector<std::string> lines;
    char line[512];
    while (std::fgets(line, sizeof line, console_) != nullptr) lines.emplace_back(line);
    return lines;
  }

  std::string folder_;
  std::FILE* console_ = nullptr;
};

}  // namespace espalier
