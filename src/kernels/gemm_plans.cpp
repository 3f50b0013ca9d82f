#include "espalier/kernels/gemm_plans.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/kernels/measurements_text.hpp"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

Dtype DtypeOf(const Json& json) {
  const std::string name = json.get<std::string>();
  for (const Dtype dtype : kDtypes)
    if (name == Name(dtype) && dtype != Dtype::kI32 && dtype != Dtype::kF8E8M0) return dtype;
  throw std::invalid_argument(fmt::format("type {} is none of f32, bf16, f8e4m3 and f8e5m2", name));
}

void ReadScales(const Json& json, Gemm& gemm) {
  constexpr Scales kScales[] = {Scales::kTensor, Scales::kRow, Scales::kMx};
  const std::string name = json.at("scales");
  const auto* const scales = std::ranges::find_if(kScales, [&](Scales s) { return name == Name(s); });
  if (scales == std::end(kScales))
    throw std::invalid_argument(fmt::format("scales {} are none of tensor, row and mx", name));
  gemm.scales = *scales;
  gemm.scaled_b = DtypeOf(json.at("input_b"));
}

}  // namespace

const MeasurementsFormat GemmPlan::kFormat = {"espalier_gemm_plans", "gemms", "file of GEMM plans",
                                              "make it anew by `espalier calibrate`, or set run.gemm_plans = \"\""};

void to_json(Json& json, const GemmPlan& plan) {
  const auto& [shape, input, output, accumulate, bias, scales, scaled_b] = plan.gemm;
  json = {{"m", shape.m},
          {"n", shape.n},
          {"k", shape.k},
          {"a_strides", {shape.a_row, shape.a_column}},
          {"b_strides", {shape.b_row, shape.b_column}},
          {"c_stride", shape.c_row},
          {"input", Name(input)},
          {"output", Name(output)},
          {"epilogue", accumulate ? "accumulate"
                       : bias     ? "bias"
                                  : "none"},
          {"algorithm", plan.algorithm},
          {"workspace_bytes", plan.workspace_bytes},
          {"microseconds", plan.microseconds},
          {"first_microseconds", plan.first_microseconds}};
  if (shape.blocks > 1) json["blocks"] = {shape.blocks, shape.a_block, shape.c_block, shape.b_block};
  if (scales != Scales::kNone) {
    json["input_b"] = Name(scaled_b);
    json["scales"] = Name(scales);
  }
}

void from_json(const Json& json, GemmPlan& plan) {
  const Json &a = json.at("a_strides"), &b = json.at("b_strides");
  plan.gemm.shape = {json.at("m"), json.at("n"), json.at("k"), a.at(0), a.at(1), b.at(0), b.at(1), json.at("c_stride")};
  if (json.contains("blocks")) {
    const Json& blocks = json.at("blocks");
    plan.gemm.shape.blocks = blocks.at(0);
    plan.gemm.shape.a_block = blocks.at(1);
    plan.gemm.shape.c_block = blocks.at(2);
    plan.gemm.shape.b_block = blocks.size() > 3 ? blocks.at(3).get<int64_t>() : 0;
  }
  plan.gemm.input = DtypeOf(json.at("input"));
  plan.gemm.output = DtypeOf(json.at("output"));
  const std::string epilogue = json.at("epilogue");
  if (epilogue != "none" && epilogue != "accumulate" && epilogue != "bias")
    throw std::invalid_argument(fmt::format("epilogue {} is none of none, accumulate and bias", epilogue));
  plan.gemm.accumulate = epilogue == "accumulate";
  plan.gemm.bias = epilogue == "bias";
  if (json.contains("scales")) ReadScales(json, plan.gemm);
  plan.algorithm = json.at("algorithm");
  if (plan.algorithm.size() % 2 != 0 || plan.algorithm.find_first_not_of("0123456789abcdef") != std::string::npos)
    throw std::invalid_argument(fmt::format("algorithm {} is no hexadecimal number of bytes", plan.algorithm));
  plan.workspace_bytes = json.at("workspace_bytes");
  plan.microseconds = json.at("microseconds");
  plan.first_microseconds = json.at("first_microseconds");
}

template struct Measurements<GemmPlan>;

std::string ToString(const Gemm& p) {
  const GemmShape& s = p.shape;
  const std::string blocks = s.blocks > 1 ? fmt::format("{} x ", s.blocks) : "";
  const std::string by =
      p.scales == Scales::kNone ? "" : fmt::format(" by {} (scales by {})", Name(p.scaled_b), Name(p.scales));
  return fmt::format("{}{} x {} x {}, {}{} -> {}{}{}{}{}", blocks, s.m, s.n, s.k, Name(p.input), by, Name(p.output),
                     s.a_column == 1 ? "" : ", a transposed", s.b_column == 1 ? "" : ", b transposed",
                     p.accumulate ? ", accumulating" : "", p.bias ? ", with a bias" : "");
}

std::string ToHex(std::span<const std::byte> bytes) {
  std::string digits;
  for (const std::byte byte : bytes) digits += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return digits;
}

std::vector<std::byte> FromHex(std::string_view digits) {
  CHECK(digits.size() % 2 == 0, "{} hexadecimal digits are no whole bytes", digits.size());
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16)));
  return bytes;
}

}  // namespace espalier
