"""The Triton kernels on the CPU, in Triton's interpreter, against the recurrence: small extents, every spec."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.copies import copied
from tests.numerics.helpers import SPECS

pytest.importorskip("triton")

IMPORTED = "triton", "torch._dynamo", "tests.numerics.interpreter_worker"
WORKER = "import sys; from tests.numerics.interpreter_worker import main; sys.exit(main(sys.argv[1]))"


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.stem)
def test_committed_kernels(path):
    result = _worker(path.stem)
    assert result.stdout, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    keys = ("regime", "case", "precision", "mode", "quantity", "error", "channel")
    assert not [" ".join(str(row[key]) for key in keys) for row in report["rows"] if not row["ok"]]
    assert all(report["calls"].values())
    assert result.returncode == 0, result.stderr[-3000:]


def test_kernels_of_random_specs():
    result = _worker("random")
    assert result.returncode == 0, result.stderr[-3000:]


def test_sums_over_more_than_a_tile():
    result = _worker("local_sums")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_an_interpreter_that_is_spared_finds_the_same_bits():
    """Errors are those of the interpreter as it is, to the last digit."""
    spared, whole = _worker("local_sums"), _worker("whole local_sums")
    assert spared.stdout and spared.stdout == whole.stdout, (spared.stderr + whole.stderr)[-3000:]


def test_divisors_in_float64():
    """Gates as they are given, for scalars and vectors: they have to be float64 before they are summed."""
    result = _worker("divisors")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_a_guarded_cover():
    result = _worker("guarded")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_later_strong_gates_change_no_earlier_bit():
    result = _worker("later")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_later_strong_gates_change_no_earlier_bit_on_chip():
    result = _worker("later_on_chip")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_segments_are_read_and_written_where_they_lie():
    result = _worker("segments")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_second_runs_are_for_strong_gates_alone():
    result = _worker("second_runs")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_states_that_wait():
    """Forwards and walks back: packed, too, with sequences of no steps, and in pieces."""
    result = _worker("waiting")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_runs_for_mild_gates():
    """Of parameters too, and of states that are read twice: what no spec of ours does."""
    result = _worker("mild_runs")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_numbers_that_multiply_keys_and_queries():
    """Where each goes behind a product, the two must not be taken for each other."""
    result = _worker("numbers")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_functions():
    """Of several operations within others, of numbers, and near 0."""
    result = _worker("functions")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_derivatives_of_kernels():
    """The first are had, in every way that torch has to ask for them; the second are refused."""
    result = _worker("derivatives")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_gates_with_more_digits_than_inputs():
    result = _worker("mixed")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_sequences_in_pieces():
    result = _worker("pieces")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_scores_that_a_kernel_of_their_own_makes():
    result = _worker("apart")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_what_enters_each_piece():
    result = _worker("carried")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


@pytest.mark.parametrize("name", ["gla", "gla_kv", "gla_v", "linear_attn", "rwkv6"])
def test_chunks_may_be_taken_in_turn(name):
    """Packed, and with shared heads too; where gates are strong, by tiles of their own."""
    result = _worker(f"turned {name}")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


@pytest.mark.parametrize("name", ["gla", "rwkv6", "simple_gla"])
def test_chunks_of_twice_as_many_steps(name):
    result = _worker(f"doubled {name}")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_walks_that_are_given_scores_alone():
    result = _worker("given")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_operands_that_a_backward_shares():
    result = _worker("shared")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_gradients_of_both_sides_by_one_kernel():
    result = _worker("both")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


@pytest.mark.parametrize("name", ["gla", "gla_kv", "gla_v", "linear_attn", "mamba2"])
def test_runs_are_repeated_for_calls_alike(name):
    """As on a GPU: kernels take addresses, of memory that is there."""
    result = _worker(f"repeated {name}")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_gradients_of_values_of_what_others_read():
    result = _worker("kept")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_a_forward_that_takes_chunks_by_halves():
    result = _worker("halves")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_all_gradients_by_one_kernel():
    result = _worker("alone")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_all_gradients_by_one_kernel_in_longer_chunks():
    result = _worker("longer")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_few_rows_in_bfloat16():
    result = _worker("few_rows")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def test_with_the_roundings_of_bfloat16():
    result = _worker("in_bfloat16")
    assert result.returncode == 0, (result.stdout or result.stderr)[-3000:]


def _worker(name: str) -> subprocess.CompletedProcess[str]:
    """What the worker says in a process of its own."""
    return copied(IMPORTED, True, WORKER, {}, name)
