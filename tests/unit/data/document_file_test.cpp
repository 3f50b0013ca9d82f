// A file document by document, in every kind of format.
#include "espalier/data/document_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_testing.hpp"
#include "espalier/data/token_writer.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

class DocumentFileTest : public DataTest {
 protected:
  DataSettings Settings(const std::string& name, int64_t end_token = -1) const {
    DataSettings settings{DataFormat::kAuto, {Path(name)}, 1, 70000, end_token};
    settings.index_dir = folder_;
    return settings;
  }
  static std::vector<Document> All(const DataSettings& settings) {
    DocumentFile file = std::move(OpenDocumentFiles(settings).at(0));
    std::vector<Document> all;
    for (Document document; file.Next(document);) all.push_back(document);
    return all;
  }
  static std::vector<Ids> Tokens(const DataSettings& settings) {
    std::vector<Ids> tokens;
    for (const Document& document : All(settings)) tokens.push_back(document.tokens);
    return tokens;
  }
  void WriteIds(const std::string& name, const Ids& ids) const {
    WriteTokens(Path(name), ids, 70000, TokenWidth::kU32);
  }
};

TEST_F(DocumentFileTest, ATextIsOneDocument) {
  Write("a.txt", "abc");
  EXPECT_THAT(Tokens(Settings("a.txt")), ElementsAre(Ids{97, 98, 99}));
  EXPECT_TRUE(OpenDocumentFiles(Settings("a.txt"))[0].IsText());
}

TEST_F(DocumentFileTest, EachLineOfJsonl) {
  Write("a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"\"}\n{\"text\": \"bc\"}\n");
  EXPECT_THAT(Tokens(Settings("a.jsonl")), ElementsAre(Ids{97, 0}, Ids{0}, Ids{98, 99, 0}));
}

TEST_F(DocumentFileTest, IdsUpToTheEndToken) {
  WriteIds("a.tokens", {1, 2, 9, 9, 3});
  EXPECT_THAT(Tokens(Settings("a.tokens")), ElementsAre(Ids{1, 2, 9, 9, 3}));
  EXPECT_THAT(Tokens(Settings("a.tokens", 9)), ElementsAre(Ids{1, 2, 9}, Ids{9}, Ids{3}));
  EXPECT_FALSE(OpenDocumentFiles(Settings("a.tokens"))[0].IsText());
}

// Blocks of 2^16 tokens are read one after the other: documents may end anywhere in them, and cross several.
TEST_F(DocumentFileTest, LongDocumentsAndTheirEnds) {
  for (const int64_t length : {65534, 65535, 65536, 65537, 131070, 131071, 131072, 200000}) {
    Ids ids(static_cast<size_t>(length), 5);
    ids.back() = 9;
    ids.insert(ids.end(), {6, 7, 9, 8});
    WriteIds("a.tokens", ids);
    const std::vector<Ids> documents = Tokens(Settings("a.tokens", 9));
    ASSERT_EQ(documents.size(), 3u) << length;
    EXPECT_EQ(std::ssize(documents[0]), length);
    EXPECT_THAT(documents[1], ElementsAre(6, 7, 9));
    EXPECT_THAT(documents[2], ElementsAre(8));
  }
  // The reader of jsonl reports where documents begin, but need not report it for the first requested token.
  for (const int64_t length : {65534, 65535, 65536, 131070, 131071}) {
    Write("b.jsonl", "{\"text\": \"" + std::string(static_cast<size_t>(length - 1), 'x') + "\"}\n{\"text\": \"yz\"}\n");
    const std::vector<Ids> documents = Tokens(Settings("b.jsonl"));
    ASSERT_EQ(documents.size(), 2u) << length;
    EXPECT_EQ(std::ssize(documents[0]), length);
    EXPECT_THAT(documents[1], ElementsAre('y', 'z', 0));
  }
}

TEST_F(DocumentFileTest, WhatCannotBeReadIsNamed) {
  Write("empty.txt", "");
  WriteIds("big.tokens", {1});
  DataSettings settings = Settings("empty.txt");
  settings.paths.push_back(Path("big.tokens"));
  settings.vocab = 300;
  EXPECT_THAT(Message([&] { OpenDocumentFiles(settings); }),
              AllOf(HasSubstr("empty.txt: has no tokens"), HasSubstr("big.tokens: its vocabulary is 70000")));
}

}  // namespace
}  // namespace espalier
