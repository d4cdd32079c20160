"""Files and YAML."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from glagen.errors import Diagnostic, Source, SpecError
from glagen.parse import parse, read
from glagen.parse.reader import MAX_BYTES, Mapping, Scalar, Sequence, compose


def fault_of(path: Path) -> Diagnostic:
    with pytest.raises(SpecError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic


def test_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes("\ufeffname: m\n".encode())
    assert read(path) == Source(str(path), "name: m\n")
    assert read(str(path)).text == "name: m\n"


def test_missing_file(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "none.yaml").message == "there is no such file"


def test_directory(tmp_path: Path) -> None:
    assert fault_of(tmp_path).message == "this is a directory, not a spec"


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"name: \xff\n")
    assert fault_of(path).message == "byte 6 is not UTF-8"


def test_impossible_path(tmp_path: Path) -> None:
    assert "cannot be read" in fault_of(tmp_path / ("x" * 5000)).message
    assert "cannot be read" in fault_of(Path("a\0b")).message


def test_large_file_is_refused_fast(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    with open(path, "wb") as file:
        file.truncate(10_000_000)
    start = time.perf_counter()
    assert "at most 1,000,000 bytes" in fault_of(path).message
    assert time.perf_counter() - start < 0.5


def test_large_text_is_refused() -> None:
    with pytest.raises(SpecError, match="at most 1,000,000 bytes"):
        parse(Source("m", "#" * (MAX_BYTES + 1)))


@pytest.mark.parametrize("text", ["[" * 20_000, "a:\n" + "- " * 20_000, "{a: " * 20_000, "- a\n" * 30_000])
def test_huge_structures_are_refused_fast(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError):
        parse(Source("m", text))
    assert time.perf_counter() - start < 5


def scalar(text: str) -> Scalar:
    faults: list[Diagnostic] = []
    node = compose(Source("m", text), faults)
    assert not faults
    while not isinstance(node, Scalar):
        assert isinstance(node, Mapping | Sequence)
        node = node.entries[0][1] if isinstance(node, Mapping) else node.items[0]
    return node


@pytest.mark.parametrize(
    "text",
    [
        "- ab = c + d\n",
        "-    'ab = c + d'\n",
        '- "ab = c + d"\n',
        "- |\n  ab = c\n  + d\n",
        "- >-\n    ab = c\n    + d\n",
        "- ab =\n    c\n    + d\n",
        "k: {m: ab = c + d, n: 1}\n",
    ],
)
def test_places(text: str) -> None:
    """Each visible character of a scalar is where its place says."""
    node = scalar(text)
    places = node.places()
    lines = text.splitlines()
    assert len(places) == len(node.text) + 1
    for character, (line, column) in zip(node.text, places, strict=False):
        if not character.isspace():
            assert lines[line - 1][column - 1] == character


def test_places_with_quotes_inside() -> None:
    node = scalar("- 'it''s b'\n")
    assert node.text == "it's b"
    assert node.places()[5] == (1, 10)


def test_places_fall_back_to_the_start() -> None:
    node = scalar('- "a\\tb"\n')
    assert node.places() == [(1, 3)] * 4


def test_text_is_never_interpreted() -> None:
    """YAML's own types (booleans, dates, octal numbers) play no part."""
    faults: list[Diagnostic] = []
    node = compose(Source("m", "n: yes\ny: 2020-01-01\nno: 0x10\n"), faults)
    assert isinstance(node, Mapping) and not faults
    assert [(k.text, v.text) for k, v in node.entries if isinstance(v, Scalar)] == [
        ("n", "yes"),
        ("y", "2020-01-01"),
        ("no", "0x10"),
    ]
