#include "train/state/initialize_weights.hpp"

#include <algorithm>
#include <future>
#include <vector>

#include "espalier/data/initial_weights.hpp"
#include "espalier/train/states.hpp"
#include "espalier/train/threads.hpp"

namespace espalier {
namespace {

/// Calls f(global box, first local element) for slabs of a local tensor along its first dim, of about 4 MiB each.
template <typename F>
void ForEachSlab(const Tensor& tensor, F f) {
  constexpr int64_t kElements = int64_t{1} << 20;
  const int64_t rows = tensor.shape[0], row = rows == 0 ? 0 : Volume(tensor.shape) / rows;
  if (row == 0) return;
  Box box;
  for (size_t d = 0; d < tensor.shape.size(); ++d) box.push_back({tensor.start[d], tensor.start[d] + tensor.shape[d]});
  const int64_t step = std::max(int64_t{1}, kElements / row);
  for (int64_t begin = 0; begin < rows; begin += step) {
    box[0] = {tensor.start[0] + begin, tensor.start[0] + std::min(rows, begin + step)};
    f(box, begin * row);
  }
}

struct Slab {
  Box box;
  int64_t first;  ///< local element
};

std::vector<Slab> SlabsOf(const Tensor& tensor) {
  std::vector<Slab> slabs;
  ForEachSlab(tensor, [&](const Box& box, int64_t first) { slabs.push_back({box, first}); });
  return slabs;
}

/// Calls fill(0), fill(1), ... fill(count - 1), each in its own thread.
template <typename F>
void InThreads(size_t count, F fill) {
  std::vector<std::future<void>> others;
  for (size_t i = 1; i < count; ++i) others.push_back(std::async(std::launch::async, fill, i));
  fill(0);
  for (std::future<void>& other : others) other.get();
}

/// Initializes the elements of a box of a parameter by the model's rules.
void FillSlab(const Compilation& compilation, size_t parameter, const Box& box, float* out) {
  const ParameterInit& init = compilation.inits[parameter];
  if (init.kind == ParameterInit::Kind::kOnes) std::fill_n(out, Volume(ExtentsOf(box)), 1.0f);
  if (init.kind != ParameterInit::Kind::kNormal) return;
  const StoredPart& stored = compilation.stored[parameter];
  FillNormal(out, compilation.deck.run.seed, stored.name, stored.shape, stored.Place(box), init.std);
}

}  // namespace

/// One core makes a hundred million numbers per second, so all cores are used.
void InitializeWeights(const Compilation& compilation, const Executor& executor) {
  const ParameterIndex index(compilation);
  std::vector<std::vector<float>> buffers(static_cast<size_t>(ThreadCount(compilation.deck)));
  for (const NamedTensor& state : executor.All(ValueKind::kState)) {
    const std::vector<Slab> slabs = SlabsOf(state.tensor);
    const int64_t element = SizeOf(state.tensor.dtype);  // weights are fp32; the bytes of moments are all 0
    for (size_t begin = 0, count = 0; begin < slabs.size(); begin += count) {
      count = std::min(buffers.size(), slabs.size() - begin);
      InThreads(count, [&](size_t i) {
        const Box& box = slabs[begin + i].box;
        buffers[i].assign(static_cast<size_t>(Volume(ExtentsOf(box))), 0.0f);
        if (state.name.starts_with(kParameterPrefix))
          FillSlab(compilation, index.Of(state.name), box, buffers[i].data());
      });
      for (size_t i = 0; i < count; ++i)
        state.arena->Write(state.tensor.As<std::byte>() + slabs[begin + i].first * element, buffers[i].data(),
                           std::ssize(buffers[i]) * element);
    }
  }
}

}  // namespace espalier
