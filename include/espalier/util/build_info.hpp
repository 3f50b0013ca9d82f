// Sources and tools of this executable, as Meson saw them.
#pragma once

namespace espalier {

extern const char* const kVersion;        ///< "0.3.1"
extern const char* const kGitHash;        ///< hash of the commit, with "-dirty" if files differed from it
extern const char* const kCompiler;       ///< "gcc 12.2.0"
extern const char* const kBuildType;      ///< "release -O3"
extern const char* const kCompilerFlags;  ///< flags besides those that Meson sets by itself; may be empty
extern const char* const kMpiVersion;     ///< "Open MPI 4.1.4"
extern const char* const kHdf5Version;    ///< version of the headers: "1.10.8, serial"
extern const char* const kLibraries;      ///< the others: "fmt 9.1.0, spdlog 1.10.0, ..."

}  // namespace espalier
