// The page of a history: its figures, its notes on bad runs, and that no text of a run gets into the page unescaped.
#include "espalier/page/page.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "program/program_testing.hpp"
#include "test_decks.hpp"
#include "timeline/timeline_testing.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr const char* kStart =
    "{\"event\":\"start\",\"first_step\":1,\"ranks\":3,\"deck\":\"<script>alert(1)</script>\",\"steps\":9,"
    "\"version\":\"0.9\",\"mesh\":{\"pp\":3,\"tp\":1},\"parameters\":12345,\"time\":1700000000}\n";

RunOnPage RunOf(const std::string& text, const std::string& name = "runs/a") {
  RunOnPage run;
  run.history = ParseHistory(text, name);
  run.history.folder = name;
  run.why_no_keys = "no deck";
  run.programs.why_none = "the deck cannot be compiled: planted";
  run.measured.why_none = "nothing was measured";
  return run;
}

std::string HtmlOf(const std::string& text) { return MakePage({RunOf(text)}).html; }

TEST(Page, HasTheFiguresOfTheRun) {
  const std::string html =
      HtmlOf(std::string(kStart) +
             "{\"step\":1,\"loss\":5.12345678,\"step_ms\":20,\"compute_ms\":11,\"exposed_comm_ms\":4,\"idle_ms\":2,"
             "\"data_ms\":1,\"checkpoint_ms\":5,\"exposed_ms\":{\"tp\":3,\"cp\":0,\"dp\":1,\"pp\":0},"
             "\"hidden_ms\":{\"tp\":1,\"cp\":0,\"dp\":3,\"pp\":0}}\n"
             "{\"step\":2,\"loss\":4.75,\"step_ms\":10,\"compute_ms\":6,\"exposed_comm_ms\":1,\"idle_ms\":0,"
             "\"exposed_ms\":null}\n"
             "{\"event\":\"end\",\"status\":75,\"rank_peak_bytes\":[1024,4096,2048]}\n");
  EXPECT_THAT(html, HasSubstr("2 of 9"));
  EXPECT_THAT(html, HasSubstr("4.75 at step 2"));
  EXPECT_THAT(html, HasSubstr("exit status 75: started again, it goes on"));
  EXPECT_THAT(html, HasSubstr("4.00 KiB"));
  EXPECT_THAT(html, HasSubstr("pp 3"));
  EXPECT_THAT(html, HasSubstr("2023-11-14 22:13:20 UTC"));
  EXPECT_THAT(html, HasSubstr("<td>compute</td><td class=\"number\">17.0 ms</td><td class=\"number\">48.6 %</td>"));
  EXPECT_THAT(html, HasSubstr("<td>exposed tp</td><td class=\"number\">3.00 ms</td>"));
  EXPECT_THAT(html, HasSubstr("<td>exposed, axis not known</td><td class=\"number\">1.00 ms</td>"));
  EXPECT_THAT(html, HasSubstr("<td>rest of the steps</td><td class=\"number\">5.00 ms</td>")) << "2 and 3";
  EXPECT_THAT(html, HasSubstr("<td>waiting for saves</td><td class=\"number\">5.00 ms</td>"));
  EXPECT_THAT(html, HasSubstr("<td>dp</td><td class=\"number\">1.00 ms</td><td class=\"number\">3.00 ms</td>"
                              "<td class=\"number\">75.0 %</td>"));
  EXPECT_THAT(html, HasSubstr("the deck cannot be compiled: planted"));
}

TEST(Page, EscapesWhatRunsSay) {
  const std::string html = MakePage({RunOf(std::string(kStart) + "{\"step\":1,\"loss\":3}\n"
                                                                 "{\"event\":\"warning\",\"text\":\"<img src=x>\"}\n"
                                                                 "{\"event\":\"<b>\",\"x\":\"\\\"><i>\"}\n",
                                           "runs/<a>&\xff"),
                                     RunOf("{\"step\":1,\"loss\":2}\n", "\"b\"")})
                               .html;
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;alert(1)"));
  for (const char* raw : {"<img", "<b>", "<i>", "<a>", "\xff"}) EXPECT_THAT(html, Not(HasSubstr(raw))) << raw;
  EXPECT_THAT(html, HasSubstr("&lt;img src=x&gt;"));
  EXPECT_THAT(html, HasSubstr("runs/&lt;a&gt;&amp;?"));
}

TEST(Page, ListsWhatIsOutOfTheOrdinary) {
  const std::string html = HtmlOf(
      std::string(kStart) +
      "{\"step\":1,\"loss\":null,\"note\":\"loss is nan\"}\n"
      "{\"event\":\"changed\",\"key\":\"optimizer.lr\",\"old\":\"0.25\",\"new\":\"0.5\",\"origin\":\"command line\"}\n"
      "{\"event\":\"checkpoint_failed\",\"step\":4,\"reason\":\"no space\\nno hope\"}\n"
      "{\"event\":\"console_lost\",\"reason\":\"a closed pipe\"}\n"
      "{\"event\":\"start\",\"first_step\":3,\"ranks\":1,\"fault\":\"a kill at step\"}\n"
      "{\"event\":\"unheard of\",\"depth\":7}\n"
      "broken\n");
  EXPECT_THAT(html, HasSubstr("optimizer.lr is 0.5 now (command line); it was 0.25"));
  EXPECT_THAT(html, HasSubstr("a closed pipe"));
  EXPECT_THAT(html, HasSubstr("1 save failed"));
  EXPECT_THAT(html, HasSubstr("starts at step 3 on 1 rank; fault on purpose: a kill at step"));
  EXPECT_THAT(html, HasSubstr("depth: 7"));
  EXPECT_THAT(html, HasSubstr("loss was not finite in 1 line: nan at step 1"));
  EXPECT_THAT(html, HasSubstr("1 line of metrics.jsonl cannot be read and is left out: line 8 is no JSON"));
}

TEST(Page, ShowsTheLoadsOfExperts) {
  const std::string text = std::string(kStart) +
                           "{\"step\":1,\"loss\":3,\"experts_max_load\":2.5,\"router_entropy\":1.25,"
                           "\"mtp_loss\":3.5,\"experts_loads\":[[10,0,5,1],[4,4,4,4],[3,3,9,1]]}\n";
  RunOnPage run = RunOf(text);
  run.why_no_keys = "";
  run.keys = {{"experts.first_layer", "1"}, {"experts.every", "2"}, {"model.layers", "4"}};
  const Page page = MakePage({run, RunOf("{\"step\":1,\"loss\":2}\n", "runs/dense")});
  EXPECT_THAT(page.html, HasSubstr("load by expert and layer, relative to the mean, step 1"));
  EXPECT_THAT(page.html, HasSubstr("data-name=\"layer 2\"")) << "the first is dense";
  EXPECT_THAT(page.html, HasSubstr("data-name=\"layer 4\""));
  EXPECT_THAT(page.html, HasSubstr("data-name=\"layer 5\"")) << "for further tokens";
  EXPECT_THAT(page.html, HasSubstr("10\u00a0tokens\u00a0(2.5) 0\u00a0tokens\u00a0(0) "));
  EXPECT_THAT(page.html, HasSubstr("<td class=\"number\">2</td><td class=\"number\">4.0</td><td class=\"number\">0</td>"
                                   "<td class=\"number\">1</td><td class=\"number\">10</td><td class=\"number\">0</td>"
                                   "<td class=\"number\">2.500</td><td class=\"number\">1</td>"));
  std::set<std::string> names;
  for (const NamedDrawing& drawing : page.drawings) names.insert(drawing.name);
  for (const char* name : {"loads-1", "experts_max_load", "router_entropy", "mtp_loss"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("loads-2"));
  EXPECT_THAT(HtmlOf(kStart), Not(HasSubstr("Load of experts")));
}

TEST(Page, SaysWhereDecksDiffer) {
  RunOnPage a = RunOf("{\"step\":1,\"loss\":3}\n", "a"), b = RunOf("{\"step\":1,\"loss\":2}\n", "b");
  a.why_no_keys = b.why_no_keys = "";
  a.keys = {{"run.steps", "5"}, {"model.dim", "48"}};
  b.keys = {{"run.steps", "7"}, {"model.dim", "48"}};
  const std::string html = MakePage({a, b}).html;
  EXPECT_THAT(html, HasSubstr("<td>run.steps</td><td>5</td><td>7</td>"));
  EXPECT_THAT(html, Not(HasSubstr("model.dim")));
}

/// Attributes "id" of the page.
std::vector<std::string> Ids(const std::string& html) {
  std::vector<std::string> ids;
  const std::regex id(" id=\"([^\"]*)\"");
  for (std::sregex_iterator i(html.begin(), html.end(), id), none; i != none; ++i) ids.push_back((*i)[1]);
  return ids;
}

TEST(Page, ShowsTimelinesAndMemoryOfCompiledPrograms) {
  const Compilation c = Compile(SmallDeck(DegreesOf("211")), 2, Purpose::kTrain);
  const auto run_of = [&](const std::string& name) {
    RunOnPage run = RunOf(std::string(kStart) + "{\"step\":1,\"compute_ms\":3}\n", name);
    run.measured = {ReplayPipeline(c), ""};
    run.simulated = {ReplayPipeline(c), ""};
    run.programs.why_none = "";
    for (int rank = 0; rank < 2; ++rank) {
      MemoryOnPage memory{rank, rank, {}, "", 0};
      const Program program = ProgramMaker(c).Make(c.mesh.CoordinateOf(rank), {}, &memory.course);
      memory.arena_bytes = program.arena_bytes;
      run.programs.rank_peak_bytes.push_back(program.arena_bytes);
      run.programs.memory.push_back(memory);
    }
    return run;
  };
  const Page page = MakePage({run_of("a"), run_of("b")});
  const std::vector<std::string> ids = Ids(page.html);
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), ids.size()) << "ids are unique";
  std::set<std::string> names;
  for (const NamedDrawing& drawing : page.drawings) names.insert(drawing.name);
  EXPECT_EQ(names.size(), page.drawings.size());
  for (const char* name : {"loss", "timeline", "memory-1", "memory-2", "time-shares"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_THAT(page.html, Not(HasSubstr("http")));
}

TEST(Page, OfALongRunIsSmall) {
  std::string text = kStart;
  for (int64_t step = 1; step <= 100'000; ++step)
    text += fmt::format(
        "{{\"step\":{0},\"loss\":{1},\"grad_norm\":{2},\"lr\":{3},\"step_ms\":{2},\"tokens_per_s\":{1},\"mfu\":{3},"
        "\"peak_bytes\":{0},\"compute_ms\":{1}}}\n",
        step, 2 + 1.0 / double(step) + double(step * 7919 % 1000) * 1e-4, 1 + double(step * 104'729 % 1000) * 1e-3,
        1e-3 / double(step));
  const RunOnPage run = RunOf(text);
  EXPECT_LT(MakePage({run}).html.size(), 1'000'000U);
  EXPECT_LT(MakePage({run, run, run, run, run}).html.size(), 2'000'000U);
}

}  // namespace
}  // namespace espalier
