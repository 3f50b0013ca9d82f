#include "espalier/report/report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "espalier/model/flops.hpp"
#include "espalier/report/text.hpp"
#include "espalier/report/text_events.hpp"
#include "espalier/util/crc32c.hpp"
#include "espalier/util/error.hpp"
#include "report/reporter_testing.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Deck Shaped(Family family, int layers, int64_t dim, int64_t heads, int64_t kv_heads, int64_t ffn_dim) {
  Deck deck{};
  Deck::Model& m = deck.model;
  m.family = family;
  m.layers = layers;
  m.dim = dim;
  m.heads = heads;
  m.kv_heads = kv_heads;
  m.head_dim = m.v_dim = dim / heads;
  m.ffn_dim = ffn_dim;
  return deck;
}

Deck Llama(int layers, int64_t dim, int64_t heads, int64_t kv_heads, int64_t ffn_dim) {
  Deck deck = Shaped(Family::kLlama, layers, dim, heads, kv_heads, ffn_dim);
  deck.model.vocab = 128256;
  deck.model.seq_len = 8192;
  return deck;
}

Deck Gpt2(int layers, int64_t dim, int64_t heads, int64_t vocab, int64_t seq_len) {
  Deck deck = Shaped(Family::kGpt2, layers, dim, heads, heads, 4 * dim);
  deck.model.vocab = vocab;
  deck.model.seq_len = seq_len;
  deck.model.tie_embeddings = true;
  return deck;
}

// Published counts of Megatron-LM's formula and PaLM's, to all digits given.
TEST(Flops, KnownModels) {
  const auto expect = [](const Deck& deck, double causal, double full) {
    const ModelFlops flops = FlopsPerToken(deck);
    EXPECT_NEAR(flops.causal / causal, 1.0, 5e-7);
    EXPECT_NEAR(flops.full / full, 1.0, 5e-7);
  };
  expect(Llama(32, 4096, 32, 8, 14336), 5.147040e10, 5.791285e10);
  expect(Llama(80, 8192, 64, 8, 28672), 4.492225e11, 4.814348e11);
  expect(Llama(126, 16384, 128, 8, 53248), 2.523956e12, 2.625425e12);
  expect(Gpt2(96, 12288, 96, 51200, 2048), 1.061947e12, 1.076443e12);
  expect(Gpt2(12, 768, 12, 50257, 1024), 7.978153e8, 8.544384e8);
}

// 4 (w - w^2 / 2s) a d per token and layer forward, three times that with backward; a window of s is none.
TEST(Flops, AWindowLeavesFewerPairs) {
  const Deck full = Llama(32, 4096, 32, 8, 14336);
  Deck windows = full;
  windows.model.sliding_window = 1024;
  const double hidden = 8192.0 / 2 - (1024 - 1024.0 * 1024 / (2 * 8192));
  EXPECT_NEAR(FlopsPerToken(full).causal - FlopsPerToken(windows).causal, 3 * 32 * 4 * hidden * 4096, 1e3);
  windows.model.full_attention_layers = 24;
  EXPECT_NEAR(FlopsPerToken(full).causal - FlopsPerToken(windows).causal, 3 * 8 * 4 * hidden * 4096, 1e3);
  windows.model.sliding_window = 8192;
  EXPECT_EQ(FlopsPerToken(windows).causal, FlopsPerToken(full).causal);
}

TEST(Text, Bytes) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(10239), "10.0 KiB");
  EXPECT_EQ(HumanBytes((1 << 20) - 1), "1.00 MiB");
  EXPECT_EQ(HumanBytes(12'900'000), "12.3 MiB");
  EXPECT_EQ(HumanBytes(int64_t{79} << 30), "79.0 GiB");
  EXPECT_EQ(HumanBytes(std::numeric_limits<int64_t>::max()), "8.00 EiB");
}

TEST(Text, Counts) {
  EXPECT_EQ(HumanCount(0), "0");
  EXPECT_EQ(HumanCount(999.4), "999");
  EXPECT_EQ(HumanCount(999.6), "1.00k");
  EXPECT_EQ(HumanCount(12345), "12.3k");
  EXPECT_EQ(HumanCount(999600), "1.00M");
  EXPECT_EQ(HumanCount(7.06e10), "70.6G");
  EXPECT_EQ(HumanCount(-1500), "-1.50k");
  EXPECT_EQ(HumanCount(std::nan("")), "-");
}

TEST(Text, Durations) {
  EXPECT_EQ(HumanDuration(0.4), "0s");
  EXPECT_EQ(HumanDuration(59.6), "1m00s");
  EXPECT_EQ(HumanDuration(1624), "27m04s");
  EXPECT_EQ(HumanDuration(3 * 3600 + 5 * 60 + 59), "3h05m");
  EXPECT_EQ(HumanDuration(2 * 86400 + 3 * 3600 + 1), "2d03h");
  EXPECT_EQ(HumanDuration(1.5e31), "1.74e+26d");
  EXPECT_EQ(HumanDuration(-1), "-");
  EXPECT_EQ(HumanDuration(INFINITY), "-");
}

TEST_F(ReporterTest, StepLineHasEveryFieldInOrder) {
  Reporter(Options()).Step(Record(3));
  EXPECT_THAT(Lines(),
              ElementsAre("{\"step\":3,\"loss\":5.54321098,\"grad_norm\":0.333333343,\"lr\":0.0003,\"tokens\":3003,"
                          "\"step_ms\":250.000,\"tokens_per_s\":4004.0,\"mfu\":null,\"peak_bytes\":123456789,"
                          "\"host_bytes\":234567,"
                          "\"compute_ms\":200.123,\"exposed_comm_ms\":30.000,\"idle_ms\":20.000,"
                          "\"exposed_ms\":{\"tp\":12.500,\"cp\":0.000,\"ep\":0.000,\"dp\":17.500,\"pp\":0.000},"
                          "\"hidden_ms\":{\"tp\":37.500,\"cp\":0.000,\"ep\":0.000,\"dp\":0.000,\"pp\":2.000},"
                          "\"data_ms\":0.500,\"checkpoint_ms\":7.000,\"time\":1763890123.250}"));
}

TEST_F(ReporterTest, CommunicationThatIsNotKnownIsNull) {
  StepRecord r = Record(3);
  r.comm.reset();
  Reporter(Options()).Step(r);
  const json line = json::parse(Lines().at(0));
  EXPECT_TRUE(line["exposed_ms"].is_null() && line["hidden_ms"].is_null());
  EXPECT_FALSE(line.contains("note"));
}

TEST_F(ReporterTest, TheEndSaysHowMuchCommunicationWasHidden) {
  Reporter reporter(Options());
  reporter.SaySummary();  // nothing is known yet
  StepRecord r = Record(1);
  r.comm->exposed_ms[CommAxis::kTp] = 1000;  // the first step does not count
  reporter.Step(r);
  reporter.Step(Record(2));
  r = Record(3);
  r.comm.reset();  // nor does a step with unknown communication
  reporter.Step(r);
  r = Record(4);
  r.comm->exposed_ms[CommAxis::kTp] = 62.5;
  reporter.Step(r);
  reporter.SaySummary();
  EXPECT_EQ(Console().back(),
            "messages   tp 75.0 ms a step, 50 % hidden; dp 17.5 ms, 0 % hidden; pp 2.00 ms, 100 % hidden; exposed "
            "22.0 % of the step (rank 0, mean of 2 steps)\n");
}

TEST_F(ReporterTest, OneStepIsItsOwnMean) {
  Reporter reporter(Options());
  reporter.Step(Record(1));
  reporter.SaySummary();
  EXPECT_THAT(Console().back(), HasSubstr("tp 50.0 ms a step, 75 % hidden;"));
  EXPECT_THAT(Console().back(), HasSubstr("exposed 12.0 % of the step (rank 0, one step)\n"));
}

TEST_F(ReporterTest, RoutersHaveTheirLoadsByLayer) {
  StepRecord r = Record(3);
  r.experts_max_load = {1.5, std::nan("")};
  r.experts_loads = {{12, 0, 16777216}, {4, std::nan(""), 5}};
  r.router_entropy = 2.07944154;
  r.mtp_loss = 5.25f;
  Reporter(Options()).Step(r);
  const std::string line = Lines().at(0);
  EXPECT_THAT(line, HasSubstr("\"mtp_loss\":5.25,"));
  EXPECT_THAT(line, HasSubstr("\"experts_max_loads\":[1.5,null],\"router_entropy\":2.07944,"
                              "\"experts_loads\":[[12,0,16777216],[4,null,5]],\"lr\""));
  EXPECT_TRUE(json::accept(line));
}

// Every third step, as on the console, and the last one; of many steps about a thousand.
TEST_F(ReporterTest, LoadsOfExpertsAreInSomeLines) {
  const auto steps_with_loads = [&](int64_t steps, int64_t every) {
    ReportOptions options = Options();
    options.metrics_path = folder_ + fmt::format("/{}-{}/metrics.jsonl", steps, every);
    options.console = nullptr;
    options.steps = steps;
    options.every_steps = every;
    {
      Reporter reporter(options);
      for (int64_t step = 1; step <= steps; ++step) {
        StepRecord r = Record(step);
        r.experts_loads = {{1, 2}};
        reporter.Step(r);
      }
    }
    std::vector<int64_t> with;
    std::ifstream file(options.metrics_path);
    for (std::string line; std::getline(file, line);)
      if (const json fields = json::parse(line); fields.contains("experts_loads")) with.push_back(fields["step"]);
    return with;
  };
  EXPECT_THAT(steps_with_loads(4, 1), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(steps_with_loads(10, 3), ElementsAre(3, 6, 9, 10));
  EXPECT_THAT(steps_with_loads(2, 5), ElementsAre(2));
  const std::vector<int64_t> of_many = steps_with_loads(6100, 3);
  EXPECT_EQ(of_many.size(), 678U) << "2033 reports are more than 2000, so that every third has loads";
  EXPECT_THAT(std::vector<int64_t>(of_many.begin(), of_many.begin() + 3), ElementsAre(9, 18, 27));
}

TEST_F(ReporterTest, NineDigitsTellNeighboursApart) {
  Reporter reporter(Options());
  float loss = 2.5f;
  for (int64_t step = 1; step <= 50; ++step, loss = std::nextafterf(loss, 3.0f)) {
    StepRecord r = Record(step);
    r.loss = loss;
    reporter.Step(r);
    EXPECT_EQ(static_cast<float>(json::parse(Lines().back())["loss"].get<double>()), loss);
  }
}

TEST_F(ReporterTest, MfuNeedsAPeak) {
  ReportOptions options = Options();
  options.peak_flops = 8e13;
  Reporter(options).Step(Record(1));
  EXPECT_DOUBLE_EQ(json::parse(Lines()[0])["mfu"].get<double>(), 0.1001);
}

TEST_F(ReporterTest, MissionCTheStartSaysWhatMfuIsCountedAgainst) {
  ReportOptions options = Options();
  options.peak_flops = 8e13;
  options.peak_source = "run.peak_tflops = 40; of the first of 2 devices";
  {
    Reporter reporter(options);
    reporter.Start({});
    reporter.Step(Record(1));
  }
  Reporter(Options()).Start({});
  const std::vector<std::string> lines = Lines();
  const json start = json::parse(lines[0]), step = json::parse(lines[1]), unknown = json::parse(lines[2]);
  EXPECT_EQ(start["peak_source"], options.peak_source);
  EXPECT_DOUBLE_EQ(
      step["mfu"].get<double>(),
      start["flops_per_token"].get<double>() * step["tokens_per_s"].get<double>() / start["peak_flops"].get<double>());
  EXPECT_TRUE(unknown["peak_flops"].is_null());
}

TEST_F(ReporterTest, EventsAreThoseOfTheContract) {
  Reporter reporter(Options());
  StartRecord start;
  start.version = "0.1.0";
  start.deck = "inputs/llama/\"tiny\".toml";
  start.ranks = 8;
  start.mesh = Mesh({2, 1, 2, 1, 2});
  start.parameters = 70'000'000'001;
  start.tokens_per_step = 1024;
  reporter.Start(start);
  reporter.Validation(5, 2.25);
  reporter.Checkpoint({6, "runs/x/checkpoints/step-00000006", 1 << 21, 1.5, 20.25, 0.75});
  reporter.CheckpointFailed(7, {"runs/x/checkpoints/step-00000007 is not saved", "no \"room\""});
  Breakdown mean;
  mean.compute_us = 600;
  mean.exposed_us[CommAxis::kTp] = 150;
  mean.hidden_us[CommAxis::kPp] = 40;
  mean.idle_us = 250;
  reporter.Trace({7, 4, 1000, mean, "runs/x/trace/step-00000007.svg"});
  reporter.Stop(7, "SIGUSR1 to rank 1");
  reporter.End(ExitStatus::kStopped, {10, 20, 30}, 77);
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 7u);
  const json first = json::parse(lines[0]);
  EXPECT_EQ(first["event"], "start");
  EXPECT_EQ(first["version"], "0.1.0");
  EXPECT_EQ(first["ranks"], 8);
  EXPECT_EQ(first["mesh"], json::parse(R"({"pp":2,"dp_replicate":1,"dp_shard":2,"cp":1,"tp":2})"));
  EXPECT_EQ(first["parameters"], 70'000'000'001);
  EXPECT_EQ(first["tokens_per_step"], 1024);
  EXPECT_EQ(first["deck"], "inputs/llama/\"tiny\".toml");
  EXPECT_EQ(first["first_step"], 1);
  EXPECT_EQ(first["flops_per_token"], 2e9);
  EXPECT_EQ(Untimed(lines[1]), R"({"step":5,"val_loss":2.25})");
  EXPECT_EQ(Untimed(lines[2]),
            R"({"event":"checkpoint","step":6,"dir":"runs/x/checkpoints/step-00000006","bytes":2097152,)"
            R"("blocked_ms":1.500,"committed_ms":20.250,"proof_ms":0.750})");
  EXPECT_EQ(Untimed(lines[3]), R"({"event":"checkpoint_failed","step":7,)"
                               R"("reason":"runs/x/checkpoints/step-00000007 is not saved\nno \"room\""})");
  EXPECT_EQ(Untimed(lines[4]), R"({"event":"trace","step":7,"picture":"runs/x/trace/step-00000007.svg","ranks":4,)"
                               R"("step_ms":1.000,"compute_ms":0.600,"idle_ms":0.250,)"
                               R"("exposed_ms":{"tp":0.150,"cp":0.000,"ep":0.000,"dp":0.000,"pp":0.000},)"
                               R"("hidden_ms":{"tp":0.000,"cp":0.000,"ep":0.000,"dp":0.000,"pp":0.040}})");
  EXPECT_EQ(Untimed(lines[5]), R"({"event":"stop","step":7,"reason":"SIGUSR1 to rank 1"})");
  EXPECT_EQ(Untimed(lines[6]), R"({"event":"end","status":75,"rank_peak_bytes":[10,20,30],"outside_bytes":77})");
}

/// The records of an event file; checks their lengths and checksums.
std::vector<std::string> Records(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto masked = [](std::string_view bytes) {
    return std::rotr(Crc32cPortable(bytes.data(), bytes.size()), 15) + 0xa282ead8u;
  };
  const auto number = [&]<typename T>(size_t at, T value) {
    std::memcpy(&value, text.data() + at, sizeof value);
    return value;
  };
  std::vector<std::string> records;
  for (size_t at = 0; at + 16 <= text.size();) {
    const auto length = number(at, uint64_t{0});
    EXPECT_EQ(number(at + 8, uint32_t{0}), masked(text.substr(at, 8)));
    records.push_back(text.substr(at + 12, length));
    EXPECT_EQ(number(at + 12 + length, uint32_t{0}), masked(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST_F(ReporterTest, EventFilesHaveTheLinesOfMetrics) {
  ReportOptions options = Options();
  options.events_folder = folder_ + "/run/tensorboard";
  {
    Reporter reporter(options);
    StartRecord start;
    start.first_step = 300;
    reporter.Start(start);
    reporter.Step(Record(300));
    reporter.Spike(300, "loss");
  }
  const fs::directory_iterator files(options.events_folder);
  const std::vector<std::string> records = Records(files->path().string());
  ASSERT_EQ(records.size(), 5u);              // version, session, start, step, spike
  const std::string at_300 = "\x10\xac\x02";  // field 2: the step
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  EXPECT_THAT(records[1], testing::EndsWith(at_300 + "\x3a\x02\x08\x01"));  // SessionLog, START
  const float loss = 5.54321098f;
  const std::string scalar =
      std::string("\x0a\x0b\x0a\x04loss\x15", 9) + std::string(reinterpret_cast<const char*>(&loss), sizeof loss);
  EXPECT_THAT(records[3], HasSubstr(at_300));
  EXPECT_THAT(records[3], HasSubstr(scalar));
  EXPECT_THAT(records[3], HasSubstr("exposed_ms/dp"));
  EXPECT_THAT(records[4], HasSubstr("| reason | loss |"));
}

TEST_F(ReporterTest, TextEventsAreAFileOfTheirOwnThatSupersedesNothing) {
  WriteTextEvents(folder_, 300, 1.5, {{"sample 1", "    Once\n"}, {"sample 2", "a \xff b"}});
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (entry.path().string().find("tfevents") != std::string::npos) files.push_back(entry.path().string());
  ASSERT_EQ(files.size(), 1u);
  const std::vector<std::string> records = Records(files[0]);
  ASSERT_EQ(records.size(), 3u);  // version and two texts, but no session
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  EXPECT_THAT(records[1], testing::AllOf(HasSubstr("\x10\xac\x02"), HasSubstr("sample 1"), HasSubstr("    Once\n")));
  EXPECT_THAT(records[2],
              testing::AllOf(HasSubstr("\x10\xac\x02"), HasSubstr("sample 2"), HasSubstr("a \xef\xbf\xbd b")));
  EXPECT_THROW(WriteTextEvents(folder_ + "/none", 1, 1.5, {}), UserError);
}

TEST_F(ReporterTest, WhatIsNotFiniteIsNullWithANote) {
  Reporter reporter(Options());
  StepRecord r = Record(2);
  r.loss = std::numeric_limits<float>::quiet_NaN();
  r.grad_norm = std::numeric_limits<float>::infinity();
  reporter.Step(r);
  reporter.Validation(2, -INFINITY);
  const json step = json::parse(Lines()[0]);
  EXPECT_TRUE(step["loss"].is_null());
  EXPECT_TRUE(step["grad_norm"].is_null());
  EXPECT_EQ(step["note"], "loss is nan, grad_norm is inf");
  EXPECT_EQ(step["lr"], 3e-4);
  EXPECT_EQ(json::parse(Lines()[1])["note"], "val_loss is -inf");
}

TEST_F(ReporterTest, AppendsAndRemovesATornLine) {
  Reporter(Options()).Step(Record(1));
  const std::string whole = Lines()[0];
  std::ofstream(MetricsPath(), std::ios::app) << "{\"step\":2,\"lo";
  Reporter(Options()).Step(Record(1));
  EXPECT_THAT(Lines(), ElementsAre(whole, whole));
  std::ofstream(MetricsPath()) << "{\"torn";
  Reporter(Options()).Step(Record(1));
  EXPECT_THAT(Lines(), ElementsAre(whole));
}

TEST_F(ReporterTest, LALineThatTheDiskCutShortIsTakenBack) {
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  Reporter reporter(Options());
  reporter.Step(Record(1));
  rlimit full = before;
  full.rlim_cur = fs::file_size(MetricsPath()) + 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  reporter.Step(Record(2));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_DFL);
  reporter.Step(Record(3));
  ASSERT_THAT(Lines(), testing::SizeIs(2));
  EXPECT_EQ(json::parse(Lines()[0])["step"], 1);
  EXPECT_EQ(json::parse(Lines()[1])["step"], 3);
}

TEST_F(ReporterTest, LALongTornLineIsFoundInBlocks) {
  Reporter(Options()).Step(Record(1));
  const std::vector<std::string> whole = Lines();
  for (const uintmax_t bytes :
       {uintmax_t{65535}, uintmax_t{65536}, uintmax_t{65537}, uintmax_t{1} << 28}) {  // byte by byte: five minutes
    fs::resize_file(MetricsPath(), fs::file_size(MetricsPath()) + bytes);
    Reporter reporter(Options());
    EXPECT_THAT(Lines(), whole) << bytes;
  }
  fs::resize_file(MetricsPath(), 0);
  fs::resize_file(MetricsPath(), 100000);
  Reporter(Options()).Step(Record(1));
  EXPECT_THAT(Lines(), whole);
}

TEST_F(ReporterTest, H5ALinkIsNotFollowed) {
  fs::create_directories(folder_ + "/run");
  const std::string target = folder_ + "/target";
  std::ofstream(target) << "without a line end";
  fs::create_symlink(target, MetricsPath());
  EXPECT_THAT([&] { Reporter reporter(Options()); }, testing::ThrowsMessage<UserError>(HasSubstr("is a link")));
  EXPECT_EQ(fs::file_size(target), 18u);
  fs::remove(MetricsPath());
  ASSERT_EQ(mkfifo(MetricsPath().c_str(), 0600), 0);
  EXPECT_THAT([&] { Reporter reporter(Options()); },
              testing::ThrowsMessage<UserError>(HasSubstr("is not a regular file")));
}

TEST_F(ReporterTest, A3AChangedKeyHasBothValuesAndItsOrigin) {
  Reporter(Options()).Changed("data.paths", "[\"/a\"]", "[\"/b \\\"c\\\"\"]", "command line");
  const json line = json::parse(Lines().at(0));
  EXPECT_EQ(line["event"], "changed");
  EXPECT_EQ(line["key"], "data.paths");
  EXPECT_EQ(line["old"], "[\"/a\"]");
  EXPECT_EQ(line["new"], "[\"/b \\\"c\\\"\"]");
  EXPECT_EQ(line["origin"], "command line");
}

TEST_F(ReporterTest, ConsoleLinesAreAligned) {
  ReportOptions options = Options();
  options.every_steps = 5;
  Reporter reporter(options);
  for (int64_t step = 1; step <= 12; ++step) {
    StepRecord r = Record(step);
    r.step_ms = step == 1 ? 60000 : 4000;
    r.loss = static_cast<float>(12 - step);
    reporter.Step(r);
  }
  EXPECT_THAT(Console(), ElementsAre("     step       loss  grad norm         lr  tokens/s         ms  time left\n",
                                     "     1/12   11.00000     0.3333  3.000e-04     4.00k    60000.0     11m00s\n",
                                     "     5/12    7.00000     0.3333  3.000e-04     4.00k     4000.0        28s\n",
                                     "    10/12    2.00000     0.3333  3.000e-04     4.00k     4000.0         8s\n",
                                     "    12/12    0.00000     0.3333  3.000e-04     4.00k     4000.0         0s\n"));
  EXPECT_EQ(Lines().size(), 12u);
}

// 2, 2, 4, 4, 6, 6, 6, 6 sequences, one per second: after step 4, 12 are done and 24 remain.
TEST_F(ReporterTest, TheTimeLeftOfARampCountsSequences) {
  ReportOptions options = Options();
  options.steps = 8;
  options.every_steps = 4;
  options.ramp = BatchRamp(Deck::Batch{6, 1, 2, 2, 2});
  {
    Reporter reporter(options);
    StartRecord start;
    start.tokens_per_step = 600;
    reporter.Start(start);
    for (int64_t step = 1; step <= 8; ++step) {
      StepRecord r = Record(step);
      r.step_ms = 1000.0 * static_cast<double>(options.ramp.SequencesOf(step));
      if (step == 3) reporter.Grows(3, 4);
      reporter.Step(r);
    }
  }
  const std::vector<std::string> console = Console();
  EXPECT_EQ(console.at(2), "        3  from here on 4 sequences a step\n");
  EXPECT_THAT(console.at(3), testing::EndsWith("4000.0        24s\n"));
  const std::vector<std::string> lines = Lines();
  EXPECT_EQ(json::parse(lines.at(0))["batch_sizes"],
            json::parse(R"([{"first_step":1,"sequences":2},{"first_step":3,"sequences":4},
                            {"first_step":5,"sequences":6}])"));
  EXPECT_EQ(json::parse(lines.at(1))["sequences"], 2);
  EXPECT_EQ(json::parse(Untimed(lines.at(3))), json::parse(R"({"event":"batch","step":3,"sequences":4})"));
  EXPECT_EQ(json::parse(lines.at(4))["sequences"], 4);
  EXPECT_EQ(json::parse(lines.at(8))["sequences"], 6);
}

TEST_F(ReporterTest, OtherRanksAreSilent) {
  ReportOptions options = Options();
  options.rank = 3;
  Reporter reporter(options);
  reporter.Step(Record(1));
  reporter.Validation(1, 2.0);
  reporter.End(ExitStatus::kDone, {}, 0);
  EXPECT_FALSE(fs::exists(MetricsPath()));
  EXPECT_TRUE(Console().empty());
}

TEST_F(ReporterTest, AFileThatCannotBeOpenedIsRefused) {
  std::ofstream(folder_ + "/run") << "a file where the folder should be";
  try {
    Reporter reporter(Options());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.status(), ExitStatus::kFault);
    EXPECT_THAT(error.what(), HasSubstr("metrics.jsonl: cannot write"));
  }
}

TEST_F(ReporterTest, ThreadsDoNotTearLines) {
  Reporter reporter(Options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&reporter, t] {
      for (int64_t i = 1; i <= 50; ++i) t % 2 == 0 ? reporter.Step(Record(i)) : reporter.Validation(i, 1.5);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 200u);
  for (const std::string& line : lines) EXPECT_TRUE(json::accept(line)) << line;
}

}  // namespace
}  // namespace espalier
