"""A forward that takes chunks by halves: for which specs, and what it leaves to others."""

from __future__ import annotations

import re

import pytest
import torch

from glagen.ir.kernel import Kernel, Load
from glagen.ir.schedule import Options, Schedule
from glagen.ir.tuned import HALVED
from glagen.pipeline import plan
from tests.numerics.helpers import by_halves, document_of, generated, spec_text
from tests.strategies import UNGATED

HEADS = (200, 300)
TAKERS = ["lightning_attn", "linear_attn", "retnet", "simple_gla"]


def planned(text: str) -> Schedule:
    document = document_of(text)
    found = plan(document, Options(tuned=by_halves(document, 9, HEADS)))
    assert isinstance(found, Schedule)
    return found


def halved(text: str) -> Kernel | None:
    return next((kernel for kernel in planned(text).kernels if kernel.name == HALVED), None)


@pytest.mark.parametrize("text", [*map(spec_text, TAKERS), *UNGATED], ids=[*TAKERS, "own step", "steps before"])
def test_it_makes_all_of_tensors_alone_and_keeps_nothing(text):
    kernel = halved(text)
    assert kernel is not None and kernel.direction == "forward" and kernel.whole == ("i",)
    assert not kernel.given and not kernel.ready and kernel.name in planned(text).from_shared
    assert not {"S", "scores"} & {line.name for line in kernel.lines if isinstance(line, Load)}
    (scan,) = kernel.scans
    assert scan.saved is None and scan.axes == ("j", "i"), "the state is turned"


@pytest.mark.parametrize(
    "text",
    [
        spec_text("gla"),
        spec_text("gla_v"),
        spec_text("mamba2"),
        UNGATED[0].replace("k[t,i] * v[t,j]", "k[t,i] * tanh(v[t,j])"),
        UNGATED[0].replace("k[t,i] * v[t,j]", "relu(k[t,i]) * tanh(v[t,j])"),
    ],
    ids=["gates on keys", "gates on values", "a parameter's gates", "computed values", "both computed"],
)
def test_no_other_forward_does(text):
    """With vector gates; with states that are to be exact; with values that Triton would have in registers."""
    assert halved(text) is None


def test_there_is_none_where_nobody_measured_it():
    found = plan(document_of(spec_text("linear_attn")), Options(tuned=()))
    assert isinstance(found, Schedule) and HALVED not in {kernel.name for kernel in found.kernels}


@pytest.mark.parametrize("name", TAKERS)
def test_pieces_and_slots_are_of_whole_chunks(name):
    """While the kernel takes half as many steps at once."""
    module = generated(name)
    kernel = getattr(module, f"{name}_{HALVED}_kernel").src
    assert re.search(r"_sequence_at\(.*, 2 \* CHUNK\)", kernel) and len(re.findall(r"2 \* CHUNK", kernel)) == 1
    fixed = re.search(r"CHUNK: tl.constexpr = (\d+)", kernel)
    if fixed:
        assert 2 * int(fixed[1]) == module.CHUNK
    else:
        module._capability = lambda: 9
        halves, whole = (module._config(k, 128, 128, torch.bfloat16)["CHUNK"] for k in (HALVED, "fused_given"))
        assert 2 * halves == whole == module._chunk(128, 128, torch.bfloat16)


@pytest.mark.parametrize(("walks", "halves", "given"), [(110, True, True), (109, False, True), (43, False, False)])
def test_five_multiprocessors_in_six_are_to_have_a_program(walks, halves, given, monkeypatch):
    """Of few threads; of others, two for each sequence and head, two in three."""
    module = generated("simple_gla")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    found = [module._takes_over(kernel, walks, 128, 128, torch.bfloat16) for kernel in (HALVED, "fused_given")]
    assert found == [halves, given]


@pytest.mark.parametrize("name", ["lightning_attn", "retnet", "simple_gla"])
def test_narrow_heads_store_the_states_of_whole_chunks(name):
    """While the forward on chip takes as many steps at once as it would in others."""
    module = generated(name)
    module._capability = lambda: 9
    for K, parts in ((64, 2), (128, 1)):
        whole = module._chunk(K, K, torch.bfloat16)
        assert module._parts("fused", K, K, torch.bfloat16) == parts
        assert parts * module._config("fused", K, K, torch.bfloat16)["CHUNK"] == whole == 2 * module.CHUNK
    kernel = getattr(module, f"{name}_fused_kernel").src
    assert re.search(r"_sequence_at\(.*, HALVES \* CHUNK\)", kernel) and "first_slot + chunk // HALVES" in kernel
    assert re.search(r"tl\.store\(S_ptr.*\(chunk % HALVES == 0\)", kernel)


def test_a_half_counts_for_a_chunk_where_sequences_are_cut(monkeypatch):
    """So heads are cut from as many steps on as if chunks had as few as a forward takes at once."""
    module = generated("simple_gla")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    steps = module.LONG * module.CHUNK
    found = [
        module._pieces("states", 16, 64, 64, T, torch.bfloat16)
        for T in (steps - module._chunk(64, 64, torch.bfloat16), steps)
    ]
    assert found[0] == 1 < found[1]
    assert module._pieces("states", 16, 128, 128, steps, torch.bfloat16) == 1
