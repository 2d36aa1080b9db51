"""Compiled kernels on disk: never another kernel, never a damaged one, never more than there is room for."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

pytest.importorskip("llvmlite", reason="compiles kernels")

import tiny_kernels
from tiny_kernels import number, result, sum_to

from convalgos.core import cache_files, cache_pruning
from convalgos.core.cache_pruning import prune
from convalgos.cpu.compile import kernel_cache
from convalgos.cpu.runtime import compile_notice, jit

TINY = Path(tiny_kernels.__file__)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of its own, and a process that has warned of nothing yet."""
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_files, "_told", {})
    kernel_cache._usable.cache_clear()
    yield tmp_path / "cache" / "kernels"
    kernel_cache._usable.cache_clear()


def run(folder: Path, processes: int, *values: int) -> None:
    """Compile or load the kernels of some values in several new processes at once, which check each."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(TINY), str(processes), *map(str, values)],
        env={**os.environ, "CONVALGOS_CACHE_DIR": str(folder.parent)},
        capture_output=True,
        timeout=300,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def fresh(factory, *parameters: int) -> int:
    """What a kernel writes that is compiled or loaded anew, whatever this process has already."""
    return result(jit.specialise(factory.__wrapped__)(*parameters))


def entries(folder: Path) -> list[Path]:
    """Files that hold kernels."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "pruned")


@pytest.fixture
def compiled(monkeypatch):
    """A list that grows with each kernel that is compiled and not loaded."""
    made = []
    real = jit._object_code

    def noted(function, *arguments):
        made.append(function.__qualname__)
        return real(function, *arguments)

    monkeypatch.setattr(jit, "_object_code", noted)
    return made


# --- the right kernel ------------------------------------------------------------------------


def test_twelve_processes_that_compile_the_same_kernels_leave_the_right_ones(folder):
    values = [1, 2, 3, 4, 5, 6]
    run(folder, 12, *values)
    assert len(entries(folder)) == 2 * (1 + len(values))
    run(folder, 1, *values)


def test_kernels_of_several_processes_keep_apart_though_they_are_named_alike(folder):
    """LLVM is asked for them by name."""
    for value in (3, 4):
        run(folder, 1, value)
    run(folder, 1, 3, 4)


def test_all_that_a_kernel_depends_on_is_in_its_key(folder, monkeypatch):
    def of(value):
        return kernel_cache.kernel_key(number.__wrapped__(value), "void(1)")

    assert of(3) == of(3) != of(4)
    assert of(3) != kernel_cache.kernel_key(sum_to.__wrapped__(3), "void(1)")
    assert of(3) != kernel_cache.kernel_key(number.__wrapped__(3), "void(2)")
    before = of(3)
    for name, value in (
        ("_sources", lambda file: "other"),
        ("_constants", lambda module: "other"),
        ("_compiler", lambda: {"target": "another"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(kernel_cache, name, value)
            assert of(3) != before
    assert {"llvmlite", "llvm", "python", "target", "sources", "closed"} <= before.keys()

    kernel_cache._constants.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(tiny_kernels, "STEP", 3, raising=False)  # as of another file
        assert of(3) != before
    kernel_cache._constants.cache_clear()
    assert of(3) == before

    def outer(array):
        return lambda address: array

    with pytest.raises(TypeError, match="may close over integers only"):
        kernel_cache.kernel_key(outer([1, 2]), "void(1)")


# --- damage ----------------------------------------------------------------------------------


def test_flipped_bytes_are_never_loaded(folder, compiled):
    assert fresh(sum_to, 9) == 45
    (path,) = entries(folder)
    whole = path.read_bytes()
    places = [*range(0, 100, 9), *range(100, len(whole), 211), len(whole) - 1]
    for place in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        compiled.clear()
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert fresh(sum_to, 9) == 45
        assert compiled, f"byte {place} was changed, and the kernel was loaded"
    compiled.clear()
    assert fresh(sum_to, 9) == 45 and not compiled, "what was compiled in its place is kept"


def test_damage_is_told_once_and_mended(folder, compiled):
    for value in (5, 6):
        fresh(number, value)
    for path in entries(folder):
        path.write_bytes(path.read_bytes()[:-30])
    with pytest.warns(RuntimeWarning, match="was damaged .its checksum") as told:
        assert fresh(number, 5) == 5
        assert fresh(number, 5) == 5
    assert len(told) == 1


def test_a_kernel_under_the_name_of_another_is_not_loaded(folder, compiled):
    assert fresh(number, 7) == 7
    (seven,) = entries(folder)
    assert fresh(number, 8) == 8
    (eight,) = set(entries(folder)) - {seven}
    seven.write_bytes(eight.read_bytes())
    with pytest.warns(RuntimeWarning, match="it is another kernel"):
        assert fresh(number, 7) == 7


def test_a_kernel_that_calls_what_is_not_there_is_not_linked(folder, compiled, monkeypatch):
    """LLVM would end the process."""
    with monkeypatch.context() as patch:
        real = kernel_cache.save_kernel

        def needing_more(key, name, needs, code):
            real(key, name, [*needs, "no_such_function"], code)

        patch.setattr(kernel_cache, "save_kernel", needing_more)
        assert fresh(number, 9) == 9
    with pytest.warns(RuntimeWarning, match="it calls no_such_function"):
        assert fresh(number, 9) == 9


# --- what cannot be kept, and what goes ------------------------------------------------------


def test_a_full_disk_costs_one_warning(folder, monkeypatch):
    import errno

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(kernel_cache.os, "replace", full)
    with pytest.warns(RuntimeWarning, match="No space left on device.*CONVALGOS_CACHE_DIR") as told:
        assert [fresh(number, value) for value in (1, 2, 3)] == [1, 2, 3]
    assert len(told) == 1
    assert entries(folder) == [], "nothing is left of what could not be written"


def test_old_kernels_go_and_used_ones_stay(folder, compiled):
    now = time.time()
    for value in (1, 2):
        fresh(number, value)
    old_layout = folder / "direct-0123456789abcdef" / "direct.driver-243.py311.nbi"
    old_layout.parent.mkdir()
    old_layout.write_bytes(b"of an earlier version")
    abandoned = folder / "number-1.kernel-0123.part"
    abandoned.write_bytes(b"half")
    long_ago = now - cache_pruning.UNUSED - 60
    for path in entries(folder):
        os.utime(path, (long_ago, long_ago))
    assert fresh(number, 1) == 1  # used: it is young again
    used = [path for path in entries(folder) if path.stat().st_mtime > now - 60]
    assert len(used) == 1

    prune(folder, kernel_cache.MOST_BYTES, now)
    assert len(entries(folder)) == 4, "once a day is enough"
    prune(folder, kernel_cache.MOST_BYTES, now + cache_pruning.DAY + 60)
    assert entries(folder) == used
    assert not old_layout.parent.exists()


def test_the_oldest_kernels_go_where_all_take_too_much(folder):
    for value in (1, 2, 3):
        fresh(number, value)
    by_age = entries(folder)
    for i, path in enumerate(by_age):
        os.utime(path, (time.time() - 100 * (3 - i),) * 2)
    prune(folder, 2 * by_age[0].stat().st_size + 100, time.time() + cache_pruning.DAY + 60)
    assert entries(folder) == by_age[1:]


def test_looking_for_old_kernels_never_fails(folder, tmp_path):
    prune(tmp_path / "no such folder", 0)
    (tmp_path / "file").write_text("")
    prune(tmp_path / "file", 0)


# --- who else can write there ----------------------------------------------------------------


def test_the_folder_is_made_for_this_user_alone(folder):
    before = os.umask(0)
    try:
        fresh(number, 1)
    finally:
        os.umask(before)
    for path in (folder, folder.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in entries(folder))


def open_to_others(path: Path) -> None:
    path.chmod(0o777)


def of_another_user(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can give a folder away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("change", [open_to_others, of_another_user])
@pytest.mark.parametrize("where", ["kernels", "cache", "above"])
def test_a_folder_that_others_can_change_is_passed_over(folder, compiled, where, change):
    for value in (1, 2):
        fresh(number, value)
    change({"kernels": folder, "cache": folder.parent, "above": folder.parents[1]}[where])
    kernel_cache._usable.cache_clear()
    compiled.clear()
    before = entries(folder)
    with pytest.warns(RuntimeWarning, match="is not used, as others could put code there: .*") as told:
        assert [fresh(number, value) for value in (1, 2, 3)] == [1, 2, 3]
    assert len(told) == 1 and len(compiled) == 3
    assert entries(folder) == before


@pytest.mark.parametrize("change", [open_to_others, of_another_user])
def test_a_kernel_that_others_can_change_is_not_loaded(folder, compiled, change):
    fresh(number, 1)
    (path,) = entries(folder)
    change(path)
    compiled.clear()
    with pytest.warns(RuntimeWarning, match="could not be read"):
        assert fresh(number, 1) == 1
    assert compiled


def test_a_link_to_a_kernel_is_not_followed(folder, compiled, tmp_path):
    fresh(number, 1)
    (path,) = entries(folder)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    compiled.clear()
    with pytest.warns(RuntimeWarning, match="could not be read"):
        assert fresh(number, 1) == 1
    assert compiled


def test_a_sticky_folder_is_safe_above_and_not_itself(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "mine").mkdir(mode=0o755)
    assert cache_files.why_not_trusted(shared / "mine") is None
    assert "can be written by others (mode 1777)" in cache_files.why_not_trusted(shared)
    shared.chmod(0o777)
    assert str(shared) in cache_files.why_not_trusted(shared / "mine")


def test_links_are_looked_at_where_they_lead(tmp_path):
    for name in ("open", "mine"):
        (tmp_path / name / "folder").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    for name, trusted in (("open", False), ("mine", True)):
        link = tmp_path / f"to {name}"
        link.symlink_to(tmp_path / name / "folder")
        assert (cache_files.why_not_trusted(link / "kernels") is None) == trusted
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert "too many links" in cache_files.why_not_trusted(tmp_path / "round")


# --- what takes long -------------------------------------------------------------------------


@pytest.mark.parametrize("terminal", [False, True])
def test_compiling_that_takes_long_says_so_once(folder, terminal, monkeypatch, caplog, capsys):
    monkeypatch.setattr(compile_notice, "_compiling", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with caplog.at_level("INFO", logger="convalgos"):
        assert fresh(number, 1) == 1
        assert not caplog.records  # it took no second
        monkeypatch.setattr(compile_notice, "_compiling", compile_notice.LONG)
        for value in (2, 3):
            assert fresh(number, value) == value
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("convalgos", "INFO", compile_notice.WORD)
    ]
    assert capsys.readouterr().err == (compile_notice.WORD + "\n") * terminal


def test_who_asked_for_compiling_is_not_told(folder, monkeypatch, caplog):
    monkeypatch.setattr(compile_notice, "_compiling", compile_notice.LONG)
    compile_notice.say_nothing()
    with caplog.at_level("INFO", logger="convalgos"):
        assert fresh(number, 1) == 1
    assert not caplog.records
