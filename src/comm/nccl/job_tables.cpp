#include "job_tables.hpp"

#include <limits>

#include "espalier/kernels/cuda/cuda_call.hpp"
#include "espalier/util/error.hpp"

namespace espalier::cuda {
namespace {

/// The bitwise OR of all numbers that a width must divide.
uint64_t Bits(const std::byte* place) { return reinterpret_cast<uintptr_t>(place); }

uint64_t BitsOf(const StridedCopy& copy) {
  uint64_t bits = Bits(copy.to) | Bits(copy.from) | static_cast<uint64_t>(copy.run_bytes);
  for (const StridedCopy::Dim& dim : copy.outer) bits |= static_cast<uint64_t>(dim.to_stride | dim.from_stride);
  return bits;
}

template <typename Job>
void Add(Table<Job>& table, Job job) {
  job.units.first_tile = table.tiles;
  table.tiles += (job.units.count + kTileUnits - 1) / kTileUnits;
  table.jobs.push_back(job);
}

/// Appends arrays to a host copy of one block of device memory, and returns their addresses on the device.
class Filler {
 public:
  explicit Filler(std::vector<std::byte>& h_memory, std::byte* d_memory) : h_memory_(h_memory), d_memory_(d_memory) {}

  template <typename T>
  const T* Put(const std::vector<T>& values) {
    const size_t at = h_memory_.size(), bytes = values.size() * sizeof(T);
    h_memory_.resize((at + bytes + 15) / 16 * 16);
    if (bytes > 0) std::memcpy(h_memory_.data() + at, values.data(), bytes);
    return reinterpret_cast<const T*>(d_memory_ + at);
  }

 private:
  std::vector<std::byte>& h_memory_;
  std::byte* d_memory_;
};

template <typename T>
size_t BytesOf(const std::vector<T>& values) {
  return (values.size() * sizeof(T) + 15) / 16 * 16;
}

}  // namespace

Units UnitsOf(const StridedCopy& copy, int64_t element, bool any_width, const std::vector<const std::byte*>& places) {
  uint64_t bits = BitsOf(copy);
  for (const std::byte* place : places) bits |= Bits(place);
  int64_t width = 16;
  while (width > element && bits % static_cast<uint64_t>(width) != 0) width = any_width ? width / 2 : element;
  CHECK(bits % static_cast<uint64_t>(width) == 0, "a copy of {}-byte elements is not aligned to them", element);
  CHECK(copy.outer.size() <= kMaxOuterDims, "a copy of {} dims", copy.outer.size());
  Units units{copy.to, copy.from, copy.run_bytes / width, 0, copy.run_bytes / width};
  units.width = static_cast<int>(width);
  int64_t runs = 1;
  for (const StridedCopy::Dim& dim : copy.outer) {
    const auto d = static_cast<size_t>(units.dims++);
    units.to_strides[d] = dim.to_stride;
    units.from_strides[d] = dim.from_stride;
    units.extents[d] = static_cast<uint32_t>(dim.extent);
    runs *= dim.extent;
  }
  CHECK(runs <= std::numeric_limits<int32_t>::max(), "a copy of {} runs", runs);
  units.count *= runs;
  return units;
}

Tables::~Tables() { cudaFree(memory_); }

Table<CopyJob>& Tables::Copies(const std::vector<const std::vector<StridedCopy>*>& lists) {
  constexpr int64_t kMinElement = 2;
  Table<CopyJob>& table = copies_.emplace_back();
  for (const std::vector<StridedCopy>* list : lists)
    for (const StridedCopy& copy : *list) Add(table, CopyJob{UnitsOf(copy, kMinElement, true)});
  return table;
}

Table<ReduceJob>& Tables::Reductions(const std::vector<Reduction>& reductions) {
  Table<ReduceJob>& table = reductions_.emplace_back();
  for (const Reduction& reduction : reductions) {
    std::vector<const std::byte*>& sources = sources_.emplace_back(reduction.sources);
    sources[reduction.own_index] = reduction.own.to;  // not read
    const Units units = UnitsOf(reduction.own, SizeOf(reduction.dtype), false, sources);
    Add(table, ReduceJob{units, nullptr, static_cast<int>(sources.size()), static_cast<int>(reduction.own_index),
                         reduction.dtype, reduction.how == Reduce::kMax});
  }
  return table;
}

void Tables::Upload() {
  size_t bytes = 0;
  for (const auto& table : copies_) bytes += BytesOf(table.jobs);
  for (const auto& table : reductions_) bytes += BytesOf(table.jobs);
  for (const auto& sources : sources_) bytes += BytesOf(sources);
  if (bytes == 0) return;
  CUDA_CALL(cudaMalloc(&memory_, bytes));
  std::vector<std::byte> h_memory;
  h_memory.reserve(bytes);
  Filler filler(h_memory, static_cast<std::byte*>(memory_));
  for (auto& table : copies_) table.d_jobs = filler.Put(table.jobs);
  auto sources = sources_.begin();
  for (auto& table : reductions_) {
    for (ReduceJob& job : table.jobs) job.sources = filler.Put(*sources++);
    table.d_jobs = filler.Put(table.jobs);
  }
  CopyToDevice(memory_, h_memory.data(), bytes);
}

}  // namespace espalier::cuda
