"""What the wisdom remembers of measurements: undisturbed times, failures and wrong results."""

from __future__ import annotations

import warnings
from dataclasses import replace

from convalgos.core.problem import ConvProblem
from convalgos.core.version import __version__
from convalgos.select.measure.table import Table
from convalgos.select.measure.trial import Trial
from convalgos.select.measured import Entry, Measured

UNBOUNDED = 1e30  # stands for an error that is not finite


def of_table(found: Table) -> Entry:
    """What a table tells: of a wrong result that it is, of a disturbed time nothing."""
    entry: Entry = {}
    for r in found.rows:
        if r.wrong:
            entry[r.algorithm] = of_wrong_result(found.problem, r.algorithm, r.error, r.error_bound)
        elif r.timing.believable:
            entry[r.algorithm] = Measured(
                r.samples_s, r.workspace_bytes, r.error, r.prepare_s, version=__version__
            )
    warn_of_disturbed(found.problem, [r.algorithm for r in found.rows if r.algorithm not in entry])
    return entry | {f.id: of_failure(f.why_not) for f in found.failed}


def of_trial(trial: Trial) -> Measured:
    """What a trial tells by the samples that nobody disturbed."""
    return Measured(
        samples_s=tuple(trial.samples.quiet),
        workspace_bytes=trial.candidate.workspace_bytes,
        error=trial.error,
        prepare_s=trial.prepare_s,
        version=__version__,
    )


def of_wrong_result(problem: ConvProblem, algorithm: str, error: float, bound: float) -> Measured:
    """What is remembered of a candidate that gave a wrong result, which is said at once, too."""
    reason = f"its error was {error:.1e}, over its bound {bound:.1e}"
    warnings.warn(f"{algorithm} is wrong on {problem}: {reason}; not used", RuntimeWarning, stacklevel=3)
    return replace(of_failure(reason), error=min(error, UNBOUNDED) if error == error else UNBOUNDED)


def of_failure(reason: str, adapted: bool = False) -> Measured:
    """What is remembered of a candidate that raised an error."""
    return Measured(failure=reason, version=__version__, adapted=adapted)


def warn_of_disturbed(problem: ConvProblem, algorithms: list[str]) -> None:
    """That times of candidates are not remembered."""
    if algorithms:
        told = f"{problem}: other programs ran meanwhile; not remembered: {', '.join(algorithms)}"
        warnings.warn(told, RuntimeWarning, stacklevel=3)
