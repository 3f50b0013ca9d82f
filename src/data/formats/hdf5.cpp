// HDF5 files: a one-dimensional dataset of integers, contiguous or chunked, read in hyperslabs.
#include "espalier/hdf5/hdf5.hpp"

#include <algorithm>
#include <list>

#include "data/formats/flat_ids.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

/// An open dataset of an open file. Made, used and closed under the lock of HDF5.
struct OpenDataset {
  std::string path, name;
  Hdf5Handle file, dataset;
  int64_t ids;
};

constexpr size_t kMaxOpen = 16;

/// Datasets that stay open between reads, the most recently used first; under the lock of HDF5.
std::list<OpenDataset>& OpenDatasets() {
  static auto& datasets = *new std::list<OpenDataset>;  // HDF5 may be closed before static objects are destroyed
  return datasets;
}

Hdf5Handle OpenFile(const std::string& path) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  if (file < 0) RefuseData(path, fmt::format("cannot be read as HDF5: {}", Hdf5Cause()));
  return {file, H5Fclose};
}

herr_t AddName(hid_t, const char* name, const H5L_info_t*, void* names) {
  constexpr size_t kMax = 200;
  auto& text = *static_cast<std::string*>(names);
  if (text.size() < kMax) text += fmt::format("{}\"{}\"", text.empty() ? "" : ", ", name);
  return 0;
}

Hdf5Handle OpenDatasetOf(hid_t file, const std::string& path, const std::string& name) {
  const hid_t dataset = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
  if (dataset >= 0) return {dataset, H5Dclose};
  std::string names;
  H5Literate(file, H5_INDEX_NAME, H5_ITER_INC, nullptr, AddName, &names);
  RefuseData(path,
             fmt::format("has no dataset \"{}\" (data.hdf5_dataset); it has {}", name, names.empty() ? "none" : names));
}

/// Number of ids in a dataset; refuses datasets that are not one-dimensional or not integers.
int64_t Extent(hid_t dataset, const std::string& path, const std::string& name) {
  const Hdf5Handle space(HDF5_CALL(H5Dget_space(dataset)), H5Sclose);
  const Hdf5Handle type(HDF5_CALL(H5Dget_type(dataset)), H5Tclose);
  const int dims = HDF5_CALL(H5Sget_simple_extent_ndims(space));
  if (dims != 1)
    RefuseData(path, fmt::format("dataset \"{}\" has {} dims; allowed: 1 (token ids in a row)", name, dims));
  if (H5Tget_class(type) != H5T_INTEGER) RefuseData(path, fmt::format("dataset \"{}\" is not of integers", name));
  return H5Sget_simple_extent_npoints(space);
}

class Hdf5Reader final : public FileReader {
 public:
  Hdf5Reader(std::string path, const DataSettings& settings)
      : ids_{std::move(path), IdType::kI64, -1, 0, settings.vocab}, name_(settings.hdf5_dataset) {
    const auto lock = LockHdf5();
    ids_.count = Dataset().ids;
  }
  ~Hdf5Reader() override {
    const auto lock = LockHdf5();
    OpenDatasets().remove_if([&](const OpenDataset& open) { return IsOurs(open); });
  }

  int64_t tokens() const override { return ids_.count; }
  std::vector<std::string> Paths() const override { return {ids_.path}; }

  void Read(OpenFiles&, int64_t first, const SamplePart& part) override {
    std::vector<int64_t> raw(static_cast<size_t>(part.count));
    ReadSlab(first, raw);
    CheckIds(ids_, first, raw, part.Tokens());
  }

 private:
  void ReadSlab(int64_t first, std::vector<int64_t>& out) {
    const auto lock = LockHdf5();
    const OpenDataset& open = Dataset();
    const auto begin = static_cast<hsize_t>(first), count = static_cast<hsize_t>(out.size());
    const Hdf5Handle space(HDF5_CALL(H5Dget_space(open.dataset)), H5Sclose);
    const Hdf5Handle memory(HDF5_CALL(H5Screate_simple(1, &count, nullptr)), H5Sclose);
    const bool read = H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, nullptr, &count, nullptr) >= 0 &&
                      H5Dread(open.dataset, H5T_NATIVE_INT64, memory, space, H5P_DEFAULT, out.data()) >= 0;
    if (!read)
      RefuseData(ids_.path, fmt::format("dataset \"{}\": cannot read {} ids from {} on: {}", name_, out.size(), first,
                                        Hdf5Cause()));
  }

  bool IsOurs(const OpenDataset& open) const { return open.path == ids_.path && open.name == name_; }

  const OpenDataset& Dataset() {
    std::list<OpenDataset>& all = OpenDatasets();
    const auto open = std::ranges::find_if(all, [&](const OpenDataset& of) { return IsOurs(of); });
    if (open != all.end()) {
      all.splice(all.begin(), all, open);
      return all.front();
    }
    while (all.size() >= kMaxOpen) all.pop_back();
    Hdf5Handle file = OpenFile(ids_.path);
    Hdf5Handle dataset = OpenDatasetOf(file, ids_.path, name_);
    const int64_t ids = Extent(dataset, ids_.path, name_);
    return all.emplace_front(OpenDataset{ids_.path, name_, std::move(file), std::move(dataset), ids});
  }

  FlatIds ids_;
  std::string name_;
};

}  // namespace

std::unique_ptr<FileReader> OpenHdf5(const std::string& path, OpenFiles& open, const DataSettings& settings) {
  open.Get(path);  // refuses a file that cannot be opened at all, with the reason
  return std::make_unique<Hdf5Reader>(path, settings);
}

}  // namespace espalier
