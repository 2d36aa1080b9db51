"""Modules that a process does not find, as if they were not installed."""

import importlib.metadata as metadata
import sys


def hide(*names: str) -> None:
    class Hide:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in names:
                raise ImportError(f"{name} is hidden")

        def find_distributions(self, context=None):  # one that has some is asked by `importlib.metadata`
            return iter(())

    def from_name(cls, name):  # MKL is found by the files of its wheel
        if name.lower() in names:
            raise metadata.PackageNotFoundError(name)
        return find(cls, name)

    sys.meta_path.insert(0, Hide())
    find = metadata.Distribution.from_name.__func__
    metadata.Distribution.from_name = classmethod(from_name)
