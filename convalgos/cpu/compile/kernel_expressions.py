"""Variables and expressions of kernels as instructions of LLVM: `lowering` tells what there may be."""

from __future__ import annotations

import ast
import builtins
import linecache
import operator
import types
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.compile.kernel_values import NotAKernel, Numbers, Record, Words, numbers_of, rebuilt
from convalgos.cpu.vectors.simd import Operation, allocate, call, carray, ir, pointer

ARITHMETIC: dict[type, tuple[Callable[..., Any], str]] = {
    ast.Add: (operator.add, "add"), ast.Sub: (operator.sub, "sub"), ast.Mult: (operator.mul, "mul"),
    ast.FloorDiv: (operator.floordiv, "floordiv"), ast.Mod: (operator.mod, "mod"),
    ast.LShift: (operator.lshift, "shl"), ast.RShift: (operator.rshift, "ashr"),
    ast.BitAnd: (operator.and_, "and_"), ast.BitOr: (operator.or_, "or_"), ast.BitXor: (operator.xor, "xor"),
}  # fmt: skip
SIGNS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


class Slot(NamedTuple):
    """A variable: a value with places in memory for its numbers."""

    value: Any
    memory: list[Any]


class Function:
    """What a function says, written where the builder stands; names are looked up as in Python."""

    def __init__(self, builder: Any, function: Callable[..., Any]):
        self.b = builder
        self.n = Numbers(builder)
        self.node = _definition(function)
        self.file = function.__code__.co_filename
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closed = {name: cell.cell_contents for name, cell in cells}
        self.known = {**vars(builtins), **function.__globals__, **closed}
        names = [n for n in ast.walk(self.node) if isinstance(n, ast.Name)]
        stored = [n.id for n in names if isinstance(n.ctx, ast.Store)]
        self.parameters = [a.arg for a in self.node.args.args]
        self.local = {*stored, *self.parameters}
        self.once = {name for name in self.local if [*stored, *self.parameters].count(name) == 1}
        self.constants: dict[str, int] = {}  # variables that are known when the kernel is compiled
        self.slots: dict[str, Slot] = {}  # and all others

    @abstractmethod
    def run(self, values: Sequence[Any]) -> Any:
        """Write the whole function; the value that it returns."""

    # --- variables -----------------------------------------------------------------------------

    def set(self, name: str, value: Any) -> None:
        if name in self.once and isinstance(value, int):
            self.constants[name] = value
            return
        if name not in self.slots:
            self.slots[name] = self.slot(value)
        self.write(self.slots[name], value)

    def slot(self, value: Any) -> Slot:
        return Slot(value, [allocate(self.b, self.n.llvm(part).type) for part in numbers_of(value)])

    def write(self, slot: Slot, value: Any) -> None:
        numbers = [self.n.llvm(part) for part in numbers_of(value)]
        if [n.type for n in numbers] != [m.allocated_type for m in slot.memory]:
            raise NotAKernel("it has values of different kinds")
        for number, memory in zip(numbers, slot.memory, strict=True):
            self.b.store(number, memory)

    def read(self, slot: Slot) -> Any:
        memory = iter(slot.memory)

        def value(of: Any) -> Any:
            if isinstance(of, tuple):
                return rebuilt(of, map(value, of))
            if isinstance(of, np.dtype):
                return of
            at = next(memory)
            return self.b.load(at, typ=at.allocated_type)

        return value(slot.value)

    def assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.set(target.id, value)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
            for part, of in zip(target.elts, value, strict=True):
                self.assign(part, of)
        elif isinstance(target, ast.Subscript | ast.Attribute):
            self.n.store(value, *self.place(target))
        else:
            raise NotAKernel(f"{ast.unparse(target)} cannot be assigned to")

    def place(self, node: ast.Subscript | ast.Attribute) -> tuple[Any, np.dtype]:
        """(pointer, dtype) of an element of words, or of a field of a record."""
        of = self.value(node.value)
        if isinstance(node, ast.Subscript) and isinstance(of, Words):
            return self.n.element(of, self.value(node.slice))
        if isinstance(node, ast.Attribute) and isinstance(of, Record):
            return self.n.field(of, node.attr)
        raise NotAKernel(f"{ast.unparse(node)} is neither an element of words nor a field of a record")

    # --- expressions ---------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self.named(name)
            case ast.Attribute(value=of, attr=name):
                owner = self.value(of)
                if isinstance(owner, Record):
                    return self.n.load(*self.n.field(owner, name))
                if isinstance(owner, types.ModuleType | tuple | np.dtype):
                    return getattr(owner, name)
            case ast.Subscript(value=of, slice=index):
                return self.element(self.value(of), self.value(index))
            case ast.Tuple(elts=elements):
                return self.several(elements)
            case ast.BinOp(left=left, op=op, right=right):
                return self.binary(op, self.value(left), self.value(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self.n.negation(self.n.truth(self.value(operand)))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.binary(ast.Sub(), 0, self.value(operand))
            case ast.Compare(left=left, ops=ops, comparators=others):
                return self.compare(ops, [self.value(t) for t in (left, *others)])
            case ast.BoolOp(op=op, values=values):
                return self.both(isinstance(op, ast.And), values)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self.either(test, body, otherwise)
            case ast.Call(func=ast.Attribute(value=of, attr="view"), args=[kind], keywords=[]):
                return self.n.viewed(self.value(of), self.value(kind))
            case ast.Call(func=func, args=arguments, keywords=[]):
                return self.called(self.value(func), self.several(arguments))
        raise NotAKernel(f"{ast.unparse(node)!r} is no expression of kernels")

    def named(self, name: str) -> Any:
        if name in self.constants:
            return self.constants[name]
        if name in self.slots:
            return self.read(self.slots[name])
        if name in self.local or name not in self.known:
            raise NotAKernel(f"{name} has no value here")
        return self.known[name]

    def several(self, nodes: Sequence[ast.expr]) -> tuple[Any, ...]:
        found: list[Any] = []
        for node in nodes:
            found += self.value(node.value) if isinstance(node, ast.Starred) else [self.value(node)]
        return tuple(found)

    def element(self, of: Any, index: Any) -> Any:
        if isinstance(of, Words):
            return self.n.load(*self.n.element(of, index))
        if isinstance(of, tuple) and isinstance(index, int):
            return of[index]
        raise NotAKernel("only words in memory have elements, and tuples those of a constant index")

    def binary(self, op: ast.operator, a: Any, b: Any) -> Any:
        if not isinstance(a, ir.Value | tuple) and not isinstance(b, ir.Value | tuple):
            known = operator.pow if isinstance(op, ast.Pow) else ARITHMETIC[type(op)][0]
            return known(a, b)
        if type(op) not in ARITHMETIC:
            raise NotAKernel(f"{type(op).__name__} is no arithmetic of kernels")
        return self.n.arithmetic(ARITHMETIC[type(op)][1], a, b)

    def compare(self, ops: Sequence[ast.cmpop], terms: Sequence[Any]) -> Any:
        """Chains, too, whose terms are all computed."""
        result: Any = True
        for op, a, b in zip(ops, terms[:-1], terms[1:], strict=True):
            if type(op) not in SIGNS:
                raise NotAKernel(f"{type(op).__name__} is no comparison of kernels")
            result = self.n.conjunction(result, self.n.compared(SIGNS[type(op)], a, b))
        return result

    def both(self, every: bool, nodes: Sequence[ast.expr]) -> Any:
        """Whether every one, or any one, is true: those behind the first that decides are not computed."""
        first = self.n.truth(self.value(nodes[0]))
        if len(nodes) == 1:
            return first
        if isinstance(first, bool):
            return self.both(every, nodes[1:]) if first == every else first
        further, after = self.b.append_basic_block("further"), self.b.append_basic_block("after")
        decided = self.b.block
        self.b.cbranch(first, *((further, after) if every else (after, further)))
        self.b.position_at_end(further)
        second = self.n.as_bit(self.both(every, nodes[1:]))
        undecided = self.b.block
        self.b.branch(after)
        self.b.position_at_end(after)
        found = self.b.phi(self.n.bit)
        found.add_incoming(self.n.as_bit(not every), decided)
        found.add_incoming(second, undecided)
        return found

    def either(self, test: ast.expr, body: ast.expr, otherwise: ast.expr) -> Any:
        condition = self.n.truth(self.value(test))
        if isinstance(condition, bool):
            return self.value(body if condition else otherwise)
        slots: list[Slot] = []

        def side(node: ast.expr) -> None:
            value = self.value(node)
            if not slots:
                slots.append(self.slot(value))
            self.write(slots[0], value)

        *sides, after = (self.b.append_basic_block(name) for name in ("then", "else", "after"))
        self.b.cbranch(condition, *sides)
        for block, node in zip(sides, (body, otherwise), strict=True):
            self.b.position_at_end(block)
            side(node)
            self.b.branch(after)
        self.b.position_at_end(after)
        return self.read(slots[0])

    # --- calls ---------------------------------------------------------------------------------

    def called(self, of: Any, given: tuple[Any, ...]) -> Any:
        if isinstance(of, Operation):
            return self.operation(of, given)
        if getattr(of, "is_helper", False):
            return type(self)(self.b, of).run(given)
        if of is pointer:
            return given[0]
        if of is carray:
            address, shape, dtype = given
            return Words(address, shape[1:] if isinstance(shape, tuple) else (), np.dtype(dtype))
        if of is call:
            return self.kernel_at(*given)
        if of is min or of is max:
            return self.n.extreme(of, given)
        if of is abs:
            return self.n.extreme(max, (given[0], self.binary(ast.Sub(), 0, given[0])))
        if of is int:
            return given[0] if isinstance(given[0], int) else self.n.word(given[0])
        if of is np.uint32 or of is np.float32:
            return self.n.number(of, given[0])
        if isinstance(of, type) and issubclass(of, tuple):
            return of(*given)
        raise NotAKernel(f"{getattr(of, '__name__', of)!r} is no function of kernels")

    def operation(self, of: Operation, given: tuple[Any, ...]) -> Any:
        constants, values = given[: of.constants], given[of.constants :]
        if len(given) != of.constants + of.values:
            raise NotAKernel(f"{of.name} takes {of.constants + of.values} values, not {len(given)}")
        if not all(isinstance(c, int) for c in constants):
            raise NotAKernel(f"{of.name}: sizes must be constants, not what is known only when it runs")
        return of.write(self.b, *constants, *map(self.n.word, values))

    def kernel_at(self, address: Any, arguments: tuple[Any, ...]) -> None:
        words = [self.n.word(a) for a in arguments]
        kind = ir.FunctionType(ir.VoidType(), [w.type for w in words])
        self.b.call(self.b.inttoptr(self.n.word(address), kind.as_pointer()), words)


@cache
def _definitions(file: str) -> dict[tuple[int, str], ast.FunctionDef]:
    """Functions of a file by their first lines (of their decorators) and names."""
    tree = ast.parse("".join(linecache.getlines(file)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {(min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.name): f for f in found}


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    code = function.__code__
    try:
        return _definitions(code.co_filename)[code.co_firstlineno, code.co_name]
    except (KeyError, SyntaxError):
        told = f"the text of {function.__qualname__} is not in {code.co_filename}"
        raise NotAKernel(f"{told}, from which it is compiled (was it changed since?)") from None
