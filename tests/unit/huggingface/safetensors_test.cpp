// Safetensors: written files are read back, all element types become fp32, and hostile headers are refused with the
// reason.
#include "espalier/huggingface/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>

#include "checkpoint_testing.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

using testing::HasSubstr;

class Safetensors : public testing::Test {
 protected:
  std::string Path(const std::string& name = "x.safetensors") const { return home_.path() + "/" + name; }
  void Write(const std::string& bytes) const { std::ofstream(Path(), std::ios::binary) << bytes; }
  /// A file with this header and `data` bytes of data.
  void WriteFile(const std::string& header, size_t data) const {
    const auto length = static_cast<uint64_t>(header.size());
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    Write(bytes + header + std::string(data, '\1'));
  }
  /// Why the file is refused.
  std::string Refusal() const {
    try {
      SafetensorsFile file(Path());
      return "";
    } catch (const UserError& error) {
      EXPECT_EQ(error.status(), ExitStatus::kData);
      return error.what();
    }
  }
  /// The values that Read returns for raw bytes.
  std::vector<float> Floats(const char* dtype, const std::string& data, int64_t count) const {
    Write("");
    const std::string header =
        fmt::format(R"({{"w":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", dtype, count, data.size());
    const auto length = static_cast<uint64_t>(header.size());
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    Write(bytes + header + data);
    const SafetensorsFile file(Path());
    std::vector<float> values(static_cast<size_t>(count));
    file.Read(*file.Find("w"), 0, count, values.data());
    return values;
  }

  TemporaryDirectory home_;
};

TEST_F(Safetensors, WhatIsWrittenIsReadAgain) {
  const std::vector<SafetensorsWriter::Tensor> tensors = {{"a.weight", {3, 5}}, {"empty", {0, 7}}, {"b", {70001}}};
  for (SafeDtype dtype : {SafeDtype::kF32, SafeDtype::kBf16}) {
    const std::string path = Path(std::string(Name(dtype)));
    std::vector<float> values(15 + 70001);
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(float(i)) * 3;
    SafetensorsWriter writer(path, dtype, tensors);
    writer.Append(values.data(), 20);
    writer.Append(values.data() + 20, std::ssize(values) - 20);
    writer.Close();
    const SafetensorsFile file(path);
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.Find("a.weight")->shape, (Shape{3, 5}));
    EXPECT_EQ(file.Find("a.weight")->begin % 8, 0);
    EXPECT_EQ(file.Find("c"), nullptr);
    std::vector<float> read(66000);
    file.Read(*file.Find("b"), 4001, 66000, read.data());
    for (size_t i = 0; i < read.size(); ++i) {
      const float x = values[15 + 4001 + i];
      ASSERT_EQ(read[i], dtype == SafeDtype::kF32 ? x : ToFloat(ToBf16(x)));
    }
  }
}

TEST_F(Safetensors, EveryElementTypeBecomesFp32) {
  const auto raw = [](auto... values) {
    std::string bytes;
    (bytes.append(reinterpret_cast<const char*>(&values), sizeof values), ...);
    return bytes;
  };
  EXPECT_EQ(Floats("F64", raw(1.5, -2.0, 1e-3), 3), (std::vector{1.5f, -2.0f, 1e-3f}));
  EXPECT_EQ(Floats("F32", raw(1.5f, -0.1f), 2), (std::vector{1.5f, -0.1f}));
  EXPECT_EQ(Floats("BF16", raw(uint16_t{0x3fc0}, uint16_t{0xc000}), 2), (std::vector{1.5f, -2.0f}));
  // 1.5, -2, the smallest subnormal, the largest, infinity
  EXPECT_EQ(Floats("F16",
                   raw(uint16_t{0x3e00}, uint16_t{0xc000}, uint16_t{0x0001}, uint16_t{0x03ff}, uint16_t{0x7bff},
                       uint16_t{0xfc00}),
                   6),
            (std::vector{1.5f, -2.0f, std::ldexp(1.0f, -24), std::ldexp(1023.0f, -24), 65504.0f,
                         -std::numeric_limits<float>::infinity()}));
  EXPECT_TRUE(std::isnan(Floats("F16", raw(uint16_t{0x7e00}), 1)[0]));
}

TEST_F(Safetensors, OtherElementTypesAreListedButNotRead) {
  WriteFile(R"({"ids":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", 16);
  const SafetensorsFile file(Path());
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_THROW(ReadableDtype(file, file.tensors()[0]), UserError);
}

TEST_F(Safetensors, HostileHeadersAreRefused) {
  struct Case {
    const char *header, *why;
    size_t data;
  };
  const Case cases[] = {
      {"", "parse error", 0},
      {"[]", "an object is expected", 0},
      {"{\"w\":1}", "dtype, shape and data_offsets", 0},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})", "parse error", 8},
      {R"({"w":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "no type of the format", 8},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", "dtype, shape and data_offsets", 8},
      {R"({"w":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "whole numbers", 8},
      {R"({"w":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "whole numbers", 8},
      {R"({"w":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", "whole numbers", 8},
      {R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})", "do not hold", 8},
      {R"({"w":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", "at most 8 extents", 4},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "do not hold", 8},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "do not hold", 8},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "cut short", 7},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "its header tells of", 9},
      {R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "begins at byte 4", 12},
      {R"({"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"v":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}})",
       "begins at byte 4", 12},
      {R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       "appears twice", 8},
  };
  for (const Case& c : cases) {
    WriteFile(c.header, c.data);
    EXPECT_THAT(Refusal(), HasSubstr(c.why)) << c.header;
  }
  Write("1234567");
  EXPECT_THAT(Refusal(), HasSubstr("no safetensors file"));
  Write(std::string(8, '\xff') + "{}");
  EXPECT_THAT(Refusal(), HasSubstr("a header of 18446744073709551615 bytes"));
  WriteFile(R"({"__metadata__":{"format":"pt"}})", 0);
  EXPECT_EQ(Refusal(), "");
}

}  // namespace
}  // namespace espalier
