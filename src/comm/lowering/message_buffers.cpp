#include "comm/lowering/message_buffers.hpp"

#include <algorithm>
#include <numeric>

#include "espalier/program/compile.hpp"
#include "espalier/util/error.hpp"

namespace espalier {

std::byte* Workspace::Take(int64_t bytes) {
  const int64_t offset = used_;
  used_ += Aligned(bytes);
  CHECK(used_ <= bytes_, "communication needs {} bytes of workspace, {} are planned", used_, bytes_);
  return base_ + offset;
}

int64_t BytesOf(const Parcel& parcel) {
  return std::accumulate(parcel.begin(), parcel.end(), int64_t{0},
                         [](int64_t sum, const View& view) { return sum + view.Bytes(); });
}

void Order(Parcel& parcel) {
  std::stable_sort(parcel.begin(), parcel.end(),
                   [](const View& a, const View& b) { return SizeOf(a.dtype) > SizeOf(b.dtype); });
}

bool InPlace(const Parcel& parcel) { return parcel.size() == 1 && parcel[0].IsDense(); }

std::vector<View> Packed(const Parcel& parcel, std::byte* base) {
  std::vector<View> packed;
  for (const View& view : parcel) {
    packed.push_back(PackedAt(base, view));
    base += view.Bytes();
  }
  return packed;
}

std::vector<Parcel> ParcelsOf(const std::vector<Transfer>& transfers, const std::vector<Tensor>& tensors, int members) {
  std::vector<Parcel> parcels(static_cast<size_t>(members));
  for (const Transfer& t : transfers) {
    View view = ViewOf(tensors[static_cast<size_t>(t.tensor)], t.box);
    if (view.Bytes() > 0) parcels[static_cast<size_t>(t.peer)].push_back(std::move(view));
  }
  return parcels;
}

Parcel Whole(const std::vector<Tensor>& tensors) {
  Parcel parcel;
  for (const Tensor& tensor : tensors)
    if (Volume(tensor.shape) > 0) parcel.push_back(WholeOf(tensor));
  return parcel;
}

}  // namespace espalier
