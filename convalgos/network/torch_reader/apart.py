"""A module traced apart from what others do with it: in one thread of several, and as a copy.

While `torch.export` traces, it has methods of its own in the place of those of `nn.Module`, for all threads;
it puts tensors without numbers in the place of parameters, and behind it other containers in the place of
those that a module holds. So calls of other threads take the methods that were there, and what is traced is a
copy of the modules, which share their parameters, buffers and attributes with the model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.fx import _symbolic_trace

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
    return _copy(module, {})


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


@contextmanager
def containers_unchanged(module: nn.Module) -> Iterator[None]:
    """Behind it the lists, sets and dictionaries that a module holds have what they had before: a call that
    is traced may leave tensors without numbers in them, for calls to come."""
    found: dict[int, tuple[Any, Any]] = {}
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in TABLES:
                _find_containers(value, found)
    try:
        yield
    finally:
        for container, before in found.values():
            if [*map(id, _held_in(container))] != [*map(id, _held_in(before))]:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(before)


def _find_containers(value: Any, found: dict[int, tuple[Any, Any]]) -> None:
    """Add containers, by their ids, each with a copy, and those within."""
    if isinstance(value, list | set | dict) and id(value) not in found:
        found[id(value)] = value, value.copy()
        for inner in [*_held_in(value)]:
            _find_containers(inner, found)


def _held_in(container: Any) -> Iterable[Any]:
    return chain(container.keys(), container.values()) if isinstance(container, dict) else container
