"""Runs alike: what one makes and launches is recorded, and done again for others."""

from __future__ import annotations

import contextlib
import weakref
from types import SimpleNamespace

import pytest
import torch

from tests.emit.test_launch import DEVICE, Compiled, Driver, Kernel
from tests.numerics.helpers import generated

pytest.importorskip("triton")


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda, device = True, DEVICE


def given(*shape: int) -> torch.Tensor:
    return torch.zeros(shape or (64,)).as_subclass(OnGpu)


class Run:
    """A run of three kernels: what the first makes, the second reads."""

    def __init__(self, module) -> None:
        self.module, self.times = module, 0
        self.first, self.second, self.third = Kernel(), Kernel(), Kernel()

    def __call__(self, x, y, scale):
        self.times += 1
        between = self.module._empty(*x.shape, dtype=torch.float32, device=x.device)
        one = self.module._empty(x.shape[0], 2, dtype=torch.bfloat16, device=x.device)
        none = self.module._empty(0, dtype=torch.float32, device=x.device)
        self.launch(self.first, 5, x, between)
        self.launch(self.second, 7, between.view(-1), y, one)
        self.launch(self.third, 9, y)
        return one, None, none

    def launch(self, kernel, programs, *tensors):
        kernel.arg_names = (*"abc"[: len(tensors)], "scale", "K", "STRONG")
        passes = {"STRONG": False}, {"STRONG": True}
        self.module._launch(kernel, programs, DEVICE, *tensors, 0.5, K=64, passes=passes)

    @property
    def launched(self):
        return self.first.launched, self.second.launched


@pytest.fixture(params=["gla", "simple_gla"])  # the gradient of the latter's gates is a sum of parts
def module(request, monkeypatch):
    """A module on a machine with a GPU."""
    module, empty = generated(request.param), torch.empty
    monkeypatch.setattr(module, "_INTERPRETED", False)
    monkeypatch.setattr(module, "_IS_KNOWN", True)
    monkeypatch.setattr(module, "_wgmma_is_sound", lambda *_: True)
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, device: empty(shape, dtype=dtype).as_subclass(OnGpu))
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(module.triton.runtime.driver, "_active", Driver)
    return module


def test_a_run_alike_launches_the_same_of_its_own_tensors(module):
    run, x, y = Run(module), given(), given(3)
    for _ in range(2):  # builds what is lacking; is recorded
        module._with_kernels(run, x, y, 0.5)
    times, before = run.times, [len(launched) for launched in run.launched]
    x, y = given(), given(3)
    one, none, empty = module._with_kernels(run, x, y, 0.5)
    assert run.times == times and none is None and (one.shape, one.dtype) == ((64, 2), torch.bfloat16)
    assert (empty.shape, empty.dtype) == ((0,), torch.float32)
    first, second = (launched[n:] for launched, n in zip(run.launched, before, strict=True))
    assert [grid for _, grid, *_ in first + second] == 2 * [(5, 1, 1)] + 2 * [(7, 1, 1)]
    ((a, b, *rest), *_), ((c, d, e, *_), *_) = ([arguments for _, _, arguments, _ in x] for x in (first, second))
    assert (a, d, e) == (x.data_ptr(), y.data_ptr(), one.data_ptr()) and b == c and rest == [0.5, 64, False]
    assert all(stream == 71 for *_, stream in first + second)


def test_a_run_that_fills_what_it_is_given_is_repeated(module):
    """It returns what is given to the call at hand."""
    base = Run(module)

    def run(x, y, scale):
        base.times += 1
        base.launch(base.first, 5, x, y)
        return y, None

    for _ in range(3):
        x, y = given(), given(3)
        found, none = module._with_kernels(run, x, y, 0.5)
        assert found is y and none is None
    *_, ((a, b, *_), *_) = ([arguments] for _, _, arguments, _ in base.first.launched)
    assert base.times == 3 and (a, b) == (x.data_ptr(), y.data_ptr()), "built, recorded, repeated"


def test_tensors_without_elements_do_not_keep_a_run_from_being_repeated(module):
    """All of them lie nowhere; no kernel is given them."""
    run, none = Run(module), (given(0), given(0))

    def with_more(x, y, scale, *empties):
        return run(x, y, scale)

    for _ in range(4):
        module._with_kernels(with_more, given(), given(3), 0.5, *none)
    assert run.times == 3, "the first call runs twice, for it builds what is lacking; the second is recorded"


@pytest.mark.parametrize("module", ["simple_gla"], indirect=True)
def test_sums_over_what_kernels_filled_are_taken_again(module):
    """Of a buffer that is kept until then, though no kernel needs it longer."""
    base, number = Run(module), iter(range(10))

    def run(x, y, scale):
        one, *_ = base(x, y, scale)
        one.fill_(next(number))
        other = module._empty(*x.shape, dtype=torch.float32, device=x.device)
        base.launch(base.first, 5, x, other)
        return module._summed(one, -1), other

    for _ in range(2):
        module._with_kernels(run, given(), given(3), 0.5)
    empty = torch.empty
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(21))
        total, other = module._with_kernels(run, given(), given(3), 0.5)
    assert next(number) == 3 and total.tolist() == [42.0] * 64 and other.shape == (64,)


@pytest.mark.parametrize(
    "other",
    [
        lambda x, y: (given(65), y, 0.5),
        lambda x, y: (x.double().as_subclass(OnGpu), y, 0.5),
        lambda x, y: (given(65)[1:], y, 0.5),
        lambda x, y: (x, y, 0.25),
    ],
    ids=["shape", "type", "address", "number"],
)
def test_other_runs_are_runs_of_their_own(module, other):
    run, x, y = Run(module), given(), given(3)
    for _ in range(2):
        module._with_kernels(run, x, y, 0.5)
    times = run.times
    module._with_kernels(run, *other(x, y))
    assert run.times > times


def test_what_comes_from_elsewhere_is_not_repeated(module):
    """A tensor that the run has from Torch, as a result or for a kernel; and one that is given twice."""

    def result(x, y, scale):
        one, *_ = base(x, y, scale)
        return (one + 0).as_subclass(OnGpu), None

    def argument(x, y, scale):
        return base((x + 0).as_subclass(OnGpu), y, scale)

    base, x, y = Run(module), given(), given(3)
    for run, tensors in ((result, (x, y)), (argument, (x, y)), (base, (x, x))):
        for times in range(4):
            base.times = 0
            module._with_kernels(run, *tensors, 0.5)
            assert base.times >= 1, f"repeated after {times}"
    assert set(module._records.values()) == {None}


def test_where_torch_does_not_tell_the_precision_nothing_is_repeated(module, monkeypatch):
    """As it refuses to, where that was set in its newer way."""

    class Refusing:
        @property
        def allow_tf32(self):
            raise RuntimeError

    run, x, y = Run(module), given(), given(3)
    for _ in range(2):
        module._with_kernels(run, x, y, 0.5)
    times = run.times
    monkeypatch.setattr(torch, "backends", SimpleNamespace(cuda=SimpleNamespace(matmul=Refusing())))
    module._with_kernels(run, x, y, 0.5)
    assert run.times == times + 1


def test_profilers_are_told_of_launches_that_would_be_repeated(module, monkeypatch):
    run, x, y = Run(module), given(), given(3)
    for _ in range(2):
        module._with_kernels(run, x, y, 0.5)
    times = run.times
    monkeypatch.setattr(module.triton.knobs.runtime.launch_exit_hook, "calls", [print])
    module._with_kernels(run, x, y, 0.5)
    assert run.times == times + 1 and run.first.hooked


def test_a_record_keeps_no_tensor(module, monkeypatch):
    """But one without elements. Nor does a run that repeats it, of what is large, but until the last kernel that needs
    it is launched."""
    run, x, y, made, alive, empty = Run(module), given(), given(3), [], [], torch.empty
    monkeypatch.setattr(module, "SMALL", 255)
    monkeypatch.setattr(Compiled, "run", lambda *_: alive.append([r() is not None for r in made]))
    for _ in range(2):
        module._with_kernels(run, x, y, 0.5)
    alive.clear()
    kept = weakref.ref(x)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(weakref.ref(x := empty(*a, **k))) or x)
    results = module._with_kernels(run, x, y, 0.5)
    assert alive == 4 * [[True, True]] + 2 * [[False, True]] and len(results) == 3
    del x
    assert kept() is None


@pytest.mark.parametrize("module", ["gla"], indirect=True)
def test_small_tensors_that_are_not_returned_share_a_buffer(module, monkeypatch):
    """Each has a part of its own, at a multiple of 512 bytes from its start."""

    class Five(Run):
        def __call__(self, x, y, scale):
            self.times += 1
            dtypes = torch.int8, torch.float32, torch.bfloat16, torch.float32
            made = [self.module._empty(*x.shape, dtype=dtype, device=x.device) for dtype in dtypes]
            large = self.module._empty(64, 64, 64, dtype=torch.float32, device=x.device)
            self.launch(self.first, 5, *made[:3])
            self.launch(self.second, 7, made[0], large, made[3])
            return (made[3],)

    run, x, y, made, empty = Five(module), given(), given(3), [], torch.empty
    monkeypatch.setattr(module, "SMALL", 4096)
    for _ in range(2):
        module._with_kernels(run, x, y, 0.5)
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(empty(*a, **k)) or made[-1])
    (last,) = module._with_kernels(run, x, y, 0.5)
    buffer, *others = made
    assert (buffer.shape, buffer.dtype) == ((1536,), torch.uint8) and others[0] is last
    assert [x.shape for x in others] == [(64,), (64, 64, 64)]
    (a, b, c, *_), (d, e, f, *_) = (launched[-1][2] for launched in run.launched)
    assert {a, b, c} == {buffer.data_ptr() + n for n in (0, 512, 1024)} and d == a
    assert (e, f) == (others[1].data_ptr(), last.data_ptr())


def test_an_error_in_a_run_that_is_recorded_leaves_nothing_behind(module):
    run, x, y = Run(module), given(), given(3)
    module._with_kernels(run, x, y, 0.5)

    def fails(*given):
        run(*given)
        raise KeyError

    with pytest.raises(KeyError):
        module._with_kernels(fails, x, y, 0.5)
    assert module._of_thread.record is None and not module._records
