"""What LLVM told is kept for one llvmlite on one processor, and read where nobody else can have written."""

import os
import time

import pytest

from convalgos.core import cache_files, cache_pruning, compiler_record
from convalgos.core.compiler_record import keep_compiler, known_compiler
from convalgos.core.processor import cpuinfo

pytest.importorskip("llvmlite", reason="is what tells")
pytestmark = pytest.mark.skipif(not cpuinfo("flags"), reason="the system does not tell processors apart")

TOLD = {"llvmlite": "1", "target": ["triple", "name", "+wide"], "level": 3}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file of a record; `known` reads it as a new process would."""
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache_files, "_told", {})
    compiler_record._read.cache_clear()
    assert known() is None
    keep_compiler(TOLD)
    (path,) = (tmp_path / "cache" / "compiler").glob("*.record")
    yield path
    compiler_record._read.cache_clear()


def known():
    compiler_record._read.cache_clear()
    return known_compiler()


def test_it_is_read_by_the_same_compiler_on_the_same_processor_only(kept, monkeypatch, tmp_path):
    assert known() == TOLD
    for name in compiler_record.VARIABLES:
        with monkeypatch.context() as patch:
            patch.setenv(name, "haswell")
            assert known() is None
    for name in ("flags", "microcode", "model"):
        with monkeypatch.context() as patch:
            patch.setattr(compiler_record, "cpuinfo", lambda key, of=name: cpuinfo(key) + "x" * (key == of))
            assert known() is None
    library = tmp_path / "libllvmlite.so"
    library.write_bytes(b"another")
    monkeypatch.setattr(compiler_record, "_library", lambda: library)
    assert known() is None
    monkeypatch.setattr(compiler_record, "_library", lambda: None)
    assert known() is None


def test_what_nobody_used_for_a_month_goes_when_another_is_kept(kept):
    others = [
        kept.with_name(name) for name in ("other.record", "other.json")
    ]  # of other processors and versions
    for path in others:
        path.write_bytes(kept.read_bytes())
    now = time.time()
    for path in (kept, *others):
        os.utime(path, (now - 2 * cache_pruning.UNUSED,) * 2)
    assert known() == TOLD and kept.stat().st_mtime > now - 60  # in use
    stamp = kept.with_name("pruned")
    os.utime(stamp, (now - 2 * cache_pruning.DAY,) * 2)
    keep_compiler(TOLD)
    assert set(kept.parent.iterdir()) == {kept, stamp} and known() == TOLD


def test_a_damaged_one_is_as_none(kept):
    whole = kept.read_bytes()
    for place in range(0, len(whole), 9):
        changed = bytearray(whole)
        changed[place] ^= 1
        kept.write_bytes(changed)
        assert known() is None
    kept.write_bytes(whole)
    assert known() == TOLD


@pytest.mark.parametrize("where", ["file", "folder", "above"])
def test_one_that_others_can_write_is_not_read(kept, where):
    {"file": kept, "folder": kept.parent, "above": kept.parents[1]}[where].chmod(0o777)
    assert known() is None


def test_where_it_cannot_be_kept_nothing_is_said(kept, monkeypatch):
    """What cannot be written costs memory only; kernels say it."""
    kept.unlink()

    def full(*arguments):
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", full)
    keep_compiler(TOLD)
    assert known() is None and not any(kept.parent.glob("*.record"))
