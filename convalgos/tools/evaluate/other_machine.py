"""The candidates of problems on another CPU: one on which a table was recorded, and which is not here.

A plan depends on the width of vectors, the caches and the threads, and much of this is cached in a process
once it is known. So another process assumes the figures of that machine and makes the plans.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from convalgos.core import machine
from convalgos.core.machine import Machine
from convalgos.core.problem import ConvProblem
from convalgos.select import choose
from convalgos.select.ranking import Candidate


def survey_there(problems: Sequence[ConvProblem], figures: Machine) -> list[list[Candidate]]:
    """The candidates of each problem on a machine, with what their models predict there."""
    if is_here(figures):
        return [choose.survey(problem, "cpu", figures)[0] for problem in problems]
    environment = {**os.environ, "CONVALGOS_NUM_THREADS": str(figures.threads)}
    environment.pop("NUMBA_CPU_NAME", None)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from convalgos.tools.evaluate import other_machine; other_machine.answer_survey()",
        ],
        input=pickle.dumps((problems, figures)),
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    found: list[list[Candidate]] = pickle.loads(done.stdout)
    return found


def is_here(figures: Machine) -> bool:
    """Whether plans of this process look as on a machine."""
    from convalgos.cpu.runtime import jit  # imports llvmlite

    own = machine.vector_bytes(), machine.cache_sizes(), jit.thread_count()
    return own == (
        figures.vector_bytes, (figures.l1_bytes, figures.l2_bytes, figures.l3_bytes), figures.threads,
    )  # fmt: skip


def answer_survey() -> None:
    """What the process on that machine does: problems and figures on its input, candidates on its output."""
    problems, figures = pickle.load(sys.stdin.buffer)
    machine.assume(figures)
    found = [choose.survey(problem, "cpu", figures)[0] for problem in problems]
    for candidates in found:
        for c in candidates:
            _ = c.workspace_bytes, c.error_bound  # those on that machine, which then go with it
    pickle.dump(found, sys.stdout.buffer)
