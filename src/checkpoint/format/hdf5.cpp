#include "checkpoint/format/hdf5.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "espalier/checkpoint/checkpoint.hpp"
#include "espalier/util/error.hpp"

namespace espalier {
namespace {

constexpr hsize_t kAligned = 1 << 20;

void WriteAttributeOf(hid_t object, const char* name, hid_t file_type, hid_t memory_type, hid_t space,
                      const void* data) {
  Hdf5Handle attribute(HDF5_CALL(H5Acreate2(object, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT)), H5Aclose);
  HDF5_CALL(H5Awrite(attribute, memory_type, data));
  attribute.Close();
}

}  // namespace

void InitializeStorage() { InitializeHdf5(); }

Hdf5Handle CreateHdf5File(const std::string& path) {
  Hdf5Handle access(HDF5_CALL(H5Pcreate(H5P_FILE_ACCESS)), H5Pclose);
  HDF5_CALL(H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110));
  HDF5_CALL(H5Pset_fclose_degree(access, H5F_CLOSE_STRONG));
  HDF5_CALL(H5Pset_alignment(access, kAligned, kAligned));
  HDF5_CALL(H5Pset_meta_block_size(access, kAligned));
  Hdf5Handle creation(HDF5_CALL(H5Pcreate(H5P_FILE_CREATE)), H5Pclose);
  HDF5_CALL(H5Pset_obj_track_times(creation, false));
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation, access);
  if (file < 0) FailHdf5(fmt::format("cannot create {}", path).c_str());
  return {file, H5Fclose};
}

Hdf5Handle DatasetProperties() {
  Hdf5Handle properties(HDF5_CALL(H5Pcreate(H5P_DATASET_CREATE)), H5Pclose);
  HDF5_CALL(H5Pset_obj_track_times(properties, false));
  return properties;
}

Hdf5Handle Dataspace(const Shape& shape) {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  return {HDF5_CALL(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr)), H5Sclose};
}

void MakeGroups(hid_t file, const std::string& name) {
  Hdf5Handle properties(HDF5_CALL(H5Pcreate(H5P_GROUP_CREATE)), H5Pclose);
  HDF5_CALL(H5Pset_obj_track_times(properties, false));
  for (size_t slash = name.find('/'); slash != std::string::npos; slash = name.find('/', slash + 1)) {
    const std::string group = name.substr(0, slash);
    if (HDF5_CALL(H5Lexists(file, group.c_str(), H5P_DEFAULT)) > 0) continue;
    Hdf5Handle made(HDF5_CALL(H5Gcreate2(file, group.c_str(), H5P_DEFAULT, properties, H5P_DEFAULT)), H5Gclose);
    made.Close();
  }
}

void WriteAttribute(hid_t object, const char* name, const Shape& values) {
  const Hdf5Handle space = Dataspace({static_cast<int64_t>(values.size())});
  WriteAttributeOf(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, space, values.data());
}

void WriteAttribute(hid_t object, const char* name, int64_t value) {
  const Hdf5Handle space(HDF5_CALL(H5Screate(H5S_SCALAR)), H5Sclose);
  WriteAttributeOf(object, name, H5T_STD_I64LE, H5T_NATIVE_INT64, space, &value);
}

void WriteAttribute(hid_t object, const char* name, const std::string& text) {
  const Hdf5Handle space(HDF5_CALL(H5Screate(H5S_SCALAR)), H5Sclose);
  const Hdf5Handle type = TextType(text);
  WriteAttributeOf(object, name, type, type, space, text.c_str());
}

Hdf5Handle ElementType(Dtype dtype) {
  CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBf16, "checkpoints hold no {}", Name(dtype));
  Hdf5Handle type(HDF5_CALL(H5Tcopy(H5T_IEEE_F32LE)), H5Tclose);
  if (dtype == Dtype::kF32) return type;
  HDF5_CALL(H5Tset_fields(type, 15, 7, 8, 0, 7));  // sign; exponent; mantissa
  HDF5_CALL(H5Tset_precision(type, 16));
  HDF5_CALL(H5Tset_size(type, 2));
  return type;
}

Hdf5Handle TextType(const std::string& text) {
  Hdf5Handle type(HDF5_CALL(H5Tcopy(H5T_C_S1)), H5Tclose);
  HDF5_CALL(H5Tset_size(type, std::max<size_t>(text.size(), 1)));
  HDF5_CALL(H5Tset_strpad(type, H5T_STR_NULLPAD));
  return type;
}

}  // namespace espalier
