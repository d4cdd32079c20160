"""Every Decay, sign and interval that is derived is mutated in turn; the check must notice each.

Mutants that change nothing are listed in survivors.txt, each with the reason. GLAGEN_FULL=1 runs all of them, else a
sample: every statement, and lines in part.
"""

from __future__ import annotations

import pytest

from tests.mutation.judge import (
    FULL,
    KERNELS,
    KERNELS_SAMPLE,
    SPECS,
    Judge,
    chosen,
    judge_all,
    label_of,
    listed,
    places,
    survivors_of,
)
from tests.mutation.mutants import Mutant, program_mutants, twin_mutants
from tests.mutation.survivors import UNEXPLAINED, run_worker

LINES_SAMPLE = 23  # one line mutant in so many, unless GLAGEN_FULL=1


def compare(where: str, survivors: list[str]) -> None:
    """The survivors are those listed: no more, and (what is listed always runs) no fewer."""
    known = survivors_of(where)
    assert not set(survivors) - known, f"{where}: the check does not notice {sorted(set(survivors) - known)[:5]}"
    assert not known - set(survivors), f"{where}: listed, but noticed: {sorted(known - set(survivors))[:5]}"


@pytest.mark.parametrize("name", SPECS)
def test_statements(name):
    judge = Judge(name)
    assert judge.error(judge.results(judge.text)) < 1e-12
    mutants = program_mutants(judge.program)
    assert len({m.label for m in mutants}) == len(mutants)
    fates, survivors = judge_all(judge, mutants)
    assert not fates["crashed"], f"{fates['crashed']} mutants end in an error that is no InternalError"
    assert fates["killed"] > 20
    compare(label_of(name, "", "statements"), survivors)


@pytest.mark.parametrize(("name", "cover"), places())
def test_lines(name, cover):
    judge = Judge(name, cover)
    assert judge.error(judge.results(judge.text)) < 1e-12
    where = label_of(name, cover, "twin")
    mutants = twin_mutants(judge.schedule)
    sample = min(LINES_SAMPLE, len(mutants) // 5)  # some of every place, however few it has
    fates, survivors = judge_all(judge, chosen(mutants, where, 1 if FULL else sample))
    assert fates["killed"] >= 3
    compare(where, survivors)


@pytest.mark.parametrize(("name", "cover"), KERNELS)
def test_kernels(name, cover):
    result = run_worker(name, cover, KERNELS[name, cover] if FULL else KERNELS_SAMPLE)
    assert result["error"] < 0.3  # of the limits
    assert result["fates"]["killed"] >= 8
    compare(label_of(name, cover, "kernels"), result["survivors"])


def test_every_survivor_has_a_reason():
    reasons = {reason for labels in listed().values() for reason in labels.values()}
    assert UNEXPLAINED not in reasons
    assert all(len(reason) > 20 for reason in reasons)


def test_a_listed_place_exists():
    known = {label_of(n, "", "statements") for n in SPECS} | {label_of(n, c, "twin") for n, c in places()}
    assert set(listed()) <= known | {label_of(n, c, "kernels") for n, c in KERNELS}


def test_the_judge_can_tell():
    """A program that is right survives, whatever its statements are called; one that is wrong does not."""
    judge = Judge("gla")
    assert judge.verdict(Mutant("unchanged", judge.program)) == "survived"
    wrong = next(m for m in program_mutants(judge.program) if m.label.startswith("query[t,i]: negated"))
    assert judge.verdict(wrong) == "killed"
