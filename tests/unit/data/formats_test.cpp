// Formats of other programs: the same ids through each, documents and masks, damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "data_testing.hpp"
#include "espalier/hdf5/hdf5.hpp"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
std::string IdsAs(const std::vector<int32_t>& ids) {
  return Bytes(std::vector<T>(ids.begin(), ids.end()));
}

/// 1, 4, 9, ... modulo 251, so that values tell their places.
std::vector<int32_t> SomeIds(int64_t count, int32_t below = 251) {
  std::vector<int32_t> ids;
  for (int64_t i = 1; i <= count; ++i) ids.push_back(static_cast<int32_t>(i * i % below));
  return ids;
}

std::string Header1024(std::vector<int32_t> words) {
  words.resize(256);
  return Bytes(words);
}

std::string LlmcBytes(const std::vector<int32_t>& ids, bool llama) {
  return Header1024({llama ? 20240801 : 20240520, llama ? 7 : 1, static_cast<int32_t>(ids.size())}) +
         (llama ? IdsAs<uint32_t>(ids) : IdsAs<uint16_t>(ids));
}

/// `mask`: 1 for tokens that count; empty: no masks.
std::string LlmqBytes(const std::vector<int32_t>& ids, const std::vector<int>& mask, int32_t vocab = 251) {
  std::string bytes(1024, '*');
  bytes.replace(0, 8, "BIN.TOK\n");
  bytes.replace(8, 20, Bytes(std::vector<int32_t>{2, 4, static_cast<int32_t>(ids.size()), vocab, !mask.empty()}));
  bytes += Bytes(ids);
  std::string bits((mask.size() + 7) / 8, '\0');
  for (size_t i = 0; i < mask.size(); ++i) bits[i / 8] = static_cast<char>(bits[i / 8] | mask[i] << i % 8);
  return bytes + bits;
}

/// The index of consecutive sequences.
std::string MegatronIndex(const std::vector<int32_t>& lengths, int code, int64_t width) {
  std::vector<int64_t> places;
  int64_t at = 0;
  for (const int32_t length : lengths) {
    places.push_back(at);
    at += length * width;
  }
  std::vector<int64_t> documents(lengths.size() + 1);
  std::iota(documents.begin(), documents.end(), 0);
  return std::string("MMIDIDX\0\0", 9) + Bytes<uint64_t>({1}) + static_cast<char>(code) +
         Bytes<uint64_t>({lengths.size(), documents.size()}) + Bytes(lengths) + Bytes(places) + Bytes(documents);
}

class FormatsTest : public DataTest {
 protected:
  std::unique_ptr<TokenSource> Open(DataFormat format, const std::vector<std::string>& names, int64_t seq_len = 6,
                                    int64_t vocab = 260) const {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(Path(name));
    return OpenTokenSource({format, paths, seq_len, vocab});
  }
  std::string Refusal(DataFormat format, const std::string& name, int64_t vocab = 260) const {
    return Message([&] {
      const auto source = Open(format, {name}, 6, vocab);
      for (int64_t k = 0; k < source->samples(); ++k) ReadSample(*source, k);
    });
  }
  void WriteHdf5(const std::string& name, const std::string& dataset, const std::vector<int32_t>& ids, hid_t type,
                 hsize_t chunk = 0) const {
    const auto lock = LockHdf5();
    const Hdf5Handle file(HDF5_CALL(H5Fcreate(Path(name).c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT)), H5Fclose);
    const hsize_t count = ids.size();
    const Hdf5Handle space(HDF5_CALL(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    const Hdf5Handle properties(HDF5_CALL(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
    if (chunk > 0) HDF5_CALL(H5Pset_chunk(properties, 1, &chunk));
    const Hdf5Handle made(
        HDF5_CALL(H5Dcreate2(file, dataset.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT)), H5Dclose);
    HDF5_CALL(H5Dwrite(made, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, ids.data()));
  }
};

void ExpectIds(TokenSource& source, const std::vector<int32_t>& ids) {
  ASSERT_EQ(source.tokens(), std::ssize(ids));
  for (int64_t k = source.samples() - 1; k >= 0; --k) {
    const auto begin = ids.begin() + k * source.seq_len();
    EXPECT_THAT(ReadSample(source, k), ElementsAreArray(begin, begin + source.seq_len() + 1)) << k;
  }
}

TEST_F(FormatsTest, EveryFormatGivesTheSameIds) {
  const std::vector<int32_t> ids = SomeIds(100);
  Write("a.16", IdsAs<uint16_t>(ids));
  Write("a.32", IdsAs<uint32_t>(ids));
  Write("gpt2.bin", LlmcBytes(ids, false));
  Write("llama3.bin", LlmcBytes(ids, true));
  Write("plain.bin", LlmqBytes(ids, {}));
  Write("masked.bin", LlmqBytes(ids, std::vector<int>(100, 1)));
  WriteHdf5("u16.h5", "tokens", ids, H5T_STD_U16LE);
  WriteHdf5("i64.h5", "tokens", ids, H5T_STD_I64BE, 7);
  ExpectIds(*Open(DataFormat::kFlat16, {"a.16"}), ids);
  ExpectIds(*Open(DataFormat::kFlat32, {"a.32"}), ids);
  for (const char* name : {"gpt2.bin", "llama3.bin"}) ExpectIds(*Open(DataFormat::kLlmc, {name}), ids);
  for (const char* name : {"plain.bin", "masked.bin"}) ExpectIds(*Open(DataFormat::kLlmq, {name}), ids);
  for (const char* name : {"u16.h5", "i64.h5"}) ExpectIds(*Open(DataFormat::kHdf5, {name}), ids);
  // Two files follow one another with nothing between them; three descriptors of HDF5 are enough.
  std::vector<int32_t> twice = ids;
  twice.insert(twice.end(), ids.begin(), ids.end());
  ExpectIds(*Open(DataFormat::kHdf5, {"u16.h5", "i64.h5"}, 9), twice);
  ExpectIds(*Open(DataFormat::kLlmc, {"gpt2.bin", "llama3.bin"}, 9), twice);
}

TEST_F(FormatsTest, MegatronHasSevenTypesAndThreeNames) {
  const std::vector<int32_t> lengths = {5, 1, 0, 17, 30, 47};
  const std::vector<int32_t> ids = SomeIds(100, 127);
  const auto write = [&](const std::string& name, int code, int64_t width, const std::string& bytes) {
    Write(name + ".bin", bytes);
    Write(name + ".idx", MegatronIndex(lengths, code, width));
    ExpectIds(*Open(DataFormat::kMegatron, {name}), ids);
  };
  write("u8", 1, 1, IdsAs<uint8_t>(ids));
  write("i8", 2, 1, IdsAs<int8_t>(ids));
  write("i16", 3, 2, IdsAs<int16_t>(ids));
  write("i32", 4, 4, IdsAs<int32_t>(ids));
  write("i64", 5, 8, IdsAs<int64_t>(ids));
  write("u16", 8, 2, IdsAs<uint16_t>(ids));
  ExpectIds(*Open(DataFormat::kMegatron, {"u16.bin", "u16.idx", "u16"}), ids);
  EXPECT_EQ(Open(DataFormat::kMegatron, {"*"})->tokens(), 600) << "a pair counts once";
  EXPECT_EQ(Open(DataFormat::kMegatron, {"u16"})->files().size(), 2u) << "the index is data too";
  const auto source = Open(DataFormat::kMegatron, {"i16", "u16"}, 20);
  // Documents begin at 0, 5, 6 (twice: one is empty), 23, 53 and, in the next file, 100, 105 and so on.
  EXPECT_THAT(ReadDocuments(*source, 0), ElementsAre(0, 5, 6));
  EXPECT_THAT(ReadDocuments(*source, 1), ElementsAre(0, 3));
  EXPECT_THAT(ReadDocuments(*source, 2), ElementsAre(0, 13));
  EXPECT_THAT(ReadDocuments(*source, 3), ElementsAre(0));
  EXPECT_THAT(ReadDocuments(*source, 4), ElementsAre(0, 20));
  EXPECT_THAT(ReadDocuments(*source, 5), ElementsAre(0, 5, 6));
}

TEST_F(FormatsTest, ManyDocumentsAreFoundByBisection) {
  std::vector<int32_t> lengths;
  int32_t sum = 0;
  for (int32_t i = 0; i < 3000; ++i) sum += lengths.emplace_back(i * 7919 % 13);
  Write("many.bin", IdsAs<uint16_t>(std::vector<int32_t>(static_cast<size_t>(sum), 3)));
  Write("many.idx", MegatronIndex(lengths, 8, 2));
  const auto source = Open(DataFormat::kMegatron, {"many"}, 31);
  std::vector<int64_t> begins = {0};
  for (const int32_t length : lengths) begins.push_back(begins.back() + length);
  for (int64_t k = 0; k < source->samples(); ++k) {
    std::vector<int64_t> expected = {0};
    for (const int64_t begin : begins)
      if (begin > 31 * k + expected.back() && begin <= 31 * k + 31 && begin < sum) expected.push_back(begin - 31 * k);
    ASSERT_EQ(ReadDocuments(*source, k), expected) << k;
  }
}

TEST_F(FormatsTest, DamagedMegatronIsRefused) {
  const auto write = [&](const std::string& bin, const std::string& index) {
    Write("m.bin", bin);
    Write("m.idx", index);
    return Refusal(DataFormat::kMegatron, "m");
  };
  const std::string bin = IdsAs<uint16_t>(SomeIds(20)), good = MegatronIndex({8, 12}, 8, 2);
  EXPECT_THAT(write(bin, good.substr(0, 33)), HasSubstr("m.idx: 33 bytes are too few"));
  EXPECT_THAT(write(bin, good.substr(0, 60)), HasSubstr("too few for the 2 sequences and 3 document ends"));
  EXPECT_THAT(write(bin, "X" + good.substr(1)), HasSubstr("m.idx: is not an index of Megatron"));
  EXPECT_THAT(write(bin, MegatronIndex({8, 12}, 6, 2)), HasSubstr("m.idx: its type 6 is float64, which holds no ids"));
  EXPECT_THAT(write(bin, MegatronIndex({8, 12}, 7, 2)), HasSubstr("float32"));
  EXPECT_THAT(write(bin, MegatronIndex({8, 12}, 9, 2)), HasSubstr("type 9 of ids; known: 1 to 5 and 8"));
  EXPECT_THAT(write(bin + "x", good), HasSubstr("m.bin: has 41 bytes of ids, which is no multiple of 2"));
  EXPECT_THAT(write(bin.substr(0, 38), good), HasSubstr("m.bin: has 19 tokens; its index says 20"));
  EXPECT_THAT(write(bin, MegatronIndex({8, 11}, 8, 2)), HasSubstr("m.bin: has 20 tokens; its index says 19"));
  std::string gap = good;
  gap[34 + 8 + 8] = 18;  // the second sequence begins at token 9
  gap[34 + 4] = 11;
  EXPECT_THAT(write(bin, gap), HasSubstr("m.idx: sequence 1 does not begin at token 8"));
  Write("lonely.bin", bin);
  EXPECT_THAT(Refusal(DataFormat::kMegatron, "lonely.bin"), HasSubstr("lonely.idx: no such file"));
  EXPECT_THAT(Refusal(DataFormat::kMegatron, "nothing"), HasSubstr("nothing: cannot read: No such file"));
  Write("ids.txt", bin);
  EXPECT_THAT(Refusal(DataFormat::kMegatron, "ids.txt"), HasSubstr("PREFIX.bin, PREFIX.idx and PREFIX"));
}

TEST_F(FormatsTest, DamagedHeadersOfLlmcAndLlmqAreRefused) {
  const std::vector<int32_t> ids = SomeIds(20);
  const auto llmc = [&](const std::string& bytes) {
    Write("c.bin", bytes);
    return Refusal(DataFormat::kLlmc, "c.bin");
  };
  const std::string good = LlmcBytes(ids, false);
  EXPECT_THAT(llmc(good.substr(0, 1023)), HasSubstr("1023 bytes are too few"));
  EXPECT_THAT(llmc("X" + good.substr(1)), HasSubstr("is not a token file of llm.c"));
  EXPECT_THAT(llmc(Header1024({20240520, 7, 20}) + good.substr(1024)),
              HasSubstr("version 7 of llm.c's tokens of GPT-2"));
  EXPECT_THAT(llmc(good + "xx"), HasSubstr("has 21 tokens; its header says 20"));
  EXPECT_THAT(llmc(good + "x"), HasSubstr("no multiple of 2"));
  const auto llmq = [&](const std::string& bytes) {
    Write("q.bin", bytes);
    return Refusal(DataFormat::kLlmq, "q.bin");
  };
  const std::string masked = LlmqBytes(ids, std::vector<int>(20, 1));
  EXPECT_THAT(llmq(masked.substr(0, masked.size() - 1)),
              HasSubstr("82 bytes after its header, which says 20 tokens with"));
  EXPECT_THAT(llmq(LlmqBytes(ids, {}, 261)),
              HasSubstr("its vocabulary is 261 (byte 20), larger than model.vocab = 260"));
  EXPECT_THAT(llmq(good), HasSubstr("not a token file of LLMQ"));
  std::string version = masked, width = masked, negative = masked;
  version[8] = 3;
  width[12] = 2;
  negative[19] = static_cast<char>(0x80);
  EXPECT_THAT(llmq(version), HasSubstr("version 3"));
  EXPECT_THAT(llmq(width), HasSubstr("2 bytes a token; allowed: 4"));
  EXPECT_THAT(llmq(negative), HasSubstr("its header says -21474836"));
}

TEST_F(FormatsTest, IdsBeyondTheVocabularyAreToldWhereTheyAre) {
  std::vector<int32_t> ids = SomeIds(40);
  ids[33] = 255;
  Write("f", IdsAs<uint32_t>(ids));
  EXPECT_THAT(Refusal(DataFormat::kFlat32, "f", 255), HasSubstr("f: token 33 (byte 132) is 255; allowed: 0 to 254"));
  WriteHdf5("f.h5", "tokens", ids, H5T_STD_U32LE);
  EXPECT_THAT(Refusal(DataFormat::kHdf5, "f.h5", 255), HasSubstr("f.h5: token 33 is 255; allowed: 0 to 254"));
  ids[33] = -2;
  Write("m.bin", IdsAs<int8_t>(SomeIds(33, 100)) + "\xfe" + IdsAs<int8_t>(SomeIds(6, 100)));
  Write("m.idx", MegatronIndex({40}, 2, 1));
  EXPECT_THAT(Refusal(DataFormat::kMegatron, "m"), HasSubstr("m.bin: token 33 (byte 33) is -2"));
  Write("wide.bin", Bytes(std::vector<int64_t>(40, int64_t{1} << 33)));
  Write("wide.idx", MegatronIndex({40}, 5, 8));
  EXPECT_THAT(Refusal(DataFormat::kMegatron, "wide"), HasSubstr("token 0 (byte 0) is 8589934592"));
}

TEST_F(FormatsTest, MaskedTokensOfLlmqAreNoTargets) {
  const std::vector<int32_t> ids = SomeIds(21);
  std::vector<int> mask(21, 1);
  for (const size_t masked : {0, 1, 2, 8, 9, 17, 20}) mask[masked] = 0;
  Write("q.bin", LlmqBytes(ids, mask));
  const auto source = Open(DataFormat::kLlmq, {"q.bin"}, 10);
  ASSERT_EQ(source->samples(), 2);
  for (int64_t k : {1, 0}) {
    Sample sample;
    source->Read(k, sample);
    for (size_t i = 0; i <= 10; ++i)
      EXPECT_EQ(sample.uncounted.at(i), 1 - mask[static_cast<size_t>(10 * k) + i]) << k << " " << i;
  }
}

TEST_F(FormatsTest, Hdf5NamesWhatItHas) {
  const std::vector<int32_t> ids = SomeIds(20);
  WriteHdf5("a.h5", "train", ids, H5T_STD_U16LE);
  EXPECT_THAT(Refusal(DataFormat::kHdf5, "a.h5"),
              HasSubstr("a.h5: has no dataset \"tokens\" (data.hdf5_dataset); it has \"train\""));
  DataSettings settings{DataFormat::kHdf5, {Path("a.h5")}, 6, 260};
  settings.hdf5_dataset = "train";
  ExpectIds(*OpenTokenSource(settings), ids);
  WriteHdf5("f.h5", "tokens", ids, H5T_IEEE_F32LE);
  EXPECT_THAT(Refusal(DataFormat::kHdf5, "f.h5"), HasSubstr("is not of integers"));
  Write("t.h5", "no HDF5 at all");
  EXPECT_THAT(Refusal(DataFormat::kHdf5, "t.h5"), HasSubstr("t.h5: cannot be read as HDF5"));
}

TEST_F(FormatsTest, AutoTellsFormatsApartAndMixesThem) {
  const std::vector<int32_t> ids = SomeIds(10);
  WriteTokens(Path("0.any"), ids, 260, TokenWidth::kU16);
  Write("1.bin", LlmcBytes(ids, false));
  Write("2.bin", LlmcBytes(ids, true));
  Write("3.bin", LlmqBytes(ids, {}));
  Write("4.bin", IdsAs<uint16_t>(ids));
  Write("4.idx", MegatronIndex({4, 6}, 8, 2));
  WriteHdf5("5", "tokens", ids, H5T_STD_U16LE);
  Write("6.u16", IdsAs<uint16_t>(ids));
  Write("7.u32", IdsAs<uint32_t>(ids));
  Write("8.txt", "abc");
  Write("9.md", "de");
  const auto source = Open(DataFormat::kAuto, {"*"}, 9);
  std::vector<int32_t> all;
  for (int i = 0; i < 8; ++i) all.insert(all.end(), ids.begin(), ids.end());
  for (const char c : std::string("abc\0de", 6)) all.push_back(c);
  ExpectIds(*source, all);
  // Documents: Megatron's at 40, 44 and after it, and the texts.
  EXPECT_THAT(ReadDocuments(*source, 4), ElementsAre(0, 4, 8));
  EXPECT_THAT(ReadDocuments(*source, 5), ElementsAre(0, 5));
  EXPECT_THAT(ReadDocuments(*source, 8), ElementsAre(0, 8));
  DataSettings settings{DataFormat::kAuto, {Path("[4-9]*")}, 9, 260};
  settings.isolate_documents = true;
  EXPECT_THAT(Message([&] { OpenTokenSource(settings); }), HasSubstr("6.u16: does not say where documents end"));
  settings.paths = {Path("4*"), Path("8*")};
  EXPECT_EQ(OpenTokenSource(settings)->tokens(), 13);
  for (const DataFormat text : {DataFormat::kText, DataFormat::kJsonl})
    EXPECT_THAT(Message([&] { Open(text, {"0.any"}); }),
                HasSubstr("0.any: begins like a file of data.format = \"tokens\", not \"" +
                          std::string(DeckName(text)) + "\": set data.format=auto"));
  Write("what", "ever");
  EXPECT_THAT(Message([&] { Open(DataFormat::kAuto, {"*"}); }),
              HasSubstr("what: neither its first bytes nor its name say what it holds: set data.format, or rename it "
                        "(.u16 = flat16"));
}

}  // namespace
}  // namespace espalier
