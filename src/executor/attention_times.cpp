#include "espalier/executor/attention_times.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "espalier/deck/choices.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "espalier/util/error.hpp"
#include "espalier/util/input_file.hpp"
#include "espalier/util/median.hpp"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr int64_t kMaxBytes = int64_t{16} << 20;
constexpr std::string_view kRemedy = "remove it, and the next start measures anew";
constexpr int kRounds = 5;
constexpr double kWorthChanging = 0.99;
constexpr const char* kWay = "backward";

Json ToJson(const std::vector<Tensor>& tensors) {
  Json json = Json::array();
  for (const Tensor& x : tensors) json.push_back({{"type", Name(x.dtype)}, {"shape", x.shape}, {"start", x.start}});
  return json;
}

std::vector<Tensor> TensorsOf(const Json& json) {
  std::vector<Tensor> tensors;
  for (const Json& entry : json) {
    const std::string name = entry.at("type");
    const auto dtype = std::ranges::find_if(kDtypes, [&](Dtype d) { return name == Name(d); });
    if (dtype == std::end(kDtypes)) throw std::invalid_argument(fmt::format("unknown type {}", name));
    tensors.push_back({nullptr, *dtype, entry.at("shape"), entry.at("start")});
  }
  return tensors;
}

AttentionDemand WithoutWay(AttentionDemand call) {
  call.attributes.texts.erase(kWay);
  return call;
}

}  // namespace

KernelCall CallOf(const AttentionDemand& demand) {
  return {.inputs = demand.inputs, .outputs = demand.outputs, .attributes = &demand.attributes};
}

const TimedAttention* AttentionTimes::Find(const AttentionDemand& call) const {
  const auto it = std::ranges::find_if(
      calls, [&, sought = WithoutWay(call)](const TimedAttention& timed) { return timed.call.IsSameCall(sought); });
  return it == calls.end() ? nullptr : &*it;
}

std::string ToText(const AttentionTimes& times) {
  Json json = {
      {"espalier_attention_times", kFormat}, {"gpu", times.gpu}, {"library", times.library}, {"calls", Json::array()}};
  for (const auto& [call, microseconds, lasting] : times.calls)
    json["calls"].push_back({{"inputs", ToJson(call.inputs)},
                             {"outputs", ToJson(call.outputs)},
                             {"numbers", call.attributes.numbers},
                             {"texts", call.attributes.texts},
                             {"calls", call.calls},
                             {"microseconds", microseconds}});
  return json.dump(1) + "\n";
}

AttentionTimes ParseAttentionTimes(std::string_view text, const std::string& source) {
  const auto refuse = [&](const std::string& what) {
    return UserError(ExitStatus::kData, fmt::format("{}: {}; {}", source, what, kRemedy));
  };
  try {
    const Json json = Json::parse(text);
    if (const int format = json.at("espalier_attention_times"); format != kFormat)
      throw std::invalid_argument(fmt::format("format {} is not {}", format, kFormat));
    AttentionTimes times{json.at("gpu"), json.at("library"), {}};
    for (const Json& entry : json.at("calls")) {
      TimedAttention timed;
      timed.call.inputs = TensorsOf(entry.at("inputs"));
      timed.call.outputs = TensorsOf(entry.at("outputs"));
      for (const auto& [name, value] : entry.at("numbers").items()) timed.call.attributes.numbers[name] = value;
      for (const auto& [name, value] : entry.at("texts").items()) timed.call.attributes.texts[name] = value;
      timed.call.calls = entry.at("calls");
      for (const auto& [way, value] : entry.at("microseconds").items()) timed.microseconds[way] = value;
      times.calls.push_back(std::move(timed));
    }
    return times;
  } catch (const Json::exception& error) {
    throw refuse(fmt::format("not a file of attention's times ({})", error.what()));
  } catch (const std::invalid_argument& error) {
    throw refuse(error.what());
  }
}

AttentionTimes ReadAttentionTimes(const std::string& path) {
  return ParseAttentionTimes(ReadFile(path, {"file of attention's times", kMaxBytes, kRemedy}), path);
}

std::vector<std::string> DeterministicWays() {
  std::vector<std::string> ways;
  for (const Choice<AttentionBackward>& choice : kChoices<AttentionBackward>)
    if (choice.value != AttentionBackward::kAuto) ways.emplace_back(choice.name);
  return ways;
}

TimedAttention TimeWays(CudaModule& module, AttentionDemand call, std::span<const std::string> ways,
                        const std::function<void(const std::string& way, const std::string& why)>& left_out) {
  const auto time = [&](const std::string& way) {
    call.attributes.texts[kWay] = way;
    return module.TimeAttentionGrad(call, PlannedWorkspace("attention_grad", CallOf(call)));
  };
  std::vector<std::string> left;
  bool lasting = true;
  for (const std::string& way : ways) {
    try {
      const AttentionTime first = time(way);
      if (first.fallbacks.empty())
        left.push_back(way);
      else
        left_out(way, first.fallbacks.front());
    } catch (const UserError& error) {
      left_out(way, error.what());
      lasting &= error.status() != ExitStatus::kDoesNotFit;
    }
  }
  std::map<std::string, std::vector<double>> rounds;
  for (int round = 0; round < kRounds; ++round)
    for (const std::string& way : left) rounds[way].push_back(time(way).microseconds);
  TimedAttention timed{WithoutWay(call), {}, lasting};
  for (const auto& [way, of_way] : rounds) timed.microseconds[way] = MedianOf(of_way);
  return timed;
}

TimesByWay TimesOfStep(std::span<const TimedAttention> calls) {
  TimesByWay step;
  if (!calls.empty())
    for (const auto& [way, time] : calls.front().microseconds) step[way] = 0;
  for (const TimedAttention& timed : calls) {
    std::erase_if(step, [&](const auto& way) { return !timed.microseconds.contains(way.first); });
    for (auto& [way, time] : step) time += timed.microseconds.at(way) * static_cast<double>(timed.call.calls);
  }
  return step;
}

std::vector<std::string> FastestWays(const TimesByWay& step) {
  const std::vector<std::string> deterministic = DeterministicWays();
  const auto first = step.find(deterministic.front());
  std::vector<std::string> ways;
  for (const std::string& way : deterministic)
    if (const auto it = step.find(way);
        it != step.end() && (it == first || first == step.end() || it->second <= kWorthChanging * first->second))
      ways.push_back(way);
  std::ranges::stable_sort(ways, {}, [&](const std::string& way) { return step.at(way); });
  return ways;
}

}  // namespace espalier
