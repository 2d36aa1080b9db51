"""Settings of every test.

What the tests compile and measure goes to the user's cache folder (or to CONVALGOS_CACHE_DIR), as it does
for users, so that a second run is fast. What they time does not: it would decide later picks. Tests that test
caches use folders of their own.
"""

import gc
import os
import random
import sys
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import refusals
from browser import chromium
from hypothesis import settings
from hypothesis.internal.conjecture import providers

_wisdom = tempfile.TemporaryDirectory(prefix="convalgos-wisdom-")
os.environ["CONVALGOS_WISDOM"] = _wisdom.name  # that of the whole run, and of what it starts


pytest.raises = refusals.raises  # of every test: errors of ours come without a second one


def pytest_configure(config):
    """The machine is measured before all tests, so that choices do not change between two of them: what these
    start measures nothing again. Nor does FFTW find another plan between two calls, of other bits."""
    from convalgos.cpu.spectral import engines

    engines.WORTH = float("inf")
    is_worker = hasattr(config, "workerinput")  # of pytest-xdist, which finds what was measured on disk
    if not (is_worker or config.option.collectonly):
        from convalgos.core.machine import save_machine
        from convalgos.cpu.runtime import calibrate
        from convalgos.select import devices

        save_machine(replace(devices.measured_machine(), passes=calibrate.PASSES))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Imports and collected tests stay: cycles are not looked for among them, and among what is newer less
    often. That took a fifth of the time to collect, and a seventh of that to run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 10, 20)
        gc.enable()


# `CONVALGOS_TEST_SEED=1 pytest` draws other numbers, to look for tests that rely on theirs.
_SEED = os.environ.get("CONVALGOS_TEST_SEED", "0")
_generators: list[np.random.Generator] = []


def pytest_collection_finish():
    """The generators of random numbers that the tests of a module share."""
    here = Path(__file__).parent
    files = ((m, getattr(m, "__file__", None)) for m in list(sys.modules.values()))
    modules = [m for m, file in files if file and Path(file).parent == here]
    drawn = {id(v): v for m in modules for v in vars(m).values() if isinstance(v, np.random.Generator)}
    _generators[:] = drawn.values()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """What a test draws follows from its name, not from the tests that this process ran before it."""
    seed = zlib.crc32(f"{_SEED} {item.nodeid}".encode())
    for generator in _generators:  # by what each was made with, not by which modules were collected
        made_with = generator.bit_generator.seed_seq.entropy
        generator.bit_generator.state = np.random.PCG64([seed, made_with]).state
    random.seed(seed)
    np.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


@pytest.fixture
def wisdom(tmp_path, monkeypatch):
    """A folder for what is measured in one test: nothing is known at its beginning."""
    monkeypatch.setenv("CONVALGOS_WISDOM", str(tmp_path / "wisdom"))
    return tmp_path / "wisdom"


@pytest.fixture
def shipped_figures(monkeypatch):
    """Choices by figures that the library ships, which are the same on every machine."""
    from convalgos.core import profiles

    monkeypatch.setenv(profiles.VARIABLE, "avx512_intel")


@pytest.fixture
def two_threads():
    """Choices that follow from how many threads there are, which the cores decide."""
    from convalgos.core.setting import threads_of_calls

    with threads_of_calls(2):
        yield


@pytest.fixture
def sizes_that_come_often(monkeypatch):
    """What is made for signals of some sizes is made for the first call."""
    from convalgos.signal import (
        line_plans,
        problems,
        short_signals,
        small_images,
        small_lines,
        small_separable,
    )

    for module in (line_plans, problems):
        monkeypatch.setattr(module, "is_new", lambda *given: False)
    for module in (small_images, small_lines, small_separable):
        monkeypatch.setattr(module, "is_first", lambda key: False)
    for module in (line_plans, problems, short_signals):
        monkeypatch.setattr(module, "is_new_with_such_taps", lambda *given: False)


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """As on a machine where nothing else runs: no other program decides what is measured and remembered."""
    from convalgos.core import interference

    monkeypatch.setattr(interference.Meter, "disturbed", lambda meter: False)
    monkeypatch.setattr(interference, "AGREE", float("inf"))


@pytest.fixture(autouse=True)
def algorithms_of_the_library():
    """What a test puts in the place of the algorithms is not remembered after it."""
    from convalgos.select import registry

    yield
    registry.between_reorders.cache_clear()
    registry._gaining.cache_clear()


@pytest.fixture
def one_thread():
    """One thread for torch and one for us: of two libraries, each waits long for the threads of the other."""
    numba, torch = pytest.importorskip("numba"), pytest.importorskip("torch")
    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(1)
    torch.set_num_threads(1)
    yield
    numba.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture(scope="session")
def browser():
    """One for all tests of pages."""
    yield from chromium()


# Nor do examples follow from constants in our modules, which take each worker seconds to read.
providers.is_local_module_file = lambda path: False

# The same few examples every time; `pytest --hypothesis-profile=explore` looks for new ones.
settings.register_profile("repeatable", derandomize=True, max_examples=5, deadline=None, database=None)
settings.register_profile("explore", max_examples=300, deadline=None)
settings.load_profile("repeatable")
