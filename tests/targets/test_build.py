"""Kernels compiled ahead of time, for GPUs that need not be here: they build, fit, and use tensor cores.

Each build runs in a process without TRITON_INTERPRET, which excludes the compiler (see tests/copies.py). GLAGEN_FULL=1
builds everything.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.ir.tuned import KEPT_KERNELS, power
from glagen.pipeline import compile_spec
from tests.copies import copied
from tests.numerics.helpers import document_of, reads_kept, scores_apart
from tests.strategies import COMPUTED_GRADIENTS, COMPUTED_VALUES

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("GLAGEN_FULL") == "1"
NAMES = sorted(p.stem for p in (ROOT / "specs").glob("*.yaml"))
COMPILING = "triton.compiler.code_generator", "glagen.loader", "glagen.parse", "glagen.targets"
WORKER = """
import dataclasses, json, sys
from pathlib import Path
import torch
from glagen.loader import import_path
from glagen.parse import parse, read
from glagen.targets import build
root, folder, name, target, dtype, K, V = sys.argv[1:]
document = parse(read(Path(root) / "specs" / f"{name}.yaml"))
module = import_path(Path(folder) / f"{name}.py", "generated_" + name)
built = build(module, document, target, getattr(torch, dtype), int(K), int(V))
version = tuple(int(n) for n in module.triton.knobs.nvidia.ptxas.version.split("."))
print(json.dumps([dataclasses.asdict(b) | {"fits": b.fits, "sound": version >= (13, 3)} for b in built]))
"""
SAMPLE = [("gla", "sm_80", "bfloat16", 128, 128), ("gla", "sm_90", "bfloat16", 128, 128)]
SAMPLE += [
    ("gla", "sm_100", "bfloat16", 128, 128),
    ("gla", "sm_90", "bfloat16", 11, 13),
    ("gsa", "sm_90", "bfloat16", 128, 128),
    ("linear_attn", "sm_90", "bfloat16", 128, 128),  # chunks of 64 rows, which wgmma takes
    ("linear_attn", "sm_90", "bfloat16", 64, 64),  # of which the walk back stays on chip as well
    ("mlstm", "sm_90", "float32", 64, 64),  # states in float64 beside float32
]
ALL = [
    (name, target, dtype, K, V)
    for name in NAMES
    for target in ("sm_80", "sm_90", "sm_100", "gfx942")
    for dtype in ("bfloat16", "float16", "float32")
    for K, V in ((128, 128), (64, 64), (96, 160))
    if (K, V) == (128, 128) or (target, dtype) == ("sm_90", "bfloat16")
]
KERNELS = {"states_kernel", "outputs_kernel", "fused_kernel", "adjoint_states_kernel", "key_gradients_kernel"}
KERNELS |= {"value_gradients_kernel", "carry_kernel", "step_kernel"}
WALK_BACK = "fused_value_gradients_kernel"
GIVEN_BACK, ALONE, HOPPER = (
    "fused_given_value_gradients_kernel",
    ("fused_gradients_kernel", "fused_other_gradients_kernel"),
    ("sm_90", "bfloat16"),
)
BOTH = "v_gradients_kernel"  # of gla_v
HALVED = "fused_halved_kernel"
GIVEN = {"scores_kernel", "fused_given_kernel", GIVEN_BACK}
# Dots of float64, which Triton 3.7 leaves to multiplications there: what a divisor is read of, beside float32 inputs.
DOUBLES = {("sm_100", "float32"): {f"mlstm_n_{kernel}_kernel" for kernel in ("states", "outputs", "fused")}}


def built(
    name: str, target: str, dtype: str, K: int, V: int, folder: Path, modules: Path = ROOT / "generated"
) -> list[dict]:
    said = ran(WORKER, folder, ROOT, modules, name, target, dtype, K, V)
    return json.loads(said.splitlines()[-1])


def ran(code: str, cache: Path, *arguments: object) -> str:
    """What this code prints, in a process that may compile, with Triton's cache there."""
    run = copied(COMPILING, False, code, {"TRITON_CACHE_DIR": str(cache)}, *arguments)
    assert run.returncode == 0, run.stderr[-1500:]
    return run.stdout


@pytest.mark.parametrize("case", ALL if FULL else SAMPLE, ids=lambda c: "-".join(map(str, c)))
def test_kernels_build_fit_and_use_tensor_cores(case, tmp_path):
    pytest.importorskip("triton")
    name, target, dtype, K, V = case
    found = built(*case, tmp_path)
    longest_first = sorted(KERNELS | GIVEN | {WALK_BACK, HALVED, *ALONE, BOTH}, key=len, reverse=True)
    text = (ROOT / "generated" / f"{name}.py").read_text()
    from_shared = re.findall(r'"(\w+)"', "".join(re.findall("^FROM_SHARED = .*", text, re.MULTILINE)))
    by_wgmma = f"{name}_fused_kernel" in from_shared
    most = 128 if by_wgmma and target == "sm_90" and V > 32 else 0 if by_wgmma else 64
    walks_back = f"def {name}_{WALK_BACK}(" in text and dtype == "bfloat16" and most >= K
    measured = f'("fused_given", 9, torch.bfloat16, {power(K)}, {power(V)}):' in text
    is_given = measured and (target, dtype) == HOPPER
    alone, others, both, halved, scored = (
        f'("{kernel}", 9, torch.bfloat16, {power(K)}, {power(V)}):' in text and (target, dtype) == HOPPER
        for kernel in ("fused_gradients", "fused_other_gradients", "gradients", "fused_halved", "scores_strong")
    )
    scored |= "def _strong_scores_triton(" in text and '("scores_strong", _capability()' not in text  # not by a table
    expected = KERNELS | ({WALK_BACK} if walks_back else set()) | (GIVEN if is_given and not others else set())
    expected = expected - {WALK_BACK, GIVEN_BACK} | {ALONE[others]} if alone or others else expected
    expected |= ({BOTH} if both else set()) | ({HALVED} if halved else set())
    expected |= {"scores_kernel"} if scored else set()
    assert {next(k for k in longest_first if b["kernel"].endswith(f"_{k}")) for b in found} == expected
    for b in found:
        multiplies = not b["kernel"].endswith(("_carry_kernel", "_step_kernel"))
        assert b["kernel"].startswith(f"{name}_") or b["kernel"] == "_carry_kernel"
        assert b["fits"], f"{b['kernel']} needs {b['shared']} of {b['shared_limit']} bytes"
        assert b["shared"] > 0 or not multiplies
        assert not b["fused"], f"{b['kernel']} fuses multiply-adds: copies of a sum may differ (see _config)"
        if target != "gfx942":  # whose machine code is not looked into
            on_cores = multiplies and b["kernel"] not in DOUBLES.get((target, dtype), ())
            assert bool(b["mma"]) == on_cores, f"{b['kernel']} has tensor-core instructions: {b['mma']}"
            assert 0 < b["registers"] <= 255
            assert b["registers"] > 32 or not b["spills"], f"{b['kernel']} is left few registers"
        assert b["waits"] == (target in ("sm_90", "sm_100", "sm_120"))
        if target == "sm_90":
            assert b["sound"] or not b["from_registers"], f"{b['kernel']} uses wgmma, which this assembler gets wrong"
            assert ("HGMMA" in b["mma"]) <= (b["sound"] or b["kernel"] in from_shared)
    if walks_back and by_wgmma:
        assert {b["kernel"] for b in found if "HGMMA" in b["mma"]} >= {f"{name}_fused_kernel", f"{name}_{WALK_BACK}"}


def test_kernels_build_that_keep_what_gradients_of_values_read(tmp_path):
    pytest.importorskip("triton")
    text = (ROOT / "specs" / "gla_v.yaml").read_text()
    table = reads_kept(document_of(text), 9, (64, 64))
    (tmp_path / "gla_v.py").write_text(compile_spec(Source("gla_v.yaml", text), Options(tuned=table)))
    found = built("gla_v", "sm_90", "bfloat16", 64, 64, tmp_path / "cache", tmp_path)
    assert all(b["fits"] and not b["fused"] for b in found)
    assert {f"gla_v_{kernel}_kernel" for kernel in KEPT_KERNELS} <= {b["kernel"] for b in found if b["mma"]}


@pytest.mark.parametrize("name", ["gla", "linear_attn"])
def test_kernels_build_that_have_scores_made_for_them(name, tmp_path):
    pytest.importorskip("triton")
    text = (ROOT / "specs" / f"{name}.yaml").read_text()
    table = scores_apart(document_of(text), 9, (64, 64))
    (tmp_path / f"{name}.py").write_text(compile_spec(Source(f"{name}.yaml", text), Options(tuned=table)))
    found = built(name, "sm_90", "bfloat16", 64, 64, tmp_path / "cache", tmp_path)
    assert all(b["fits"] and not b["fused"] for b in found)
    assert any(b["mma"] for b in found if b["kernel"] == f"{name}_scores_kernel")


def test_a_divisor_of_gated_keys_builds_in_float64(tmp_path):
    """Beside float32 inputs: also what walks note of gates, and sums of scores by blocks. (In the interpreter types
    may differ.)"""
    pytest.importorskip("triton")
    text = (ROOT / "specs" / "gla.yaml").read_text().replace("state: S[i, j]", "state:\n  - S[i, j]\n  - n[i]")
    old, new = "  - o[t,j] = sum(i, scale * q[t,i] * S[t,i,j])\n", "  - n[t,i] = exp(g[t,i]) * n[t-1,i] + k[t,i]\n"
    new += "  - o[t,j] = sum(i, scale * q[t,i] * S[t,i,j]) / (sum(i, scale * q[t,i] * n[t,i]) + 1)\n"
    assert old in text
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / "gla.yaml").write_text(text.replace(old, new))
    (tmp_path / "gla.py").write_text(compile_spec(Source("gla.yaml", text.replace(old, new)), Options()))
    said = ran(WORKER, tmp_path / "cache", tmp_path, tmp_path, "gla", "sm_90", "float32", 16, 16)
    found = json.loads(said.splitlines()[-1])
    assert {"gla_n_states_kernel", "gla_n_outputs_kernel", "gla_S_outputs_kernel"} <= {b["kernel"] for b in found}
    assert all(b["fits"] and not b["fused"] for b in found)


def test_forwards_of_few_and_of_many_programs_are_built(tmp_path):
    """They may have more or fewer threads (see `_crowded` in a module)."""
    pytest.importorskip("triton")
    code = """
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
module, document = import_path(Path("generated/gla.py"), "generated"), parse(read(Path("specs/gla.yaml")))
launched = targets.launches(module, document, torch.bfloat16, 128, 128, 9)
found = [x.options for x in launched if x.kernel is module.gla_fused_kernel]
mild = [x for x in found if not any(x[name] for name in ("STRONG", "PEEK", "FAR", "TMA"))]
assert sorted(x["num_warps"] for x in mild) == [4, 8], mild
"""
    ran(code, tmp_path)


@pytest.mark.parametrize("name", ["gla", "gla_sigmoid", "hgrn2", "rwkv6"])
def test_strong_walks_of_fewer_registers_spill_next_to_nothing(name, tmp_path):
    """Along what is strong, in tiles of 64 by 64, without chunk states (see `_spared` in a module)."""
    pytest.importorskip("triton")
    code = """
import sys
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
name = sys.argv[1]
module, document = import_path(Path(f"generated/{name}.py"), "generated"), parse(read(Path(f"specs/{name}.yaml")))
launched = targets.launches(module, document, torch.bfloat16, 64, 64, 9)
[spared] = [x for x in launched if "maxnreg" in x.options]
assert spared.options["STRONG"] and spared.kernel.fn.__name__ == f"{name}_fused_kernel", spared
with targets._pretend(module, 9):
    built = targets._compile(module, spared, targets.parse_target("sm_90"), torch.bfloat16, 64, 64)
assert built.registers <= 128 and built.spills <= 64, built  # bytes
"""
    ran(code, tmp_path, name)


@pytest.mark.parametrize("name", ["gla_v", "gla_kv"])
def test_runs_along_later_halves_of_chunks_leave_room_for_more_programs(name, tmp_path):
    """Than those along whole chunks, which are built as well: for one program, and to look after several."""
    pytest.importorskip("triton")
    code = """
import sys
from dataclasses import replace
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
name = sys.argv[1]
module, document = import_path(Path(f"generated/{name}.py"), "generated"), parse(read(Path(f"specs/{name}.yaml")))
launched = targets.launches(module, document, torch.bfloat16, 128, 128, 9)
found = {x.options["LATER"]: x for x in launched if "LATER" in x.options}
assert {*found} == {True, False}, found
def built(one):
    with targets._pretend(module, 9):
        return targets._compile(module, one, targets.parse_target("sm_90"), torch.bfloat16, 128, 128)
along_halves = built(found[True])
assert along_halves.registers <= 168 and not along_halves.spills, along_halves
for share in (1, found[False].options["SHARE"]):
    assert built(replace(found[False], options=found[False].options | {"SHARE": share})).fits
assert found[False].options["SHARE"] > 1, "where there are many programs, one looks after several"
"""
    ran(code, tmp_path, name)


@pytest.mark.parametrize(("name", "K", "V"), [("gla", 256, 512), ("simple_gla", 128, 128), ("linear_attn", 128, 256)])
def test_walks_that_are_given_their_operands_have_them_in_shared_memory(name, K, V, tmp_path):
    """All products are wgmma's, and none has an operand in registers; with states stored, and without."""
    pytest.importorskip("triton")
    code = """
import sys
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
name, K, V = sys.argv[1:]
module, document = import_path(Path(f"generated/{name}.py"), "generated"), parse(read(Path(f"specs/{name}.yaml")))
every = targets.launches
targets.launches = lambda *given: [x for x in every(*given) if "_given_" in x.kernel.fn.__name__]
found = targets.build(module, document, "sm_90", torch.bfloat16, int(K), int(V))
names = {f"{name}_fused_given_kernel", f"{name}_fused_given_value_gradients_kernel"}
assert {x.kernel for x in found} == names and len(found) == 2 + (name == "gla"), found  # by TMA or not
assert all(x.fits and x.mma == ("HGMMA",) and not x.from_registers for x in found), found
"""
    ran(code, tmp_path, name, K, V)


@pytest.mark.parametrize("text", [None, COMPUTED_VALUES, COMPUTED_GRADIENTS], ids=["gla_kv", "values", "gradients"])
def test_states_that_wait_add_by_wgmma_what_lies_in_shared_memory(text, tmp_path):
    """In a loop's turn what was made in the one before, of forwards and of walks back."""
    pytest.importorskip("triton")
    code = """
import sys
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
spec, path, name = sys.argv[1:]
module, document = import_path(Path(path), "generated"), parse(read(Path(spec)))
every = targets.launches
alone = lambda x: "_fused_" in x.kernel.fn.__name__ and not (x.options["STRONG"] or x.options["PEEK"])
targets.launches = lambda *given: [x for x in every(*given) if alone(x)]
found = targets.build(module, document, "sm_90", torch.bfloat16, 128, 128)
walks = {"fused", "fused_value_gradients"} if name != "gla_kv" else {"fused"}
assert {x.kernel for x in found} == {f"{name}_{walk}_kernel" for walk in walks}, found
assert all(x.fits and x.mma == ("HGMMA", "HMMA") and not x.from_registers for x in found), found
"""
    name, spec, module = "gla_kv", ROOT / "specs" / "gla_kv.yaml", ROOT / "generated" / "gla_kv.py"
    if text is not None:
        name, spec, module = document_of(text).name, tmp_path / "spec.yaml", tmp_path / "spec.py"
        spec.write_text(text)
        module.write_text(compile_spec(Source("spec.yaml", text), Options()))
    ran(code, tmp_path / "cache", spec, module, name)


def test_no_more_chunks_are_under_way_than_fit(tmp_path):
    """As `_first` in a module has it: what needs more shared memory than there is takes fewer, but one at least."""
    pytest.importorskip("triton")
    code = """
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
module = import_path(Path("generated/linear_attn.py"), "generated")
document, room = parse(read(Path("specs/linear_attn.yaml"))), targets.SHARED_MEMORY
every = targets.launches
targets.launches = lambda *given: [x for x in every(*given) if x.kernel.fn.__name__ == "linear_attn_fused_kernel"]
def shared():
    (found,) = targets.build(module, document, "sm_90", torch.bfloat16, 64, 64)
    return found.shared, found.fits
three = shared()
room[90] = three[0] - 1
two = shared()
room[90] = 1
one = shared()
assert three[1] and two[1] and not one[1] and three[0] > two[0] > one[0] > 1, (three, two, one)
"""
    ran(code, tmp_path)


def test_targets_have_names(tmp_path):
    pytest.importorskip("triton")
    code = """
from glagen.targets import parse_target
assert (parse_target("sm_90").backend, parse_target("sm_90").arch) == ("cuda", 90)
assert (parse_target("gfx942").backend, parse_target("gfx942").warp_size) == ("hip", 64)
for wrong in ("sm_9", "sm_91", "sm90", "cuda", "", "sm_90x", "gfx"):
    try:
        parse_target(wrong)
    except ValueError as e:
        assert repr(wrong) in str(e) and "sm_90" in str(e)
    else:
        raise AssertionError(wrong)
"""
    ran(code, tmp_path)
