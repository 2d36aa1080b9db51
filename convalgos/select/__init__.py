"""The selector: which algorithms there are, what they are predicted to take, and which one is picked."""

from convalgos.core.laid_arrays import turn_by
from convalgos.select.children import ChildPlanner
from convalgos.select.choose import (
    explained,
    pick,
    planned,
    rank,
    serve,
    survey,
    varied,
)
from convalgos.select.constraints import Constraints, keeps, needs, within
from convalgos.select.devices import (
    current_machine,
    figures,
    measured_figures,
    measured_machine,
    store,
    store_of,
    working_on,
)
from convalgos.select.estimate import cost
from convalgos.select.extensions import DEVICES
from convalgos.select.ranker import Ranker, analytic, find_ranker, predict, rankers, register
from convalgos.select.ranking import Candidate, Ranking, Rejection
from convalgos.select.registry import (
    algorithms,
    algorithms_on,
    between_reorders,
    facing,
    find_algorithm,
    hand_down,
    turn_over,
    variants,
    ways,
)

hand_down({kind: ChildPlanner(kind) for kind in DEVICES})
turn_by(turn_over)

__all__ = [
    "Candidate",
    "Constraints",
    "Ranker",
    "Ranking",
    "Rejection",
    "algorithms",
    "algorithms_on",
    "analytic",
    "between_reorders",
    "cost",
    "current_machine",
    "explained",
    "facing",
    "figures",
    "find_algorithm",
    "find_ranker",
    "keeps",
    "measured_figures",
    "measured_machine",
    "needs",
    "pick",
    "planned",
    "predict",
    "rank",
    "rankers",
    "register",
    "serve",
    "store",
    "store_of",
    "survey",
    "variants",
    "varied",
    "ways",
    "within",
    "working_on",
]
