"""The driver that adds runs of elements to places that are computed."""

from __future__ import annotations

from convalgos.cpu.elementwise.gathering_kernels import element_of, place_at, run_start
from convalgos.cpu.elementwise.matrix_rows import each_vector_of_row
from convalgos.cpu.runtime import jit
from convalgos.cpu.runtime.plan import fields
from convalgos.cpu.vectors import simd
from convalgos.cpu.vectors.simd import Value, Vec, carray, copy_bytes, pointer

# y is a copy of x, of `nbytes`. To it come (d0, d1, d2, d3) runs of `run` elements, which lie one behind the
# other in `updates`, where `GATHER_FIELDS` has the runs of x; `wrong` and `wide` as there.
SCATTER_FIELDS = fields(
    "x y places updates wrong nbytes run step size d0 d1 d2 d3 x0 x1 x2 x3 p0 p1 p2 p3 wide tasks"
)


@jit.specialise
def scatter_share(SIZE: int, LANES: int) -> jit.Kernel:
    """All runs, in order: several of them may come to one place."""

    def scatter_share(args: int, task: int) -> None:
        a = carray(pointer(args), 1, SCATTER_FIELDS)[0]
        if a.x != a.y:
            copy_bytes(a.y, a.x, a.nbytes)
        for run in range(a.d0 * a.d1 * a.d2 * a.d3):
            start = run_start(a, run)
            place = element_of(a, place_at(a, start.place))
            if place >= 0:
                to = a.y + start.x + place * a.step
                add_updates(SIZE, LANES, a.updates + run * a.run * SIZE, to, a.run)

    return scatter_share


@simd.emitter
def add_updates(v: Vec, x: Value, y: Value, count: Value) -> None:
    """y += x."""
    source, to = v.pointer(x), v.pointer(y)
    each_vector_of_row(v, count, lambda load, store: store(to, v.fadd(load(to), load(source))))
