"""Samples beyond the ends of a signal that are sums of some of its samples, each times a number."""

from __future__ import annotations

from typing import Any

from convalgos.cpu.vectors.simd import Value, intrinsic, ir

SAMPLES = 3  # of a sum, at most


@intrinsic
def mix_samples(
    builder: Value, part: Value, target: Value, x: Value, step: Value, places: Value, weights: Value
) -> None:  # fmt: skip
    """Write the sum of SAMPLES samples, each times a float64, as a float of so many bytes, as they are.

    Those that are multiplied by 0, which are the last, may be infinite.
    """
    word, wide = ir.IntType(64), ir.DoubleType()
    zero = ir.Constant(wide, 0.0)

    def load(kind: Any, address: Value) -> Value:
        return builder.load(builder.inttoptr(address, ir.PointerType(kind)), typ=kind)

    def weight_of(k: int) -> Value:
        return load(wide, builder.add(weights, word(8 * k)))

    def mix(kind: Any) -> None:
        to = builder.inttoptr(target, ir.PointerType(kind))

        def add(total: Value, k: int) -> None:
            place = load(word, builder.add(places, word(8 * k)))
            sample = load(kind, builder.add(x, builder.mul(place, step)))
            product = builder.fmul(sample if kind is wide else builder.fpext(sample, wide), weight_of(k))
            total = builder.fadd(total, product)
            if k + 1 == SAMPLES:
                builder.store(total if kind is wide else builder.fptrunc(total, kind), to)
                return
            with builder.if_else(builder.fcmp_ordered("==", weight_of(k + 1), zero)) as (last, further):
                with last:
                    builder.store(total if kind is wide else builder.fptrunc(total, kind), to)
                with further:
                    add(total, k + 1)

        add(zero, 0)

    with builder.if_else(builder.icmp_signed("==", part, word(4))) as (single, double):
        with single:
            mix(ir.FloatType())
        with double:
            mix(wide)
