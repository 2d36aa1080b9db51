"""Imports point downward only, optional parts load when used, and what is missing says how to get it."""

import ast
import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from source_trees import PACKAGE, tree

from convalgos.cpu.compile.kernel_cache import TOOLKIT
from convalgos.cpu.runtime import mkl
from convalgos.cpu.spectral import engines

# Rooms, floor by floor: a module imports from floors below that of its room, and within its room. The
# algorithms are the files of cpu/ and gpu/ that lie in none of their rooms; they never import each other.
FLOORS = (
    {"core"},
    {"core.backward"},
    {"core.borders"},
    {"cpu.vectors", "gpu.compile"},
    {"cpu.compile", "gpu.device"},
    {"cpu.runtime", "gpu.launch"},
    {"cpu.layout"},
    {"cpu.gemm", "cpu.dwconv", "cpu.spconv", "cpu.binconv", "cpu.pooling", "cpu.elementwise", "cpu.filtering"}
    | {"gpu.gemm", "gpu.dwconv", "gpu.pooling", "gpu.spectral", "gpu.vendor"}
    | {"cpu.sliding"},
    {"cpu.tiled", "cpu.separable", "cpu.spectral", "cpu.backward", "gpu.backward"},
    {"cpu.borders", "gpu.borders"},
    {"cpu", "gpu"},
    {"select"},
    {"select.measure", "signal", "ndimage", "testing"},
    {"api"},
    {"quantized"},
    {"network"},
    {"network.onnx_reader"},
    {"network.torch_reader"},
    {"torch", "onnx", "dask", "jax", "skimage", "__init__"},
    {"tools.console"},
    {"tools.bench"},
    {"tools.report"},
    {"tools.evaluate", "tools.history", "tools.gpu_check"},
    {"tools.record"},
    {"studies"},
    {"tools.cli"},
    {"__main__"},
)
ROOMS = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MOST_ENTRIES = 20  # of the root of the package


@cache
def modules() -> dict[str, Path]:
    """Dotted name below convalgos -> file; packages under their own name, and the top one as __init__."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if path.name == "__init__.py" and len(tree(path).body) == 1:
            continue  # it only says what the room is
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


@cache
def imported(path: Path) -> set[str]:
    """Absolute names of everything that a file imports, inside functions too."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def inside(path: Path) -> set[str]:
    """Modules of the package that a file imports, as in `modules`."""
    found = set()
    for name in imported(path):
        top, *rest = name.split(".")
        if top != "convalgos":
            continue
        while rest and ".".join(rest) not in modules():  # the last part may be a name within the module
            rest.pop()
        found.add(".".join(rest) or "__init__")
    return found


def is_operation(node: ast.AST) -> bool:
    """Whether it is a function that is compiled into the kernels that call it."""
    decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
    if any(d.rpartition(".")[2] in ("emitter", "helper", "intrinsic") for d in decorators):
        return True
    return isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args[:1]] == ["v"]


def room(module: str) -> str:
    """The innermost room in which a module lies."""
    while module not in ROOMS:
        assert "." in module, f"convalgos.{module} lies in no room"
        module = module.rpartition(".")[0]
    return module


def test_the_root_has_few_entries():
    entries = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert len(entries) <= MOST_ENTRIES, sorted(entries)


def test_rooms_of_algorithms_show_nothing_else():
    """Discovery imports each file that lies in cpu/ and gpu/ itself."""
    for device in ("cpu", "gpu"):
        files = {m for m in modules() if room(m) == device} - {device}
        assert files == {m for m in files if assigns(modules()[m], "ALGORITHMS")}


def assigns(path: Path, name: str) -> bool:
    targets = []
    for node in tree(path).body:
        targets += node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    return any(isinstance(t, ast.Name) and t.id == name for t in targets)


def test_the_guide_names_every_room():
    guide = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    guide = guide[guide.index("| room |") : guide.index("Imports point downward only")]
    named = {name.replace("/", ".") for name in re.findall(r"`([a-z_/]+?)(?:/|\.py)`", guide)}
    assert named - {"kernels"} == ROOMS.keys() - {"__init__"}


def test_imports_point_downward():
    wrong = []
    for module, path in modules().items():
        for other in inside(path) - {module}:
            here, there = room(module), room(other)
            within = here == there and here not in ("cpu", "gpu")
            if not within and ROOMS[there] >= ROOMS[here]:
                wrong.append(f"convalgos.{module} imports convalgos.{other}")
    assert not wrong, "\n".join(sorted(wrong))


def test_imports_make_no_circles():
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way, module))
        if module not in done:
            for other in inside(modules()[module]) - {module}:
                visit(other, (*way, module))
            done.add(module)

    for module in modules():
        visit(module, ())


def test_one_file_writes_llvm_and_one_compiles_it():
    def that_import(*names):
        return {m for m, path in modules().items() if set(names) & imported(path)}

    assert that_import("llvmlite.ir") == {"cpu.vectors.llvm_ir"}
    assert that_import("llvmlite.binding") == {"cpu.compile.code_generation"}


def test_what_kernels_take_from_other_files_is_in_their_key():
    """A kernel kept on disk would go on with the old operation."""
    files = set((PACKAGE / "cpu").rglob("*.py"))
    shared = set()
    for path in files:
        dotted = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        defined = {node.name for node in tree(path).body if is_operation(node)}
        for other in files - {path}:
            taken = {f"{dotted}.{name}" for name in defined} & imported(other)
            stem = path.stem
            by_module = dotted in imported(other) and any(
                re.search(rf"\b{stem}\.{name}\b", other.read_text()) for name in defined
            )
            if taken or by_module:
                shared.add(path.relative_to(PACKAGE).as_posix())
    assert {"cpu/vectors/simd.py", "cpu/layout/channel_vectors.py"} <= shared <= set(TOOLKIT)


def test_what_the_toolkit_takes_from_its_rooms_belongs_to_it():
    """Operations ask plain functions of other files what code to write, and what compiles them does so."""
    rooms = {"cpu.vectors", "cpu.compile", "cpu.dwconv"}
    beside = {"cpu.vectors.llvm_ir", "cpu.compile.linker"}  # the name of a library, and what loads code
    toolkit = {m for m, path in modules().items() if path.relative_to(PACKAGE).as_posix() in TOOLKIT}
    taken = {m for own in toolkit if room(own) in rooms for m in inside(modules()[own]) if room(m) in rooms}
    assert {"cpu.dwconv.channel_forms", "cpu.compile.single_lanes"} <= taken
    assert taken - beside <= toolkit


# --- what is loaded, and what is missing -----------------------------------------------------


def run(code: str, *hidden: str):
    """The JSON that code prints in a fresh interpreter, some modules hidden from it."""
    paths = os.pathsep.join(map(str, (PACKAGE.parent, Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", f"from hidden_modules import hide; hide{hidden}\n{code}"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().rpartition("\n")[2])


def test_importing_convalgos_loads_nothing_heavy():
    loaded = run("import convalgos, json, sys; print(json.dumps(sorted(sys.modules)))")
    heavy = {
        "numba",
        "llvmlite",
        "scipy",
        "pyfftw",
        "torch",
        "dask",
        "rich",
        "click",
        "onnx",
        "cupy",
        "mkl",
        "ml_dtypes",
    }
    assert not heavy & set(loaded)


USE = """
import json
import numpy as np, convalgos as ca
x, w = np.ones((1, 4, 9, 9), "f4"), np.ones((4, 4, 3, 3), "f4")
problem = ca.ConvProblem(x.shape, w.shape)
ranking = ca.explain(problem)
print(json.dumps({
    "all": [a.id for a in ca.algorithms()],
    "served": [c.id for c in ranking.candidates],
    "reasons": {r.id: r.why_not for r in ranking.rejected},
    "right": bool(np.allclose(ca.conv(x, w), 36)) and all(
        np.allclose(ca.conv(x, w, algorithm=c.id), 36, atol=1e-3) for c in ranking.candidates
    ),
}))
"""


BROKEN = """
from convalgos.core.errors import Unsupported
try:
    ca.conv(x, w, algorithm="cpu.direct")
except Unsupported as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("text", ["OSError('libllvmlite.so: not an ELF file')", "AttributeError('_dtype')"])
def test_an_llvmlite_that_cannot_be_imported_is_a_reason(tmp_path, text):
    (tmp_path / "llvmlite.py").write_text(f"raise {text}\n")
    first = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    found = run(first + USE)
    assert found["right"] and found["served"] == ["cpu.reference"]
    kind, message = text.rstrip("')").split("('")
    told = f"needs llvmlite, which is installed but cannot be imported ({kind}: {message})"
    assert found["reasons"]["cpu.direct"] == told
    assert run(first + USE + BROKEN).endswith(told)


OVERLAP = """
import json
import numpy as np, convalgos as ca
x, w = np.arange(100_000, dtype="f4")[None, None] % 7, np.ones((1, 1, 301), "f4")
try:
    y = ca.conv(x, w, algorithm="cpu.fft.overlap")
    sums = np.convolve(x[0, 0].astype("f8"), w[0, 0], "valid")
    print(json.dumps(float(np.abs(y[0, 0] - sums).max() / sums.max())))
except ca.Unsupported as error:
    print(json.dumps(str(error)))
"""


def test_blocks_of_the_fft_go_through_mkl_where_fftw_is_left_out():
    """FFTW is under the GPL: who ships a program may want to do without it."""
    pytest.importorskip("llvmlite")
    told = run(OVERLAP, "pyfftw", "mkl")
    assert "needs pyfftw, which is not installed (pip install pyfftw)" in told
    if not mkl.why_no_mkl():
        assert run(OVERLAP, "pyfftw") < 1e-5
    if not engines.why_not_engine("fftw"):
        assert run(OVERLAP, "mkl") < 1e-5


@cache
def with_everything():
    return run(USE)


MKL = {"cpu.im2col.mkl", "cpu.fft.mkl"}


@pytest.mark.parametrize(
    ("hidden", "how", "lost"),
    [
        (("llvmlite",), "pip install llvmlite", {"cpu.direct", "cpu.winograd.f4x3"}),
        (("pyfftw",), "pip install pyfftw", {"cpu.fft.fftw"}),
        (("torch",), "", set()),
        (("cupy",), "", set()),
        (("mkl",), "pip install 'convalgos[mkl]'", MKL),
        (("scipy",), "", set()),
        (("llvmlite", "pyfftw", "torch", "cupy", "mkl", "scipy"), "", {"cpu.direct"}),
    ],
    ids=lambda v: "+".join(v) if isinstance(v, tuple) else "",
)
def test_without_an_optional_module(hidden, how, lost):
    found, everything = run(USE, *hidden), with_everything()
    assert found["right"]
    assert found["all"] == everything["all"]
    assert "cpu.reference" in found["served"]
    assert set(found["served"]) <= set(everything["served"])
    missing = set(everything["served"]) - set(found["served"])
    assert lost & set(everything["served"]) <= missing
    assert bool(missing) == bool(lost & set(everything["served"]))
    for algorithm in missing:
        reason = found["reasons"][algorithm]
        assert re.search(f"needs (the )?({'|'.join(hidden)})", reason), reason
        assert "which is not installed (pip install" in reason and how in reason
