"""A module traced apart from what others do with it: in one thread of several, and as a copy.

While `torch.export` traces, it has methods of its own in the place of those of `nn.Module`, for all threads;
it puts tensors without numbers in the place of parameters, and behind it other containers in the place of
those that a module holds. So calls of other threads take the methods that were there, and what is traced is a
copy of the modules, which share their parameters, buffers and attributes with the model, but for the methods
among these: hooks write to the copy.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from types import MethodType
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import _symbolic_trace

from convalgos.network.torch_reader.returned import OPEN

WITHOUT_NUMBERS = (FakeTensor, FunctionalTensor, *OPEN)
TABLES = ("_parameters", "_buffers", "_modules")  # of a module


@contextmanager
def traced_alone() -> Iterator[None]:
    """Within it no other thread traces, and what torch patches of `nn.Module` is seen by this one alone.

    Without it, two that trace at once leave the methods of the first behind for ever.
    """
    from torch._dynamo.convert_frame import compile_lock  # that of torch.compile, which reads such methods

    with compile_lock, mock.patch.object(_symbolic_trace._Patcher, "patch_method", _patch_method):
        yield


_patch = _symbolic_trace._Patcher.patch_method


def _patch_method(
    patcher: Any, cls: type, name: str, new: Callable[..., Any], deduplicate: bool = True
) -> None:
    """`patch_method` of torch's patcher, for the thread that calls it."""
    if cls is nn.Module:
        new = _in_this_thread(new, getattr(cls, name))
    _patch(patcher, cls, name, new, deduplicate)


def _in_this_thread(new: Callable[..., Any], before: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is a new one in this thread, and in others what it was."""
    own = threading.get_ident()

    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return (new if threading.get_ident() == own else before)(self, *args, **kwargs)

    return method


def copy_of(module: nn.Module) -> nn.Module:
    """A module of the same parameters, buffers and attributes, in which others can be put."""
    known: dict[int, nn.Module] = {}
    copy = _copy(module, known)
    for part in known.values():
        vars(part).update({k: _of_copies(v, known) for k, v in vars(part).items() if k not in TABLES})
    return copy


def _copy(module: nn.Module, known: dict[int, nn.Module]) -> nn.Module:
    if id(module) in known or isinstance(module, torch.jit.ScriptModule):
        return known.get(id(module), module)
    copy: nn.Module = known.setdefault(id(module), object.__new__(type(module)))
    copy.__dict__ = dict(vars(module))
    for name in TABLES:
        copy.__dict__[name] = vars(module)[name].copy()
    for name, part in vars(module)["_modules"].items():
        if part is not None:
            copy.__dict__["_modules"][name] = _copy(part, known)
    return copy


def _of_copies(value: Any, known: Mapping[int, nn.Module]) -> Any:
    """An attribute, with the copies in the place of modules that it is or has, or whose methods: hooks."""
    if isinstance(value, nn.Module):
        return known.get(id(value), value)
    if isinstance(value, MethodType) and id(value.__self__) in known:
        return MethodType(value.__func__, known[id(value.__self__)])
    if type(value) not in (list, dict, OrderedDict):
        return value
    if not any(isinstance(one, nn.Module | MethodType) for one in _held_in(value)):
        return value  # itself, so that all who hold it see what is put there
    if type(value) is list:
        return [_of_copies(one, known) for one in value]
    return type(value)((key, _of_copies(one, known)) for key, one in value.items())


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Behind it a module, and the lists, sets and dictionaries that it holds, have what they had before: a
    call that is traced may leave tensors without numbers in them, for calls to come.

    Raises:
        ValueError: attributes of the module were written, of which the copy that is traced knows nothing.
    """
    found: dict[int, tuple[Any, Any]] = {}
    parts = [part for part in module.modules() if not isinstance(part, torch.jit.ScriptModule)]
    attributes = [table for part in parts for table in (vars(part), vars(part)["_buffers"])]
    before = [table.copy() for table in attributes]
    for table in before:
        for name, value in table.items():
            if name not in TABLES:
                _find_containers(value, found)
    try:
        yield
    finally:
        for container, held in found.values():
            if [*map(id, _held_in(container))] != [*map(id, _held_in(held))]:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(held)
        written = [name for pair in zip(attributes, before, strict=True) for name in _restored(*pair)]
    if written:
        raise ValueError(f"a function that is no method of it writes its attribute {written[0]}")


def _restored(table: dict[str, Any], before: Mapping[str, Any]) -> list[str]:
    """The names of what has become a tensor or a size without numbers, and is again what it was. What other
    threads write has numbers."""
    written = [name for name, value in table.copy().items() if isinstance(value, WITHOUT_NUMBERS)]
    for name in written:
        if name in before:
            table[name] = before[name]
        else:
            del table[name]
    return written


def _find_containers(value: Any, found: dict[int, tuple[Any, Any]]) -> None:
    """Add containers, by their ids, each with a copy, and those within."""
    if isinstance(value, list | set | dict) and id(value) not in found:
        found[id(value)] = value, value.copy()
        for inner in [*_held_in(value)]:
            _find_containers(inner, found)


def _held_in(container: Any) -> Iterable[Any]:
    return chain(container.keys(), container.values()) if isinstance(container, dict) else container
