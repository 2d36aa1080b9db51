"""Libraries that were called once are known to be there without being loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

from convalgos.core.library_record import keep_called, was_called
from convalgos.cpu.runtime import mkl
from convalgos.cpu.spectral import engines

EXPLAIN = """
import convalgos as ca
ranking = ca.explain(ca.ConvProblem.parse("n1 c4 h32 w32 k4 r9 s9"))
print(*(c.id for c in ranking.candidates))
print(any(name in open("/proc/self/maps").read() for name in ("libfftw3", "libmkl_rt")))
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CONVALGOS_CACHE_DIR", str(tmp_path / "cache"))
    was_called.cache_clear()
    yield tmp_path
    was_called.cache_clear()


def test_a_record_counts_for_one_file_that_nobody_else_can_have_told_of(own_cache):
    library, other = own_cache / "one.so", own_cache / "other.so"
    for path in (library, other):
        path.write_bytes(b"code")
    assert not was_called(library)
    keep_called(library)
    was_called.cache_clear()
    assert was_called(library) and not was_called(other)
    assert not was_called(own_cache / "none.so")
    library.write_bytes(b"other code")
    was_called.cache_clear()
    assert not was_called(library)
    keep_called(library)
    (own_cache / "cache" / "libraries").chmod(0o777)
    was_called.cache_clear()
    assert not was_called(library)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is loaded")
@pytest.mark.skipif(
    bool(mkl.why_no_mkl() and engines.why_not_engine("fftw")), reason="neither FFTW nor MKL is installed"
)
def test_choosing_loads_no_library_that_was_called_before(own_cache):
    pytest.importorskip("llvmlite", reason="compiles what calls them")

    def told():
        return subprocess.check_output([sys.executable, "-c", EXPLAIN], text=True).splitlines()

    first, again = told(), told()
    assert first == [again[0], "True"] and again[1] == "False"
    assert {"cpu.fft.fftw", "cpu.fft.mkl"} & set(first[0].split())


def test_a_library_that_is_gone_although_it_is_known_is_told(monkeypatch):
    monkeypatch.setattr(engines, "_library", lambda engine: None)
    with pytest.raises(RuntimeError, match="fftw can no longer be loaded"):
        engines.Transform("fftw", "float32", (4, 4))
