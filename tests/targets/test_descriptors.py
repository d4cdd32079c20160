"""Operands of wgmma in machine code lie where PTX says, in the kernels that are nearest to what went wrong once."""

from __future__ import annotations

import json

import pytest

from tests.targets.descriptors import faults
from tests.targets.test_build import FULL, ROOT, ran

WORKER = """
import json, re, sys
from pathlib import Path
import torch
from glagen import targets
from glagen.loader import import_path
from glagen.parse import parse, read
root, name, K, V = sys.argv[1:]
said, looked, found = targets._run, targets._machine_code, {}
def machine_code(compiled):
    texts = []
    targets._run = lambda *command: texts.append(said(*command)) or texts[-1]
    seen = looked(compiled)
    found[re.search(r"entry (\\w+)", compiled.asm["ptx"])[1]] = compiled.asm["ptx"], texts[-1]
    return seen
targets._machine_code = machine_code
document = parse(read(Path(root) / "specs" / f"{name}.yaml"))
module = import_path(Path(root) / "generated" / f"{name}.py", "generated_" + name)
targets.build(module, document, "sm_90", torch.bfloat16, int(K), int(V))
print(json.dumps(found))
"""


ALL = [("gla_v", "gradients", 128), ("gla_v", "gradients", 64)]
ALL += [(name, "fused_other_gradients", columns) for name in ("linear_attn", "retnet") for columns in (64, 128)]
ALL += [("simple_gla", "fused_gradients", 64)]


@pytest.mark.parametrize(("name", "kernel", "K"), ALL if FULL else ALL[:1])
def test_operands_of_wgmma_lie_where_ptx_says(name, kernel, K, tmp_path):
    """Those of `gla_v` have 32 columns. (The rest with GLAGEN_FULL=1.)"""
    pytest.importorskip("triton")
    found = json.loads(ran(WORKER, tmp_path, ROOT, name, K, K).splitlines()[-1])
    ptx, sass = found[f"{name}_{kernel}_kernel"]
    assert ptx.count("wgmma.mma_async") >= 16 and not faults(ptx, sass)


ADDS = """
or.b64 %rd2, %rd1, 4611686293305294848;
wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%r1}, %rd2, %rd2, 0, 1, 1, 0, 0;
add.s64 %rd3, %rd1, 4611686293305294850;
wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%r1}, %rd3, %rd2, %p1, 1, 1, 0, 0;
"""
CODE = """
/*0000*/ R2UR UR4, R9 ;
/*0010*/ UMOV UR5, 0x40000040 ;
/*0020*/ UMOV UR6, UR4 ;
/*0030*/ UMOV UR7, UR5 ;
/*0040*/ HGMMA.64x32x16.F32.BF16 R24, gdesc[UR4], RZ, !UPT ;
/*0050*/ UIADD3.64 UR8, UR4, 0x2, URZ ;
/*0060*/ UMOV UR10, UR4 ;
/*0070*/ UMOV UR11, UR5 ;
/*0080*/ HGMMA.64x32x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
"""


@pytest.mark.parametrize(
    ("old", "new", "wrong"),
    [
        ("", "", 0),
        ("UIADD3.64 UR8, UR4, 0x2", "UIADD3.64 UR8, UR4, 0x4", 1),
        ("UMOV UR10, UR4", "UMOV UR10, UR8", 1),
        ("gdesc[UR8]", "gdesc[UR6]", 2),
        ("UMOV UR6, UR4", "@P0 UMOV UR6, UR4", 1),
        ("0x40000040", "0x40000080", 4),
    ],
    ids=["as it is", "too far", "another register", "another pair", "under a condition", "other rows"],
)
def test_an_operand_elsewhere_is_found(old, new, wrong):
    assert old in CODE and len(faults(ADDS, CODE.replace(old, new))) == wrong
