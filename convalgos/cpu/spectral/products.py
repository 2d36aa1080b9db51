"""Products of spectra, summed over channels: four real ones for each complex one, or Gauss's three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from convalgos.cpu.runtime import jit
from convalgos.cpu.vectors import simd


@simd.emitter
def multiply_spectra(
    v: simd.Vec, FILTERS: int, BLOCKS: int, PARTS: int, x: Any, x_block: Any, x_phase: Any, x_channel: Any,
    w: Any, phases: Any, channels: Any, vectors: Any, y: Any, y_filter: Any, y_block: Any,
) -> None:  # fmt: skip
    """y[k][b][f] = sum_{p,c} x[b][p][c][f] * w[f][p][c][k], complex, for k < FILTERS and b < BLOCKS.

    f runs over `vectors` vectors of frequencies. x and y hold pairs of a real and an imaginary part, w holds
    PARTS vectors: of real parts and of imaginary parts, or the three factors of `split_plane`, which take
    three products for four: (a + ib)(c + id) = p - r + i (p + q), where p = (a + b) c, q = a (d - c) and
    r = b (c + d), each with sums of its own.
    """
    n = v.lanes
    evens, odds = [2 * i for i in range(n)], [2 * i + 1 for i in range(n)]
    halves = [[half * n // 2 + i // 2 + i % 2 * n for i in range(n)] for half in (0, 1)]
    with v.loop(vectors) as f:
        at = v.imul(f, 2 * n)
        sums = [[[v.register(v.zero()) for _ in range(PARTS)] for _ in range(BLOCKS)] for _ in range(FILTERS)]
        row = v.at(v.pointer(w), v.imul(v.imul(f, v.imul(phases, channels)), FILTERS * PARTS * n))
        with v.loop(phases) as p, v.loop(channels) as c:
            plane = v.at(v.pointer(x), v.iadd(at, v.iadd(v.imul(p, x_phase), v.imul(c, x_channel))))
            weights = v.at(row, v.imul(v.iadd(v.imul(p, channels), c), FILTERS * PARTS * n))
            inputs = []
            for b in range(BLOCKS):
                source = v.at(plane, v.imul(x_block, b))
                pairs = v.load(source), v.load(source, n)
                inputs.append((v.shuffle(*pairs, evens), v.shuffle(*pairs, odds)))
            added = [v.fadd(*parts) for parts in inputs] if PARTS == 3 else []
            for k, totals in enumerate(sums):
                if PARTS == 3:
                    factors = [v.load(weights, (k * PARTS + i) * n) for i in range(PARTS)]
                    for (x_re, x_im), both, of_block in zip(inputs, added, totals, strict=True):
                        for total, left, right in zip(of_block, (both, x_re, x_im), factors, strict=True):
                            total.set(v.fma(left, right, total.value))
                    continue
                w_re, w_im = v.load(weights, k * 2 * n), v.load(weights, (k * 2 + 1) * n)
                minus = v.fsub(v.zero(), w_im)
                for (x_re, x_im), (re, im) in zip(inputs, totals, strict=True):
                    re.set(v.fma(x_im, minus, v.fma(x_re, w_re, re.value)))
                    im.set(v.fma(x_re, w_im, v.fma(x_im, w_re, im.value)))
        for k, totals in enumerate(sums):
            for b, of_block in enumerate(totals):
                real, imaginary = of_block[0].value, of_block[1].value
                if PARTS == 3:
                    real, imaginary = v.fsub(real, of_block[2].value), v.fadd(real, imaginary)
                target = v.at(v.pointer(y), v.iadd(at, v.iadd(v.imul(y_filter, k), v.imul(y_block, b))))
                for half, order in enumerate(halves):
                    v.store(v.shuffle(real, imaginary, order), target, half * n)


@jit.specialise
def multiply_planes(SIZE: int, LANES: int, FILTERS: int, BLOCKS: int, PARTS: int) -> Callable[..., None]:
    def multiply_planes(
        x: int, x_block: int, x_phase: int, x_channel: int, w: int, phases: int, channels: int, vectors: int,
        y: int, y_filter: int, y_block: int,
    ) -> None:  # fmt: skip
        multiply_spectra(
            SIZE, LANES, FILTERS, BLOCKS, PARTS, x, x_block, x_phase, x_channel, w, phases, channels, vectors,
            y, y_filter, y_block,
        )  # fmt: skip

    return multiply_planes
