"""LLVM instructions on vectors.

`Vec` writes instructions on vectors of `lanes` elements of `size` bytes. Both sizes are parameters, so one
definition serves float32 and float64, AVX-512, AVX2 and narrower machines. Names of operations on integers
begin with i, and of those on floating-point vectors with f, as in LLVM.

Addresses travel as integers in bytes; offsets count elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from convalgos.core.machine import vector_bytes
from convalgos.cpu.vectors.llvm_ir import ir

__all__ = ["LINE", "Register", "Value", "Vec", "allocate", "function_of", "ir", "lanes"]

Value = Any  # of LLVM's: an integer of 64 bits, a pointer or a vector; integers may be Python's, too

LINE = 64  # bytes of a cache line


def lanes(dtype_bytes: int) -> int:
    """Elements of a vector on this machine."""
    return vector_bytes() // dtype_bytes


class Vec:
    """Writes instructions on vectors. Values are LLVM values; plain ints stand for constants.

    A pointer is an LLVM pointer to elements; `pointer` makes it from an address. Python numbers that
    multiply vectors (`scale`, `axpy`) are constants of the transform being written.
    """

    def __init__(self, builder: Any, lanes: int, size: int):
        self.b = builder
        self.lanes, self.size = lanes, size
        floating = {4: ir.FloatType(), 8: ir.DoubleType()}
        self.element = floating.get(size) or ir.IntType(8 * size)  # those are only moved
        self.type = ir.VectorType(self.element, lanes)
        self.bits = ir.VectorType(ir.IntType(1), lanes)
        self.suffix = f"v{lanes}{'f' if size in floating else 'i'}{8 * size}"

    def words(self) -> Vec:
        """The same vectors as integers, to be loaded and shuffled; `floats` turns them back.

        LLVM slides integers along by one instruction that has the distance in it. For floats it takes an
        index in a register, of which there are too few.
        """
        integers = Vec(self.b, self.lanes, self.size)
        integers.element = ir.IntType(8 * self.size)
        integers.type = ir.VectorType(integers.element, self.lanes)
        integers.suffix = f"v{self.lanes}i{8 * self.size}"
        return integers

    def floats(self, words: Any) -> Any:
        return self.b.bitcast(words, self.type)

    # integers and pointers

    def integer(self, value: Any) -> Any:
        return ir.Constant(ir.IntType(64), value) if isinstance(value, int) else value

    def imul(self, a: Any, b: Any) -> Any:
        """Product of integers."""
        return self.b.mul(self.integer(a), self.integer(b))

    def iadd(self, a: Any, b: Any) -> Any:
        """Sum of integers."""
        return self.b.add(self.integer(a), self.integer(b))

    def isub(self, a: Any, b: Any) -> Any:
        """Difference of integers."""
        return self.b.sub(self.integer(a), self.integer(b))

    def idiv(self, a: Any, b: Any) -> Any:
        """Quotient of integers of at least 0, rounded down."""
        return self.b.sdiv(self.integer(a), self.integer(b))

    def imin(self, a: Any, b: Any) -> Any:
        """The smaller of two integers."""
        a, b = self.integer(a), self.integer(b)
        return self.b.select(self.b.icmp_signed("<", a, b), a, b)

    def imax(self, a: Any, b: Any) -> Any:
        """The larger of two integers."""
        a, b = self.integer(a), self.integer(b)
        return self.b.select(self.b.icmp_signed(">", a, b), a, b)

    def inside(self, index: Any, count: Any, a: Any, b: Any) -> Any:
        """a where 0 <= index < count, else b."""
        return self.b.select(self.b.icmp_unsigned("<", index, self.integer(count)), a, b)

    def pointer(self, address: Any) -> Any:
        return self.b.inttoptr(address, ir.PointerType())

    def at(self, pointer: Any, offset: Any) -> Any:
        if isinstance(offset, int) and offset == 0:
            return pointer
        return self.b.gep(pointer, [self.integer(offset)], source_etype=self.element)

    def step(self, pointer: Any, stride: Any) -> Any:
        """`at`, computed here and now.

        The compiler would rather keep the pointers of all rows of a tile in registers, of which there are
        too few; one addition at each row is cheaper. It cannot look through the empty assembly.
        """
        further = self.at(pointer, stride)
        return self.b.asm(ir.FunctionType(further.type, [further.type]), "", "=r,0", [further], False)

    def after(self, integer: Any, values: Sequence[Any] = ()) -> Any:
        """The same integer, computed here and now, as `step`, and known only when some vectors are.

        Loads at it are then not begun before: the compiler would rather begin with all loads, for which
        there are too few registers.
        """
        kind = ir.FunctionType(integer.type, [integer.type, *[self.type] * len(values)])
        return self.b.asm(kind, "", ",".join(["=r,0", *["v"] * len(values)]), [integer, *values], False)

    def buffer(self, vectors: int) -> Any:
        """Memory of the kernel's own, for a number of vectors."""
        space = allocate(self.b, self.type, vectors)
        space.align = self.lanes * self.size
        return space

    def table64(self, address: Any, index: Any) -> Any:
        """Entry of an int64 table."""
        element = ir.IntType(64)
        table = self.b.inttoptr(address, ir.PointerType())
        return self.b.load(self.b.gep(table, [self.integer(index)], source_etype=element), typ=element)

    def record(self, address: Any, dtype: np.dtype) -> Any:
        """The int64 fields of a record in memory, by name; all are loaded here and now."""
        names = dtype.names or ()
        return SimpleNamespace(**{name: self.table64(address, i) for i, name in enumerate(names)})

    def loop(self, count: Any) -> Any:
        """`with v.loop(count) as i:` - i is the index."""
        return _loop(self.b, self.integer(count))

    def choose(self, integer: Any) -> Any:
        """`with v.choose(i) as (then, otherwise): with then: ... with otherwise: ...` - then where i >= 0."""
        return self.b.if_else(self.b.icmp_signed(">=", integer, self.integer(0)))

    def unless_negative(self, integer: Any) -> Any:
        """`with v.unless_negative(i):` - where i >= 0."""
        return self.b.if_then(self.b.icmp_signed(">=", self.integer(integer), self.integer(0)))

    def within(self, index: Any, count: Any) -> Any:
        """`with v.within(i, n):` - where 0 <= i < n; n is at least 0."""
        return self.b.if_then(self.b.icmp_unsigned("<", self.integer(index), self.integer(count)))

    # loads and stores

    def load(self, pointer: Any, offset: Any = 0) -> Any:
        value = self.b.load(self.at(pointer, offset), typ=self.type)
        value.align = self.size
        return value

    def store(self, value: Any, pointer: Any, offset: Any = 0) -> None:
        self.b.store(value, self.at(pointer, offset)).align = self.size

    def store_nontemporal(self, value: Any, pointer: Any, offset: Any = 0) -> None:
        """A store to a whole aligned vector that leaves the caches alone, for data too large for them."""
        store = self.b.store(value, self.at(pointer, offset))
        store.align = self.lanes * self.size
        one = ir.Constant(ir.IntType(32), 1)
        store.set_metadata("nontemporal", self.b.module.add_metadata([one]))

    def prefetch(self, pointer: Any, offset: Any = 0, write: bool = False, near: bool = False) -> None:
        """Ask for a cache line into L2, or L1 where `near`, to read or to write it; it may be any address."""
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), word, word, word])
        ask = function_of(self.b, kind, "llvm.prefetch.p0")
        purpose, level, data = (ir.Constant(word, n) for n in (int(write), 3 if near else 2, 1))
        self.b.call(ask, [self.at(pointer, offset), purpose, level, data])

    def load_masked(self, pointer: Any, offset: Any, mask: Any) -> Any:
        """Lanes outside the mask are not read, and are zero."""
        kind = ir.FunctionType(self.type, [ir.PointerType(), ir.IntType(32), self.bits, self.type])
        load = function_of(self.b, kind, f"llvm.masked.load.{self.suffix}.p0")
        align = ir.Constant(ir.IntType(32), self.size)
        return self.b.call(load, [self.at(pointer, offset), align, mask, self.zero()])

    def store_masked(self, value: Any, pointer: Any, offset: Any, mask: Any) -> None:
        kind = ir.FunctionType(ir.VoidType(), [self.type, ir.PointerType(), ir.IntType(32), self.bits])
        store = function_of(self.b, kind, f"llvm.masked.store.{self.suffix}.p0")
        align = ir.Constant(ir.IntType(32), self.size)
        self.b.call(store, [value, self.at(pointer, offset), align, mask])

    def mask(self, count: Any) -> Any:
        """Lanes below count."""
        wide = ir.VectorType(ir.IntType(64), self.lanes)
        return self.b.icmp_signed(
            ">", self._spread(self.integer(count), wide), ir.Constant(wide, list(range(self.lanes)))
        )

    def first_lanes(self, count: int) -> Any:
        """Lanes below a constant."""
        return ir.Constant(self.bits, [int(i < count) for i in range(self.lanes)])

    def lanes_from(self, first: int) -> Any:
        """All lanes but those below a constant."""
        return ir.Constant(self.bits, [int(i >= first) for i in range(self.lanes)])

    def lanes_of(self, bits: Any) -> Any:
        """Lanes whose bit is set in an integer."""
        return self.b.bitcast(self.b.trunc(bits, ir.IntType(self.lanes)), self.bits)

    def window(self, first: Any, end: Any) -> Any:
        """Lanes from first up to end, both of which may be any integers, end at least first."""
        below_first, below_end = (
            self.b.shl(self.integer(1), self.imax(self.imin(n, self.lanes), 0)) for n in (first, end)
        )
        return self.lanes_of(self.isub(below_end, below_first))

    def broadcast(self, pointer: Any, offset: Any = 0) -> Any:
        """One element in all lanes."""
        return self._spread(self.b.load(self.at(pointer, offset), typ=self.element), self.type)

    def broadcast_pair(self, pointer: Any, offset: Any = 0) -> Any:
        """Two neighbouring elements, over and over."""
        two = self.b.load(self.at(pointer, offset), typ=ir.VectorType(self.element, 2))
        two.align = self.size
        return self.shuffle(two, two, [0, 1] * (self.lanes // 2))

    def even(self, x: Any) -> Any:
        """x with zeros in its odd lanes."""
        chosen = ir.Constant(self.bits, [1, 0] * (self.lanes // 2))
        return self.b.select(chosen, x, self.zero())

    def _spread(self, scalar: Any, type_: Any) -> Any:
        first = self.b.insert_element(
            ir.Constant(type_, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0)
        )
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.b.shuffle_vector(first, ir.Constant(type_, ir.Undefined), zeros)

    # arithmetic

    def const(self, value: float) -> Any:
        return ir.Constant(self.type, [float(value)] * self.lanes)

    def zero(self) -> Any:
        return ir.Constant(self.type, None)

    def fadd(self, a: Any, b: Any) -> Any:
        return self.b.fadd(a, b)

    def fsub(self, a: Any, b: Any) -> Any:
        return self.b.fsub(a, b)

    def fmul(self, a: Any, b: Any) -> Any:
        return self.b.fmul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        kind = ir.FunctionType(self.type, [self.type] * 3)
        return self.b.call(function_of(self.b, kind, f"llvm.fma.{self.suffix}"), [a, b, c])

    def scale(self, a: float, x: Any) -> Any:
        return x if a == 1 else self.fmul(self.const(a), x)

    def axpy(self, a: float, x: Any, y: Any) -> Any:
        """a * x + y; y may be None for zero."""
        if y is None:
            return self.scale(a, x)
        if a == 1:
            return self.fadd(y, x)
        if a == -1:
            return self.fsub(y, x)
        return self.fma(self.const(a), x, y)

    def lower_bound(self, relu: Any) -> Any:
        """What `fmax` takes for an activation: 0 in all lanes where `relu` is not zero, else -inf."""
        wanted = self.b.icmp_signed("!=", relu, self.integer(0))
        return self.b.select(wanted, self.zero(), self.const(float("-inf")))

    def fmax(self, x: Any, low: Any) -> Any:
        """max(x, low), where a NaN in x stays."""
        return self.b.select(self.b.fcmp_ordered("<", x, low), low, x)

    def larger(self, a: Any, b: Any) -> Any:
        """max(a, b), or NaN where one is: not by two selections, which LLVM makes one by slow masks."""
        kind = ir.FunctionType(self.type, [self.type] * 2)
        maximum = function_of(self.b, kind, f"llvm.maximum.{self.suffix}")
        return self.b.call(maximum, [b, a], fastmath=("nsz",))  # to tell zeros apart takes three more

    # order and registers

    def shuffle(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Lanes of a (0 ...) and b (behind those of a), in any order and number."""
        order = ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), list(lanes))
        return self.b.shuffle_vector(a, b, order)

    def register(self, initial: Any) -> Register:
        """A variable that loops may update; it becomes a vector register."""
        return Register(self, initial)


class Register:
    """`value` reads the variable, `set` writes it. Memory at first; LLVM promotes it to a register."""

    def __init__(self, v: Vec, initial: Any):
        self._v = v
        self._slot = allocate(v.b, v.type)
        self.set(initial)

    @property
    def value(self) -> Any:
        return self._v.b.load(self._slot, typ=self._v.type)

    def set(self, value: Any) -> None:
        self._v.b.store(value, self._slot)


@contextmanager
def _loop(builder: Any, count: Any) -> Iterator[Any]:
    """What is written inside is done for each index below count; gives the index."""
    head, inside, after = (builder.append_basic_block(name) for name in ("loop", "inside", "after"))
    before = builder.block
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(count.type)
    builder.cbranch(builder.icmp_signed("<", index, count), inside, after)
    builder.position_at_end(inside)
    yield index
    further = builder.add(index, ir.Constant(count.type, 1), flags=["nsw"])
    index.add_incoming(ir.Constant(count.type, 0), before)
    index.add_incoming(further, builder.block)
    builder.branch(head)
    builder.position_at_end(after)


def allocate(builder: Any, kind: Any, count: int = 1) -> Any:
    """Memory of the kernel's own, from its begin on."""
    with builder.goto_entry_block():
        return builder.alloca(kind, size=None if count == 1 else ir.Constant(ir.IntType(32), count))


def function_of(builder: Any, kind: Any, name: str) -> Any:
    """A function of LLVM's or of the process, declared."""
    found = builder.module.globals.get(name)
    return ir.Function(builder.module, kind, name) if found is None else found
