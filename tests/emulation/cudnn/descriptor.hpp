// Descriptors of cuDNN's backend.
#pragma once

#include <cudnn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace espalier::emulation::cudnn {

struct Program;

/// A call that the library refuses, with the message that cudnnGetLastErrorString returns.
struct Refusal {
  cudnnStatus_t status;
  std::string why;
};

/// Any descriptor, as its attributes. It does not change once it is finalized, so others share it.
struct Descriptor {
  struct Attribute {
    cudnnBackendAttributeType_t type;
    std::vector<std::byte> elements;  ///< one after the other, unless they are descriptors
    std::vector<std::shared_ptr<const Descriptor>> descriptors;
  };

  cudnnBackendDescriptorType_t type;
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes = {};
  std::shared_ptr<const Program> program = nullptr;  ///< of a finalized engine configuration or plan

  bool Has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  /// The elements of an attribute. This and the following throw Refusal if it is missing, or of another type.
  const Attribute& Find(cudnnBackendAttributeName_t name) const;
  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const;
  template <typename T>
  T Get(cudnnBackendAttributeName_t name) const;
  const Descriptor& Link(cudnnBackendAttributeName_t name) const;

  /// Sets an attribute of numbers or of descriptors, as the library itself does.
  template <typename T>
  void Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t its_type, const std::vector<T>& values);
  void Set(cudnnBackendAttributeName_t name, std::vector<std::shared_ptr<const Descriptor>> values);
};

template <typename T>
std::vector<T> Descriptor::All(cudnnBackendAttributeName_t name) const {
  const std::vector<std::byte>& elements = Find(name).elements;
  const auto* first = reinterpret_cast<const T*>(elements.data());
  return std::vector<T>(first, first + elements.size() / sizeof(T));
}

template <typename T>
T Descriptor::Get(cudnnBackendAttributeName_t name) const {
  const std::vector<T> all = All<T>(name);
  if (all.size() != 1) throw Refusal{CUDNN_STATUS_BAD_PARAM, "attribute " + std::to_string(name) + " is no single one"};
  return all[0];
}

template <typename T>
void Descriptor::Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t its_type,
                     const std::vector<T>& values) {
  const auto* first = reinterpret_cast<const std::byte*>(values.data());
  attributes[name] = {its_type, {first, first + values.size() * sizeof(T)}, {}};
}

}  // namespace espalier::emulation::cudnn
