"""What has one number a step is loaded a chunk ahead by walks, and before all else by other kernels. Walks that are
given what they multiply load that just before, and by TMA where nothing comes ahead."""

from __future__ import annotations

import re

import pytest
import torch

from glagen.ir.tuned import GIVEN_KERNELS
from tests.numerics.helpers import ROOT, generated

SPECS = sorted(path.stem for path in (ROOT / "generated").glob("*.py"))


def kernels(name: str) -> dict[str, str]:
    """The texts of a module's kernels, by name."""
    text = (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
    found = re.split(r"^@_jit\n(?=def )", text, flags=re.MULTILINE)[1:]
    return {part[4 : part.index("(")]: part.split("\n\n\n")[0] for part in found}


@pytest.mark.parametrize("name", SPECS)
def test_walks_load_numbers_of_steps_ahead(name):
    for kernel, text in kernels(name).items():
        ahead = re.findall(r"^( *)(\w+)_next = tl\.load\(", text, re.MULTILINE)
        if "_sequence_at(" not in text:
            assert not ahead, kernel
            continue
        before, _, loop = text.partition("for n in range(0, chunks")
        numbers = re.findall(r"^ *(\w+) = .*# \[CHUNK\]$", loop, re.MULTILINE)
        numbers += re.findall(r"^ *(\w+) = \w+_next  # \[\]$", loop, re.MULTILINE)
        assert [x for _, x in ahead] == 2 * numbers, kernel
        for x in numbers:
            assert f" {x}_next = tl.load({x}_ptr" in before
            assert f" {x} = {x}_next " in loop
            assert loop.index(f" {x} = {x}_next ") < loop.index(f" {x}_next = tl.load(")


@pytest.mark.parametrize("name", SPECS)
def test_others_load_them_before_all_else(name):
    for kernel, text in kernels(name).items():
        loads = re.findall(r"= tl\.load\(.*# (\[\w.*\])$", text, re.MULTILINE)
        if "_sequence_at(" not in text:
            assert loads == sorted(loads, key=lambda shape: shape != "[CHUNK]"), kernel


def test_there_are_such():
    made = kernels("simple_gla")
    assert "g_next" in made["simple_gla_adjoint_states_kernel"]
    assert "g_next" in made["simple_gla_fused_kernel"]
    assert {"gate_whole_next", "gate_to_end_next"} <= set(re.findall(r"\w+", made["simple_gla_fused_given_kernel"]))
    assert "# [CHUNK]" in made["simple_gla_key_gradients_kernel"]


GIVEN = [
    name for name in SPECS if "_fused_given_kernel(" in (ROOT / "generated" / f"{name}.py").read_text(encoding="utf-8")
]


def walks_given(name: str) -> tuple[str, ...]:
    """With gates on both sides that of the forward alone is given what it multiplies."""
    return GIVEN_KERNELS[:1] if name == "gla_kv" else GIVEN_KERNELS


@pytest.mark.parametrize("name", GIVEN)
def test_given_walks_load_keys_just_before_what_multiplies_them(name):
    for walk in walks_given(name):
        text = kernels(name)[f"{name}_{walk}_kernel"]
        before, _, loop = text.partition("for n in range(0, chunks")
        lines = [line.strip() for line in loop.split("\n")]
        late = {line.split(" = ")[0]: n for n, line in enumerate(lines) if " if TMA_LOADS else tl.load(" in line}
        assert len(late) == 2, walk
        shapes = {lines[n].split("  # ")[1] for n in late.values()}
        assert shapes == {"[CHUNK, BLOCK_K]", "[BLOCK_K, CHUNK]"}
        assert before.count("_tiles = tl.make_tensor_descriptor(") == 2 + ("if TMA:" in before)
        for x, n in late.items():
            products = [m for m, line in enumerate(lines) if re.search(rf"tl\.dot\(.*\b{x}\b", line)]
            between = "\n".join(lines[n + 1 : products[0]])
            assert products[0] > n and "tl.load(" not in between and "tl.dot(" not in between, x
        stored = [n for n, line in enumerate(lines) if "_tiles.store(" in line]
        assert not stored or max(stored) < min(late.values()), (
            "threads that wait for tiles would wait for states as well"
        )


@pytest.mark.parametrize(
    ("capability", "stages", "dtype", "K", "offset", "is_by_tma"),
    [
        (9, 1, torch.bfloat16, 256, 0, True),
        (9, 1, torch.bfloat16, 200, 8, True),
        (9, 2, torch.bfloat16, 256, 0, False),  # one comes ahead
        (8, 1, torch.bfloat16, 256, 0, False),
        (10, 1, torch.bfloat16, 256, 0, False),
        (9, 1, torch.float16, 256, 0, False),
        (9, 1, torch.float32, 256, 0, False),
        (9, 1, torch.bfloat16, 252, 0, False),  # rows of 504 bytes
        (9, 1, torch.bfloat16, 256, 4, False),  # it begins eight bytes late
    ],
)
def test_tma_loads_where_nothing_comes_ahead(monkeypatch, capability, stages, dtype, K, offset, is_by_tma):
    module = generated("linear_attn")
    monkeypatch.setattr(module, "_capability", lambda: capability)
    config = module._config("fused_given", K, 512, dtype) | {"num_stages": stages}
    keys, queries = torch.empty(2, 1024, dtype=dtype)[:, offset:]
    assert module._loads_by_tma(config, keys, queries) is is_by_tma


def test_the_table_has_them_for_wide_heads(monkeypatch):
    assert set(GIVEN) >= {"gla", "linear_attn", "retnet", "simple_gla"}
    for name in GIVEN:
        module = generated(name)
        monkeypatch.setattr(module, "_capability", lambda: 9)
        config = module._config("fused_given", 256, 512, torch.bfloat16)
        assert module._loads_by_tma(config, torch.empty(8, dtype=torch.bfloat16)) == (name != "gla_kv"), name
        assert not module._loads_by_tma(module._config("fused_given", 128, 128, torch.bfloat16)), name


# What walks with gates on keys are given of queries and keys.
MADE = {
    "gla": ("query_from_start", "k_to_end"),
    "gla_kv": ("query_from_start", "k_to_end"),
    "gla_sigmoid": ("query_from_start", "k_to_end"),
    "hgrn2": ("query_from_start", "key_to_end"),
    "rwkv6": ("query_from_start_before", "k_to_end"),
}


@pytest.mark.parametrize("name", GIVEN)
def test_the_cache_fetches_tiles_of_the_next_chunk(name):
    """Those that others have made, if some have columns; else rows of queries and keys, in the walk forward."""
    for walk in walks_given(name):
        text = kernels(name)[f"{name}_{walk}_kernel"]
        fetched = re.findall(r"_fetch\((\w+)_ptr \+ \(ahead \* H \+ h\) \* (CHUNK \* \w+), 2 \* \2\)", text)
        made = dict.fromkeys(MADE.get(name, ()), "CHUNK * K")
        assert dict(fetched) == (made | {"scores": "CHUNK * CHUNK"} if made else {}), walk
        of_rows = r"_fetch\((\w+)_ptr \+ \(step \* \(H // GROUP_\1\) \+ h // GROUP_\1\) \* K, 2 \* K, CHUNK\)"
        assert re.findall(of_rows, text) == (["q", "k"] if walk == GIVEN_KERNELS[0] and not made else []), walk
        assert len(fetched) + len(re.findall(of_rows, text)) == text.count("_fetch("), walk


@pytest.mark.parametrize("name", ["gla", "rwkv6", "gla_kv"])
def test_scores_that_are_sums_over_a_loop_are_masked_once_for_mild_gates(name):
    """With few rows and with strong gates each product is, for others add to the same scores."""
    text = kernels(name)[f"{name}_scores_kernel"]
    (line,) = re.findall(r"scores = (tl\.dot\(.*)", text)
    plain, condition, masked = re.fullmatch(r"(.*) if (MILD(?: and not FEW)?) else (tl\.where\(.*)", line).groups()
    mask, within = ("earlier", "earlier") if name == "rwkv6" else ("past", "causal")
    assert masked == f"tl.where({mask}, {plain}, scores)" and condition.endswith("FEW") == (mask == "past")
    assert re.findall(r"tl\.store\(scores_out_ptr.*", text)[0].endswith(
        f", tl.where({within}, scores, 0.0) if MILD else scores)"
    )
