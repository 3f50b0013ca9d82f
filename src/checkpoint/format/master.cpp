// master.h5: every tensor of a checkpoint as one virtual dataset over the shards, for people and other programs.
#include <fmt/core.h>

#include <limits>
#include <map>

#include "checkpoint/format/hdf5.hpp"
#include "checkpoint/format/shard.hpp"

namespace espalier {
namespace {

void SelectBox(hid_t space, const Box& box) {
  std::vector<hsize_t> start, count;
  for (const Range& r : box) {
    start.push_back(static_cast<hsize_t>(r.begin));
    count.push_back(static_cast<hsize_t>(r.Extent()));
  }
  HDF5_CALL(H5Sselect_hyperslab(space, H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr));
}

void CreateView(hid_t file, const Manifest& manifest, const ManifestTensor& tensor) {
  MakeGroups(file, tensor.name);
  const Hdf5Handle properties = DatasetProperties();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  HDF5_CALL(H5Pset_fill_value(properties, H5T_NATIVE_FLOAT, &nan));
  const Hdf5Handle whole = Dataspace(tensor.shape), type = ElementType(tensor.dtype);
  std::map<int, int> count;  // by file: stored boxes of the tensor so far
  for (const ManifestPiece& piece : tensor.pieces) {
    SelectBox(whole, piece.box);
    const Hdf5Handle source = Dataspace(ExtentsOf(piece.box));
    const std::string& shard = manifest.files[static_cast<size_t>(piece.file)].name;
    const std::string dataset = DatasetName(tensor.name, count[piece.file]++);
    HDF5_CALL(H5Pset_virtual(properties, whole, shard.c_str(), dataset.c_str(), source));
  }
  HDF5_CALL(H5Sselect_all(whole));
  Hdf5Handle view(HDF5_CALL(H5Dcreate2(file, tensor.name.c_str(), type, whole, H5P_DEFAULT, properties, H5P_DEFAULT)),
                  H5Dclose);
  view.Close();
}

void WriteDeck(hid_t file, const std::string& deck) {
  const Hdf5Handle type = TextType(deck);
  const Hdf5Handle space(HDF5_CALL(H5Screate(H5S_SCALAR)), H5Sclose);
  const Hdf5Handle properties = DatasetProperties();
  Hdf5Handle dataset(HDF5_CALL(H5Dcreate2(file, "deck", type, space, H5P_DEFAULT, properties, H5P_DEFAULT)), H5Dclose);
  HDF5_CALL(H5Dwrite(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, deck.c_str()));
  dataset.Close();
}

void WriteFile(const std::string& path, const Manifest& manifest, const std::string& deck) {
  const auto lock = LockHdf5();
  Hdf5Handle file = CreateHdf5File(path);
  WriteAttribute(file, "format", fmt::format("espalier-checkpoint {}", manifest.Format()));
  WriteAttribute(file, "step", manifest.metadata.step);
  WriteAttribute(file, "samples", manifest.metadata.samples);
  WriteAttribute(file, "ranks", manifest.ranks);
  WriteAttribute(file, "mesh", manifest.mesh);
  WriteAttribute(file, "version", manifest.metadata.version);
  WriteAttribute(file, "git", manifest.metadata.git_hash);
  WriteDeck(file, deck);
  for (const ManifestTensor& tensor : manifest.tensors) CreateView(file, manifest, tensor);
  file.Close();
}

}  // namespace

void WriteMaster(const Directory& dir, const Manifest& manifest, const std::string& deck) {
  WriteFile(dir.path() + "/master.h5", manifest, deck);
  dir.OpenToWrite("master.h5").Sync();
}

}  // namespace espalier
