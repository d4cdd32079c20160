"""`glagen fuzz`: the same numbers again, a run that goes on, and faults that are told."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from glagen import fuzz
from glagen.cli import main


def test_a_number_is_always_the_same():
    again = [fuzz.sample(0, 3), fuzz.sample(0, 3)]
    assert again[0] == again[1]
    assert fuzz.sample(0, 4) != again[0] and fuzz.sample(1, 3) != again[0]


def test_what_is_right_has_no_fault():
    assert [fuzz.attempt(0, n)["fault"] for n in range(5)] == [""] * 5


def test_what_is_wrong_has_one(monkeypatch):
    right = fuzz.op_results
    monkeypatch.setattr(fuzz, "op_results", lambda *args: {n: 1.01 * x for n, x in right(*args).items()})
    assert "o errs 1.0e-02" in fuzz.attempt(0, 0)["fault"]


def test_where_the_recurrence_overflows_nothing_is_wrong_but_elsewhere(monkeypatch):
    right, ours = fuzz.reference_results, fuzz.op_results

    def overflowing(*args):
        results = right(*args)
        results["d x0"][0, 0] = float("inf")
        return results

    monkeypatch.setattr(fuzz, "reference_results", overflowing)
    assert fuzz.attempt(0, 0)["fault"] == ""
    monkeypatch.setattr(fuzz, "op_results", lambda *args: {n: 1.01 * x for n, x in ours(*args).items()})
    assert "d x0 errs 1.0e-02" in fuzz.attempt(0, 0)["fault"]


def test_a_spec_that_does_not_compile_has_one(monkeypatch):
    monkeypatch.setattr(fuzz, "any_spec", lambda dice: "name: op\n")
    assert fuzz.attempt(0, 0)["fault"].startswith("SpecError")


@pytest.fixture
def worker(monkeypatch):
    """In place of processes: a fault for every multiple of three. Tells what was asked for."""
    asked: list[int] = []

    def run(seed, numbers):
        asked.extend(numbers)
        fault = {n: "a fault" if n % 3 == 0 else "" for n in numbers}
        return [{**fuzz.sample(seed, n), "case": "a case", "fault": fault[n]} for n in numbers]

    monkeypatch.setattr(fuzz, "_run", run)
    monkeypatch.setattr(fuzz, "BATCH", 2)
    return asked


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path, worker):
    log = tmp_path / "log.jsonl"
    assert [e["number"] for e in fuzz.fuzz(0, 3, log, lambda done, faults: None)] == [0]
    log.write_text(log.read_text() + '{"seed": 0, "numb')  # cut off in the middle of a line
    told: list[tuple[int, int]] = []
    found = fuzz.fuzz(0, 7, log, lambda *x: told.append(x))
    assert [e["number"] for e in found] == [0, 3, 6] and worker == list(range(7))
    assert told == [(5, 2), (7, 3)]
    assert fuzz.fuzz(1, 1, log, lambda *x: None)[0]["number"] == 0  # another seed, another run


def test_the_command_tells_faults_and_exits_with_one(tmp_path, worker):
    log = tmp_path / "log.jsonl"
    result = CliRunner().invoke(main, ["fuzz", "--count", "2", "--log", str(log)])
    assert result.exit_code == 1 and "2 of 2 tried, 1 with a fault" in result.output
    assert "number 0, a case" in result.output and "name: op" in result.output
    assert [json.loads(line)["number"] for line in log.read_text().splitlines()] == [0, 1]


def test_a_worker_that_dies_costs_one_number(monkeypatch):
    monkeypatch.setattr(fuzz.sys, "executable", "/bin/false")
    (entry,) = fuzz._run(0, [7, 8])
    assert entry["number"] == 7 and entry["fault"].startswith("the worker ended")
