"""cuDNN, through NVIDIA's front end: what its heuristics offer, within the precision that was asked for.

`gpu.cudnn` is the first plan of the heuristics that is not known to be wrong; every other one is a variant
with an id of its own, `gpu.cudnn.eng67_k2_7_k13_0`, which measuring times and wisdom remembers. float32 is
strict: neither tensor cores nor inputs of fewer bits. A plan is used after its result was compared with that
of `gpu.direct` (`vendor.verify`), as cuDNN has been seen to be silently wrong. Bias and ReLU run within the
kernel where cuDNN has the same kernel with them, and its ReLU keeps NaNs; else in a step of their own. Wins
channels last on tensor cores, where its engines are the fastest there are. Of int8 it writes the sums, which
a kernel of ours ends.
Source: nvidia-cudnn-frontend (pygraph); cuDNN's numerical notes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from convalgos.core.algorithm import Algorithm
from convalgos.core.element_types import FLOAT8_DTYPES
from convalgos.core.epilogue import finish
from convalgos.core.errors import Unsupported
from convalgos.core.problem import DIRECTIONS, ConvProblem
from convalgos.core.quantization import Quantization
from convalgos.gpu.compile.module import Build
from convalgos.gpu.device import GpuMachine, current
from convalgos.gpu.launch.algorithm import GpuAlgorithm, exact_sums
from convalgos.gpu.launch.graph import CapturedCall
from convalgos.gpu.launch.grid import NO_BIAS, ceil_div
from convalgos.gpu.launch.integer_plan import IntegerGpuPlan, QuantizedFilter
from convalgos.gpu.launch.plan import GpuPlan
from convalgos.gpu.vendor import cost as vendor_cost
from convalgos.gpu.vendor.float8 import float8_bound, why_not_float8
from convalgos.gpu.vendor.graph import PLAIN, Epilogue, with_explicit_padding
from convalgos.gpu.vendor.integer_sums import (
    FINISH_SUMS,
    FINISHERS,
    CudnnSums,
    int32_bytes,
    of_sums,
    why_not_integers,
)
from convalgos.gpu.vendor.plans import Offer, listing, twin
from convalgos.gpu.vendor.runner import Runner
from convalgos.gpu.vendor.verify import check_kernel, known_fault

WORKSPACE_BYTES = 1 << 28  # where no limit was given: FFT engines ask for gigabytes
LATER = 1e-3  # by which a plan is taken to be slower than the one before it in the order of the heuristics

# --- the figures for the selector --------------------------------------------------------------


@dataclass(frozen=True)
class Cudnn(GpuAlgorithm):
    offer: Offer | None = None  # None for the first of the heuristics

    family: ClassVar[str] = "gpu.cudnn"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16", *FLOAT8_DTYPES, "int8")
    directions: ClassVar[tuple[str, ...]] = DIRECTIONS
    needs: ClassVar[tuple[str, ...]] = ("cudnn",)
    equal_bits: ClassVar[bool] = False  # cuDNN does not promise it
    computes: ClassVar[dict[str, tuple[str, ...]]] = {
        "float32": ("float32", "tf32"),
        **dict.fromkeys(("float16", "bfloat16", *FLOAT8_DTYPES), ("float32",)),
        "int8": ("int32",),
    }

    @property
    def variant(self) -> str:
        return "" if self.offer is None else self.offer.word

    @property
    def deterministic(self) -> bool:  # type: ignore[override]  # of a plan; which is the first, problems decide
        return self.offer is not None and self.offer.repeats

    @property
    def spreads_nan(self) -> bool:  # type: ignore[override]
        return self.offer is None or self.offer.transforms

    def builds(self) -> Iterable[Build]:
        return ()  # the kernels are cuDNN's

    def why_not(self, problem: ConvProblem) -> str | None:
        if (reason := self._no_listing(problem)) or problem.is_empty:
            return reason
        try:
            return None if next(self._offers(problem), None) else "cuDNN has no plan for it"
        except Exception as error:  # cuDNN's own kinds, and those of a library that does not load
            told = str(error).strip().splitlines() or [type(error).__name__]
            return f"cuDNN has no plan for it ({told[0][:120]})"

    def within(
        self, problem: ConvProblem, *, workspace_limit: int | None, deterministic: bool, strict_nan: bool
    ) -> Algorithm:
        unlimited = workspace_limit is None and not (deterministic or strict_nan)
        if unlimited or self.offer is not None or problem.is_empty or self._no_listing(problem):
            return self
        limit = WORKSPACE_BYTES if workspace_limit is None else workspace_limit
        with suppress(Exception):  # cuDNN's own kinds, of which `why_not` tells
            for offer in self._offers(problem, limit):
                if (deterministic and not offer.repeats) or (strict_nan and offer.transforms):
                    continue
                usual = not (deterministic or strict_nan) and offer == next(self._offers(problem), None)
                return self if usual else replace(self, offer=offer)
        return self

    def variants(self, problem: ConvProblem) -> Iterable[GpuAlgorithm]:
        if self.offer is None and not problem.is_empty:
            yield from (replace(self, offer=offer) for offer in self._offers(problem))

    def note(self, problem: ConvProblem) -> str:
        return "" if problem.is_empty else str(self._first(problem))

    def cost(self, problem: ConvProblem, machine: GpuMachine) -> float:
        seconds = vendor_cost.predicted_seconds(problem, machine)
        if problem.sums_integers:
            seconds += machine.launch + machine.stream(int32_bytes(problem) + problem.y_bytes)
        return seconds if self.offer is None else seconds * (1 + LATER * (1 + self.offer.rank))

    def workspace_bytes(self, problem: ConvProblem) -> int:
        if problem.is_empty:
            return 0
        of_sums = int32_bytes(problem) if problem.sums_integers else 0
        return of_sums + self._first(problem).workspace_bytes

    def error_bound(self, problem: ConvProblem) -> float:
        if problem.sums_integers:
            return exact_sums(problem)
        if problem.dtype in FLOAT8_DTYPES:
            return float8_bound(problem)
        # Sums of products; engines may use Winograd in float32, or tensor cores that cut sums off.
        sums = 2**-23 * (16 * math.sqrt(max(1, problem.reduction)) + 16)
        tf32 = 4 * 2**-11 * (problem.compute_dtype == "tf32")
        return sums + tf32 + (problem.itemsize == 2) * problem.eps

    def plan(self, problem: ConvProblem) -> GpuPlan:
        reasons = []
        for offer in self._offers(problem):
            made = CudnnIntegersPlan if problem.sums_integers else CudnnPlan
            plan = made(problem, self, offer)
            if (reason := plan.fault) is None:
                return plan
            reasons.append(f"{offer.name}: {reason}")
        raise Unsupported(f"{self.id} cannot serve {problem}: {'; '.join(reasons)}")

    def _no_listing(self, problem: ConvProblem) -> str | None:
        """Why cuDNN is not even asked."""
        if reason := super().why_not(problem):
            return reason
        if problem.is_empty:
            return None
        device = current()
        if reason := why_not_integers(problem) or why_not_float8(problem, device.figures.capability):
            return reason
        try:
            device.stream()
        except Unsupported as error:
            return str(error)
        captured = "its plans are chosen and checked before a stream is captured, not meanwhile"
        return captured if device.capturing() else None

    def _offers(self, problem: ConvProblem, limit: int = WORKSPACE_BYTES) -> Iterator[Offer]:
        """The plans that may be used for a problem: the one of a variant, or all within a limit."""
        device, only = current(), self.offer
        problem = of_sums(problem)
        for offer in listing(problem, device).offers(lambda name: only is None or name == only.name):
            fits = only is not None or offer.workspace_bytes <= limit
            if fits and known_fault(device, title(offer), problem) is None:
                yield offer

    def _first(self, problem: ConvProblem) -> Offer:
        for offer in self._offers(problem):
            return offer
        raise Unsupported(f"{self.id} cannot serve {problem}: no plan is left")


def title(offer: Offer, epilogue: Epilogue = PLAIN) -> str:
    """How checks and warnings call a plan."""
    import cudnn

    fused = "".join(f" with {step}" for step, there in epilogue._asdict().items() if there)
    return f"cuDNN {cudnn.backend_version()} {offer.name}{fused}"


# --- the plan ----------------------------------------------------------------------------------


class CudnnPlan(GpuPlan):
    fuses = False

    def __init__(self, problem: ConvProblem, algorithm: Cudnn, offer: Offer):
        super().__init__(problem, algorithm, offer.workspace_bytes)
        self.offer, self._bound = offer, algorithm.error_bound(problem)
        self._last = problem.layout == "channels_last"
        self._plain = Runner(listing(problem, self.device).opened(offer.name), PLAIN, self.device)
        self._fused: dict[bool, Runner | None] = {}  # by whether with ReLU; None where there is no kernel
        self._zeros: Any = None  # (K,), the bias of graphs that were given none: there is no ReLU without
        self.fault = self._check(self._plain, offer, PLAIN)  # why it is not to be used

    def capture(
        self,
        x: Any,
        w: Any,
        *,
        bias: Any = None,
        out: Any = None,
        activation: Any = None,
        residual: Any = None,
    ) -> CapturedCall:
        relu = activation == "relu" and residual is None
        if (relu or bias is not None) and relu not in self._fused:
            with self.device.active():  # not in the memory that the graph will hold
                self._fuse(relu)
        return super().capture(x, w, bias=bias, out=out, activation=activation, residual=residual)

    def prepare_filter(self, w: Any) -> Any:
        """(K, C/groups, *kernel), or channels last (K, *kernel, C/groups); dy as it is."""
        turned = self._last and self.problem.direction != "backward_weights"
        return self._vectors(self.device.xp.moveaxis(w, 1, -1) if turned else w)

    def run(self, x: Any, w: Any, bias: Any, activation: str | None, y: Any, workspace: Any) -> None:
        if self.problem.direction == "backward_weights":
            self._run_weights(x, w, y, workspace)
            return
        address = self.device.address
        scratch = 0 if workspace is None else address(workspace)
        if bias is None and activation is None:
            self._plain(scratch, address(x), address(w), address(y))
            return
        relu = activation is not None
        fused = self._fused[relu] if relu in self._fused else self._fuse(relu)
        if fused is None:
            self._plain(scratch, address(x), address(w), address(y))
            finish(y, bias, activation, self.problem)
        else:
            added = address(self._zeros if bias is None else bias)
            fused(scratch, address(x), address(w), address(y), added)

    # --- inside ------------------------------------------------------------------------------

    def _run_weights(self, x: Any, dy: Any, dw: Any, workspace: Any) -> None:
        """The filter of channels last lies otherwise than cuDNN writes it, and x may have to be padded."""
        xp, address, p = self.device.xp, self.device.address, self.problem
        padded = with_explicit_padding(p)
        if padded is not p:
            whole = xp.zeros(padded.array_shape(padded.x_shape), self._dtype)
            inside = [slice(low, low + n) for n, (low, _) in zip(p.spatial, p.padding, strict=True)]
            whole[(slice(None), *inside) if self._last else (slice(None), slice(None), *inside)] = x
            x = whole
        turned = xp.empty((p.K, *p.kernel, p.w_shape[1]), self._dtype) if self._last else dw
        scratch = 0 if workspace is None else address(workspace)
        self._plain(scratch, address(x), address(dy), address(turned))
        if turned is not dw:
            dw[...] = xp.moveaxis(turned, -1, 1)

    def _fuse(self, relu: bool) -> Runner | None:
        """The same kernel with bias and ReLU, found and checked at the first call that asks for them."""
        if self.device.capturing():
            return None
        if self.problem.direction != "forward" or self.problem.dtype in FLOAT8_DTYPES:
            self._fused[relu] = None
            return None
        if self._zeros is None:
            self._zeros = self.device.xp.zeros(self.problem.K, self._dtype)
            self.device.synchronize()  # other streams may read them next
        found, epilogue = None, Epilogue(bias=True, relu=relu)
        with suppress(Exception):  # cuDNN's own kinds: it has no engine for such a graph
            graphs = listing(self.problem, self.device, epilogue)
            offer = twin(self.offer, graphs)
            if offer is not None and offer.workspace_bytes <= self.workspace_bytes:
                found = Runner(graphs.opened(offer.name), epilogue, self.device), offer
        right = found is not None and self._check(*found, epilogue) is None
        self._fused[relu] = found[0] if found is not None and right else None
        return self._fused[relu]

    def _check(self, runner: Runner, offer: Offer, epilogue: Epilogue) -> str | None:
        """Why a kernel is not to be used, or None."""

        def run(x: Any, w: Any, bias: Any, y: Any) -> None:
            w, workspace, address = self.prepare_filter(w), self.workspace(), self.device.address
            if epilogue == PLAIN:
                self.run(x, w, None, None, y, workspace)
            else:
                scratch = 0 if workspace is None else address(workspace)
                runner(scratch, *map(address, (x, w, y, bias)))

        name, problem = title(offer, epilogue), self.problem
        return check_kernel(self.device, name, problem, self._bound, run, **epilogue._asdict())


class CudnnIntegersPlan(IntegerGpuPlan):
    """Sums of cuDNN, then our output step. cuDNN pads with 0: where x's zero point is another, x is copied
    into a border of it."""

    def __init__(self, problem: ConvProblem, algorithm: Cudnn, offer: Offer):
        super().__init__(problem, algorithm, int32_bytes(problem) + offer.workspace_bytes)
        self.offer, self._cudnn = offer, algorithm
        self._sums = CudnnSums(problem, offer, title(offer), self.device)
        self._bordered: CudnnSums | None = None
        blocks = ceil_div(math.prod(problem.y_shape), FINISHERS)
        self._finish = self.launch(FINISH_SUMS, "reduce", (blocks,), FINISHERS)
        self.fault = self._sums.fault()

    def pack(self, terms: Sequence[Any]) -> list[Any]:
        """Each (K, *kernel, C)."""
        return [self._vectors(self.device.xp.moveaxis(w, 1, -1)) for w in terms]

    def _quantized(self, w: Any, quantization: Quantization) -> QuantizedFilter:
        if quantization.x_zero_point and any(map(any, self.problem.padding)) and self._bordered is None:
            self._bordered = self._of_bordered()
        return super()._quantized(w, quantization)

    def _of_bordered(self) -> CudnnSums:
        """The same of x with a border, for which cuDNN may have another kernel."""
        p = self.problem
        grown = (n + low + high for n, (low, high) in zip(p.spatial, p.padding, strict=True))
        whole = p.replace(x_shape=(p.N, p.C, *grown), padding=0)
        for offer in replace(self._cudnn, offer=None)._offers(whole):
            sums = CudnnSums(whole, offer, title(offer), self.device)
            if sums.fault() is None:
                return sums
        raise Unsupported(f"{self.algorithm} cannot serve {p} with a zero point of x: no plan for {whole}")

    def run(self, x: Any, w: Any, bias: Any, activation: Any, y: Any, workspace: Any) -> None:
        xp, address, sums = self.device.xp, self.device.address, self._sums
        if w.quantization.x_zero_point and self._bordered is not None:
            p, sums = self.problem, self._bordered
            whole = xp.empty(
                (p.N, *(n + sum(ps) for n, ps in zip(p.spatial, p.padding, strict=True)), p.C), np.int8
            )
            whole.fill(w.quantization.x_zero_point)
            inside = [slice(low, low + n) for n, (low, _) in zip(p.spatial, p.padding, strict=True)]
            whole[(slice(None), *inside)] = x
            x = whole
        size, count = 4 * math.prod(self._y_shape), len(w.packed)
        fits = sums.workspace_bytes <= self._sums.workspace_bytes
        scratch = workspace[int32_bytes(self.problem) :] if fits else xp.empty(sums.workspace_bytes, np.uint8)
        parts = workspace if count == 1 else xp.empty(count * size, np.uint8)
        for i, term in enumerate(w.packed):
            sums(x, term, address(parts) + i * size, scratch)
        added = NO_BIAS if bias is None else bias
        self._finish(parts, added, y, self.record(w, activation), np.int32(count))


ALGORITHMS = (Cudnn(),)
