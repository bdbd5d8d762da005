"""Tokenizer: llama.cpp's vocabulary, with bad text and long text kept at the door."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.core.errors import BadRequest, InvariantBroken, ModelFileError
from shoal.core.specs import LayerRange
from shoal.model.slicing import cut_slice
from shoal.pipeline import tokenizer as tokenizer_module
from shoal.pipeline.tokenizer import Tokenizer
from tests.support.tiny_models import write_tiny_model

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vocabularies")


@pytest.fixture(scope="module")
def bpe(folder: Path) -> Tokenizer:
    return Tokenizer(write_tiny_model(folder / "bpe.gguf", "qwen2", num_layers=2))


@pytest.fixture(scope="module")
def spm(folder: Path) -> Tokenizer:
    return Tokenizer(write_tiny_model(folder / "spm.gguf", "gemma3", num_layers=2))


TEXTS = ["hello the sea", "zwölf Boxkämpfer", "🐟 and 中文\n\n\t x", "a\0b", "  two  spaces ", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_from_its_tokens(bpe: Tokenizer, spm: Tokenizer, text: str) -> None:
    for tokenizer in (bpe, spm):
        tokens = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(tokens) == text.encode()
        assert all(0 <= token < tokenizer.n_vocab for token in tokens)


def test_the_begin_token_is_added_where_the_model_wants_one(bpe: Tokenizer, spm: Tokenizer) -> None:
    assert spm.adds_bos
    assert not bpe.adds_bos
    plain = spm.encode("abc", add_special=False, parse_special=False)
    assert spm.encode("abc", add_special=True, parse_special=False) == [spm.bos_token, *plain]
    assert bpe.encode("the", add_special=True, parse_special=False) == bpe.encode(
        "the", add_special=False, parse_special=False
    )


def test_control_texts_are_control_tokens_only_on_request(bpe: Tokenizer) -> None:
    text = "the<|im_end|>sea"
    parsed = bpe.encode(text, add_special=False, parse_special=True)
    plain = bpe.encode(text, add_special=False, parse_special=False)
    assert bpe.eos_token in parsed
    assert bpe.eos_token not in plain
    assert bpe.decode(plain) == text.encode()


def test_a_control_token_renders_as_nothing_unless_asked(bpe: Tokenizer) -> None:
    assert bpe.eos_token is not None
    assert bpe.token_bytes(bpe.eos_token) == b""
    assert bpe.token_bytes(bpe.eos_token, special=True) == b"<|im_end|>"


def test_what_the_vocabulary_says_about_itself(bpe: Tokenizer, spm: Tokenizer) -> None:
    assert bpe.n_vocab == 300
    assert {"<|im_start|>", "<|im_end|>", "<|endoftext|>"} <= bpe.control_token_texts
    assert bpe.eos_token in bpe.eog_tokens
    assert bpe.eos_text == "<|im_end|>"
    assert spm.bos_text == "<s>"
    assert "<unk>" in spm.control_token_texts
    assert bpe.chat_template is not None


@pytest.mark.parametrize("token", [-1, 300, 2**31])
def test_a_token_outside_the_vocabulary_is_a_bug(bpe: Tokenizer, token: int) -> None:
    with pytest.raises(InvariantBroken, match="outside the vocabulary"):
        bpe.token_bytes(token)


def test_a_lone_surrogate_is_the_clients_mistake(bpe: Tokenizer) -> None:
    with pytest.raises(BadRequest, match=r"U\+D83D at character 3"):
        bpe.encode("abc\ud83d", add_special=False, parse_special=True)


@pytest.mark.parametrize("letter", ["a", " ", "\n", "1", "<", "<|im_end|>", "<|im_end|>a"])
def test_a_megabyte_of_one_letter_is_tokenised(bpe: Tokenizer, letter: str) -> None:
    # Anything quadratic would run into the suite's time limit.
    count = MEGABYTE // len(letter)
    tokens = bpe.encode(letter * count, add_special=False, parse_special=True)
    assert len(tokens) % count == 0
    assert set(tokens) == set(bpe.encode(letter, add_special=False, parse_special=True))


def test_many_control_tokens_are_tokenised_as_few_are(bpe: Tokenizer) -> None:
    unit = "<|im_start|>the sea <|im_end|>\n"
    once = bpe.encode(unit, add_special=False, parse_special=True)
    assert bpe.encode(unit * 1000, add_special=False, parse_special=True) == once * 1000


@pytest.mark.parametrize("letter", ["a", "\n", "a1"])
def test_words_too_long_for_llama_cpp_are_cut_and_nothing_is_lost(
    bpe: Tokenizer, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bpe, "_words_are_bounded", False)
    text = letter * 50_000 + " the " + "b" * 4096
    pieces = bpe._pieces(text, [])
    assert "".join(pieces) == text
    assert max(map(len, pieces[:-1])) <= tokenizer_module._MAX_WORD_CHARS
    assert bpe.decode(bpe.encode(text, add_special=False, parse_special=True)) == text.encode()


def test_a_cut_never_falls_inside_a_control_text(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bpe, "_words_are_bounded", False)
    for padding in range(4080, 4100):
        tokens = bpe.encode("a" * padding + "<|im_end|>b", add_special=False, parse_special=True)
        assert tokens.count(bpe.eos_token or -1) == 1


def test_only_vocabularies_known_to_be_safe_take_long_words_whole(bpe: Tokenizer, spm: Tokenizer) -> None:
    assert bpe._words_are_bounded
    assert spm._words_are_bounded


def test_a_file_without_a_vocabulary_is_refused(folder: Path, bpe: Tokenizer) -> None:
    path = cut_slice(bpe.path, LayerRange(0, 1), folder / "slice.gguf")
    with pytest.raises(ModelFileError, match="no vocabulary"):
        Tokenizer(path)


def test_a_damaged_file_is_refused_with_the_cause(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(ModelFileError, match=r"broken.gguf: llama.cpp cannot load .* version"):
        Tokenizer(tmp_path / "broken.gguf")
    with pytest.raises(ModelFileError, match="not a file"):
        Tokenizer(tmp_path / "missing.gguf")
