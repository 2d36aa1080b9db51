"""How layers of neurons are best cut: load of a core, order in memory, threads, by library and form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from convalgos.core.errors import missing
from convalgos.select.measure.backends import Call, backend
from convalgos.select.measure.timing import interleave
from convalgos.studies.neuron_layers import answers
from convalgos.studies.neuron_layers.answers import NUMBA, PYTHON, STRIDED, TriedLayer
from convalgos.studies.neuron_layers.decomposition import Decomposition, NeuronLayer, naive_layer
from convalgos.studies.neuron_layers.forms import FORMS, LINEAR, RBF, SUPPORT, NeuronData
from convalgos.studies.neuron_layers.libraries import LIBRARIES, why_absent
from convalgos.studies.neuron_layers.whole_layers import whole_layers
from convalgos.studies.study import Answer, NotRun, Study, StudySetting

ROUNDS = 3


class NeuronsStudy(Study):
    name: ClassVar[str] = "neurons"
    question: ClassVar[str] = "How must layers of neurons be cut for many cores, and what does it gain?"
    source: ClassVar[str] = (
        "Neuron layers - linear, RBF, fast support vectors - in Numba on CPU, with MKL and on GPU, tuned by "
        "the load of each core and by how memory is allocated: 100 to 250 times over the naive ones."
    )
    method: ClassVar[str] = (
        "m neurons on N vectors of dimension n are a pointwise convolution; RBF is one by the expansion "
        "|x-w|^2 = |x|^2 - 2xw + |w|^2, and support vectors are RBF followed by a second one (the "
        "original's own form of them is not at hand). Threads take chunks of vectors, and do all of the "
        "layer on each, by loops in Numba, by MKL, or by convalgos. First the load is swept, then the order "
        "of x in memory and whether results are allocated anew, then threads; at last the best of each is "
        "set beside loops as they are written down, by Numba on one thread and by Python, which is timed on "
        "few vectors; the naive x is strided or contiguous. GFLOP/s count the products of the expansion, "
        "whatever a way computes."
    )
    look_at: ClassVar[str] = (
        "How small a load may become before calls cost more than they compute, and how large before chunks "
        "leave the cache, which RBF feels first; that the library matters more than all of it."
    )

    vectors: ClassVar[int] = 8192
    dimension: ClassVar[int] = 256
    neurons: ClassVar[int] = 256
    outputs: ClassVar[int] = 16
    loads: ClassVar[tuple[int, ...]] = (16, 64, 256, 1024, 4096)
    quick_loads: ClassVar[tuple[int, ...]] = (64, 1024)
    python_vectors: ClassVar[int] = 8  # that loops of Python are timed on

    def parts(self, setting: StudySetting) -> Iterator[Answer]:
        absent = {library: reason for library in LIBRARIES if (reason := why_absent(library))}
        for library, reason in absent.items():
            yield NotRun(f"layers by {library}", reason)
        data = NeuronData.random(self.vectors, self.dimension, self.neurons, self.outputs)
        libraries = [library for library in LIBRARIES if library not in absent]
        sweep = Sweep(data, setting)
        loads = [n for n in (self.quick_loads if setting.quick else self.loads) if n <= self.vectors]

        cuts = [Decomposition(load, setting.threads) for load in loads]
        tried = [t for form in (LINEAR, RBF) for t in sweep.run(form, dict.fromkeys(libraries, cuts))]
        yield answers.loads_part(data, tried)
        linear = answers.fastest_by_library(t for t in tried if t.form == LINEAR)
        radial = answers.fastest_by_library(t for t in tried if t.form == RBF)

        memory = sweep.run(LINEAR, {lib: _memory_orders(t.cut) for lib, t in linear.items()})
        yield answers.memory_part(data, memory)
        linear = answers.fastest_by_library([*linear.values(), *memory])

        counts = sorted({1, 2, 4, 8, 16, 32, setting.threads})
        counts = [n for n in counts if n <= setting.threads]
        by_threads = sweep.run(LINEAR, {lib: _thread_counts(t.cut, counts) for lib, t in linear.items()})
        yield answers.threads_part(data, by_threads)
        linear = answers.fastest_by_library([*linear.values(), *by_threads])

        finals = [*linear.values(), *radial.values()]
        finals += sweep.run(SUPPORT, {lib: [t.cut] for lib, t in radial.items()})
        naive = sweep.naive(self.python_vectors)
        yield answers.gains_part(data, finals, naive)
        yield answers.whole_part(data, sweep.whole())
        yield answers.gain_finding(finals, naive)
        yield answers.cut_finding(finals)
        if setting.device == "cpu":
            yield NotRun("layers on a GPU", "a GPU with CuPy (pip install 'convalgos[gpu]')")


class Sweep:
    """Times layers of the same data, each group in turns."""

    def __init__(self, data: NeuronData, setting: StudySetting):
        self._data, self._setting = data, setting
        self._rounds = 1 if setting.quick else ROUNDS

    def run(self, form: str, cuts: dict[str, list[Decomposition]]) -> list[TriedLayer]:
        """Each library on each of its cuts."""
        self._setting.tell(f"{form}, {sum(map(len, cuts.values()))} ways")
        ways = {f"{lib} {cut}": (lib, cut) for lib, each in cuts.items() for cut in each}
        calls: dict[str, Call] = {
            name: NeuronLayer(form, self._data, lib, cut) for name, (lib, cut) in ways.items()
        }
        for call in calls.values():
            call()  # Numba compiles
        timings = interleave(calls, rounds=self._rounds, deadline=self._setting.deadline)
        return [TriedLayer(form, lib, cut, timings[name].median) for name, (lib, cut) in ways.items()]

    def naive(self, python_vectors: int) -> dict[tuple[str, str], float]:
        """(form, one of answers.NAIVE) -> seconds for all vectors of the loops as they are written down."""
        found: dict[tuple[str, str], float] = {}
        few, every, strided = self._data.first(python_vectors), self._data, self._data.strided()
        for form in FORMS:
            self._setting.tell(f"{form} as it is written down")
            calls: dict[str, Call] = {PYTHON: naive_layer(form, few, compiled=False)}
            if not missing("numba"):
                for data in (few, few.strided()):
                    naive_layer(form, data, compiled=True)()  # compiles
                calls[NUMBA] = naive_layer(form, every, compiled=True)
                calls[STRIDED] = naive_layer(form, strided, compiled=True)
            timings = interleave(calls, rounds=1, burst=1)
            found |= {(form, name): timing.median for name, timing in timings.items()}
            found[form, PYTHON] *= len(every.x) / len(few.x)
        return found

    def whole(self) -> dict[str, float]:
        """Library -> seconds of a linear layer that it cuts itself, on the CPU and on a GPU if asked for."""
        found: dict[str, float] = {}
        for device in ("cpu", "cuda") if self._setting.device == "gpu" else ("cpu",):
            where = backend(device)
            timings = interleave(whole_layers(self._data, where), rounds=self._rounds, backend=where)
            found |= {f"{name}, {device}": timing.median for name, timing in timings.items()}
        return found


def _memory_orders(cut: Decomposition) -> list[Decomposition]:
    both = (True, False)
    return [replace(cut, contiguous=contiguous, reused=reused) for contiguous in both for reused in both]


def _thread_counts(cut: Decomposition, counts: list[int]) -> list[Decomposition]:
    return [replace(cut, threads=count) for count in counts]


STUDY = NeuronsStudy()
