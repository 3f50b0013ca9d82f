#include "espalier/executor/attention_times.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "espalier/deck/choices.hpp"
#include "espalier/kernels/measurements_text.hpp"
#include "espalier/kernels/planned_workspace.hpp"
#include "espalier/util/median.hpp"

namespace espalier {
namespace {

using Json = nlohmann::ordered_json;

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

const MeasurementsFormat TimedAttention::kFormat = {"espalier_attention_times", "calls", "file of attention's times",
                                                    "remove it, and the next start measures anew"};

bool TimedAttention::IsOf(const AttentionDemand& other) const { return call.IsSameCall(WithoutWay(other)); }

void to_json(Json& json, const TimedAttention& timed) {
  json = {{"inputs", ToJson(timed.call.inputs)},
          {"outputs", ToJson(timed.call.outputs)},
          {"numbers", timed.call.attributes.numbers},
          {"texts", timed.call.attributes.texts},
          {"calls", timed.call.calls},
          {"microseconds", timed.microseconds}};
}

void from_json(const Json& json, TimedAttention& timed) {
  timed.call.inputs = TensorsOf(json.at("inputs"));
  timed.call.outputs = TensorsOf(json.at("outputs"));
  timed.call.attributes.numbers = json.at("numbers");
  timed.call.attributes.texts = json.at("texts");
  timed.call.calls = json.at("calls");
  timed.microseconds = json.at("microseconds");
}

template struct Measurements<TimedAttention>;

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
