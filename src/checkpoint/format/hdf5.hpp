// HDF5 files of checkpoints: HDF5 is used for the layout of files and for attributes; tensor bytes are written and read
// directly (shard.hpp).
#pragma once

#include <string>

#include "espalier/hdf5/hdf5.hpp"
#include "espalier/util/types.hpp"

namespace espalier {

/// A new file: format of HDF5 1.10 (metadata with checksums), objects from 1 MiB on aligned to 1 MiB, no timestamps.
Hdf5Handle CreateHdf5File(const std::string& path);

/// Properties of a new dataset, without timestamps.
Hdf5Handle DatasetProperties();

/// A simple dataspace.
Hdf5Handle Dataspace(const Shape& shape);

/// Creates the parent groups of the dataset `name` ("a/b/c": a, a/b) that do not exist.
void MakeGroups(hid_t file, const std::string& name);

void WriteAttribute(hid_t object, const char* name, const Shape& values);
void WriteAttribute(hid_t object, const char* name, int64_t value);
void WriteAttribute(hid_t object, const char* name, const std::string& text);

/// The type of elements in a file, little-endian: IEEE fp32, or bf16 as a float of 16 bits with fields 1, 8 and 7 and a
/// bias of 127, which any reader of HDF5 widens to fp32.
Hdf5Handle ElementType(Dtype dtype);

/// A fixed-length string type of at least one character.
Hdf5Handle TextType(const std::string& text);

}  // namespace espalier
