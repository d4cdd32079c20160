"""What becomes of chunk states, and when the state stays on chip."""

from __future__ import annotations

import inspect
import re

import pytest
import torch

from glagen.ir.tuned import BOTH, KEPT_BY_KEYS
from tests.numerics.helpers import generated

pytest.importorskip("triton")

BF16 = torch.bfloat16


@pytest.fixture
def seen(monkeypatch):
    """What each call of `simple_gla` had become of its chunk states."""
    module, found = generated("simple_gla"), []
    run = module._run

    def watched(*arguments):
        found.append(arguments[-1])
        return run(*arguments)

    monkeypatch.setattr(module, "_run", watched)
    return module, found


def arguments(module, **options):
    q, k, v = (torch.randn(1, 5, 2, 4) for _ in range(3))
    return lambda: module.simple_gla(q, k, v, torch.zeros(1, 5, 2), **options), q


def test_chunk_states_are_saved_only_where_a_gradient_may_be_asked_for(seen):
    module, found = seen
    call, q = arguments(module)
    call()
    with torch.no_grad():
        q.requires_grad_()
        call()
    call()
    assert found == ["dropped", "dropped", "saved"]


def test_a_gradient_of_the_initial_state_alone_saves_them_too(seen):
    module, found = seen
    call, _ = arguments(module, initial_state=torch.zeros(1, 2, 4, 4, requires_grad=True))
    call()
    assert found == ["saved"]


@pytest.mark.parametrize(
    ("capability", "K", "V", "dtype", "is_by_tma"),
    [
        (9, 128, 128, BF16, True),
        (9, 100, 200, BF16, True),
        (8, 128, 128, BF16, False),
        (10, 128, 128, BF16, False),
        (9, 64, 128, BF16, False),  # 16 KiB are as fast by threads
        (9, 128, 124, BF16, False),  # rows of 248 bytes
        (9, 128, 128, torch.float32, False),
    ],
)
def test_large_chunk_states_are_stored_by_tma(monkeypatch, capability, K, V, dtype, is_by_tma):
    module = generated("gla")
    monkeypatch.setattr(module, "_capability", lambda: capability)
    config = module._config("fused", K, V, BF16)
    assert module._is_by_tma(config, torch.empty(0, 1, K, V, dtype=dtype)) is is_by_tma
    assert module._is_by_tma(config, None) is False


@pytest.mark.parametrize(
    ("name", "K", "V", "is_by_tma"),
    [
        ("gla", 256, 512, True),
        ("gla", 128, 128, False),  # no row of the table
        ("gla_kv", 128, 256, True),
        ("gla_kv", 64, 64, True),
        ("gla_v", 256, 512, True),
        ("gla_v", 128, 128, True),
    ],
)
def test_walks_store_by_tma_where_the_table_says_so(monkeypatch, name, K, V, is_by_tma):
    module = generated(name)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    config = module._config("states", K, V, BF16, 100)
    states = torch.empty(0, 1, K, V, dtype=BF16)
    assert module._is_by_tma(config, states, config.measured) is is_by_tma
    assert not module._is_by_tma(config | {"BLOCK_K": 32, "BLOCK_V": 64}, states, True), "threads are as fast"


@pytest.mark.parametrize("known", [False, True], ids=["that it looks at", "of which it is told"])
def test_a_walk_back_stores_by_tma_whatever_gates_are(monkeypatch, known):
    """And is given scores of strong ones: of the forward, which has noted where they are, or its own."""
    module, found = generated("gla"), []

    def launched(kernel, programs, device, *arguments, config, passes=({},), **constants):
        if kernel is module.gla_fused_value_gradients_kernel:
            scores = dict(zip(kernel.arg_names, arguments, strict=False))["scores_ptr"]
            found.append((passes[-1]["STRONG"], passes[-1]["PEEK"], constants["TMA"], constants["JUDGED"], scores))

    monkeypatch.setattr(module, "_capability", lambda: 9)
    monkeypatch.setattr(module, "_config", lambda *given, of=module._config: of(*given[:4]))  # however few the walks
    monkeypatch.setattr(module, "_stays_on_chip", lambda *_: True)
    for name in ("_launch", "_launch_by_tma"):
        monkeypatch.setattr(module, name, launched)
    q = torch.zeros(1, 64, 8, 128, dtype=BF16)
    states = torch.zeros(2, 8, 128, 128, dtype=BF16)
    scores, *others, notes = module._new_operands(BF16, q.device)
    if known:
        scores, notes = torch.zeros(2, 8, 32, 32, dtype=BF16), torch.zeros(1, 8, 1, dtype=torch.int8)
    monkeypatch.setattr(module, "_strong_scores_triton", lambda *_: "its own")
    module._backward_triton(1.0, q, q, q, q, None, None, states, scores, *others, notes, q, None, [True] * 5)
    looks = [] if known else [(False, True, False, False, None)]
    assert found[:-1] == [*looks, (False, False, True, known, None)]
    assert found[-1][:-1] == (True, False, True, known) and found[-1][-1] is (scores if known else "its own")


@pytest.mark.parametrize("name", ["linear_attn", "simple_gla"])
def test_without_gates_of_columns_threads_store(name):
    assert not hasattr(generated(name), "_is_by_tma")


@pytest.mark.parametrize(
    ("T", "heads", "looks"),
    [
        (32 * 128, 8, False),
        (32 * 31, 8, True),  # one piece
        (32 * 128, 16, True),  # two heads of outputs read one of the state, and walks for what enters are of the latter
    ],
)
def test_who_has_seen_all_of_a_piece_need_not_look_at_its_first_chunk(monkeypatch, T, heads, looks):
    module, found = generated("gla"), []
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_stays_on_chip", lambda *_: True)
    monkeypatch.setattr(module, "_launch", lambda *_, passes=({},), **__: found.extend(passes))
    q = torch.zeros(1, T, heads, 64, dtype=BF16)
    k = v = g = q[:, :, :8]
    module._forward_triton(1.0, q, k, v, g, None, None, "saved")
    assert [x.get("PEEK") for x in found].count(True) == looks and found[-1]["STRONG"]


@pytest.mark.parametrize(
    ("T", "V", "pieces", "looks"),
    [
        (32 * 128, 64, 32, False),
        (32 * 63, 64, 1, True),
        (32 * 128, 256, 32, True),  # walks for the states note what they meet for all values, those on chip for a block
    ],
)
def test_walks_back_on_chip_go_along_pieces(monkeypatch, T, V, pieces, looks):
    """From the gradients of the states that leave each."""
    module, found, walked = generated("gla"), [], []
    on_chip = module.gla_fused_value_gradients_kernel

    def launched(kernel, programs, device, *arguments, passes=({},), **_):
        if kernel is on_chip:
            found.extend(passes)
            walked.append(programs)

    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_pieces", lambda *_: pieces)
    monkeypatch.setattr(module, "_stays_on_chip", lambda kernel, states, walks, *_: walks == 8 * pieces)
    for name in ("_launch", "_launch_by_tma"):
        monkeypatch.setattr(module, name, launched)
    q = k = g = torch.zeros(1, T, 8, 64, dtype=BF16)
    v = do = torch.zeros(1, T, 8, V, dtype=BF16)
    S = torch.zeros(-(-T // 32), 8, 64, V, dtype=BF16)
    kept = module._new_operands(BF16, q.device)
    needs = [True] * 5
    *_, dS_initial = module._backward_triton(1.0, q, k, v, g, None, None, S, *kept, do, None, needs)
    blocks = module._config("fused_value_gradients", 64, V, BF16, 8 * pieces).blocks_V
    assert set(walked) == {8 * pieces * blocks} and dS_initial.shape == (1, 8, 64, V)
    assert [x.get("PEEK") for x in found].count(True) == looks and found[-1]["STRONG"]


@pytest.mark.parametrize("states", ["saved", "recomputed"])
def test_what_is_asked_for_is_done(seen, states):
    module, found = seen
    call, _ = arguments(module, states=states)
    call()
    assert found == [states]


@pytest.mark.parametrize(
    ("name", "states", "walks", "K", "dtype", "stays"),
    [
        ("simple_gla", "saved", 100, 64, BF16, True),
        ("simple_gla", "saved", 99, 64, BF16, False),  # fewer programs than multiprocessors
        ("simple_gla", "saved", 100, 64, torch.float32, False),
        (
            "simple_gla",
            "saved",
            100,
            200,
            BF16,
            False,
        ),  # to store chunk states as wide takes longer than to walk for them
        ("simple_gla", "dropped", 100, 200, BF16, True),
        ("simple_gla", "recomputed", 1, 200, BF16, True),
        ("simple_gla", "recomputed", 100, 300, BF16, False),  # no program holds all columns of keys
        ("linear_attn", "dropped", 100, 200, BF16, False),
        ("gla_v", "saved", 100, 128, BF16, True),
        ("mamba2", "saved", 100, 64, BF16, False),  # its chunk states are to be exact
        ("mamba2", "dropped", 100, 64, BF16, True),
        ("gla", "saved", 67, 64, BF16, True),  # two thirds of the multiprocessors do, where gates have a side
        ("gla", "saved", 66, 64, BF16, False),
        ("gla", "dropped", 100, 200, BF16, False),
        ("gla", "recomputed", 1, 128, BF16, True),
        ("gla", "recomputed", 1, 129, torch.float16, False),
        ("gla_kv", "saved", 67, 65, BF16, True),
        ("gla_kv", "dropped", 67, 64, BF16, True),
        ("gla_kv", "dropped", 66, 64, BF16, False),
        ("gla_kv", "dropped", 100, 32, BF16, False),  # fewer rows than wgmma has
        ("gla_kv", "recomputed", 1, 64, BF16, True),
        ("gla_kv", "dropped", 100, 129, BF16, False),
    ],
)
def test_the_state_stays_on_chip_where_that_is_faster_or_asked_for(monkeypatch, name, states, walks, K, dtype, stays):
    module = generated(name)
    monkeypatch.setattr(module, "_multiprocessors", lambda: 100)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    assert module._stays_on_chip("fused", states, walks, K, 64, dtype) is stays


@pytest.mark.parametrize(("V", "capability", "stays"), [(512, 9, True), (200, 9, False), (512, 8, False)])
def test_states_of_wide_keys_are_stored_from_on_chip_where_that_was_measured(monkeypatch, V, capability, stays):
    module = generated("gla_v")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 100)
    monkeypatch.setattr(module, "_capability", lambda: capability)
    assert module._stays_on_chip("fused", "saved", 100, 256, V, BF16) is stays
    assert module._stays_on_chip("fused", "dropped", 100, 256, V, BF16)
    assert not module._stays_on_chip("fused", "dropped", 100, 257, V, BF16)


@pytest.mark.parametrize(
    ("walks", "K", "dtype", "stays"),
    [(100, 64, BF16, True), (99, 64, BF16, False), (100, 65, BF16, False), (100, 64, torch.float16, False)],
)
def test_its_gradient_stays_on_chip_where_that_is_faster(monkeypatch, walks, K, dtype, stays):
    module = generated("simple_gla")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 100)
    assert module._stays_on_chip("fused_value_gradients", "saved", walks, K, 64, dtype) is stays


@pytest.mark.parametrize(
    ("capability", "V", "stays"), [(9, 64, True), (8, 64, False), (10, 64, False), (9, 33, True), (9, 32, False)]
)
@pytest.mark.parametrize("kernel", ["fused", "fused_value_gradients"])
def test_gates_on_keys_want_wgmma_on_chip(monkeypatch, kernel, capability, V, stays):
    """Which only Hopper has, for 64 columns of values or more."""
    module = generated("gla")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 100)
    monkeypatch.setattr(module, "_capability", lambda: capability)
    assert module._stays_on_chip(kernel, "saved", 100, 128, V, BF16) is stays


@pytest.mark.parametrize(
    ("V", "walks", "block", "stays"),
    [(128, 67, 128, True), (128, 66, 64, True), (128, 34, 64, True), (128, 33, 32, False), (64, 66, 32, False)],
)
def test_gates_on_both_sides_have_narrower_tiles_where_programs_are_few(monkeypatch, V, walks, block, stays):
    """Down to 64 columns of values; of keys wgmma's rows are made."""
    module = generated("gla_kv")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 100)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    assert module._config("fused", 128, V, BF16, walks)["BLOCK_V"] == block
    assert module._stays_on_chip("fused", "saved", walks, 128, V, BF16) is stays


@pytest.mark.parametrize("name", ["gla_v", "gla_kv", "mamba2", "linear_attn_norm"])
def test_some_gradients_of_states_never_stay_on_chip(name):
    """Where values have gates, or chunk states are to be exact."""
    assert not [n for n in vars(generated(name)) if "fused_value_gradients" in n]


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("gla", ["key_gradients"]),
        ("gla_v", ["gradients", "key_gradients_keeping", "value_gradients"]),
        ("gla_kv", ["key_gradients", "key_gradients_given", "value_gradients", "value_gradients_given"]),
        ("simple_gla", []),  # of a scalar gate, rows are multiplied
    ],
)
def test_states_times_their_gradients_are_summed_over_the_rows_of_other_dots_right_operands(name, roles):
    text = inspect.getsource(generated(name))
    kernels = re.finditer(rf"^def {name}_(\w+)_kernel\(.*?(?=^@_jit|^# --)", text, re.MULTILINE | re.DOTALL)
    found = {kernel[1]: kernel[0] for kernel in kernels if "_column_sums(" in kernel[0]}
    assert sorted(found) == roles
    found.pop(BOTH, None)  # whose dots have states on the left
    found.pop(KEPT_BY_KEYS, None)  # which sums for others, over keys
    for body in found.values():
        transposed = "_column_sums(tl.trans(S.to(" in body
        assert (", tl.trans(S.to(WIDE))" in body) == transposed and (", S.to(WIDE)" in body) != transposed
    assert ("tl.sum(_row_products(S, dS_end))" in text) == (name == "simple_gla")


@pytest.mark.parametrize("states", ["saved", "dropped"])
def test_without_a_gpu_it_stays_where_that_is_asked_for_alone(states):
    assert not generated("simple_gla")._stays_on_chip("fused", states, 10**6, 64, 64, BF16)
