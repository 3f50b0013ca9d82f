// The part of cuDNN's C interface that its front end calls for attention (src/kernels/cuda/attention). Descriptors keep
// their attributes (descriptor.hpp), an operation graph becomes a list of steps (graph.hpp), and an execution computes
// the steps when its stream comes to it (program.hpp). There is one engine, which wants the workspace that cuDNN 9
// wants on compute capability 9.x, and overwrites it. What the emulation does not compute, it refuses as a graph
// without an engine. A plan that is gone when a stream or a CUDA graph comes to its work ends the process.
// ESPALIER_EMULATED_CUDNN in the environment has words, separated by commas: `none` has no engine for any graph, `say`
// prints executed calls on stderr, `hungry` wants twice the workspace, `starving` wants a terabyte more.
#include <cudnn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "descriptor.hpp"
#include "emulate.hpp"
#include "fused_attention_calls.hpp"
#include "graph.hpp"
#include "program.hpp"
#include "switches.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace espalier::emulation {
namespace {

int64_t calls = 0;

}  // namespace

int64_t FusedAttentionCalls() { return calls; }

}  // namespace espalier::emulation

namespace espalier::emulation::cudnn {

const Descriptor::Attribute& Descriptor::Find(cudnnBackendAttributeName_t name) const {
  const auto found = attributes.find(name);
  if (found == attributes.end()) throw Refusal{CUDNN_STATUS_BAD_PARAM, "no attribute " + std::to_string(name)};
  return found->second;
}

const Descriptor& Descriptor::Link(cudnnBackendAttributeName_t name) const {
  const Attribute& attribute = Find(name);
  if (attribute.descriptors.size() != 1)
    throw Refusal{CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(name) + " is no descriptor"};
  return *attribute.descriptors[0];
}

void Descriptor::Set(cudnnBackendAttributeName_t name, std::vector<std::shared_ptr<const Descriptor>> values) {
  attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, {}, std::move(values)};
}

namespace {

/// A cudnnBackendDescriptor_t points to one.
using Handle = std::shared_ptr<Descriptor>;
Handle& HandleOf(cudnnBackendDescriptor_t descriptor) { return *static_cast<Handle*>(descriptor); }

constexpr int64_t kEngines = 32;  ///< the front end may ask for some of them by number

bool IsSet(const char* word) { return HasSwitch("ESPALIER_EMULATED_CUDNN", word); }

thread_local std::string last_error;

/// The status of a call, whose refusal becomes the last error.
template <typename F>
cudnnStatus_t Answer(F call) {
  try {
    call();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_error = refusal.why;
    return refusal.status;
  }
}

size_t SizeOf(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:  // the front end's other ones are float, int32_t and enums
      return 4;
  }
}

void SetAttribute(Descriptor& to, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                  const void* from) {
  if (to.finalized) throw Refusal{CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized"};
  if (name == CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
    throw Refusal{CUDNN_STATUS_NOT_SUPPORTED, "the emulation reads no plans"};
  if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* first = static_cast<const std::byte*>(from);
    to.attributes[name] = {type, {first, first + static_cast<size_t>(count) * SizeOf(type)}, {}};
    return;
  }
  std::vector<std::shared_ptr<const Descriptor>> values;
  for (int64_t i = 0; i < count; ++i) {
    const Handle& value = HandleOf(static_cast<const cudnnBackendDescriptor_t*>(from)[i]);
    if (!value->finalized) throw Refusal{CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an attribute that is not finalized"};
    values.push_back(value);
  }
  to.Set(name, std::move(values));
}

/// Descriptors of the caller become those that the attribute has.
void GetAttribute(const Descriptor& from, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  int64_t requested, int64_t* count, void* to) {
  const Descriptor::Attribute& attribute = from.Find(name);
  if (attribute.type != type) throw Refusal{CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "another type"};
  const bool links = type == CUDNN_TYPE_BACKEND_DESCRIPTOR;
  const auto held =
      static_cast<int64_t>(links ? attribute.descriptors.size() : attribute.elements.size() / SizeOf(type));
  if (count != nullptr) *count = held;
  if (to == nullptr) return;
  const auto given = static_cast<size_t>(std::min(requested, held));
  if (!links) {
    std::memcpy(to, attribute.elements.data(), given * SizeOf(type));
    return;
  }
  for (size_t i = 0; i < given; ++i)
    HandleOf(static_cast<cudnnBackendDescriptor_t*>(to)[i]) =
        std::const_pointer_cast<Descriptor>(attribute.descriptors[i]);
}

/// True if the caller chose a kernel that adds up dq in a fixed order: the front end's knob for `ordered`.
bool AddsInOrder(const Descriptor& config) {
  constexpr int64_t kOrdered = 4;
  for (const auto& knob : config.Find(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES).descriptors)
    if (knob->Get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE) == CUDNN_KNOB_TYPE_STAGES &&
        knob->Get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE) == kOrdered)
      return true;
  return false;
}

/// True if a matmul adds to fp32 memory.
bool AddsToMemory(const Program& program) {
  for (const Step& step : program.steps) {
    const Tensor& result = program.Find(step.output);
    if (step.kind == StepKind::kMatmul && !result.is_virtual && result.type == CUDNN_DATA_FLOAT) return true;
  }
  return false;
}

int64_t Wanted(int64_t bytes) {
  constexpr int64_t kTerabyte = int64_t{1} << 40;
  return IsSet("starving") ? bytes + kTerabyte : IsSet("hungry") ? 2 * bytes : bytes;
}

void FinalizeConfig(Descriptor& config) {
  if (IsSet("none")) throw Refusal{CUDNN_STATUS_NOT_SUPPORTED, "no engine"};
  if (!config.Has(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) config.Set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, {});
  Program program = ProgramOf(config.Link(CUDNN_ATTR_ENGINECFG_ENGINE).Link(CUDNN_ATTR_ENGINE_OPERATION_GRAPH));
  program.workspace_bytes = Wanted(program.workspace_bytes);
  program.sums_in_any_order = AddsToMemory(program) && !AddsInOrder(config);
  config.Set<int64_t>(CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, CUDNN_TYPE_INT64, {program.workspace_bytes});
  config.Set<int32_t>(CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, CUDNN_TYPE_INT32, {0});
  config.program = std::make_shared<const Program>(std::move(program));
}

void FinalizeEngine(Descriptor& engine) {
  engine.Set<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, {});
  engine.Set<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
                                         {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION});
}

/// Finds the only configuration.
void FinalizeHeuristics(Descriptor& heuristics) {
  const auto engine = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, true});
  engine->Set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, heuristics.Find(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).descriptors);
  engine->Set<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, {0});
  FinalizeEngine(*engine);
  const auto config = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true});
  config->Set(CUDNN_ATTR_ENGINECFG_ENGINE, {engine});
  FinalizeConfig(*config);
  heuristics.Set(CUDNN_ATTR_ENGINEHEUR_RESULTS, {config});
}

void FinalizePlan(Descriptor& plan) {
  plan.program = plan.Link(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG).program;
  plan.Set<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, {plan.program->workspace_bytes});
}

void Finalize(Descriptor& descriptor) {
  switch (descriptor.type) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      descriptor.Set<int64_t>(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, CUDNN_TYPE_INT64, {kEngines});
      break;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
      FinalizeEngine(descriptor);
      break;
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      FinalizeConfig(descriptor);
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      FinalizeHeuristics(descriptor);
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      FinalizePlan(descriptor);
      break;
    default:
      break;
  }
  descriptor.finalized = true;
}

Pointers PointersOf(const Descriptor& pack) {
  const auto uids = pack.All<Uid>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto addresses = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() != addresses.size()) throw Refusal{CUDNN_STATUS_BAD_PARAM, "other counts of names and pointers"};
  Pointers pointers;
  for (size_t i = 0; i < uids.size(); ++i) pointers[uids[i]] = addresses[i];
  return pointers;
}

void CheckPointers(const Program& program, const Pointers& pointers) {
  for (const auto& [uid, tensor] : program.tensors)
    if (const auto found = pointers.find(uid); !tensor.is_virtual && (found == pointers.end() || !found->second))
      throw Refusal{CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no memory for tensor " + std::to_string(uid)};
}

void SayOnce(const std::string& text) {
  static std::set<std::string> said;
  if (said.insert(text).second) std::fprintf(stderr, "emulated cuDNN: %s\n", text.c_str());
}

/// Values of the host are read now, memory of the device when the stream comes to the call.
void Execute(cudaStream_t stream, const Handle& plan, const Descriptor& pack) {
  if (plan->program == nullptr) throw Refusal{CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "no plan"};
  const Pointers pointers = PointersOf(pack);
  CheckPointers(*plan->program, pointers);
  auto* const workspace = static_cast<std::byte*>(pack.Get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  if (workspace == nullptr) throw Refusal{CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no workspace"};
  const auto values = ReadValues(*plan->program, pointers);
  if (IsSet("say")) SayOnce(Describe(*plan->program, values));
  ++calls;
  issue(stream, [code = std::weak_ptr<const Descriptor>(plan), pointers, values, workspace] {
    const auto loaded = code.lock();
    if (loaded == nullptr) EndContext("cuDNN", "work of a plan that has been destroyed");
    Run(*loaded->program, pointers, values, workspace);
  });
}

}  // namespace
}  // namespace espalier::emulation::cudnn

using namespace espalier::emulation::cudnn;

// NOLINTBEGIN: cuDNN's names
extern "C" {

size_t cudnnGetVersion() {
  return static_cast<size_t>(espalier::emulation::Version("cuDNN", CUDNN_VERSION, 10000, 100));
}

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    default:
      return "a status of emulated cuDNN";
  }
}
void cudnnGetLastErrorString(char* message, size_t size) { std::snprintf(message, size, "%s", last_error.c_str()); }

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  *descriptor = new Handle(std::make_shared<Descriptor>(Descriptor{type}));
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete &HandleOf(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* elements) {
  return Answer([&] { SetAttribute(*HandleOf(descriptor), name, type, count, elements); });
}
cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested, int64_t* count,
                                       void* elements) {
  return Answer([&] { GetAttribute(*HandleOf(descriptor), name, type, requested, count, elements); });
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return Answer([&] { Finalize(*HandleOf(descriptor)); });
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack) {
  return Answer([&] { Execute(handle->stream, HandleOf(plan), *HandleOf(pack)); });
}
}
// NOLINTEND
