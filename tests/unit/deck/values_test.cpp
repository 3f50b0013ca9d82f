// Values of keys: one error per override, each with its place and the allowed values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "deck_testing.hpp"
#include "espalier/deck/deck.hpp"
#include "espalier/deck/parse.hpp"
#include "espalier/deck/schema.hpp"
#include "espalier/deck/time_limit.hpp"
#include "source_tree.hpp"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Strings = std::vector<std::string>;

TEST(Errors, SixAtOnce) {
  const std::string path = InTree("tests/commands/six_errors.toml");
  const Strings errors = ErrorsOf([&] { LoadDeck(path); });
  EXPECT_THAT(
      errors,
      testing::UnorderedElementsAre(
          path + ":3: run.stepz = 20: unknown key (did you mean run.steps?)",
          path + ":4: run.dir = 7: must be a string",
          path + ":10: model.heads = 7: must divide model.dim = 128 (allowed: 1, 2, 4, 8, 16, 32, 64; or set "
                 "model.head_dim)",
          path + ": model.ffn_dim: missing: every deck must set it to an integer (allowed: 1 to 2147483647)",
          path + ":19: precision.compute = \"fp23\": unknown (did you mean fp32?) (allowed: \"bf16\", \"fp32\")",
          path + ":23: optimizer.beta2 = 1.0: out of range (allowed: 0 to 0.9999999)"));
}

TEST(Errors, MissingKeysAreAllNamed) {
  const Strings errors = ErrorsOfText("");
  Strings required;
  for (const DeckKey& key : DeckSchema())
    if (std::holds_alternative<Required>(key.fallback)) required.push_back("small: " + key.FullName() + ": missing");
  ASSERT_EQ(errors.size(), required.size());
  for (size_t i = 0; i < required.size(); ++i) EXPECT_THAT(errors[i], HasSubstr(required[i]));
  EXPECT_THAT(required, SizeIs(11));
}

struct OverrideCase {
  const char* text;
  const char* message;  ///< after "command line: "; empty: accepted
};

/// In ASCII: test reports are XML, which cannot contain every byte.
void PrintTo(const OverrideCase& c, std::ostream* out) {
  for (const char* p = c.text; *p != '\0'; ++p) *out << (*p >= ' ' && *p <= '~' ? *p : '?');
}

class Overrides : public testing::TestWithParam<OverrideCase> {};

TEST_P(Overrides, OneMessage) {
  const auto& [text, message] = GetParam();
  const Strings errors = Errors({text});
  if (*message == '\0') {
    EXPECT_THAT(errors, IsEmpty());
    return;
  }
  ASSERT_THAT(errors, SizeIs(1));
  EXPECT_EQ(errors[0], std::string("command line: ") + message);
}

INSTANTIATE_TEST_SUITE_P(
    Names, Overrides,
    testing::Values(OverrideCase{"run.stepz=3", "run.stepz=3: unknown key (did you mean run.steps?)"},
                    OverrideCase{"steps=3", "steps=3: unknown key (did you mean run.steps?)"},
                    OverrideCase{"modle.heads=3", "modle.heads=3: unknown key (did you mean model.heads?)"},
                    OverrideCase{"model.tp=2", "model.tp=2: unknown key (did you mean parallel.tp?)"},
                    OverrideCase{"model.hedas=2", "model.hedas=2: unknown key (did you mean model.heads?)"},
                    OverrideCase{"model=3", "model=3: must be a section, [model]"},
                    OverrideCase{"run.steps", "run.steps: must be key=value, such as run.steps=20, or another deck"},
                    OverrideCase{"run.steps=", "run.steps=: no value (an empty string is \"\")"},
                    OverrideCase{"precision.what=3",
                                 "precision.what=3: unknown key ([precision] has compute, moments, matmul, "
                                 "fp8_scaling, bf16_matmuls)"},
                    OverrideCase{"include=[\"a\"]", "include=[\"a\"]: only decks can include others"},
                    OverrideCase{" run.steps = 30 ", ""}));

INSTANTIATE_TEST_SUITE_P(
    Numbers, Overrides,
    testing::Values(
        OverrideCase{"run.steps=3.0", "run.steps=3.0: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=1e3", "run.steps=1e3: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=many", "run.steps=many: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=0", "run.steps=0: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=-5", "run.steps=-5: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=2147483648", "run.steps=2147483648: out of range (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=2147483647", ""}, OverrideCase{"run.steps=0x10", ""},
        OverrideCase{"run.steps=1_000", ""}, OverrideCase{"run.steps=+7", ""},
        OverrideCase{"run.steps=007", "run.steps=007: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=true", "run.steps=true: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=[3]", "run.steps=[3]: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps={a=3}", "run.steps={a=3}: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.steps=1979-05-27", "run.steps=1979-05-27: must be an integer (allowed: 1 to 2147483647)"},
        OverrideCase{"run.seed=9223372036854775807", ""},
        OverrideCase{"run.seed=9223372036854775808",
                     "run.seed=9223372036854775808: must be an integer (allowed: >= 0)"},
        OverrideCase{"run.seed=-0", ""}, OverrideCase{"optimizer.lr=1", ""}, OverrideCase{"optimizer.lr=-0.0", ""},
        OverrideCase{"optimizer.lr=inf", "optimizer.lr=inf: must be finite (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.lr=nan", "optimizer.lr=nan: must be finite (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.lr=-1e-9", "optimizer.lr=-1e-9: out of range (allowed: 0 to 3.4e+38)"},
        OverrideCase{"optimizer.eps=0", "optimizer.eps=0: out of range (allowed: 1.18e-38 to 3.4e+38)"},
        OverrideCase{"optimizer.beta1=1", "optimizer.beta1=1: out of range (allowed: 0 to 0.9999999)"},
        OverrideCase{"optimizer.beta1=-0.1", "optimizer.beta1=-0.1: out of range (allowed: 0 to 0.9999999)"},
        OverrideCase{"lr.min_ratio=1.5", "lr.min_ratio=1.5: out of range (allowed: 0 to 1)"},
        OverrideCase{"parallel.zero=4", "parallel.zero=4: out of range (allowed: 1 to 3)"},
        OverrideCase{"model.seq_len=1", "model.seq_len=1: out of range (allowed: 2 to 2147483647)"}));

INSTANTIATE_TEST_SUITE_P(
    Texts, Overrides,
    testing::Values(
        OverrideCase{"run.dir=runs/a b", ""}, OverrideCase{"run.dir=\"\"", "run.dir = \"\": must name a folder"},
        OverrideCase{"run.time_limit=01:30:00", ""}, OverrideCase{"run.time_limit=\"100:00:01\"", ""},
        OverrideCase{"run.time_limit=\"\"", ""},
        OverrideCase{"run.time_limit=90x",
                     "run.time_limit = \"90x\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"run.time_limit=\"00:60:00\"",
                     "run.time_limit = \"00:60:00\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"run.time_limit=\"00:00:00\"",
                     "run.time_limit = \"00:00:00\": must be a time above zero (allowed: minutes, minutes:seconds, "
                     "hours:minutes:seconds, days-hours, days-hours:minutes, "
                     "days-hours:minutes:seconds, as for Slurm, or 90s, 30m, 1h, 2d; empty for no limit)"},
        OverrideCase{"report.trace=10:12", ""}, OverrideCase{"report.trace=3:3", ""},
        OverrideCase{"report.trace=\"\"", ""},
        OverrideCase{"report.trace=10",
                     "report.trace = \"10\": must be two steps from 1, first:last, the first not above the last "
                     "(allowed: such as 10:12, or \"\" for none)"},
        OverrideCase{"report.trace=12:10",
                     "report.trace = \"12:10\": must be two steps from 1, first:last, the first not above the last "
                     "(allowed: such as 10:12, or \"\" for none)"},
        OverrideCase{"report.trace=0:3",
                     "report.trace = \"0:3\": must be two steps from 1, first:last, the first not above the last "
                     "(allowed: such as 10:12, or \"\" for none)"},
        OverrideCase{"report.trace=1:3x",
                     "report.trace = \"1:3x\": must be two steps from 1, first:last, the first not above the last "
                     "(allowed: such as 10:12, or \"\" for none)"},
        OverrideCase{"run.stop_margin_s=30", ""}, OverrideCase{"run.stop_margin_s=0", ""},
        OverrideCase{"run.stop_margin_s=-1", ""},
        OverrideCase{"run.stop_margin_s=-0.5",
                     "run.stop_margin_s = -0.5: must be a number of seconds, or -1 (allowed: -1, >= 0)"},
        OverrideCase{"run.dir=2024-run", ""}, OverrideCase{"run.dir=7", ""}, OverrideCase{"run.time_limit=90", ""},
        OverrideCase{"run.dir='  '", "run.dir = \"  \": must name a folder, not blanks"},
        OverrideCase{"run.dir='x", "run.dir='x: not valid TOML: Error while parsing string: encountered end-of-file"},
        OverrideCase{"run.dir=a\nb", "an argument: is not UTF-8 without control characters"},
        OverrideCase{"run.dir=\xff", "an argument: is not UTF-8 without control characters"},
        OverrideCase{"run.dir=\"a\\u0000b\"", "run.dir=\"a\\u0000b\": must be UTF-8 without control characters"},
        OverrideCase{"run.dir=h\xc3\xa4user", ""},
        OverrideCase{"run.dir={h\xc3\xa4=1}", "run.dir={h\xc3\xa4=1}: must be a string"},
        OverrideCase{"data.shuffle=yes", "data.shuffle=yes: must be true or false"},
        OverrideCase{"data.shuffle=1", "data.shuffle=1: must be true or false"}, OverrideCase{"data.shuffle=false", ""},
        OverrideCase{"precision.compute=bf61",
                     "precision.compute=bf61: unknown (did you mean bf16?) (allowed: \"bf16\", \"fp32\")"},
        OverrideCase{"precision.compute=BF16",
                     "precision.compute=BF16: unknown (did you mean bf16?) (allowed: \"bf16\", \"fp32\")"},
        OverrideCase{"data.paths=[\"a\", 3]", "data.paths=[\"a\", 3]: must be a list of strings"},
        OverrideCase{"data.paths=[[\"a\"]]", "data.paths=[[\"a\"]]: must be a list of strings"},
        OverrideCase{"data.paths=[]", "data.paths = []: must name at least one file or glob"},
        OverrideCase{"data.paths=[\"\"]", "data.paths=[\"\"]: a path is empty"},
        OverrideCase{"pipeline.split=[2, 3.0]",
                     "pipeline.split=[2, 3.0]: must be a list of integers (allowed: 0 to 2147483647)"},
        OverrideCase{"pipeline.split=[-1]", "pipeline.split=[-1]: out of range (allowed: 0 to 2147483647)"},
        OverrideCase{"pipeline.split=[5]", ""}));

INSTANTIATE_TEST_SUITE_P(
    Relations, Overrides,
    testing::Values(
        OverrideCase{
            "model.heads=10",
            "model.heads = 10: must divide model.dim = 48 (allowed: 1, 2, 3, 4, 6, 8, 12, 24; or set model.head_dim)"},
        OverrideCase{"model.heads=16",
                     "model.heads = 16: must leave an even head size, not model.dim / heads = 48 / 16 = 3 "
                     "(allowed: 1, 2, 3, 4, 6, 8, 12, 24; or set model.head_dim)"},
        OverrideCase{"model.kv_heads=4", "model.kv_heads = 4: must divide model.heads = 6 (allowed: 1, 2, 3, 6)"},
        OverrideCase{"model.vocab=255",
                     "model.vocab = 255: must be at least 256 for data.format = \"text\": tokens are bytes"},
        OverrideCase{"batch.global=10",
                     "batch.global = 10: must be a multiple of batch.micro * dp_replicate * dp_shard, where dp_shard = "
                     "-1 is what the "
                     "other degrees leave of the ranks (allowed: multiples of batch.micro * ranks = 3 * ranks)"},
        OverrideCase{"parallel.dp_shard=0", "parallel.dp_shard = 0: must be -1 (what is left) or at least 1"},
        OverrideCase{"parallel.pp=6",
                     "parallel.pp = 6: needs a layer for each of pp * pipeline.chunks = 6 * 1 = 6 chunks, "
                     "but model.layers = 5 (allowed: 6 layers or more, or pp * pipeline.chunks up to 5)"},
        OverrideCase{"pipeline.chunks=2", "pipeline.chunks = 2: must be 1 for pipeline.schedule = \"1f1b\""},
        OverrideCase{"pipeline.split=[2, 3]",
                     "pipeline.split = [2, 3]: must have parallel.pp * pipeline.chunks = 1 * 1 = 1 entries, not 2"},
        OverrideCase{"pipeline.split=[4]", "pipeline.split = [4]: must add up to model.layers = 5, not 4"},
        OverrideCase{"parallel.tp=3",
                     "parallel.tp = 3: must divide model.kv_heads = 2 or be a multiple of it (allowed: 1, 2, 6)"},
        OverrideCase{"parallel.cp=5",
                     "parallel.cp = 5: twice it must divide model.seq_len = 24 (allowed: 1, 2, 3, 4, 6, 12)"},
        OverrideCase{"loss.chunks=73",
                     "loss.chunks = 73: a microbatch has batch.micro * model.seq_len / parallel.cp = 3 * 24 / 1 = 72 "
                     "rows (allowed: 0 to 72)"},
        OverrideCase{"model.family=gpt2",
                     "model.family = \"gpt2\": has no grouped heads: model.kv_heads must be model.heads = 6, not 2 "
                     "(leave it out)"},
        OverrideCase{"data.validate_every_steps=5",
                     "data.validate_every_steps = 5: needs data.validation to name at least one file or glob"}));

INSTANTIATE_TEST_SUITE_P(
    Values, Overrides,
    testing::Values(
        OverrideCase{"parallel.cp=0", "parallel.cp=0: out of range (allowed: 1 to 65536)"},
        OverrideCase{"run.device=gpu",
                     "run.device=gpu: unknown (did you mean cuda?) (allowed: \"auto\", \"cpu\", \"cuda\", \"sleep\")"},
        OverrideCase{"run.transport=ib", "run.transport=ib: unknown (allowed: \"auto\", \"mpi\", \"nccl\")"},
        OverrideCase{
            "data.format=parquet",
            "data.format=parquet: unknown (allowed: \"text\", \"jsonl\", \"chat\", \"tokens\", \"megatron\", \"llmc\", "
            "\"llmq\", \"hdf5\", \"flat16\", \"flat32\", \"auto\")"},
        OverrideCase{
            "overlap.everything=true",
            "overlap.everything=true: unknown key ([overlap] has tensor, tensor_strips, prefetch, gradients, context, "
            "experts, interleave, tp_ctas, cp_ctas, dp_ctas, pp_ctas)"},
        OverrideCase{"report.wandb=true",
                     "report.wandb=true: unknown key ([report] has every_steps, tensorboard, trace, costs)"},
        OverrideCase{"run.watchdog_s=-1", "run.watchdog_s=-1: out of range (allowed: 0 to 1000000)"},
        OverrideCase{"checkpoint.every_s=-1", "checkpoint.every_s=-1: out of range (allowed: >= 0)"}));

TEST(Errors, C5UnknownKeysListTheirSectionOrKnowOtherFrameworks) {
  EXPECT_THAT(
      Errors({"xyzzy.plugh=1"})[0],
      testing::StartsWith("command line: xyzzy.plugh=1: unknown key (sections: run, model, experts, parallel, "));
  EXPECT_THAT(Errors({"=3"})[0], testing::StartsWith("command line: =3: unknown key (sections: run, "));
  EXPECT_THAT(Errors({"a.b.c=3"})[0], testing::StartsWith("command line: a.b.c=3: unknown key (sections: run, "));
  EXPECT_THAT(Errors({"optimizer.momentum=1"}),
              ElementsAre("command line: optimizer.momentum=1: unknown key ([optimizer] has name, lr, beta1, beta2, "
                          "eps, weight_decay, decay_norms, clip_norm, groups, muon_lr, muon_momentum, "
                          "muon_nesterov, muon_iterations, muon_scale)"));
  const std::pair<const char*, const char*> others[] = {{"model.hidden_size", "model.dim"},
                                                        {"num_hidden_layers", "model.layers"},
                                                        {"optimizer.learning_rate", "optimizer.lr"},
                                                        {"batch.global_batch_size", "batch.global"},
                                                        {"parallel.tensor_parallel_degree", "parallel.tp"},
                                                        {"parallel.fsdp", "parallel.dp_shard"},
                                                        {"training.max_steps", "run.steps"}};
  for (const auto& [theirs, ours] : others)
    EXPECT_THAT(Errors({std::string(theirs) + "=1"}),
                ElementsAre(HasSubstr(std::string("unknown key (did you mean ") + ours + "?)")));
}

TEST(Errors, FloatsThatAreZeroOrInfiniteInFp32AreRefused) {
  for (const char* text : {"optimizer.eps=1e-50", "optimizer.clip_norm=1e-46", "model.norm_eps=1e-300",
                           "optimizer.lr=1e39", "model.init_std=1e39", "optimizer.beta2=0.99999999999"})
    EXPECT_THAT(Errors({text}), SizeIs(1)) << text;
  EXPECT_EQ(Errors({"optimizer.clip_norm=1e-46"})[0],
            "command line: optimizer.clip_norm = 1e-46: is 0 in fp32, which means off (allowed: 0, >= 1.17549e-38)");
  EXPECT_THAT(Errors({"optimizer.clip_norm=0", "optimizer.eps=1e-20", "model.norm_eps=1e-12"}), IsEmpty());
}

TEST(Errors, KeysReachNoTerminalRaw) {
  const Strings errors = ErrorsOfText(
      "\"a\\u001b[31m\" = 1\n[run]\n\"\\u009b5m\\u0007\" = 2\n\"steps\\u001b\" = 3\nsteps = \"\\u001b[31m\"\n");
  ASSERT_THAT(errors.size(), testing::Ge(4u));
  for (const std::string& error : errors) {
    EXPECT_EQ(error.find('\x1b'), std::string::npos) << error;
    EXPECT_EQ(error.find('\x07'), std::string::npos);
    EXPECT_EQ(error.find("\xc2\x9b"), std::string::npos);
  }
  EXPECT_THAT(errors[0], HasSubstr("small:1: a?[31m = 1: unknown key"));
}

TEST(TimeLimit, C6SlurmsFormsAndUnits) {
  const std::pair<const char*, int64_t> good[] = {{"90", 5400},          {"90:30", 5430},       {"01:30:00", 5400},
                                                  {"0:10:0", 600},       {"1-12", 129600},      {"2-03:04", 183840},
                                                  {"1-00:00:01", 86401}, {"100:00:01", 360001}, {"90s", 90},
                                                  {"30m", 1800},         {"1h", 3600},          {"2d", 172800}};
  for (const auto& [text, seconds] : good) EXPECT_EQ(TimeLimitSeconds(text), seconds) << text;
  for (const char* bad : {"",  "0",    "00:00:00", "1:2:3:4", "1:60",    "1:60:00", "1-24", "1-", "-1",   "1-1-1",
                          "h", "1.5h", "1 h",      "1h30m",   "9999999", "::",      "1:",   "+1", "0x10", "1e3"})
    EXPECT_EQ(TimeLimitSeconds(bad), std::nullopt) << bad;
}

TEST(Errors, ValuesOfOverrides) {
  const Deck d = Small({"run.steps=0x1F", "optimizer.lr=3", "run.dir=runs/x#1", "data.paths=['a b', \"c\"]",
                        "run.seed=-0", "optimizer.weight_decay=-0.0", "pipeline.split=[5]"});
  EXPECT_EQ(d.run.steps, 31);
  EXPECT_EQ(d.optimizer.lr, 3.0);
  EXPECT_EQ(d.run.dir, "runs/x#1");
  EXPECT_THAT(d.data.paths, ElementsAre((fs::current_path() / "a b").string(), (fs::current_path() / "c").string()));
  EXPECT_EQ(d.run.seed, 0);
  EXPECT_FALSE(std::signbit(d.optimizer.weight_decay));
  EXPECT_THAT(d.pipeline.split, ElementsAre(5));
}

TEST(Errors, ThousandsOfUnknownNamesAreRefusedWithoutGuesses) {
  std::string text(kSmall);
  for (int i = 0; i < 200; ++i) text += fmt::format("[modle{}]\n", i);
  const Strings errors = ErrorsOfText(text);
  ASSERT_THAT(errors, SizeIs(200));
  EXPECT_THAT(errors[0], HasSubstr("unknown section (did you mean [model]?)"));
  EXPECT_THAT(errors[199], testing::EndsWith("unknown section"));
}

}  // namespace
}  // namespace espalier
