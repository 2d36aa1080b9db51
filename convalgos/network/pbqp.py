"""Partitioned Boolean quadratic problems: one option for each node, at the least cost of nodes and edges.

A node has a vector of costs, one for each option; an edge has a matrix, one for each pair of options of its
two nodes. Infinite costs forbid. Reductions that lose nothing come first: R0 takes the best option of a node
without edges; RI folds a node of one edge into the vector of its neighbour, RII one of two edges into an edge
between its neighbours. Trees, chains and series-parallel graphs are solved by these alone. What is left, the
core, is solved by branch and bound: a node of the most edges is fixed to each of its options in turn (RN is
the first descent of that), and the rest reduced again. It is exact until it has branched BRANCHES times.

Source: Scholz and Eckstein 2002 (register allocation); Hames and Scholz 2006 (branch and bound); Anderson and
Gregg 2018, arXiv:1710.01079 (layouts and algorithms of networks).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

BRANCHES = 2000  # descents of branch and bound, each of which reduces what is left: about a second at worst


@dataclass(frozen=True)
class Solution:
    """An option of each node, and what they cost together."""

    choices: tuple[int, ...]
    cost: float  # infinite where all that was found is forbidden
    exact: bool  # whether nothing else costs less


class Pbqp:
    """A problem that is put together node by node, and solved.

    Example:
        >>> problem = Pbqp()
        >>> first, second = problem.add_node([1.0, 0.0]), problem.add_node([0.0, 5.0])
        >>> problem.add_edge(first, second, [[0.0, 3.0], [3.0, 0.0]])
        >>> problem.solve()
        Solution(choices=(0, 0), cost=1.0, exact=True)
    """

    def __init__(self) -> None:
        self._vectors: list[np.ndarray] = []
        self._edges: list[tuple[int, int, np.ndarray]] = []

    def add_node(self, costs: Sequence[float] | np.ndarray) -> int:
        """A node whose options have these costs; returns its number."""
        self._vectors.append(np.array(costs, float))
        return len(self._vectors) - 1

    def add_edge(self, u: int, v: int, costs: Sequence[Sequence[float]] | np.ndarray) -> None:
        """Costs of pairs of options of two nodes; those of several edges of a pair add up."""
        self._edges.append((u, v, np.array(costs, float)))

    def cost(self, choices: Sequence[int]) -> float:
        """What one option of each node costs."""
        nodes = sum(float(vector[i]) for vector, i in zip(self._vectors, choices, strict=True))
        return nodes + sum(float(matrix[choices[u], choices[v]]) for u, v, matrix in self._edges)

    def solve(self, known: Iterable[Sequence[int]] = (), branches: int = BRANCHES) -> Solution:
        """The best choices; never worse than those that are known.

        Args:
            known: choices to start from, such as the best by a simple rule.
            branches: after how many the best that was found is taken.
        """
        search = _Search(branches)
        starts = [tuple(choices) for choices in known]
        bound = min(map(self.cost, starts), default=math.inf)
        whole = _Graph.of(self._vectors, self._edges)
        found = search.best_below(whole, bound)
        if found is not None:
            starts.append(tuple(found[v] for v in range(len(self._vectors))))
        best = min(starts, key=self.cost, default=(0,) * len(self._vectors))  # where all is forbidden
        return Solution(best, self.cost(best), not search.gave_up)


@dataclass
class _Graph:
    """What is left of a problem. matrices[u][v] has the options of u in rows; matrices[v][u] is it turned."""

    vectors: dict[int, np.ndarray]
    matrices: dict[int, dict[int, np.ndarray]]
    spent: float = 0.0  # cost of what is decided

    @classmethod
    def of(cls, vectors: list[np.ndarray], edges: list[tuple[int, int, np.ndarray]]) -> _Graph:
        graph = cls(dict(enumerate(vectors)), {v: {} for v in range(len(vectors))})
        for u, v, matrix in edges:
            if u == v:
                graph.vectors[u] = graph.vectors[u] + np.diagonal(matrix)
            else:
                graph.join(u, v, matrix)
        return graph

    def copy(self) -> _Graph:
        """The same; vectors and matrices are never written."""
        return _Graph(dict(self.vectors), {v: dict(edges) for v, edges in self.matrices.items()}, self.spent)

    def join(self, u: int, v: int, matrix: np.ndarray) -> None:
        """Add an edge. What each option of u costs in any case goes to its vector, and likewise of v."""
        known = self.matrices[u].get(v)
        if known is not None:
            matrix = matrix + known
        matrix, least = _without_least_of_rows(matrix)
        self.vectors[u] = self.vectors[u] + least
        turned, least = _without_least_of_rows(matrix.T)
        self.vectors[v] = self.vectors[v] + least
        if turned.any():
            self.matrices[u][v], self.matrices[v][u] = turned.T, turned
        else:  # of no interest to one another
            self.matrices[u].pop(v, None)
            self.matrices[v].pop(u, None)

    def take_out(self, v: int) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """Remove a node: its vector, and its matrices."""
        edges = self.matrices.pop(v)
        for u in edges:
            del self.matrices[u][v]
        return self.vectors.pop(v), edges

    def fix(self, v: int, option: int) -> None:
        """Decide for an option of a node."""
        vector, edges = self.take_out(v)
        self.spent += float(vector[option])
        for u, matrix in edges.items():
            self.vectors[u] = self.vectors[u] + matrix[option]

    @property
    def least(self) -> float:
        """A lower bound of its cost: no entry of a matrix is below 0."""
        return self.spent + sum(map(float, map(np.minimum.reduce, self.vectors.values())))


# A node, its neighbours, and its best option for each of theirs.
_Folded = tuple[int, tuple[int, ...], np.ndarray]


def _reduce(graph: _Graph) -> list[_Folded]:
    """Fold nodes of at most two edges into the others, in place; the last is to be told first."""
    folded: list[_Folded] = []
    waiting = [v for v, edges in graph.matrices.items() if len(edges) <= 2]
    while waiting:
        v = waiting.pop()
        if v not in graph.matrices or len(graph.matrices[v]) > 2:
            continue
        vector, edges = graph.take_out(v)
        others = tuple(edges)
        costs = vector
        if len(others) == 1:
            costs = edges[others[0]].T + vector  # (options of the neighbour, options of v)
        elif others:
            first, second = (edges[u].T for u in others)
            costs = first[:, None, :] + (second + vector)[None, :, :]
        folded.append((v, others, costs.argmin(-1)))
        least = costs.min(-1)
        if not others:
            graph.spent += float(least)
        elif len(others) == 1:
            graph.vectors[others[0]] = graph.vectors[others[0]] + least
        else:
            graph.join(others[0], others[1], least)
        waiting += [u for u in others if len(graph.matrices[u]) <= 2]
    return folded


class _Search:
    """Branch and bound, depth first, until so many branches were taken."""

    def __init__(self, branches: int):
        self.left = branches
        self.gave_up = False  # with branches left out

    def best_below(self, graph: _Graph, bound: float) -> dict[int, int] | None:
        """The best options of all nodes, if they cost less than the bound. The graph is used up."""
        folded = _reduce(graph)
        if not graph.least < bound:
            return None
        found: dict[int, int] | None = {}
        if graph.vectors:
            found = self._branch(graph, bound)
        if found is None:
            return None
        for v, others, best in reversed(folded):
            found[v] = int(best[tuple(found[u] for u in others)])
        return found

    def _branch(self, graph: _Graph, bound: float) -> dict[int, int] | None:
        """Fix the node of the most edges to each option, the most promising first."""
        v = max(graph.matrices, key=lambda u: (len(graph.matrices[u]), u))
        near = graph.vectors[v] + sum(
            (matrix + graph.vectors[u]).min(1) for u, matrix in graph.matrices[v].items()
        )
        best: dict[int, int] | None = None
        for option in np.argsort(near, kind="stable"):
            if self.left <= 0 and (bound < math.inf or self.left < -len(graph.vectors)):
                self.gave_up = True
                break
            self.left -= 1
            rest = graph.copy()
            rest.fix(v, int(option))
            found = self.best_below(rest, bound)
            if found is not None:
                best = found | {v: int(option)}
                bound = self._cost(graph, best)
        return best

    @staticmethod
    def _cost(graph: _Graph, choices: dict[int, int]) -> float:
        nodes = sum(float(vector[choices[v]]) for v, vector in graph.vectors.items())
        pairs = sum(
            float(matrix[choices[u], choices[v]])
            for u, edges in graph.matrices.items()
            for v, matrix in edges.items()
            if u < v
        )
        return graph.spent + nodes + pairs


def _without_least_of_rows(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the matrix less the least of each row, these). A row of infinities is left with zeros."""
    least = np.minimum.reduce(matrix, 1)
    if np.maximum.reduce(least, initial=0.0) < math.inf:
        return matrix - least[:, None], least
    with np.errstate(invalid="ignore"):  # inf - inf
        rest = np.where(np.isinf(least)[:, None], 0.0, matrix - least[:, None])
    return rest, least
