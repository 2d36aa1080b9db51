"""An exact matrix times a vector as CUDA source: so the transforms of Winograd come into a kernel."""

from __future__ import annotations

from fractions import Fraction

from convalgos.core.cook_toom import Matrix, multiply


def statements(matrix: Matrix, source: str, target: str) -> str:
    """Statements that multiply a vector by a matrix.

    Args:
        source, target: how element {i} is read and written, such as "d[{i}]".
    """
    lines: list[str] = []

    def define(expression: str) -> str:
        lines.append(f"const float t{len(lines)} = {expression};")
        return f"t{len(lines) - 1}"

    def axpy(a: Fraction, x: str, y: str | None) -> str:
        factor = f"{float(a)!r}f"
        if y is None:
            return x if a == 1 else define(f"{factor} * {x}")
        if abs(a) == 1:
            return define(f"{y} {'+' if a == 1 else '-'} {x}")
        return define(f"fmaf({factor}, {x}, {y})")

    inputs = [define(source.format(i=i)) for i in range(len(matrix[0]))]
    for i, value in enumerate(multiply(axpy, matrix, inputs)):
        lines.append(f"{target.format(i=i)} = {value};")
    return " ".join(lines)
