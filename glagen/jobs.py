"""Verification in several processes, for a GPU's kernels take longer to build than to run.

What is handed out is one case of extents in one precision: hardly a kernel is common to two of those.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from glagen.errors import Source
from glagen.ir.schedule import Options
from glagen.loader import import_text
from glagen.parse import parse
from glagen.pipeline import compile_spec
from glagen.report import Report, Row
from glagen.verify import defaults, verify

MOST = 16  # processes unless asked for: each takes some 2 GiB
KILLED = "a process was killed, perhaps for want of memory; fewer --jobs may do"

Say = Callable[[str], None]
Finish = Callable[[Say], Report]  # gives the report, and says meanwhile how far it is
Question = Callable[..., bool | None]
Ask = Callable[[Question, Sequence[tuple[Any, ...]]], Iterator[bool | None]]


def default_jobs(device: str) -> int:
    """As many as there are processors, up to MOST, for a GPU; one for the CPU, where torch itself uses all."""
    return min(MOST, os.cpu_count() or 1) if device.startswith("cuda") else 1


@contextmanager
def workers(count: int) -> Iterator[Callable[[Source, Options, str, Sequence[str]], Finish]]:
    """A function that begins to verify a spec on a device in some regimes of gates, with `count` processes for all that
    is begun; with one, everything happens in this one, when it is waited for. Raises SpecError.

    Waiting raises ChildProcessError if a process was killed.
    """
    pool = processes(count) if count > 1 else None
    # Of texts: what is handed to a pool must not fill a pipe, or Python before 3.11.8 and 3.12.2 waits forever for a
    # process that was killed meanwhile.
    folder, texts = TemporaryDirectory(), itertools.count()

    def start(source: Source, options: Options, device: str, regimes: Sequence[str]) -> Finish:
        document, text = parse(source), compile_spec(source, options)  # once: others are given the text
        if pool is None:
            return lambda say: verify(document, import_text(text), device, regimes=regimes, segments=True, progress=say)
        file = Path(folder.name, f"{next(texts)}.py")
        file.write_text(text, encoding="utf-8")
        cases, precisions = defaults(device)
        tasks = list(itertools.product(range(len(cases)), precisions))
        parts = [pool.submit(_part, source, file, device, tuple(regimes), *task) for task in tasks]
        return lambda say: Report(document.name, device, _collected(document.name, regimes, parts, say))

    try:
        yield start
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        folder.cleanup()


@contextmanager
def answers(count: int) -> Iterator[Ask]:
    """A function that says what a question's answer is to each of some arguments, in order, asking `count` processes.

    None is no, and that its process is of no more use, as after a fault of the GPU, which all that it asks of it later
    would meet again: another takes its place. Raises ChildProcessError if a process was killed.
    """
    mine = threading.local()  # each thread has a process of its own
    begun: list[ProcessPoolExecutor] = []

    def answer(question: Question, arguments: tuple[Any, ...]) -> bool:
        if not hasattr(mine, "process"):
            mine.process = processes(1)
            begun.append(mine.process)
        said: bool | None = mine.process.submit(question, *arguments).result()
        if said is None:
            mine.process.shutdown()
            del mine.process
        return bool(said)

    threads = ThreadPoolExecutor(count)

    def ask(question: Question, given: Sequence[tuple[Any, ...]]) -> Iterator[bool | None]:
        try:
            yield from threads.map(answer, itertools.repeat(question), given)
        except BrokenProcessPool:
            raise ChildProcessError(KILLED) from None

    try:
        yield ask
    finally:
        threads.shutdown(cancel_futures=True)
        for process in begun:
            process.shutdown()


def processes(count: int) -> ProcessPoolExecutor:
    """As many, each of which uses one processor."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)


def _begin() -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent says that it was interrupted


def _part(
    source: Source, file: Path, device: str, regimes: tuple[str, ...], number: int, precision: str
) -> tuple[Row, ...]:
    """The rows of one case, by its number, in one precision, of a spec's module, whose text is in a file."""
    report = verify(
        parse(source),
        import_text(file.read_text(encoding="utf-8")),
        device,
        regimes=regimes,
        cases=defaults(device)[0][number : number + 1],
        precisions=[precision],
        variants=number == 0,
        segments=True,
        reference_device="cpu",  # its many small kernels would wait for those of other processes
    )
    return report.rows


def _collected(name: str, regimes: Sequence[str], parts: list[Future[tuple[Row, ...]]], say: Say) -> tuple[Row, ...]:
    """The rows of all parts, by regime."""
    rows: list[Row] = []
    for done, part in enumerate(parts):
        say(f"{name}: {done} of {len(parts)} parts done")
        try:
            rows += part.result()
        except BrokenProcessPool:
            raise ChildProcessError(KILLED) from None
    return tuple(sorted(rows, key=lambda row: regimes.index(row.regime)))
