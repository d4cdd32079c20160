"""How kernels are launched: Triton compiles for each kind of arguments once, all that a run lacks side by side."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.numerics.helpers import ROOT, SPECS, compiled, document_of, forward_shared, generated, spec_text

pytest.importorskip("triton")
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources

DEVICE = torch.device("cuda", 1)
NUMBERS = torch.zeros(64)


class Kernel:
    """In place of a kernel of Triton's; tells what is launched, and for what it was compiled."""

    arg_names = ("x", "scale", "n", "K", "STRONG")

    def __init__(self) -> None:
        self.fn, self.compiled, self.launched, self.hooked, self.by_triton = lambda: None, [], [], [], []
        self.fn.__name__ = "kernel"

    def warmup(self, *arguments, grid, **constants):
        if constants not in self.compiled:
            self.compiled.append(constants)
        return Compiled(self, self.compiled.index(constants))

    def __getitem__(self, grid):
        return lambda *arguments, **constants: self.by_triton.append((grid, arguments, constants))


class Compiled:
    def __init__(self, kernel: Kernel, number: int) -> None:
        self.kernel, self.number = kernel, number
        self.src = self

    function, packed_metadata, metadata = "function", "metadata", "more"
    n_regs, n_spills, asm = 168, 0, {"ptx": ""}

    def _init_handles(self):
        """On a GPU that has room for it."""

    def run(self, x, y, z, stream, function, metadata, of_launch, enter, leave, *arguments):
        assert (function, metadata, of_launch, enter, leave) == ("function", "metadata", None, None, None)
        self.kernel.launched.append((self.number, (x, y, z), arguments, stream))

    run.global_scratch_size, run.profile_scratch_size = 8, 0  # what Triton 3.6 looks at, if it is that

    def __getitem__(self, grid):
        return lambda *arguments, stream: self.kernel.hooked.append((self.number, grid, arguments, stream))


class Driver:
    """In place of Triton's, which needs a GPU."""

    launcher_cls = staticmethod(lambda src, metadata: None)

    @staticmethod
    def get_current_stream(device: int) -> int:
        return 70 + device


@pytest.fixture
def module(monkeypatch):
    """A module on a machine whose second GPU is the current one."""
    module = generated("gla")
    monkeypatch.setattr(module, "_INTERPRETED", False)
    monkeypatch.setattr(module, "_IS_KNOWN", True)
    monkeypatch.setattr(module, "_wgmma_is_sound", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(module.triton.runtime.driver, "_active", Driver)
    return module


def test_the_second_launch_asks_triton_nothing(module):
    kernel = Kernel()
    for programs in (5, 7):
        module._launch(
            kernel, programs, DEVICE, NUMBERS, 0.5, 48, K=64, num_warps=4, passes=({"STRONG": False}, {"STRONG": True})
        )
    assert kernel.compiled == [{"STRONG": strong, "K": 64, "num_warps": 4} for strong in (False, True)]
    given = NUMBERS.data_ptr(), 0.5, 48, 64  # Triton asks the driver where a tensor lies
    both = list(enumerate((False, True)))
    assert kernel.launched == [(n, (each, 1, 1), (*given, strong), 71) for each in (5, 7) for n, strong in both]
    assert builds(module, kernel) == 1 and not kernel.by_triton


def builds(module, kernel) -> int:
    return sum(key[0] is kernel.fn for key in module._built)


def test_profilers_are_told_of_launches(module, monkeypatch):
    """By Triton, which has their hooks."""
    kernel, hooks = Kernel(), module.triton.knobs.runtime.launch_exit_hook
    for calls in ([], [print], []):
        monkeypatch.setattr(hooks, "calls", calls)
        module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
    launch = (0, (5, 1, 1), (NUMBERS.data_ptr(), 0.5, 48, 64, False), 71)
    assert kernel.launched == [launch, launch] and kernel.hooked == [launch]


def test_descriptors_lie_in_memory_of_torchs_whatever_allocator_is_set(module, monkeypatch):
    """Triton asks what is set for the thread, which a launch does not change."""
    kernel, lent = Kernel(), []
    allocator = triton.runtime._allocation._allocator
    before = allocator.get()
    monkeypatch.setattr(Compiled, "run", lambda *_: lent.append(allocator.get()))
    monkeypatch.setattr(module.torch, "empty", lambda size, dtype, device: (size, dtype, device))
    for by_tma in (True, False):
        module._launch_by_tma(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, TMA=by_tma, passes=({"STRONG": False},))
    assert [constants["TMA"] for constants in kernel.compiled] == [True, False]
    assert lent[0](640, 128, None) == (640, torch.uint8, DEVICE) and lent[1] is before is allocator.get()


def test_configurations_that_are_alike_are_one(module, monkeypatch):
    """So that few kernels are looked up by them, however many sequences there are."""
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)

    def config(K=128, V=128, dtype=torch.bfloat16, walks=None):
        return module._config("states", K, V, dtype, walks)

    assert config() is config() is config(walks=10**6) is config(walks=10**6 + 1)
    assert config(walks=1) is config(walks=2) is not config()
    others = [config(), config(walks=1), config(K=100), config(V=64), config(dtype=torch.float16)]
    assert len(set(others)) == len({str(dict(x)) for x in others}) == len(others)
    assert [(x.blocks_K, x.blocks_V) for x in others[:2]] == [(2, 1), (4, 4)]
    wide = config(V=256)
    monkeypatch.setitem(module.TILES, "states", ((32, 32), (32, 32), (32, 32), 8, 1))
    assert config(V=256) is not wide and config(V=256)["num_warps"] == 8


def test_kernels_are_built_for_each_configuration(module):
    """And take its constants in their order."""
    kernel = Kernel()
    one, other = (module._config("states", K, 128, torch.bfloat16) for K in (64, 128))
    for config in (one, other, one):
        module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, config=config, passes=({"STRONG": False},))
    assert kernel.compiled == [{"STRONG": False, **x} for x in (one, other)]
    given = NUMBERS.data_ptr(), 0.5, 48
    assert kernel.launched == [(n, (5, 1, 1), (*given, K, False), 71) for n, K in ((0, 64), (1, 128), (0, 64))]


@pytest.mark.parametrize(("capability", "early"), [((8, 9), {}), ((9, 0), {"launch_pdl": True})])
def test_from_hopper_on_kernels_are_launched_while_the_one_before_ends(module, monkeypatch, capability, early):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    kernel, passes = Kernel(), ({"STRONG": False}, {"STRONG": True})
    module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=passes)
    assert kernel.compiled == [one | {"K": 64} | early for one in passes]


@pytest.mark.parametrize("name", [path.stem for path in SPECS])
def test_kernels_wait_before_they_do_anything(name):
    """For those before them, among whose last programs they may be launched: to read what these store, and to store
    where these read."""
    tree = ast.parse((ROOT / "generated" / f"{name}.py").read_text())
    kernels = [x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name.endswith("_kernel")]
    launched = re.findall(r"\b(\w+_kernel)\b", " ".join(ast.unparse(x) for x in tree.body if x not in kernels))
    assert {x.name for x in kernels} == set(launched)
    assert {ast.unparse(x.body[1]) for x in kernels} == {"_wait_for_kernels_before()"}


def test_programs_of_the_second_pass_look_after_many(module, monkeypatch):
    monkeypatch.setattr(module, "_multiprocessors", lambda: 2)
    kernel, many = Kernel(), 8 * 2 * module.SHARE
    kernel.arg_names += ("SHARE",)
    for programs, second in ((many - 1, many - 1), (many, 16), (many + 1, 17), (many + 1, 17)):
        module._launch(kernel, programs, DEVICE, NUMBERS, 0.5, 48, K=64, passes=module._guarded(programs))
        assert [grid[0] for _, grid, *_ in kernel.launched[-2:]] == [programs, second]
    assert [(c["STRONG"], c["SHARE"]) for c in kernel.compiled] == [(False, 1), (True, 1), (True, module.SHARE)]


def test_programs_take_as_many_chunks_in_turn_as_leave_eight_warps_a_multiprocessor(module, monkeypatch):
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)

    @given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 2**17))
    def holds(most, warps, programs):
        config = module._Config(num_warps=warps)
        config.run = most
        run = module._in_turn(config, programs)

        def busy(run: int) -> bool:
            return programs * warps >= 8 * 132 * run

        assert 1 <= run <= most and most % run == 0
        assert (run == 1 or busy(run)) and (run == most or not busy(2 * run))

    holds()


def test_the_pass_for_strong_gates_takes_more_chunks_in_turn_where_many_programs_are_left(module, monkeypatch):
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)

    @given(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([2, 4, 8]), st.integers(0, 2**17))
    def holds(run, warps, programs):
        longer, several = module._in_longer_turn({"num_warps": warps}, run, programs), 6 * 132 * 8 // warps
        assert longer % run == 0
        assert longer == run or (longer <= 32 and programs // longer >= several)
        assert longer == 32 or programs < 2 * longer * several

    holds()


def test_kernels_are_built_for_the_passes_they_make(module):
    """One of the two, or both."""
    kernel, (mild, strong) = Kernel(), ({"STRONG": False}, {"STRONG": True})
    for passes in ((mild,), (mild, strong), (strong,)) * 2:
        module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=passes)
    assert builds(module, kernel) == 3
    assert [x[2][-1] for x in kernel.launched] == [False, False, True, True] * 2


def test_walks_of_few_heads_take_the_rule_for_narrow_tiles(monkeypatch):
    """What was measured, was so with many; a walk that keeps the state on chip is as wide as ever."""
    module = generated("linear_attn")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    row = ((64, 128), 2, 2, 1)
    monkeypatch.setitem(module.TUNED, ("adjoint_states", 9, torch.bfloat16, 128, 128), row)
    many, few = (module._config("adjoint_states", 128, 128, torch.bfloat16, walks) for walks in (256, 8))
    assert (many["BLOCK_K"], many["BLOCK_V"], many["num_warps"], many["num_stages"]) == (64, 128, 2, 2)
    assert (few["BLOCK_K"], few["BLOCK_V"], few["num_warps"], few["num_stages"]) == (32, 32, 4, 3)
    assert module._config("fused", 256, 512, torch.bfloat16, 1)["BLOCK_K"] == 256


@pytest.mark.parametrize("walks", [1, 2, 12, 16, 33, 34, 300])
@pytest.mark.parametrize("chunks", [31, 32, 33, 64, 313, 1024, 3125, 4096])
def test_long_sequences_of_few_heads_are_cut(module, monkeypatch, walks, chunks):
    """Into pieces that are worth it, of as many chunks, but the last: for each multiprocessor one program and more, and
    no more than two, or four that have a while to walk; there would be twice as many if they might be."""
    multiprocessors = 132
    monkeypatch.setattr(module, "_multiprocessors", lambda: multiprocessors)
    pieces = module._pieces("states", walks, 64, 64, chunks * module.CHUNK - 5, torch.bfloat16)

    def worth(pieces: int) -> bool:
        each = -(-chunks // pieces)
        most = 4 if each >= 4 * module.PIECE else 2
        return each >= module.PIECE and walks * pieces <= most * multiprocessors

    if chunks < module.LONG or 4 * walks > multiprocessors:
        assert pieces == 1
    else:
        each = -(-chunks // pieces)
        assert (pieces == 1 or worth(pieces)) and not worth(2 << (pieces - 1).bit_length())
        assert walks * pieces > multiprocessors or each < 2 * module.PIECE, "there may be more"
        assert (pieces - 1) * each < chunks, "one is empty"


@pytest.mark.parametrize("capability", [8, 9])
@pytest.mark.parametrize("kernel", ["states", "adjoint_states"])
@pytest.mark.parametrize(("K", "V"), [(64, 64), (128, 128), (128, 256), (256, 512)])
@pytest.mark.parametrize("name", ["gla", "gla_v", "gla_kv", "linear_attn", "simple_gla", "mamba2"])
def test_more_heads_are_cut_where_a_state_comes_to_stay_on_chip(monkeypatch, name, K, V, kernel, capability):
    """And where none of those that keep it there would along whole sequences."""
    module = generated(name)
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: capability)
    walk = {"states": "fused", "adjoint_states": "fused_value_gradients"}[kernel]

    def given(walks: int) -> bool:
        return hasattr(module, "_takes_over") and module._takes_over(
            walk.replace("fused", "fused_given"), walks, K, V, torch.bfloat16
        )

    def stays(walks: int) -> bool:
        return walk in module.TILES and module._stays_on_chip(walk, "saved", walks, K, V, torch.bfloat16)

    config = module._config(kernel, K, V, torch.bfloat16)
    for walks in (*range(4, 100, 4), 132):
        pieces = module._pieces(kernel, walks, K, V, 4096, torch.bfloat16)
        programs = walks * config.blocks_K * config.blocks_V
        if 4 * programs > 132 and pieces > 1:
            assert stays(pieces * walks) or (2 * programs <= 132 and given(pieces * walks)), walks
            assert not stays(walks) and not given(walks), walks
            assert pieces * programs <= 4 * 132
        assert module._pieces(kernel, walks, K, V, 4096, torch.float32) == 1 or 4 * programs <= 132


@pytest.mark.parametrize(
    ("name", "kernel", "walks", "columns", "is_cut"),
    [
        ("gla", "states", 64, (128, 128), True),
        ("gla", "adjoint_states", 64, (128, 128), True),
        ("gla", "states", 88, (128, 128), False),  # it stays on chip as it is
        ("gla", "states", 8, (256, 512), True),  # given what it multiplies
        ("gla", "states", 16, (256, 512), False),
        ("gla_v", "states", 64, (64, 64), False),
        ("gla_kv", "states", 33, (64, 64), True),
        ("gla_kv", "adjoint_states", 33, (64, 64), True),
        ("gla_kv", "adjoint_states", 34, (64, 64), False),  # which has none on chip
        ("simple_gla", "states", 96, (64, 64), True),
        ("simple_gla", "states", 40, (128, 128), True),
        ("simple_gla", "states", 48, (128, 128), False),  # given what it multiplies as it is
        ("simple_gla", "states", 8, (256, 512), False),  # given that in pieces, but there are enough programs
        ("mamba2", "states", 16, (64, 64), False),  # its chunk states are to be exact
    ],
)
def test_which_heads_are_few(monkeypatch, name, kernel, walks, columns, is_cut):
    module = generated(name)
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    assert (module._pieces(kernel, walks, *columns, 4096, torch.bfloat16) > 1) == is_cut


@pytest.mark.parametrize("name", ["gla", "gla_kv", "gla_v", "linear_attn", "hgrn2", "simple_gla"])
@pytest.mark.parametrize("has_walk", [False, True], ids=["the rule", "a forward given operands"])
def test_what_is_asked_of_heads_is_of_kernels_that_there_are(monkeypatch, name, has_walk):
    """By tables that have no walk which is given anything, or one for the forward alone: of however many heads."""
    columns, document = (20, 36), document_of(spec_text(name))
    module = compiled(spec_text(name), tuned=forward_shared(document, 9, columns) if has_walk else ())
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)
    monkeypatch.setattr(module, "_capability", lambda: 9)
    monkeypatch.setattr(module, "_on_triton", lambda _: True)
    widths = dict(zip("ij", columns, strict=True))
    for walks in (*range(1, 140, 7), 132):
        for kernel in ("states", "adjoint_states"):
            assert module._pieces(kernel, walks, *columns, 4096, torch.bfloat16) >= 1
        given = [
            torch.empty(1, 4096, walks, *(widths[a] for a in d.axes[1:]), dtype=torch.bfloat16, device="meta")
            for d in document.declarations
            if d.timed
        ]
        assert len(module._run_shapes(1.0, *given, None, None, "saved")) >= 3


def test_states_that_are_float64_on_the_way_are_not_cut(monkeypatch):
    """What enters a piece is float32: what something divides by would lose the digits that it has float64 for."""
    module = generated("mlstm")
    monkeypatch.setattr(module, "_multiprocessors", lambda: 132)

    def pieces(state: str, kernel: str, dtype: torch.dtype) -> int:
        return getattr(module, f"_pieces_of_{state}")(kernel, 1, 64, 64, 2**20, dtype)

    cut = {
        (n, k, d): pieces(n, k, d)
        for n in "nC"
        for k in ("states", "adjoint_states")
        for d in (torch.float32, torch.bfloat16)
    }
    assert [walk for walk, count in cut.items() if count == 1] == [("n", "states", torch.float32)]


@pytest.mark.parametrize(
    "other",
    [
        (NUMBERS[1:], 0.5, 48, 64),
        (NUMBERS.double(), 0.5, 48, 64),
        (None, 0.5, 48, 64),
        (NUMBERS, 0.5, 49, 64),
        (NUMBERS, 0.5, 1, 64),
        (NUMBERS, 0.5, 2**31, 64),
        (NUMBERS, 0.5, 48, 65),
    ],
    ids=["address", "type", "none", "divisibility", "one", "wide", "constant"],
)
def test_what_triton_specializes_on_is_compiled_for(module, other):
    kernel = Kernel()
    for x, scale, n, K in ((NUMBERS, 0.5, 48, 64), other):
        module._launch(kernel, 1, DEVICE, x, scale, n, K=K, passes=({"STRONG": False},))
    assert builds(module, kernel) == 2


@pytest.mark.parametrize("alike", [(NUMBERS[16:], 0.5, 48), (NUMBERS, 0.25, 48), (NUMBERS, 0.5, 64)])
def test_what_it_does_not_is_not(module, alike):
    kernel = Kernel()
    for arguments in ((NUMBERS, 0.5, 48), alike):
        module._launch(kernel, 1, DEVICE, *arguments, K=64, passes=({"STRONG": False},))
    given = alike[0].data_ptr(), *alike[1:], 64, False
    assert builds(module, kernel) == 1 and kernel.launched[1:] == [(0, (1, 1, 1), given, 71)]


class Target(Driver):
    """A driver of a GPU that is not here, for which Triton decides what to compile."""

    @staticmethod
    def get_current_device() -> int:
        return 1

    @staticmethod
    def get_current_target() -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class Launcher(Compiled):
    """What Triton takes for a kernel that it compiled: tells how it is called."""

    def __init__(self) -> None:
        super().__init__(Kernel(), 0)
        self.calls = []

    def launch_metadata(self, grid, stream, *arguments) -> None:
        return None

    def run(self, *arguments):
        self.calls.append(arguments)


def known_triton() -> bool:
    return triton.__version__.startswith(generated("gla")._KNOWN)


@triton.jit
def nothing_kernel(x_ptr, scale, n, missing, K: triton.language.constexpr, STRONG: triton.language.constexpr):
    """Does nothing."""


@pytest.mark.skipif(not known_triton(), reason="another Triton launches by itself")
def test_triton_itself_launches_so(module, monkeypatch):
    """`_launch` gives a launcher what Triton gives it, in that order; but tensors as addresses, and no hooks."""
    launcher = Launcher()
    monkeypatch.setattr(module.triton.runtime.driver, "_active", Target)
    monkeypatch.setattr(nothing_kernel, "_do_compile", lambda *_: launcher)
    nothing_kernel[(5,)](NUMBERS, 0.5, 48, None, K=64, STRONG=False, num_warps=4)
    module._launch(nothing_kernel, 5, DEVICE, NUMBERS, 0.5, 48, None, K=64, passes=({"STRONG": False},), num_warps=4)
    theirs, ours = launcher.calls
    (*head, metadata, enter, leave), (x, *rest) = theirs[:9], theirs[9:]
    assert ours[:6] == tuple(head) and ours[6:9] == (None, None, None) and metadata is None
    assert x is NUMBERS and ours[9:] == (NUMBERS.data_ptr(), *rest)
    hooks = module.triton.knobs.runtime
    assert (enter, leave) == (hooks.launch_enter_hook, hooks.launch_exit_hook) and not enter.calls + leave.calls


MEMORY = torch.zeros(96, dtype=torch.int8)
TENSORS = st.builds(
    lambda start, dtype: MEMORY[8 * start :][:32].view(dtype),
    st.integers(0, 8),
    st.sampled_from([torch.bfloat16, torch.float32, torch.int8, torch.int64]),
)
SIZES = st.integers(1, 50) | st.integers(2**31 - 20, 2**31 + 20) | st.integers(0, 2**62)


@pytest.mark.skipif(not known_triton(), reason="another Triton looks for itself what it compiled")
@given(arguments=st.lists(st.none() | TENSORS | SIZES | st.floats(), min_size=30, max_size=60))
def test_what_is_looked_up_as_alike_is_alike_to_triton(arguments):
    """Of arguments that `_specialized` does not tell apart, Triton would not compile for one and for another."""
    module = generated("gla")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton.runtime.driver, "_active", Target)
        *_, binder = nothing_kernel.create_binder()
    theirs = {}
    for x in arguments:
        kinds, _ = module._specialized([x])
        _, specialization, _ = binder(x, 0.5, 48, None, K=64, STRONG=False, debug=False)
        theirs.setdefault(tuple(kinds), set()).add(str(specialization))
    assert all(len(found) == 1 for found in theirs.values()), theirs


@pytest.mark.parametrize("unknown", ["_IS_KNOWN", "device"])
def test_without_a_known_triton_or_a_gpu_triton_launches(module, unknown, monkeypatch):
    if unknown == "_IS_KNOWN":
        monkeypatch.setattr(module, unknown, False)
    kernel = Kernel()
    for _ in range(2):
        device = torch.device("cpu") if unknown == "device" else DEVICE
        module._launch(kernel, 1, device, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
    assert len(kernel.by_triton) == 2 and not kernel.compiled


def test_a_launch_goes_to_the_device_of_its_tensors(module, monkeypatch):
    current = [0]

    @contextlib.contextmanager
    def switched(device):
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "device", switched)
    where = []

    class Place(Kernel):
        def warmup(self, *arguments, grid, **constants):
            where.append(current[-1])
            return super().warmup(*arguments, grid=grid, **constants)

    module._launch(Place(), 1, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
    assert set(where) == {1} and current == [0]


class Big(Kernel):
    """Needs as much shared memory as there is for each chunk under way."""

    def __init__(self, room: int, name: str = "shared memory") -> None:
        super().__init__()
        self.room, self.name, self.tried = room, name, []

    def warmup(self, *arguments, grid, num_stages=1, **constants):
        compiled = super().warmup(*arguments, grid=grid, **constants)

        def load():
            self.tried.append(num_stages)
            if num_stages * 232_448 > self.room:
                raise OutOfResources(num_stages * 232_448, self.room, self.name)

        compiled._init_handles = load
        return compiled


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("room", [1, 2, 3])
def test_no_more_chunks_are_under_way_than_fit(module, room, stages):
    kernel = Big(room * 232_448)
    for _ in range(2):  # what fits is launched since
        module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},), num_stages=stages)
    assert kernel.tried == list(range(stages, min(room, stages) - 1, -1))
    assert kernel.launched == [(0, (5, 1, 1), (NUMBERS.data_ptr(), 0.5, 48, 64, False), 71)] * 2


@pytest.mark.parametrize(("name", "tried"), [("shared memory", [3, 2, 1]), ("threads", [3])])
def test_a_gpu_with_too_little_of_something_is_told_of(module, name, tried):
    kernel = Big(232_447, name)
    with pytest.raises(RuntimeError, match=rf"gla: this GPU cannot hold a tile: .*{name}.* Smaller TILES"):
        module._launch(kernel, 1, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},), num_stages=3)
    assert kernel.tried == tried


@pytest.mark.parametrize(
    ("version", "old"), [("2.3.1", True), ("3.5.0", True), ("3.10.0", False), ("4.0.0+git1234", False)]
)
def test_a_triton_that_is_too_old_is_told_of(module, version, old, monkeypatch):
    monkeypatch.setattr(module.triton, "__version__", version)
    monkeypatch.setattr(module, "_IS_KNOWN", False)
    kernel = Kernel()
    told = pytest.raises(RuntimeError, match=rf"Triton {re.escape(version)} is not supported, 3\.6 or newer is")
    with told if old else contextlib.nullcontext():
        module._launch(kernel, 1, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
    assert bool(kernel.by_triton) != old


def test_what_a_run_lacks_is_compiled_before_it_launches(module):
    """With what is likely to be run next; a run that lacks nothing is one run."""
    first, second, next_, events = Kernel(), Kernel(), Kernel(), []

    def launch(kernel):
        module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
        events.append([len(k.launched) for k in (first, second, next_)])

    def run(x, n):
        launch(first)
        launch(second)
        return n, len(events)

    launch(first)
    assert module._with_kernels(run, NUMBERS, 7, then=lambda x, n: launch(next_)) == (7, 6)
    assert events == [[1, 0, 0], [2, 0, 0], [2, 0, 0], [2, 0, 0], [3, 0, 0], [3, 1, 0]]
    events.clear()
    assert module._with_kernels(run, NUMBERS, 7, then=lambda x, n: launch(next_)) == (7, 2)
    launch(next_)
    assert events == [[4, 1, 0], [4, 2, 0], [4, 2, 1]]
    assert [builds(module, k) for k in (first, second, next_)] == [1, 1, 1]


def test_an_error_in_a_run_that_lacks_kernels_leaves_nothing_behind(module):
    kernel = Kernel()

    def run(x):
        module._launch(kernel, 5, DEVICE, x, 0.5, 48, K=64, passes=({"STRONG": False},))
        raise KeyError

    with pytest.raises(KeyError):
        module._with_kernels(run, NUMBERS)
    assert not kernel.compiled
    module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, passes=({"STRONG": False},))
    assert kernel.launched


def test_what_is_compiled_side_by_side_does_with_or_without_wgmma(module, monkeypatch):
    """The environment is one for all that are compiled at a time."""
    monkeypatch.delenv("DISABLE_MMA_V3", raising=False)
    monkeypatch.setattr(module, "_wgmma_is_sound", lambda name, _: name == "sound")
    seen = set()

    class Seen(Kernel):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.fn.__name__ = name

        def warmup(self, *arguments, grid, **constants):
            seen.add((self.fn.__name__, os.environ.get("DISABLE_MMA_V3")))
            return super().warmup(*arguments, grid=grid, **constants)

    kernels = [Seen(name) for name in ("sound", "unsound", "sound", "unsound")]

    def run(x):
        for kernel in kernels:
            module._launch(kernel, 5, DEVICE, x, 0.5, 48, K=64, passes=({"STRONG": False},))

    module._with_kernels(run, NUMBERS)
    assert seen == {("sound", None), ("unsound", "1")} and "DISABLE_MMA_V3" not in os.environ
    assert all(kernel.launched for kernel in kernels)


def test_launchers_are_loaded_one_after_another(module, monkeypatch):
    """By what builds, after threads have compiled them: of modules with one name that threads load at a time, Python
    may give each other's."""
    loading, alone = [], []

    class Loaded(Compiled):
        def _init_handles(self):
            loading.append(self)
            time.sleep(0.01)
            self._run = "of any kernel"
            loading.remove(self)

    def launcher(src, metadata):
        alone.append(not loading and threading.current_thread() is threading.main_thread())
        return src, metadata

    kernel = Kernel()
    monkeypatch.setattr(Kernel, "warmup", lambda self, *_, grid, **constants: Loaded(self, constants["K"]))
    monkeypatch.setattr(Driver, "launcher_cls", staticmethod(launcher))
    module._build({"key": (kernel, [NUMBERS, 0.5, 48], [{"K": n, "STRONG": False} for n in range(8)], DEVICE)})
    compiled = [x for x, *_ in module._built["key"]]
    assert alone == [True] * 8 and all(x._run == (x, "more") for x in compiled)


@pytest.mark.parametrize(("registers", "spills", "again"), [(32, 900, True), (32, 0, False), (255, 900, False)])
def test_kernels_that_are_left_few_registers_may_take_all(module, monkeypatch, registers, spills, again):
    """Once: it is as it is, if that is no help."""
    monkeypatch.setattr(Compiled, "n_regs", registers)
    monkeypatch.setattr(Compiled, "n_spills", spills)
    kernel = Kernel()
    module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, STRONG=False)
    assert [x.get("maxnreg") for x in kernel.compiled] == ([None, 255] if again else [None])
    assert [number for number, *_ in kernel.launched] == [int(again)]


# What LLVM makes of two shifts, of which it needs one (Triton 3.6.0): threads from the 16th on add to it.
OVER = """
    mul.wide.u32 \t%rd31, %r1, 268435456;
    cvt.u64.u32 \t%rd32, %r3;
    shl.b64 \t%rd33, %rd32, 33;
    or.b64 \t%rd34, %rd31, %rd33;
    mov.b64 \t{_, %r19}, %rd34;
"""


@pytest.mark.parametrize(
    ("before", "after", "over"),
    [
        ("", "", True),
        ("%rd31, %rd33", "%rd33, %rd31", True),
        ("{_, %r19}", "{%r18, %r19}", True),
        ("268435456", "4", False),  # no thread's number is so large
        ("or.b64", "add.s64", False),  # an address
        ("{_, %r19}, %rd34", "{_, %r19}, %rd33", False),
        ("mov.b64 \t{_, %r19}", "cvt.u32.u64 \t%r19", False),  # the lower half
    ],
)
def test_numbers_that_run_over_into_others_are_found(module, before, after, over):
    assert module._runs_over(OVER.replace(before, after)) is over


def test_kernels_whose_numbers_run_over_have_more_warps(module, monkeypatch):
    """As many as it takes for them not to."""
    kernel = Kernel()
    monkeypatch.setattr(Compiled, "asm", property(lambda self: {"ptx": OVER * (self.number < 2)}))
    module._launch(kernel, 5, DEVICE, NUMBERS, 0.5, 48, K=64, STRONG=False, config=module._Config(num_warps=1))
    assert [x["num_warps"] for x in kernel.compiled] == [1, 2, 4]
    assert [number for number, *_ in kernel.launched] == [2]


@pytest.mark.parametrize(("version", "scratch", "past"), [("3.6.0", 0, True), ("3.6.0", 8, False), ("3.7.1", 0, False)])
def test_calls_alike_go_past_the_launcher_of_triton_3_6(module, monkeypatch, version, scratch, past):
    """Where it would ask for no memory; in the order in which it calls what launches."""
    monkeypatch.setattr(module.triton, "__version__", version)
    sizes = {"global_scratch_size": scratch, "profile_scratch_size": 0}
    launcher = SimpleNamespace(launch="launch", launch_cooperative_grid="grid", launch_pdl="pdl", **sizes)
    found = module._launcher(SimpleNamespace(run=launcher, function="function"))
    assert found == (("launch", ("function", "grid", "pdl", None, None)) if past else (launcher, ("function",)))


@pytest.mark.skipif(not known_triton(), reason="another Triton launches by itself")
def test_triton_compiles_side_by_side(module, monkeypatch, tmp_path):
    """In threads of its own; each is compiled once."""
    monkeypatch.setattr(module.triton.runtime.driver, "_active", Target)
    monkeypatch.setattr(module.triton.knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda self: vars(self).update(n_regs=40, n_spills=0))
    kernel, times = triton.jit(nothing_kernel.fn), []  # that has compiled nothing yet
    monkeypatch.setattr(module.triton.knobs.compilation, "listener", lambda **compiled: times.append(compiled))
    passes = [{"K": K, "STRONG": strong} for K in (16, 32) for strong in (False, True)]
    module._build({"key": (kernel, [NUMBERS, 0.5, 48, None], passes, DEVICE)})
    compiled = [x for x, *_ in module._built["key"]]
    assert len({x.hash for x in compiled}) == len(times) == len(passes) and all(x.asm["cubin"] for x in compiled)
