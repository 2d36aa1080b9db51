"""What is kept between processes, compiled kernels and the machine's figures, and how bad files end."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convalgos.core import cache_files, machine, profiles
from convalgos.core.processor import cpuinfo
from convalgos.select import current_machine

CONV = """
import sys
import numpy as np, convalgos as ca
y = ca.conv(np.ones((1, 4, 9, 9), "f4"), np.ones((4, 4, 3, 3), "f4"), algorithm="cpu.direct")
assert (y == 36).all()
print("llvmlite.binding" in sys.modules)
assert "_hashlib" not in sys.modules
"""


def convolve(folder: Path, compiles: bool = True) -> str:
    """Run a convolution in a fresh process that keeps its files in a folder; returns the warnings.

    LLVM takes 45 MB, and is loaded where something is compiled only; OpenSSL takes 3.5 MB, and never is.
    """
    run = subprocess.run(
        [sys.executable, "-W", "always", "-c", CONV],
        env={**os.environ, "CONVALGOS_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    if importlib.util.find_spec("llvmlite") and cpuinfo("flags"):
        assert run.stdout.strip() == str(compiles)
    return run.stderr


def kept(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_kernels_are_compiled_once_and_damaged_ones_again(tmp_path):
    pytest.importorskip("llvmlite", reason="compiles kernels")
    assert "Warning" not in convolve(tmp_path)
    first = kept(tmp_path / "kernels")
    assert first
    assert "Warning" not in convolve(tmp_path, compiles=False)
    assert kept(tmp_path / "kernels") == first

    for path in first:
        path.write_bytes(path.read_bytes()[:40])
    assert "was damaged" in convolve(tmp_path)
    assert "Warning" not in convolve(tmp_path, compiles=False)


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    warnings = convolve(tmp_path / "file")
    assert "CONVALGOS_CACHE_DIR" in warnings
    assert (tmp_path / "file").read_text() == "not a folder"


def test_a_user_without_a_home_folder_goes_without_a_cache(tmp_path, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "CONVALGOS_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    monkeypatch.setattr(cache_files, "_told", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(profiles.VARIABLE, "avx512")
    figures = profiles.chosen(3)
    with pytest.warns(RuntimeWarning, match="no home folder.*CONVALGOS_CACHE_DIR") as told:
        assert machine.load_machine(3) is None
        machine.save_machine(figures)
        if importlib.util.find_spec("llvmlite"):
            from tiny_kernels import number, result

            for value in (101, 102):
                assert result(number(value)) == value
    assert len(told) == 1
    assert not list(tmp_path.iterdir()), "a folder named ~ was made"


# --- the machine's figures -------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path))
    return tmp_path


def stored(folder: Path) -> Path:
    (path,) = (folder / "machine").glob("*.json")
    return path


def test_figures_are_kept(folder):
    figures = current_machine()
    assert machine.load_machine(figures.threads) is None
    machine.save_machine(figures)
    assert machine.load_machine(figures.threads) == figures
    assert machine.load_machine(figures.threads + 1) is None  # measured on another number of threads


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        json.dumps({"format": 0}),
        json.dumps({"format": machine.FORMAT}),
        json.dumps({"format": machine.FORMAT, "surprise": 1}),
        "[" * 100_000,
        "\ufffd",
    ],
)
def test_damaged_figures_are_set_aside(folder, text):
    figures = current_machine()
    machine.save_machine(figures)
    path = stored(folder)
    path.write_text(text)
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert machine.load_machine(figures.threads) is None
    assert path.with_name(path.name + ".damaged").read_text() == text
    machine.save_machine(figures)
    assert machine.load_machine(figures.threads) == figures


@pytest.mark.parametrize("name", ["name", "source", "format"])
@pytest.mark.parametrize("value", [True, 1.0, None, ["a name"], "a name" * 1000])
def test_words_must_be_words_and_the_format_a_number(folder, name, value):
    figures = current_machine()
    machine.save_machine(figures)
    path = stored(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert machine.load_machine(figures.threads) is None


def test_figures_of_another_number_of_threads_are_not_these(folder):
    figures = current_machine()
    machine.save_machine(figures)
    path = stored(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"threads": figures.threads + 1}))
    with pytest.warns(RuntimeWarning, match="was damaged .threads="):
        assert machine.load_machine(figures.threads) is None


NO_FIGURES = [0, -1.0, float("nan"), float("inf"), "fast", None, True, [2], int("9" * 400), 1e-30]


@pytest.mark.parametrize("value", NO_FIGURES, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize("name", ["peak_float32", "peak_int8", "threads", "l3_bytes", "launch"])
def test_figures_must_be_positive_numbers(folder, name, value):
    if (name, value) == ("peak_int8", None):
        return  # nobody measured it
    figures = current_machine()
    machine.save_machine(figures)
    path = stored(folder)
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.warns(RuntimeWarning, match="was damaged"):
        assert machine.load_machine(figures.threads) is None


def test_files_from_before_some_figures_are_read(folder):
    figures = dataclasses.replace(current_machine(), peak_int8=9e12, peak_bfloat16=5e12)
    assert (figures.peak("uint8"), figures.peak("bfloat16")) == (9e12, 5e12)
    machine.save_machine(figures)
    assert machine.load_machine(figures.threads) == figures
    path = stored(folder)
    later = dict.fromkeys(("peak_int8", "peak_bfloat16", "clock", "l2_bandwidth", "read_bandwidth"))
    old = {n: v for n, v in json.loads(path.read_text()).items() if n not in later}
    path.write_text(json.dumps(old))
    loaded = machine.load_machine(figures.threads)
    assert loaded == dataclasses.replace(figures, **later)
    assert loaded.peak("int8") == 4 * loaded.peak("float32") and "int8" not in loaded.summary
    assert loaded.peak("bfloat16") == loaded.peak("float16") == loaded.peak("float32")
    assert loaded.cycles == loaded.peak_float32 / loaded.vector_bytes
    assert loaded.filter_bandwidth == loaded.bandwidth
    near = loaded.l2_bytes
    assert 0 < loaded.stream_near(near) < loaded.stream(near)


def test_figures_that_cannot_be_kept_cost_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match="could not be kept"):
        machine.save_machine(current_machine())


def test_figures_are_those_of_a_machine():
    figures = current_machine()
    for field in dataclasses.fields(figures):
        value = getattr(figures, field.name)
        assert value if isinstance(value, str) else (value is None and field.default is None) or value > 0, (
            field.name
        )
    assert figures.vector_bytes in (16, 32, 64)
    assert figures.l1_bytes < figures.l2_bytes < figures.l3_bytes
    assert figures.peak("float64") < figures.peak("float32")
    assert figures.stream(1e9) > figures.stream(1e6) > 0


def test_readers_never_see_half_a_file(tmp_path):
    path = tmp_path / "folder" / "file"
    cache_files.write_atomic(path, "first")
    cache_files.write_atomic(path, "second")
    assert path.read_text() == "second"
    assert list(path.parent.iterdir()) == [path]
