"""Modules of the library that are not public, from where this version has them, or an older one had."""

from importlib import import_module
from types import ModuleType

OLD = {
    "convalgos.cpu.runtime.calibrate": "convalgos.cpu.calibrate",
    "convalgos.measure.timing": "convalgos.measure",
    "convalgos.tools.bench.peers": "convalgos.peers",
    "convalgos.tools.bench.suites": "convalgos.suites",
}  # where it is now -> where it was


def module(name: str) -> ModuleType:
    """A module by the name that it has now.

    Raises:
        ImportError: this version of the library does not have it.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return import_module(OLD[name])
