"""What the expressions of kernels are while they are compiled, and the instructions that compute with them.

A value is a Python number, known when the kernel is compiled; an LLVM value: an integer of 64 bits, a truth
of one bit, a uint32 or a float32; or a tuple of values, such as the words in memory that `carray` makes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from convalgos.cpu.vectors.simd import ir

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
    ">=": operator.ge,
}  # fmt: skip


class NotAKernel(TypeError):
    """A kernel says something that is no part of the language of kernels."""


class Words(NamedTuple):
    """Memory that holds elements of a dtype from an address on."""

    address: Any
    inner: tuple[Any, ...]  # sizes of all dimensions but the first
    dtype: np.dtype


class Record(NamedTuple):
    """Memory that holds named fields."""

    address: Any
    dtype: np.dtype


def numbers_of(value: Any) -> Iterator[Any]:
    """The numbers of which a value consists."""
    if isinstance(value, tuple):
        for part in value:
            yield from numbers_of(part)
    elif not isinstance(value, np.dtype):
        yield value


def rebuilt(example: tuple[Any, ...], given: Any) -> Any:
    """A tuple of the same kind."""
    return type(example)(*given) if hasattr(example, "_fields") else tuple(given)


class Numbers:
    """Writes instructions on numbers, and folds what is known."""

    def __init__(self, builder: Any):
        self.b = builder
        self.bit, self.short, self.long = (ir.IntType(bits) for bits in (1, 32, 64))
        self.float = ir.FloatType()

    # kinds

    def llvm(self, value: Any) -> Any:
        """A number as an LLVM value: what is known, and a truth, as 64 bits."""
        if isinstance(value, int | np.integer):
            return ir.Constant(self.long, int(value))
        if not isinstance(value, ir.Value):
            raise NotAKernel(f"{value!r} is no number")
        return self.b.zext(value, self.long) if value.type == self.bit else value

    def converted(self, value: Any, kind: Any) -> Any:
        """A number as one of another kind: integers lose or gain bits, which are zero."""
        value = self.llvm(value)
        if value.type == kind:
            return value
        if isinstance(value.type, ir.IntType) and isinstance(kind, ir.IntType):
            return (self.b.zext if value.type.width < kind.width else self.b.trunc)(value, kind)
        raise NotAKernel(f"a value of {value.type} where {kind} is wanted")

    def word(self, value: Any) -> Any:
        """A number as an integer of 64 bits."""
        return self.converted(value, self.long)

    def alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Both as numbers of one kind."""
        a, b = self.llvm(a), self.llvm(b)
        return (a, b) if a.type == b.type else (self.word(a), self.word(b))

    def number(self, kind: type, value: Any) -> Any:
        """np.uint32 or np.float32 of a number."""
        if kind is np.uint32:
            return self.converted(value, self.short)
        if isinstance(value, int | float):
            return ir.Constant(self.float, float(value))
        return self.converted(value, self.float)

    def viewed(self, value: Any, kind: type) -> Any:
        """The same 32 bits as np.uint32 or np.float32."""
        kinds = {np.uint32: self.short, np.float32: self.float}
        if kind not in kinds or getattr(value, "type", None) not in kinds.values():
            raise NotAKernel("only uint32 and float32 are viewed as each other")
        return self.b.bitcast(value, kinds[kind])

    # arithmetic

    def arithmetic(self, name: str, a: Any, b: Any) -> Any:
        """Of two integers, uint32 or float32, by LLVM's name, or "floordiv" or "mod"."""
        a, b = self.alike(a, b)
        if a.type == self.float:
            return getattr(self.b, f"f{name}")(a, b)
        if name in ("floordiv", "mod"):
            return self.divided(name, self.word(a), self.word(b))
        if a.type == self.short:
            return getattr(self.b, "lshr" if name == "ashr" else name)(a, b)
        flags = ["nsw"] if name in ("add", "sub", "mul") else []
        return getattr(self.b, name)(a, b, flags=flags)

    def divided(self, name: str, a: Any, b: Any) -> Any:
        """Rounded down, and 0 where b is 0."""
        zero = ir.Constant(self.long, 0)
        if isinstance(b, ir.Constant) and (size := b.constant) > 0 and not size & (size - 1):
            if name == "mod":
                return self.b.and_(a, ir.Constant(self.long, size - 1))
            return self.b.ashr(a, ir.Constant(self.long, size.bit_length() - 1))
        none = self.b.icmp_signed("==", b, zero)
        by = self.b.select(none, ir.Constant(self.long, 1), b)
        quotient, rest = self.b.sdiv(a, by), self.b.srem(a, by)
        other_signs = self.b.icmp_signed("<", self.b.xor(rest, by), zero)
        down = self.b.and_(other_signs, self.b.icmp_signed("!=", rest, zero))
        if name == "mod":  # by 1 it is 0 already
            return self.b.add(rest, self.b.select(down, by, zero))
        return self.b.select(none, zero, self.b.sub(quotient, self.b.zext(down, self.long)))

    def extreme(self, of: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        """min or max of integers."""
        result = given[0]
        for other in given[1:]:
            if isinstance(result, int) and isinstance(other, int):
                result = of(result, other)
            else:
                a, b = self.word(result), self.word(other)
                result = self.b.select(self.b.icmp_signed("<" if of is min else ">", b, a), b, a)
        return result

    # truths

    def truth(self, value: Any) -> Any:
        """A bool where it is known, else one bit."""
        if isinstance(value, ir.Value):
            if value.type == self.bit:
                return value
            return self.b.icmp_signed("!=", value, ir.Constant(value.type, 0))
        if isinstance(value, int | None):
            return bool(value)
        raise NotAKernel(f"{value!r} is no condition")

    def as_bit(self, truth: Any) -> Any:
        return ir.Constant(self.bit, int(truth)) if isinstance(truth, bool) else truth

    def compared(self, sign: str, a: Any, b: Any) -> Any:
        """Of two numbers, or whether two tuples are equal."""
        if isinstance(a, tuple) and isinstance(b, tuple) and sign == "==" and len(a) == len(b):
            result: Any = True
            for left, right in zip(a, b, strict=True):
                result = self.conjunction(result, self.compared(sign, left, right))
            return result
        if not isinstance(a, ir.Value) and not isinstance(b, ir.Value):
            return COMPARISONS[sign](a, b)
        a, b = self.alike(a, b)
        if a.type == self.float:  # what is no number differs from all, and is neither less nor more
            return (self.b.fcmp_unordered if sign == "!=" else self.b.fcmp_ordered)(sign, a, b)
        return (self.b.icmp_unsigned if a.type == self.short else self.b.icmp_signed)(sign, a, b)

    def conjunction(self, a: Any, b: Any) -> Any:
        """Whether two truths both hold."""
        if isinstance(a, bool) or isinstance(b, bool):
            known, other = (a, b) if isinstance(a, bool) else (b, a)
            return other if known else False
        return self.b.and_(a, b)

    def negation(self, a: Any) -> Any:
        return not a if isinstance(a, bool) else self.b.not_(a)

    # memory

    def element(self, words: Words, index: Any) -> tuple[Any, np.dtype]:
        """(pointer, dtype) of an element."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != 1 + len(words.inner):
            raise NotAKernel(f"{1 + len(words.inner)} indices are needed, not {len(indices)}")
        element = indices[0]
        for i, size in zip(indices[1:], words.inner, strict=True):
            element = self.arithmetic("add", self.arithmetic("mul", element, size), i)
        return self.behind(words.address, self.arithmetic("mul", element, words.dtype.itemsize)), words.dtype

    def field(self, record: Record, name: str) -> tuple[Any, np.dtype]:
        """(pointer, dtype) of a field."""
        fields = record.dtype.fields
        if fields is None or name not in fields:
            raise NotAKernel(f"the record has no field {name}, but {', '.join(fields or ())}")
        dtype, offset = fields[name][:2]
        return self.behind(record.address, offset), dtype

    def behind(self, address: Any, offset: Any) -> Any:
        """A pointer so many bytes behind an address. (LLVM sees through no sum that becomes a pointer.)"""
        base = self.b.inttoptr(self.word(address), ir.PointerType())
        return self.b.gep(base, [self.word(offset)], source_etype=ir.IntType(8))

    def load(self, at: Any, dtype: np.dtype) -> Any:
        """The number at a pointer: integers are widened, but for uint32; or the record there."""
        if dtype.names:
            return Record(self.b.ptrtoint(at, self.long), dtype)
        value = self.b.load(at, typ=self.in_memory(dtype))
        value.align = dtype.itemsize
        if dtype.kind in "iu" and dtype.itemsize < 8 and dtype != np.uint32:
            return (self.b.sext if dtype.kind == "i" else self.b.zext)(value, self.long)
        return value

    def store(self, value: Any, at: Any, dtype: np.dtype) -> None:
        self.b.store(self.converted(value, self.in_memory(dtype)), at).align = dtype.itemsize

    def in_memory(self, dtype: np.dtype) -> Any:
        if dtype.kind in "iu":
            return ir.IntType(8 * dtype.itemsize)
        if dtype != np.float32:
            raise NotAKernel(f"kernels have no {dtype}")
        return self.float
