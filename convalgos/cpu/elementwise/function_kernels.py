"""The driver of functions of each element by itself: roots, powers of e, whole numbers and their like."""

from __future__ import annotations

import math

from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.activations import exponential
from convalgos.cpu.vectors.logarithms import logarithm
from convalgos.cpu.vectors.simd import Value, Vec, carray, function_of, ir, pointer

FUNCTION_FIELDS = fields("x y count tasks")
FUNCTIONS = (  # NumPy's names; a place is a code
    "exp", "log", "sqrt", "reciprocal", "abs", "negative", "floor", "ceil", "rint",
)  # fmt: skip
NORMAL = 2.0**-126  # the least float32 with all digits
LIFTED = 24  # powers of two by which smaller ones are multiplied before their logarithm


@jit.specialise
def function_share(SIZE: int, LANES: int, CODE: int) -> jit.Kernel:
    """The elements of a task, a run of them."""

    def function_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, FUNCTION_FIELDS)[0]
        first, end = a.count * task // a.tasks, a.count * (task + 1) // a.tasks
        apply_function(SIZE, LANES, CODE, a.x + first * SIZE, a.y + first * SIZE, end - first)

    return function_share


@simd.emitter
def apply_function(v: Vec, CODE: int, x: Value, y: Value, count: Value) -> None:
    """y = function(x) of so many elements; y may be x itself."""
    source, to, whole = v.pointer(x), v.pointer(y), v.idiv(count, v.lanes)
    with v.loop(whole) as i:
        at = v.imul(i, v.lanes)
        v.store(_value(v, FUNCTIONS[CODE], v.load(source, at)), to, at)
    done = v.imul(whole, v.lanes)
    with v.unless_negative(v.isub(v.isub(count, done), 1)):
        mask = v.mask(v.isub(count, done))
        v.store_masked(_value(v, FUNCTIONS[CODE], v.load_masked(source, done, mask)), to, done, mask)


def _value(v: Vec, function: str, x: Value) -> Value:
    if function == "exp":
        return exponential(v, x)
    if function == "log":
        return _logarithm_of_any(v, x)
    if function == "reciprocal":
        return v.b.fdiv(v.const(1), x)
    if function == "negative":
        return v.b.fneg(x)
    name = {"abs": "fabs"}.get(function, function)
    kind = ir.FunctionType(v.type, [v.type])
    return v.b.call(function_of(v.b, kind, f"llvm.{name}.{v.suffix}"), [x])


def _logarithm_of_any(v: Vec, x: Value) -> Value:
    """ln x: -inf of 0, NaN of less and of NaN, and infinity of infinity."""

    def where(how: str, bound: float, then: Value, otherwise: Value) -> Value:
        return v.b.select(v.b.fcmp_ordered(how, x, v.const(bound)), then, otherwise)

    lifted = where("<", NORMAL, v.fmul(x, v.const(2.0**LIFTED)), x)
    less = where("<", NORMAL, v.const(LIFTED * math.log(2)), v.zero())
    found = where(">", 0.0, v.fsub(logarithm(v, lifted), less), v.const(math.nan))
    found = where("==", 0.0, v.const(-math.inf), found)
    return where("==", math.inf, x, found)
