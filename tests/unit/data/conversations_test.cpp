// Conversations: targets, packing, cuts, indices, damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "checkpoint_testing.hpp"
#include "data/packing.hpp"
#include "data_testing.hpp"
#include "espalier/data/batch_loader.hpp"
#include "espalier/text/chat_template.hpp"

namespace espalier {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// "u:..|" for people, "a:...|" for the assistant, of which "...|" are targets.
std::shared_ptr<const ChatTemplate> SmallTemplate() {
  return std::make_shared<const ChatTemplate>(
      "t",
      "{% for m in messages %}{{ m.role[0] }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}|"
      "{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}");
}

std::string Line(const std::string& asked, const std::string& answered) {
  return R"({"messages": [{"role": "user", "content": ")" + asked + R"("}, {"role": "assistant", "content": ")" +
         answered + "\"}]}\n";
}

class ConversationsTest : public DataTest {
 protected:
  DataSettings Settings(const std::string& name, int64_t seq_len = 15) const {
    DataSettings settings{DataFormat::kChat, {Path(name)}, seq_len, 256};
    settings.isolate_documents = true;
    settings.chat_template = SmallTemplate();
    return settings;
  }
};

/// Bytes of a sample, with - for tokens that are not targets; padding is _.
std::string Targets(const Sample& sample) {
  std::string text;
  for (size_t i = 0; i < sample.tokens.size(); ++i)
    text += sample.tokens[i] == 0 ? '_' : sample.uncounted[i] != 0 ? '-' : static_cast<char>(sample.tokens[i]);
  return text;
}

TEST_F(ConversationsTest, WholeOnesArePackedAndOnlyTheAssistantIsATarget) {
  Write("d.jsonl", Line("x", "hi") + "\n  \n" + Line("y", "o") + Line("long", "er") + Line("z", ""));
  const auto source = OpenTokenSource(Settings("d.jsonl"));
  ASSERT_EQ(source->samples(), 3);
  Sample sample;
  source->Read(0, sample);
  EXPECT_EQ(Targets(sample), "------hi|------|") << "the second and the third do not fit, the fourth does";
  EXPECT_THAT(sample.documents, ElementsAre(0, 9));
  source->Read(1, sample);
  EXPECT_EQ(Targets(sample), "------o|________");
  EXPECT_THAT(sample.documents, ElementsAre(0, 8)) << "padding is a document of its own";
  source->Read(2, sample);
  EXPECT_EQ(Targets(sample), "---------er|____");
  EXPECT_EQ(source->tokens(), 9 + 8 + 12 + 7);
  const Packing packing = source->packing();
  EXPECT_EQ(packing.documents, 4);
  EXPECT_EQ(packing.tokens, 36);
  EXPECT_EQ(packing.targets, 3 + 2 + 3 + 1);
  EXPECT_EQ(packing.room, 48);
  EXPECT_EQ(packing.padding, 12);
  EXPECT_EQ(packing.cut + packing.without_target, 0);
}

TEST_F(ConversationsTest, OnlyWhatIsLongerThanASampleIsCut) {
  Write("d.jsonl", Line("x", "hello") + Line("y", "o") + R"({"messages": [{"role": "user", "content": "q"}]})");
  const auto source = OpenTokenSource(Settings("d.jsonl", 8));
  Sample sample;
  source->Read(0, sample);
  EXPECT_EQ(Targets(sample), "------hel");
  source->Read(1, sample);
  EXPECT_EQ(Targets(sample), "------o|_");
  source->Read(2, sample);
  EXPECT_EQ(Targets(sample), "----_____") << "a sample without a target";
  EXPECT_EQ(source->packing().cut, 1);
  EXPECT_EQ(source->packing().without_target, 1);
}

TEST_F(ConversationsTest, AllTokensButTheFirstOfEachMayBeTargets) {
  Write("d.jsonl", Line("x", "hi"));
  DataSettings settings = Settings("d.jsonl");
  settings.train_on = TrainOn::kAll;
  Sample sample;
  OpenTokenSource(settings)->Read(0, sample);
  EXPECT_EQ(Targets(sample), "-:x|a:hi|_______");
  EXPECT_NE(OpenTokenSource(settings)->Fingerprint(), OpenTokenSource(Settings("d.jsonl"))->Fingerprint());
}

TEST_F(ConversationsTest, ABatchHasNoTargetAcrossConversations) {
  Write("d.jsonl", Line("x", "hi") + Line("z", ""));
  const auto source = OpenTokenSource(Settings("d.jsonl"));
  Batch batch;
  BatchLayout layout{1, 1, {0, 1}, AllPositions(15), true};
  LoadBatch(*source, {0, Order::kSequential}, layout, 0, batch);
  EXPECT_THAT(batch.microbatches[0].targets,
              ElementsAre(-1, -1, -1, -1, -1, 'h', 'i', '|', -1, -1, -1, -1, -1, -1, '|'));
  EXPECT_THAT(batch.microbatches[0].document_starts, ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 9, 9, 9, 9, 9));
}

TEST_F(ConversationsTest, IndicesAreTheSameForAnyNumberOfRanks) {
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += Line(std::string(static_cast<size_t>(i % 90), 'q'), std::to_string(i));
  Write("d.jsonl", lines);
  std::vector<std::string> bytes;
  for (const int ranks : {1, 3}) {
    DataSettings settings = Settings("d.jsonl", 127);
    settings.index_dir = Path(fmt::format("indices{}", ranks));
    EXPECT_THAT(OnRanks(ranks, [&](World& w) { MakeIndices(settings, w); }), Each(""));
    for (const auto& entry : fs::directory_iterator(settings.index_dir)) {
      std::ifstream file(entry.path(), std::ios::binary);
      bytes.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  ASSERT_EQ(bytes.size(), 2u);
  EXPECT_EQ(bytes[0], bytes[1]);
  const auto source = OpenTokenSource(Settings("d.jsonl", 127));
  EXPECT_EQ(source->packing().documents, 3000);
  EXPECT_LT(source->packing().padding * 10, source->packing().room);
}

TEST_F(ConversationsTest, ABlendPacksEachSource) {
  Write("a.jsonl", Line("x", "hi"));
  Write("b.jsonl", Line("y", "o") + Line("z", "o"));
  DataSettings settings = Settings("a.jsonl");
  settings.paths = {Path("a.jsonl"), Path("b.jsonl")};
  settings.weights = {1, 1};
  const auto source = OpenTokenSource(settings);
  EXPECT_EQ(source->samples(), 2);
  EXPECT_EQ(source->packing().documents, 3);
  EXPECT_EQ(source->packing().room, 32);
}

TEST_F(ConversationsTest, DamageIsRefusedWithFileAndLine) {
  const auto refusal = [&](const std::string& lines) {
    Write("d.jsonl", lines);
    return Message([&] { OpenTokenSource(Settings("d.jsonl")); });
  };
  const std::string good = Line("x", "hi");
  EXPECT_THAT(refusal(good + "[1]\n"), HasSubstr("d.jsonl: line 2: is no JSON object"));
  EXPECT_THAT(refusal(good + "{\"text\": 1}\n"), HasSubstr("d.jsonl: line 2: has no field \"messages\""));
  Write("d.jsonl", good);
  DataSettings refusing = Settings("d.jsonl");
  refusing.chat_template = std::make_shared<const ChatTemplate>("t", "{{ raise_exception('no') }}");
  EXPECT_THAT(Message([&] { OpenTokenSource(refusing); }), HasSubstr("d.jsonl: line 1: t:1: "));
  EXPECT_THAT(refusal("\n"), HasSubstr("d.jsonl: has no conversation"));
  Write("d.jsonl", good);
  const auto source = OpenTokenSource(Settings("d.jsonl"));
  Write("d.jsonl", Line("xyz", "i"));
  Sample sample;
  EXPECT_THAT(Message([&] { source->Read(0, sample); }), HasSubstr("does not fit its index"));
  Write("e.jsonl", good);
  DataSettings plain = Settings("e.jsonl");
  plain.format = DataFormat::kJsonl;
  EXPECT_THAT(Message([&] { OpenTokenSource(plain); }),
              HasSubstr("line 1: has no field \"text\" (data.text_field); conversations are read with data.format"));
}

TEST(PackDocuments, TakesWhatStillFits) {
  const PackedDocuments packed = PackDocuments(std::vector<int64_t>{6, 5, 4, 9, 1, 10}, 10);
  EXPECT_THAT(packed.documents, ElementsAre(0, 2, 1, 4, 3, 5));
  EXPECT_THAT(packed.begins, ElementsAre(0, 2, 4, 5, 6));
}

TEST(PackDocuments, EveryDocumentIsInOneSample) {
  std::mt19937 draw(3);
  std::vector<int64_t> lengths(3000);
  for (int64_t& length : lengths) length = 1 + static_cast<int64_t>(draw() % 100);
  const PackedDocuments packed = PackDocuments(lengths, 100);
  std::set<int64_t> all(packed.documents.begin(), packed.documents.end());
  EXPECT_EQ(all.size(), lengths.size());
  EXPECT_EQ(packed.documents.size(), lengths.size());
  int64_t most_ahead = 0;
  for (int64_t sample = 0; sample < packed.Samples(); ++sample) {
    int64_t tokens = 0;
    for (const int64_t document : packed.Of(sample)) {
      tokens += lengths[static_cast<size_t>(document)];
      most_ahead = std::max(most_ahead, document - packed.Of(sample)[0]);
    }
    EXPECT_LE(tokens, 100);
  }
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  EXPECT_LT(packed.Samples() * 100, tokens * 21 / 20) << "at most five percent of padding";
}

}  // namespace
}  // namespace espalier
