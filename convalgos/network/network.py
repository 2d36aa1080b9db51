"""A whole network that runs: planned for the shapes of its inputs when they first come, then called."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from convalgos.api.types import Effort
from convalgos.core.arguments import Shape, file_path, one_of
from convalgos.core.arrays import as_numpy, like, same_dtype
from convalgos.core.forks import renewed
from convalgos.core.setting import threads_of_calls
from convalgos.network.batch_parts import batch_parts_of, may_run_in_parts
from convalgos.network.choice import plan_network
from convalgos.network.declared_shapes import shape_of_batch
from convalgos.network.filters import Filters, filters_of_like
from convalgos.network.graph import ForeignRegion, NetworkGraph
from convalgos.network.memory import MemoryPool
from convalgos.network.network_plan import NetworkPlan
from convalgos.network.planned import PlanLimits
from convalgos.network.recent_plans import RecentPlans
from convalgos.network.repeated_runs import RepeatedRuns
from convalgos.network.saved import store_network, stored_network
from convalgos.network.sizes_of_run import SizesOfRun
from convalgos.network.stages import StagedRun, stages_of, with_opened
from convalgos.network.step_options import GROWTH

if TYPE_CHECKING:
    from convalgos.network.explanation import NetworkExplanation
    from convalgos.network.staged_plan import StagedExplanation, StagedPlan

REFINER = "convalgos refines a plan"  # a thread
EFFORTS = ("estimate", "measure", "exhaustive")


class RunsInstead(Protocol):
    """What may run a network for some inputs in its place."""

    def run(self, views: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """All outputs, new arrays; None where the network is to compute them."""


class Network:
    """A network of convolutions and what stands between them, run as a whole.

    Args:
        graph: from `ca.network.from_onnx`, or made by hand.
        instead: what is asked for the outputs first, in this order, until `plan` says how calls run.

    Example:
        >>> import numpy as np
        >>> from convalgos.core.epilogue import RELU
        >>> from convalgos.network.graph import Convolution, NetworkGraph
        >>> w = np.ones((4, 3, 3, 3), "f4")
        >>> layer = Convolution("first", ("x",), "y", w, padding=1, activation=RELU)
        >>> net = Network(NetworkGraph(("x",), ("y",), (layer,), {"x": ("n", 3, "h", "w")}))
        >>> net(np.ones((1, 3, 8, 8), "f4")).shape
        (1, 4, 8, 8)
    """

    def __init__(self, graph: NetworkGraph, instead: Sequence[RunsInstead] = ()):
        self.graph = graph
        self._instead: Sequence[RunsInstead] = tuple(instead)
        self._plans: RecentPlans[NetworkPlan] = RecentPlans()
        self._memories = MemoryPool()
        self._dtypes = {name: np.dtype(graph.dtypes.get(name, "float32")) for name in graph.inputs}
        self._right: dict[str, tuple[np.dtype, Shape]] = {}  # last inputs', which need not be looked at again
        self._refining = renewed(threading.Lock())
        self.repeated = RepeatedRuns()
        self._staged = StagedRun(graph, stages, Network) if (stages := stages_of(graph)) else None

    @property
    def stages(self) -> tuple[Network, ...]:
        """Networks that calls run one after the other, where sizes depend on what is computed; else none."""
        return () if self._staged is None else self._staged.networks

    def plan(
        self,
        shapes: int | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]] = 1,
        *,
        precisions: Sequence[str] = ("float32",),
        effort: Effort = "estimate",
        workspace_limit: int | None = None,
        max_rel_error: float | None = None,
    ) -> NetworkPlan | StagedPlan:
        """The plan for these shapes of the inputs, which later calls with such inputs run by; those of the
        `stages`, as far as sizes are known, where others depend on what is computed.

        Args:
            shapes: of the inputs, in their order or by name; or of the only one; or the batch, where all
                other sizes are declared in the model.
            precisions: number formats that convolutions may compute in, as those of `ca.plan`; maps stay
                float32.
            effort: "estimate" goes by predictions and by what was measured before; "measure" and "exhaustive"
                time the candidates of each convolution, in the layouts that were chosen.
            workspace_limit: bytes of scratch of each convolution.
            max_rel_error: of the outputs, where the error bounds of convolutions add up along each path.

        Raises:
            ValueError: shapes are not those of this network. Unsupported: a step cannot be computed.
        """
        one_of("effort", effort, EFFORTS)
        limits = PlanLimits(tuple(precisions), effort, workspace_limit, max_rel_error)
        given = self._shapes(shapes)
        self._instead = ()
        if self._staged is not None:
            return self._staged.planned(given, lambda stage, own: stage._planned_within(own, limits))
        return self._planned_within(given, limits)

    def keep(self, plan: NetworkPlan, rough: bool = False) -> None:
        """Let calls with inputs of its shapes run by a plan from now on.

        Args:
            rough: until it has run `again` times, from when on a better one is looked for beside the calls.
        """
        key = tuple(plan.planned.shapes[name] for name in self.graph.inputs)
        self._plans.add(key, plan, rough)
        self.repeated.forget()

    def plans(self) -> list[NetworkPlan]:
        """Those that calls run by."""
        return self._plans.all()

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network, its plans and their prepared filters into a file, which `load` reads.

        Plans that were made like others, for other sizes, are left out: a call makes them again sooner than
        they are read.

        Raises:
            Unsupported: a part of it is run by a library whose regions cannot be stored.
        """
        graph, whole = self.graph, () if self._staged is not None else self.plans()  # no call runs by else
        own = [p for p in whole if not p.choice.of_other_shapes or p.parts or p.limits != PlanLimits()]
        store_network(graph, [p.record for p in own], file_path("path", path))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """The network of a file that `save` wrote, with its plans where they serve this machine.

        Nothing in the file is executed.

        Raises:
            ValueError: it is no such file, or damaged. OSError: as of `open`.
            Unsupported: it needs a library that is not installed.
        """
        graph, plans = stored_network(file_path("path", path))
        net = cls(graph)
        for plan in plans:
            net.keep(NetworkPlan.of_record(graph, plan, net._memories))
        return net

    def explain(
        self,
        shapes: int | Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]] = 1,
        timed: bool = False,
    ) -> NetworkExplanation | StagedExplanation:
        """The plan that calls with these shapes run by: it prints as a table of its steps.

        Algorithms, layouts and predicted times of all steps; what the same layout for all of them is
        predicted to take, and each step by its own best; the memory.

        Args:
            shapes: as those of `plan`.
            timed: whether to run the network some times on random inputs, and take the time of each step.
        """
        given = self._shapes(shapes)
        staged = self._staged
        plan = self._planned_for(given) if staged is None else staged.planned(given, Network._planned_for)
        return plan.explain(timed)

    def __call__(self, *arrays: Any, inputs: Mapping[str, Any] | None = None) -> Any:
        """The output of the network, or a tuple of them where there are several; new arrays.

        Args:
            arrays: the inputs in their order.
            inputs: the inputs by name, in the place of `arrays`.

        Raises:
            ValueError: an input is missing, is none of the network's, or has a wrong shape.
            TypeError: an input has a wrong dtype.
        """
        given = self._given(arrays, inputs)
        outputs = self.run(self._views(given))
        if given and type(given[0]) is not np.ndarray:
            outputs = [like(y, given[0]) for y in outputs]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def checked(self, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """The inputs by name as `run` takes them: in their order, as contiguous NumPy arrays.

        Raises:
            ValueError, TypeError: as those of a call.
        """
        return self._views(self._given((), inputs))

    def run(self, views: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs, new arrays, of inputs as `checked` gives them."""
        for other in self._instead:
            if (found := other.run(views)) is not None:
                return found
        if self._staged is not None:
            return self._staged.run(views)
        key = tuple([view.shape for view in views])
        try:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._planned_for(dict(zip(self.graph.inputs, key, strict=True)))
            if self._plans.is_rough(key) and next(plan.runs) == plan.again:
                threading.Thread(target=self._refine, args=(plan,), name=REFINER, daemon=True).start()
            found = plan.run(views)
        except SizesOfRun as unknown:
            return self._run_opened(unknown.region, views)
        if not self._instead and not self._plans.is_rough(key):  # whose runs are counted
            self.repeated.note(plan, lambda: self._plans.get(key) is plan)
        return found

    # --- inside ------------------------------------------------------------------------------

    def _run_opened(self, region: ForeignRegion, views: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, where a run tells the sizes of what a region gives: in stages, as calls from now on
        if this one is right."""
        opened = type(self)(with_opened(self.graph, region))
        found = opened.run(views)
        self._staged, self.graph, self._plans = opened._staged, opened.graph, opened._plans
        self.repeated.forget()
        return found

    def _views(self, given: Sequence[Any]) -> list[np.ndarray]:
        return [self._checked(name, array) for name, array in zip(self.graph.inputs, given, strict=True)]

    def _planned_for(self, shapes: Mapping[str, Shape]) -> NetworkPlan:
        """The plan that calls with inputs of these shapes run by; made where there is none."""
        key = tuple(shapes[name] for name in self.graph.inputs)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(shapes, PlanLimits(), math.inf)
            work = self.graph.input_elements
            like = [work(p.planned.shapes) for p in self._plans.chosen()]
            own = work(shapes)
            near = any(own <= GROWTH * other and other <= GROWTH * own for other in like)
            better = not near or may_run_in_parts(plan.planned, self.graph)
            self.keep(plan, rough=plan.planned.borrows or (plan.choice.of_other_shapes and better))
        return plan

    def _planned_within(self, shapes: Mapping[str, Shape], limits: PlanLimits) -> NetworkPlan:
        """A plan made for these shapes, which calls run by from now on."""
        found = self._plan(shapes, limits)
        found.bind()
        self.keep(found)
        return found

    def _refine(self, plan: NetworkPlan) -> None:
        """Choose for the shapes of a plan that has others' choice: one at a time, as it serves those near."""
        shapes = {name: plan.planned.shapes[name] for name in self.graph.inputs}
        with self._refining, threads_of_calls(plan.planned.threads):  # those of the calls that it serves
            self.keep(self._plan(shapes, plan.limits))

    def _plan(self, shapes: Mapping[str, Shape], limits: PlanLimits, growth: float = GROWTH) -> NetworkPlan:
        chosen = self._plans.chosen()
        known = [(plan.planned, plan.choice) for plan in chosen if plan.limits == limits]
        planned, choice = plan_network(self.graph, shapes, limits, known, growth)
        parts = None
        if not (choice.of_other_shapes and math.isinf(growth)):  # which may be for a single call
            in_parts = [p.parts for p in chosen if p.parts is not None and p.limits == limits]
            parts = batch_parts_of(planned, self.graph, limits, in_parts)
        like, filters = None, None
        if parts is None:
            serving = (p for p in chosen if p.parts is None and p.planned.made_like is planned.made_like)
            like = next(serving, None)
            if like:
                filters = filters_of_like(planned, like.planned, like.filters, self._filters)
        others = self._filters() if filters is None else ()
        return NetworkPlan(self.graph, planned, choice, limits, others, self._memories, filters, like, parts)

    def _filters(self) -> list[Filters]:
        """Of all plans, which mostly share them."""
        return [*{id(plan.filters): plan.filters for plan in self.plans()}.values()]

    def _given(self, arrays: tuple[Any, ...], inputs: Mapping[str, Any] | None) -> Sequence[Any]:
        """The inputs in their order."""
        names = self.graph.inputs
        if type(inputs) is dict and inputs.keys() == self._dtypes.keys() and not arrays:
            return [inputs[name] for name in names]
        if inputs is None:
            if len(arrays) != len(names):
                raise ValueError(f"{len(arrays)} inputs were given; the network takes {_listed(names)}")
            return arrays
        if arrays:
            raise ValueError("inputs are given in their order or by name, not both")
        if not isinstance(inputs, Mapping):
            raise TypeError(f"inputs={type(inputs).__name__} must be a dict of arrays by name")
        if unknown := [name for name in inputs if name not in names]:
            raise ValueError(f"inputs has {_listed(unknown)}; the network takes {_listed(names)}")
        if lacking := [name for name in names if name not in inputs]:
            raise ValueError(f"inputs lacks {_listed(lacking)}; the network takes {_listed(names)}")
        return [inputs[name] for name in names]

    def _checked(self, name: str, array: Any) -> np.ndarray:
        """An input, contiguous and aligned, of the right dtype and with the sizes that are declared."""
        if type(array) is np.ndarray:
            plain: np.ndarray = array
            if (plain.dtype, plain.shape) == self._right.get(name) and plain.flags.carray:
                return plain
        dtype, view = self._dtypes[name], as_numpy(name, array)
        if not same_dtype(view.dtype, dtype):
            raise TypeError(f"{name} has dtype {view.dtype}, but the network takes {dtype}")
        self._check_shape(name, view.shape)
        self._right[name] = dtype, view.shape
        found = np.asarray(view, dtype, order="C")  # ascontiguousarray gives a number a dimension
        return found if found.flags.aligned else found.copy()

    def _check_shape(self, name: str, shape: Shape) -> None:
        declared = self.graph.shapes.get(name)
        if declared is None:
            return
        wrong = any(isinstance(d, int) and d != n for d, n in zip(declared, shape, strict=False))
        if wrong or len(declared) != len(shape):
            told = ", ".join(map(str, declared))
            raise ValueError(f"{name} has shape {shape}, but the network takes ({told})")

    def _shapes(self, given: Any) -> dict[str, Shape]:
        """The shapes that `plan` was given, by name."""
        names = self.graph.inputs
        if isinstance(given, int | np.integer):
            return {n: shape_of_batch(n, self.graph.shapes.get(n, ()), int(given)) for n in names}
        if isinstance(given, Mapping):
            shapes = self._given((), given)
        else:
            shapes = list(given)
            if shapes and all(isinstance(n, int | np.integer) for n in shapes):
                shapes = [shapes]
            shapes = self._given(tuple(shapes), None)
        found = {name: tuple(map(int, shape)) for name, shape in zip(names, shapes, strict=True)}
        for name, shape in found.items():
            self._check_shape(name, shape)
        return found


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
