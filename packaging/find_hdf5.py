"""Finds an HDF5 that pkg-config does not know: prints its include folder and its library folder, or nothing.

Asks HDF5's compiler wrappers (h5cc, h5pcc), then looks below the prefixes that CMake and module systems announce
(HDF5_ROOT, HDF5_DIR, ..., CMAKE_PREFIX_PATH)."""
import os
import shlex
import shutil
import subprocess

PREFIXES = ["HDF5_ROOT", "HDF5_DIR", "HDF5_HOME", "EBROOTHDF5", "TACC_HDF5_DIR", "CRAY_HDF5_PREFIX"]


def has_headers(folder):
    return os.path.exists(os.path.join(folder, "hdf5.h"))


def has_library(folder):
    return any(os.path.exists(os.path.join(folder, "libhdf5" + ending)) for ending in (".so", ".a", ".dylib"))


def from_wrapper(program):
    """The folders in what a wrapper would pass to the compiler, or those beside the wrapper."""
    shown = subprocess.run([program, "-show"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           check=False)
    words = shlex.split(shown.stdout)
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(program)))
    folders = [word[2:] for word in words if word.startswith(("-I", "-L"))] + [os.path.dirname(word) for word in words]
    return folders, prefix


def below(prefix):
    """Where an installation below `prefix` may have headers and libraries; CMake's HDF5_DIR may be a folder in it."""
    tops = [prefix, *(os.path.normpath(os.path.join(prefix, up)) for up in ("..", "../..", "../../.."))]
    return [os.path.join(top, name) for top in tops for name in ("include", "lib", "lib64")]


def candidates():
    for name in ("h5cc", "h5pcc"):
        if program := shutil.which(name):
            folders, prefix = from_wrapper(program)
            yield folders + [os.path.join(prefix, folder) for folder in ("include", "lib", "lib64")]
    for name in PREFIXES:
        if prefix := os.environ.get(name):
            yield below(prefix)
    for prefix in filter(None, os.environ.get("CMAKE_PREFIX_PATH", "").replace(";", ":").split(":")):
        yield [os.path.join(prefix, folder) for folder in ("include", "lib", "lib64")]


def main():
    for folders in candidates():
        headers = next(filter(has_headers, folders), None)
        library = next(filter(has_library, folders), None)
        if headers and library:
            print(os.path.realpath(headers), os.path.realpath(library), sep="\n")
            return


main()
