"""Damaged files end in a ModelFileError that names the file: no crash, no huge allocation."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.core.errors import ModelFileError
from shoal.model.gguf_file import ModelFile
from tests.unit.model.conftest import TinyModel

FEW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def content(tiny_model: TinyModel) -> bytes:
    return tiny_model("qwen2", num_layers=2).read_bytes()


def damaged(folder: Path, content: bytes) -> Path:
    path = folder / "damaged.gguf"
    path.write_bytes(content)
    return path


def tensor_record(content: bytes, name: str) -> int:
    """Where the record of `name` goes on after its name: the count of dims."""
    raw = name.encode()
    return content.index(struct.pack("<Q", len(raw)) + raw) + 8 + len(raw)


def patched(content: bytes, at: int, layout: str, *values: int) -> bytes:
    new = struct.pack(layout, *values)
    return content[:at] + new + content[at + len(new) :]


def test_a_sound_file_reads_as_gguf_reader_reads_it(tiny_model: TinyModel) -> None:
    path = tiny_model("gemma3", weights="Q8_0")
    model, reference = ModelFile(path), gguf.GGUFReader(path)
    assert list(model.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        mine = model.tensors[tensor.name]
        assert mine.start == tensor.data_offset
        assert mine.num_bytes == tensor.n_bytes
        assert mine.dims == tuple(tensor.shape.tolist())
        assert bytes(model.raw(mine.start, mine.start + mine.num_bytes)) == tensor.data.tobytes()
    for key, field in reference.fields.items():
        if key.startswith("GGUF."):
            continue
        mine_value = model.get(key)
        if field.types[0] is not gguf.GGUFValueType.ARRAY:
            assert mine_value == field.contents()
        elif field.types[-1] is not gguf.GGUFValueType.STRING:
            numbers = model.numbers(key)
            assert numbers is not None
            assert numbers.tolist() == field.contents()


@pytest.mark.parametrize("percent", [0.5, 10, 50, 99, 99.9])
def test_a_truncated_file_is_refused(tmp_path: Path, content: bytes, percent: float) -> None:
    path = damaged(tmp_path, content[: int(len(content) * percent / 100)])
    with pytest.raises(ModelFileError, match=r"damaged\.gguf"):
        ModelFile(path)


@FEW
@given(fraction=st.floats(0, 1, exclude_max=True))
def test_every_truncation_of_the_header_is_refused(tmp_path: Path, content: bytes, fraction: float) -> None:
    header_bytes = ModelFile(damaged(tmp_path, content)).tensor("token_embd.weight").start
    path = damaged(tmp_path, content[: int(header_bytes * fraction)])
    with pytest.raises(ModelFileError):
        ModelFile(path)


@FEW
@given(position=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_in_the_header_is_refused_or_harmless(
    tmp_path: Path, content: bytes, position: float, bit: int
) -> None:
    header_bytes = ModelFile(damaged(tmp_path, content)).tensor("token_embd.weight").start
    at = int(header_bytes * position)
    path = damaged(tmp_path, patched(content, at, "<B", content[at] ^ (1 << bit)))
    try:
        model = ModelFile(path)
    except ModelFileError:
        return
    assert all(tensor.start + tensor.num_bytes <= len(content) for tensor in model.tensors.values())


def test_a_truncated_tensor_is_named(tmp_path: Path, content: bytes) -> None:
    path = damaged(tmp_path, content[:-4096])
    with pytest.raises(ModelFileError, match=r"tensor blk\.1\.\S+ should end at byte"):
        ModelFile(path)


def test_an_offset_beyond_the_file_names_the_tensor(tmp_path: Path, content: bytes) -> None:
    at = tensor_record(content, "blk.0.attn_q.weight") + 4 + 2 * 8 + 4
    path = damaged(tmp_path, patched(content, at, "<Q", 2**40))
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight"):
        ModelFile(path)


def test_overlapping_tensors_are_refused(tmp_path: Path, content: bytes) -> None:
    at = tensor_record(content, "blk.0.attn_q.weight") + 4 + 2 * 8 + 4
    path = damaged(tmp_path, patched(content, at, "<Q", 0))
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight starts at offset 0"):
        ModelFile(path)


@pytest.mark.parametrize("dims", [(2**32, 2**32), (2**63, 2), (2**61, 8), (64, 0)])
def test_dimensions_that_wrap_or_are_empty_name_the_tensor(
    tmp_path: Path, content: bytes, dims: tuple[int, int]
) -> None:
    at = tensor_record(content, "blk.0.attn_q.weight") + 4
    path = damaged(tmp_path, patched(content, at, "<2Q", *dims))
    with pytest.raises(ModelFileError, match=r"blk\.0\.attn_q\.weight"):
        ModelFile(path)


@pytest.mark.parametrize("at", [8, 16], ids=["tensors", "metadata pairs"])
@pytest.mark.parametrize("count", [2**63, 2**40, 10**6])
def test_absurd_counts_are_refused_without_allocating(
    tmp_path: Path, content: bytes, at: int, count: int
) -> None:
    path = damaged(tmp_path, patched(content, at, "<Q", count))
    tracemalloc.start()
    with pytest.raises(ModelFileError):
        ModelFile(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2 * 2**20


@pytest.mark.parametrize("length", [2**64 - 1, 2**40, 10**8])
def test_an_absurd_text_length_is_refused(tmp_path: Path, content: bytes, length: int) -> None:
    path = damaged(tmp_path, patched(content, 24, "<Q", length))
    with pytest.raises(ModelFileError):
        ModelFile(path)


def test_an_absurd_array_length_is_refused(tmp_path: Path, content: bytes) -> None:
    key = b"tokenizer.ggml.tokens"
    at = content.index(key) + len(key) + 4 + 4
    path = damaged(tmp_path, patched(content, at, "<Q", 2**62))
    with pytest.raises(ModelFileError, match=r"tokenizer\.ggml\.tokens"):
        ModelFile(path)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"", "empty"),
        (b"GG", "GGUF"),
        (b"This is a text file, not a model.\n" * 50, "GGUF"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(100), "version is 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(100), "big-endian"),
        (b"GGUF" + struct.pack("<I", 3), "ends at byte 8"),
    ],
)
def test_what_is_no_model_file_is_refused_with_the_reason(tmp_path: Path, wrong: bytes, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason):
        ModelFile(damaged(tmp_path, wrong))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no model file"):
        ModelFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        ModelFile(tmp_path)


def test_a_tensor_that_stands_twice_is_refused(tmp_path: Path, content: bytes) -> None:
    name = content.replace(b"blk.0.attn_q.bias", b"blk.0.attn_k.bias", 1)
    with pytest.raises(ModelFileError, match=r"attn_k\.bias stands in it twice"):
        ModelFile(damaged(tmp_path, name))
