"""Modules of the library that are not public, from where this version has them, or an older one had."""

from contextlib import suppress
from importlib import import_module
from types import ModuleType

OLD = {
    "convalgos.cpu.runtime.calibrate": ("convalgos.cpu.calibrate",),
    "convalgos.select.measure.timing": ("convalgos.measure.timing", "convalgos.measure"),
    "convalgos.tools.bench.peers": ("convalgos.peers",),
    "convalgos.tools.bench.suites": ("convalgos.suites",),
}  # where it is now -> where it was, newest first


def module(name: str) -> ModuleType:
    """A module by the name that it has now.

    Raises:
        ImportError: this version of the library does not have it.
    """
    for known in (name, *OLD[name][:-1]):
        with suppress(ModuleNotFoundError):
            return import_module(known)
    return import_module(OLD[name][-1])
