"""Every error message, as users see it: tests/specs/malformed/*.yaml against tests/golden/diagnostics/*.txt."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from glagen.check import check
from glagen.errors import Source, SpecError
from glagen.parse import parse

MALFORMED = sorted((Path(__file__).parents[1] / "specs" / "malformed").glob("*.yaml"))


def refusal(path: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        check(parse(Source(path.name, path.read_text(encoding="utf-8"))))
    return caught.value


@pytest.mark.parametrize("path", MALFORMED, ids=lambda path: path.stem)
def test_message(path: Path, golden: Callable[[str, str], None]) -> None:
    golden(f"diagnostics/{path.stem}.txt", refusal(path).render() + "\n")


@pytest.mark.parametrize("path", MALFORMED, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    """A message begins in lower case, points into the file, and is followed by help."""
    start = time.perf_counter()
    error = refusal(path)
    assert time.perf_counter() - start < 5
    for diagnostic in error.diagnostics:
        assert diagnostic.message[0].islower() or diagnostic.message[0] == "`"
        assert diagnostic.help and not diagnostic.message.endswith(".")
        if diagnostic.span is not None:
            line = error.source.line(diagnostic.span.line)
            assert 1 <= diagnostic.span.column <= len(line) + 1
            assert diagnostic.span.length >= 1


def test_every_golden_file_has_its_spec() -> None:
    golden = Path(__file__).parents[1] / "golden" / "diagnostics"
    assert sorted(path.stem for path in golden.glob("*.txt")) == [path.stem for path in MALFORMED]
