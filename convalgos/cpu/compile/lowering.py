"""From the text of a kernel to LLVM's instructions: as much of Python as kernels are written in.

A kernel is a function over integers: addresses and sizes, of 64 bits. It may have

- integers, comparisons, `and`, `or`, `not`, conditions, `min`, `max`, `abs`, `int`, tuples and named tuples;
- `for` over `range`, `while`, `if`, `break`, `continue`, `return`;
- words in memory, `carray(pointer(address), shape, dtype)[i]`, and records, `carray(...)[i].field`; no index
  is checked, and none counts from the end;
- `np.uint32` and `np.float32` of a value, and `.view` between them;
- the kernel at an address, `call(kernel, (a, b))`, operations of `simd`, and helpers (`helper`), whose
  code becomes a part of the kernel's.

What is known when it is compiled - integers that it closes over, constants of its module - is folded, and of
a branch whose condition is known the other side is left out. Quotients and remainders are Python's, rounded
down; by zero they are 0.

Numba, which compiles far more of Python, took four times as long until a first convolution had its kernels.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from convalgos.cpu.compile.kernel_expressions import Function, Slot
from convalgos.cpu.compile.kernel_values import NotAKernel
from convalgos.cpu.vectors.simd import ir

Helper = TypeVar("Helper", bound=Callable[..., Any])


def lower(function: Callable[..., Any], returns: bool = False) -> tuple[str, str]:
    """(name, text of the LLVM module) of a kernel, which returns an integer, or nothing.

    Raises:
        NotAKernel: it is not written in the language of kernels, or its text cannot be read.
    """
    count = len(inspect.signature(function).parameters)
    name = "".join(c if c.isalnum() else "_" for c in function.__qualname__)
    module = ir.Module(name)
    word = ir.IntType(64)
    kernel = ir.Function(module, ir.FunctionType(word if returns else ir.VoidType(), [word] * count), name)
    kernel.attributes.add("nounwind")
    builder = ir.IRBuilder(kernel.append_basic_block("variables"))
    body = builder.append_basic_block("body")
    builder.position_at_end(body)
    value = _Body(builder, function).run(kernel.args)
    if returns:
        builder.ret(value)
    else:
        builder.ret_void()
    builder.position_at_end(kernel.entry_basic_block)
    builder.branch(body)
    return name, str(module)


def helper(function: Helper) -> Helper:
    """A function that kernels call by name; compiled into each of them. Define it at module level."""
    function.is_helper = True  # type: ignore[attr-defined]
    return function


class _Loop(NamedTuple):
    again: Any  # blocks
    end: Any


class _Body(Function):
    """The statements of a function."""

    def __init__(self, builder: Any, function: Callable[..., Any]):
        super().__init__(builder, function)
        self.loops: list[_Loop] = []
        self.result: Slot | None = None
        self.end: Any = None  # the block behind all

    def run(self, values: Sequence[Any]) -> Any:
        """The value that the function returns."""
        if len(self.parameters) != len(values):
            raise NotAKernel(f"{self.node.name} takes {len(self.parameters)} values, not {len(values)}")
        for name, value in zip(self.parameters, values, strict=True):
            self.set(name, value)
        self.end = self.b.append_basic_block("end")
        self.statements(self.node.body)
        self.go(self.end)
        self.b.position_at_end(self.end)
        return None if self.result is None else self.read(self.result)

    def go(self, block: Any) -> None:
        """On to a block, unless what stands here goes elsewhere."""
        if not self.b.block.is_terminated:
            self.b.branch(block)

    # --- statements ----------------------------------------------------------------------------

    def statements(self, nodes: Sequence[ast.stmt]) -> None:
        for node in nodes:
            if self.b.block.is_terminated:
                return  # behind return, break or continue
            try:
                self.statement(node)
            except NotAKernel as error:
                if getattr(error, "located", False):
                    raise
                told = NotAKernel(
                    f"{self.file}:{node.lineno}: {error}; {__name__} tells what kernels may have"
                )
                told.located = True  # type: ignore[attr-defined]
                raise told from None

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self.assign(target, self.value(value))
            case ast.AugAssign(target=target, op=op, value=value):
                self.assign(target, self.binary(op, self.value(target), self.value(value)))
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=value):
                self.value(value)
            case ast.If(test=test, body=body, orelse=otherwise):
                self.choose(test, lambda: self.statements(body), lambda: self.statements(otherwise))
            case ast.For(target=target, iter=ast.Call(func=ast.Name(id="range"), args=given), orelse=[]):
                self.count(target, [self.value(a) for a in given], node.body)
            case ast.While(test=test, body=body, orelse=[]):
                self.repeat(test, body)
            case ast.Break() if self.loops:
                self.b.branch(self.loops[-1].end)
            case ast.Continue() if self.loops:
                self.b.branch(self.loops[-1].again)
            case ast.Return(value=value):
                if value is not None:
                    found = self.value(value)
                    self.result = self.result or self.slot(found)
                    self.write(self.result, found)
                self.b.branch(self.end)
            case _:
                raise NotAKernel(f"{ast.unparse(node).splitlines()[0]!r} is no statement of kernels")

    def choose(self, test: ast.expr, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        condition = self.n.truth(self.value(test))
        if isinstance(condition, bool):
            (then if condition else otherwise)()
            return
        *sides, after = (self.b.append_basic_block(name) for name in ("then", "else", "after"))
        self.b.cbranch(condition, *sides)
        for block, write in zip(sides, (then, otherwise), strict=True):
            self.b.position_at_end(block)
            write()
            self.go(after)
        self.b.position_at_end(after)

    def repeat(self, test: ast.expr, body: Sequence[ast.stmt]) -> None:
        again, inside, after = (self.b.append_basic_block(name) for name in ("while", "inside", "after"))
        self.b.branch(again)
        self.b.position_at_end(again)
        self.b.cbranch(self.n.as_bit(self.n.truth(self.value(test))), inside, after)
        self.inside_loop(inside, _Loop(again, after), body)
        self.go(again)
        self.b.position_at_end(after)

    def count(self, target: ast.expr, given: Sequence[Any], body: Sequence[ast.stmt]) -> None:
        """for target in range(*given)."""
        start, stop, step = (0, given[0], 1) if len(given) == 1 else (*given, 1)[:3]
        stop, step = self.n.word(stop), step if isinstance(step, int) else self.n.word(step)
        index = self.slot(0)
        self.write(index, self.n.word(start))
        head, inside, again, after = (
            self.b.append_basic_block(name) for name in ("for", "inside", "next", "after")
        )
        self.b.branch(head)
        self.b.position_at_end(head)
        now = self.read(index)

        def before_end(sign: str) -> Any:
            return self.n.compared(sign, now, stop)

        if isinstance(step, int):
            goes_on = before_end("<" if step > 0 else ">")
        else:
            goes_on = self.b.select(self.n.compared("<", step, 0), before_end(">"), before_end("<"))
        self.b.cbranch(goes_on, inside, after)
        self.b.position_at_end(inside)
        self.assign(target, now)
        self.inside_loop(self.b.block, _Loop(again, after), body)
        self.go(again)
        self.b.position_at_end(again)
        self.write(index, self.n.arithmetic("add", self.read(index), step))
        self.b.branch(head)
        self.b.position_at_end(after)

    def inside_loop(self, block: Any, loop: _Loop, body: Sequence[ast.stmt]) -> None:
        self.b.position_at_end(block)
        self.loops.append(loop)
        self.statements(body)
        self.loops.pop()
