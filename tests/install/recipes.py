"""Recipes of packaging that cannot run here: that of EasyBuild agrees with packages.txt, the wraps and the package of
Spack; the MPIJob has the fields of kubeflow.org/v2beta1, and its launcher works with a stand-in for mpirun."""
import configparser
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "packaging/easybuild").glob("*.eb"))
JOB = ROOT / "packaging/kubernetes/mpijob.yaml"
SPACK = ROOT / "packaging/spack/packages/espalier/package.py"

# Names in packages.txt, of EasyBuild and of Spack. What a toolchain or a wrap gives has no dependency in EasyBuild.
TOOLCHAIN, WRAP = "toolchain", "wrap"
NAMES = [
    ("g++", TOOLCHAIN, "cxx"), ("git", "git", "git"), ("meson", "Meson", "meson"), ("ninja-build", "Ninja", None),
    ("pkgconf", "pkgconf", "pkgconfig"), ("libcli11-dev", WRAP, "cli11"), ("libfmt-dev", WRAP, "fmt"),
    ("libhdf5-dev", "HDF5", "hdf5"), ("libopenmpi-dev", TOOLCHAIN, "mpi"), ("libpcre2-dev", "PCRE2", "pcre2"),
    ("libsentencepiece-dev", "SentencePiece", "sentencepiece"), ("libspdlog-dev", WRAP, "spdlog"),
    ("libtomlplusplus-dev", WRAP, "tomlplusplus"), ("libutf8proc-dev", "utf8proc", "utf8proc"),
    ("nlohmann-json3-dev", WRAP, "nlohmann-json"), ("openmpi-bin", TOOLCHAIN, "mpi"), ("python3", "Python", "python"),
]
NOT_IN_RECIPES = {"ccache", "libjemalloc-dev"}  # faster, no more


def project_version():
    return re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text())[1]


def recipe():
    values = {}
    exec(compile(RECIPES[0].read_text(), RECIPES[0], "exec"), values)
    return values


def debian_packages():
    """The packages that a build needs."""
    lines = (ROOT / "packages.txt").read_text().partition("\n[tests]")[0].splitlines()
    return {line.split()[0] for line in lines if line and not line.startswith("#")} - NOT_IN_RECIPES


def spack_dependencies():
    """Least versions by name, without variants; those of tests and of GPUs are left out."""
    found = {}

    def depends_on(spec, when="", **_):
        name, _, least = spec.split()[0].partition("@")
        if "+" not in when:
            found[name] = max(found.get(name, ""), least.rstrip(":"))

    def nothing(*_, **__):
        pass

    module = dict.fromkeys(("version", "variant", "conflicts", "license", "resource"), nothing)
    module |= {"depends_on": depends_on, "when": lambda _: contextlib.suppress(), "__file__": str(SPACK),
               "MesonPackage": type("MesonPackage", (), {}), "CudaPackage": type("CudaPackage", (), {})}
    exec(compile(re.sub(r"from spack.*import .*", "pass", SPACK.read_text()), SPACK, "exec"), module)
    return {name: least for name, least in found.items() if name not in ("cuda", "cudnn", "nccl", "cmake", "openmpi")}


def numbers(version):
    return [int(part) for part in version.split(".")]


class EasyBuild(unittest.TestCase):
    def test_its_name_has_version_and_toolchain(self):
        values = recipe()
        self.assertEqual(len(RECIPES), 1)
        self.assertEqual(values["version"], project_version())
        toolchain = values["toolchain"]
        self.assertEqual(RECIPES[0].name, f"{values['name']}-{values['version']}-{toolchain['name']}-"
                         f"{toolchain['version']}.eb")

    def test_dependencies_are_those_of_debian_and_spack(self):
        values, spack = recipe(), spack_dependencies()
        given = dict(values["builddependencies"] + values["dependencies"])
        self.assertEqual({debian for debian, _, _ in NAMES}, debian_packages() | {"python3"})
        self.assertEqual({name for _, _, name in NAMES if name}, set(spack))
        self.assertEqual({name for _, name, _ in NAMES} - {TOOLCHAIN, WRAP}, set(given))
        for _, name, in_spack in NAMES:
            if name in given and spack.get(in_spack):
                self.assertGreaterEqual(numbers(given[name]), numbers(spack[in_spack]), name)

    def test_its_archives_are_those_of_the_wraps(self):
        values, wraps = recipe(), {}
        for path in (ROOT / "subprojects").glob("*.wrap"):
            wrap = configparser.ConfigParser()
            wrap.optionxform = str
            wrap.read(path)
            if path.name != "gtest.wrap":
                wraps[wrap["wrap-file"]["source_filename"]] = wrap
        archives = values["sources"][1:]
        self.assertEqual({source["filename"] for source in archives}, set(wraps))
        fallback = re.search(r"--force-fallback-for=(\S+)", values["configopts"])[1].split(",")
        self.assertEqual(set(fallback), {name for wrap in wraps.values() for name in wrap["provide"]})
        for source, checksum in zip(archives, values["checksums"][1:]):
            wrap = wraps[source["filename"]]["wrap-file"]
            self.assertEqual(checksum, wrap["source_hash"])
            self.assertEqual(source["source_urls"][0] + "/" + source["download_filename"], wrap["source_url"])

    def test_its_options_exist(self):
        options = (ROOT / "meson_options.txt").read_text()
        for option in re.findall(r"-D(\w+)=", recipe()["configopts"]):
            self.assertTrue(option == "unity" or f"option('{option}'" in options, option)


# Fields of kubeflow.org/v2beta1, and those of Kubernetes that a pod of this job uses.
CONTAINER = {"name": str, "image": str, "command": [str], "args": [str], "resources": {"limits": dict},
             "volumeMounts": [{"name": str, "mountPath": str}], "env": [{"name": str, "value": str}]}
REPLICAS = {"replicas": int, "restartPolicy": str, "template": {"metadata": dict, "spec": {
    "terminationGracePeriodSeconds": int, "containers": [CONTAINER],
    "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}]}}}
MPI_JOB = {"apiVersion": str, "kind": str, "metadata": {"name": str, "namespace": str, "annotations": dict}, "spec": {
    "slotsPerWorker": int, "runLauncherAsWorker": bool, "sshAuthMountPath": str, "launcherCreationPolicy": str,
    "mpiImplementation": str, "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS},
    "runPolicy": {"cleanPodPolicy": str, "ttlSecondsAfterFinished": int, "activeDeadlineSeconds": int,
                  "backoffLimit": int, "suspend": bool, "managedBy": str, "schedulingPolicy": dict}}}
CHOICES = {"mpiImplementation": ("OpenMPI", "Intel", "MPICH"), "cleanPodPolicy": ("None", "Running", "All"),
           "restartPolicy": ("Never", "OnFailure"), "apiVersion": ("kubeflow.org/v2beta1",), "kind": ("MPIJob",)}


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        try:
            import yaml
        except ImportError:
            raise unittest.SkipTest("python3-yaml is missing")
        cls.job = yaml.safe_load(JOB.read_text())

    def check(self, value, fields, where):
        if isinstance(fields, list):
            self.assertIsInstance(value, list, where)
            for i, item in enumerate(value):
                self.check(item, fields[0], f"{where}[{i}]")
        elif isinstance(fields, dict):
            self.assertIsInstance(value, dict, where)
            self.assertLessEqual(set(value), set(fields), where)
            for name, item in value.items():
                self.check(item, fields[name], f"{where}.{name}")
        else:
            self.assertIsInstance(value, fields, where)
            name = where.rpartition(".")[2]
            self.assertIn(value, CHOICES.get(name, (value,)) if fields is str else (value,), where)

    def test_it_has_the_fields_of_its_version(self):
        self.check(self.job, MPI_JOB, "job")
        replicas = self.job["spec"]["mpiReplicaSpecs"]
        for name in ("Launcher", "Worker"):
            pod = replicas[name]["template"]["spec"]
            mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
            self.assertEqual(mounted, {volume["name"] for volume in pod["volumes"]}, name)

    def test_an_unknown_field_is_found(self):
        self.job["spec"]["runPolicy"]["backofLimit"] = 3
        with self.assertRaises(AssertionError):
            self.check(self.job, MPI_JOB, "job")
        del self.job["spec"]["runPolicy"]["backofLimit"]

    def test_it_starts_as_many_ranks_as_there_are_slots(self):
        spec = self.job["spec"]
        ranks = spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
        self.assertIn(f"mpirun -n {ranks} ", self.launcher()["args"][0])

    def launcher(self):
        return self.job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]

    def run_launcher(self, status):
        """With programs in place of espalier and mpirun; returns the exit status and what they were called with."""
        with tempfile.TemporaryDirectory() as folder:
            for name, text in {"espalier": "case $1 in check) printf '[run]\\ndir = \"%s\"\\n' \"$PWD\" ;; esac",
                               "mpirun": f"echo mpirun \"$@\"; exit {status}"}.items():
                path = pathlib.Path(folder, name)
                path.write_text(f"#!/bin/bash\n{text}\n")
                path.chmod(0o755)
            container = self.launcher()
            environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "ESPALIER_ROOT": str(ROOT)}
            # As in an installation, whose espalier is in PATH.
            text = container["args"][0].replace('"$espalier"', "espalier")
            done = subprocess.run([*container["command"], text, *container["args"][1:]], env=environment, cwd=folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
            return done.returncode, done.stdout

    def test_its_launcher_starts_the_run_and_has_its_status(self):
        for status in (0, 2, 75):
            found, said = self.run_launcher(status)
            self.assertEqual(found, status, said)
            self.assertRegex(said, r"mpirun -n 8 --bind-to none espalier run llama/tiny\.toml run\.dir=/work/runs/tiny")


if __name__ == "__main__":
    unittest.main()
