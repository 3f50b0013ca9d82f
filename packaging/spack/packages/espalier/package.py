"""Espalier for Spack: builds what is committed in the clone that holds this file.

    spack repo add packaging/spack
    spack install espalier
"""
import os

from spack.package import *

try:  # since Spack 1.0 the build systems are part of the package repository
    from spack_repo.builtin.build_systems.cuda import CudaPackage
    from spack_repo.builtin.build_systems.meson import MesonPackage
except ImportError:
    pass


class Espalier(MesonPackage, CudaPackage):
    """Trains transformers over a lattice of MPI ranks, from a deck that is compiled into one program per rank."""

    git = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", "..", "..", ".."))

    license("Apache-2.0")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests; spack install --test=root runs them")

    depends_on("cxx", type="build")
    depends_on("cmake", type="build")
    depends_on("git", type="build")
    depends_on("meson@1:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("python@3.9:", type=("build", "test"))

    depends_on("mpi")
    depends_on("openmpi@4.1:", when="^[virtuals=mpi] openmpi")
    depends_on("hdf5@1.10:")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10: +fmt_external")
    depends_on("tomlplusplus@3.3:")
    depends_on("cli11@2.1:")
    depends_on("nlohmann-json@3.11:")
    depends_on("pcre2@10.40: +jit")
    depends_on("utf8proc@2.6:")
    depends_on("sentencepiece@0.1.97:")
    depends_on("googletest@1.12: +gmock", when="+tests")
    depends_on("boost@1.74: +context", when="+tests +cuda")

    with when("+cuda"):
        depends_on("cuda@13:")
        depends_on("cudnn@9:")
        depends_on("nccl@2:")
        conflicts("cuda_arch=none", msg="name the GPUs, such as cuda_arch=90")
        # cuDNN's C++ front end, headers only, where meson.build looks for it.
        resource(
            name="cudnn-frontend",
            git="https://github.com/NVIDIA/cudnn-frontend.git",
            tag="v1.32.0",
            destination="build-deps",
            placement="cudnn_frontend",
        )

    def meson_args(self):
        spec = self.spec
        args = [
            "-Dtests=" + ("enabled" if "+tests" in spec else "disabled"),
            "-Dcuda=" + ("enabled" if "+cuda" in spec else "disabled"),
        ]
        if "+cuda" in spec:
            folders = [spec[name].libs.directories for name in ("cuda", "cudnn", "nccl")]
            args.append("-Dgpu_architectures=" + ",".join(spec.variants["cuda_arch"].value))
            args.append("-Dgpu_libraries=" + ",".join(sum(folders, [])))
        return args

    def setup_run_environment(self, env):
        env.set("ESPALIER_ROOT", self.prefix.share.espalier)

    def check(self):
        """What needs no mpirun: the rest of the suite runs by tests/run.sh."""
        if "+tests" in self.spec:
            with working_dir(self.build_directory):
                which("meson")("test", "--no-rebuild", "--suite", "unit", "--suite", "passes")
