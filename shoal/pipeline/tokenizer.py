"""Text to tokens and back: llama.cpp's own vocabulary of the model, loaded without weights.

Owns the vocabulary. Knows nothing of chat templates or requests. Used by the gateway and by the
driver, from any thread: llama.cpp only reads the vocabulary.
"""

from __future__ import annotations

import ctypes
import re
import weakref
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.core.errors import BadRequest, InvariantBroken, ModelFileError
from shoal.engine.llama_library import llama_cpp
from shoal.engine.llama_params import vocab_only_params
from shoal.engine.llama_runtime import llama_runtime
from shoal.pipeline.control_texts import ControlTexts

_PARSED_ONLY_ON_REQUEST = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN

_MAX_WORD_CHARS = 4096
"""llama.cpp splits text with std::regex for the vocabularies not named below; it recurses once a
character, and overflows an 8 MiB stack (a crash, not an exception) at a word of about 30,000."""

_WORD_TOO_LONG = re.compile(rf"\S{{{_MAX_WORD_CHARS + 1}}}|\s{{{_MAX_WORD_CHARS + 1}}}")

_MAX_CONTROLS = 256
"""llama.cpp's time grows with the square of the control tokens in one text: 5 s for 40,000."""

_PRE_TOKENIZERS_WITHOUT_STD_REGEX = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen", "gpt-2", "smollm", "starcoder"}
)

_SPACE_FOR_SPECIALS = 16


class Tokenizer:
    """The vocabulary of a model file."""

    def __init__(self, path: Path) -> None:
        """Raises ModelFileError when llama.cpp cannot read a vocabulary from `path`."""
        self.path = path
        self._model = _load(path)
        self._finalizer = weakref.finalize(self, llama_cpp.llama_model_free, self._model)
        self._vocab: Any = llama_cpp.llama_model_get_vocab(self._model)
        if llama_cpp.llama_vocab_type(self._vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise ModelFileError(
                f"{path} has no vocabulary.",
                next_step="Give the whole model file, not a slice of it.",
            )
        self.n_vocab: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self._words_are_bounded = self._is_safe_with_long_words()

    def close(self) -> None:
        """Free the vocabulary. Idempotent."""
        self._finalizer()

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokenise `text`, in time linear in its length.

        add_special: put the model's begin-of-sequence token before it where the model wants one.
        parse_special: read control-token texts as control tokens instead of as plain text.
        Raises BadRequest when `text` holds a lone surrogate. With some vocabularies, words of
        more than 4,096 characters are tokenised in pieces.
        """
        # llama.cpp looks for each control token in turn: 26 us for every "<" with Gemma's 6,250.
        # Where none is there, not looking gives the same tokens.
        controls = self.controls.find(text) if parse_special else []
        tokens: list[int] = []
        for piece in self._pieces(text, controls):
            tokens += self._encode_piece(
                piece, add_special=add_special and not tokens, parse_special=bool(controls)
            )
        return tokens

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that `token` stands for, not always whole characters. A control token gives
        none, or its text if `special`. Raises InvariantBroken on an id outside the vocabulary."""
        if not 0 <= token < self.n_vocab:
            raise InvariantBroken(f"Token {token} is outside the vocabulary of {self.n_vocab}.")
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def decode(self, tokens: list[int], *, special: bool = False) -> bytes:
        """The bytes of `tokens`, joined."""
        return b"".join(self.token_bytes(token, special=special) for token in tokens)

    @cached_property
    def eog_tokens(self) -> frozenset[int]:
        """Tokens with which the model ends an answer."""
        return frozenset(
            token for token in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(self._vocab, token)
        )

    @cached_property
    def controls(self) -> ControlTexts:
        """Finds the texts that `encode` reads as control tokens only with parse_special."""
        return ControlTexts(
            self._text(token)
            for token in range(self.n_vocab)
            if llama_cpp.llama_vocab_get_attr(self._vocab, token) & _PARSED_ONLY_ON_REQUEST
        )

    @property
    def control_token_texts(self) -> frozenset[str]:
        return self.controls.texts

    @property
    def bos_token(self) -> int | None:
        token: int = llama_cpp.llama_vocab_bos(self._vocab)
        return token if token >= 0 else None

    @property
    def eos_token(self) -> int | None:
        token: int = llama_cpp.llama_vocab_eos(self._vocab)
        return token if token >= 0 else None

    @property
    def adds_bos(self) -> bool:
        """Whether the model wants its begin-of-sequence token before every prompt."""
        return bool(llama_cpp.llama_vocab_get_add_bos(self._vocab)) and self.bos_token is not None

    @property
    def bos_text(self) -> str:
        """ "" if the vocabulary has none."""
        return "" if self.bos_token is None else self._text(self.bos_token)

    @property
    def eos_text(self) -> str:
        """ "" if the vocabulary has none."""
        return "" if self.eos_token is None else self._text(self.eos_token)

    @property
    def chat_template(self) -> str | None:
        """The model file's own chat template."""
        template: bytes | None = llama_cpp.llama_model_chat_template(self._model, None)
        return None if template is None else template.decode("utf-8", "replace")

    def _text(self, token: int) -> str:
        text: bytes = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")

    def _pieces(self, text: str, controls: list[tuple[int, int]]) -> list[str]:
        """`text` in one piece, or cut where llama.cpp could not take it whole: before every so
        many control tokens (which split words anyway), and inside words that are too long."""
        cuts = [start for start, _ in controls[_MAX_CONTROLS::_MAX_CONTROLS]]
        pieces = [text[begin:end] for begin, end in pairwise([0, *cuts, len(text)])]
        if self._words_are_bounded or not _WORD_TOO_LONG.search(text):
            return pieces
        return [part for piece in pieces for part in self._bounded_words(piece, bool(controls))]

    def _bounded_words(self, text: str, has_controls: bool) -> list[str]:
        controls = self.controls.find(text) if has_controls else []
        parts: list[str] = []
        begin = 0
        while match := _WORD_TOO_LONG.search(text, begin):
            cut = match.end() - 1
            # A control token stays whole.
            cut = next((start for start, end in controls if begin < start < cut < end), cut)
            parts.append(text[begin:cut])
            begin = cut
        return [*parts, text[begin:]]

    def _encode_piece(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"The text holds U+{ord(text[error.start]):04X} at character {error.start}, "
                "half of a surrogate pair, which is not a character.",
                next_step="Send text that is valid Unicode.",
            ) from error
        capacity = len(encoded) + _SPACE_FOR_SPECIALS
        buffer = (llama_cpp.llama_token * capacity)()
        count: int = llama_cpp.llama_tokenize(
            self._vocab, encoded, len(encoded), buffer, capacity, add_special, parse_special
        )
        if count < 0:
            raise InvariantBroken(f"{len(encoded)} bytes of text gave more than {capacity} tokens.")
        return list(buffer[:count])

    def _is_safe_with_long_words(self) -> bool:
        if llama_cpp.llama_vocab_type(self._vocab) != llama_cpp.LLAMA_VOCAB_TYPE_BPE:
            return True
        return self._metadata("tokenizer.ggml.pre") in _PRE_TOKENIZERS_WITHOUT_STD_REGEX

    def _metadata(self, key: str) -> str | None:
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return None if length < 0 else buffer.value.decode("utf-8", "replace")


def _load(path: Path) -> Any:
    if not path.is_file():
        raise ModelFileError(f"{path} is not a file.", next_step="Check the path.")
    runtime = llama_runtime()
    runtime.forget_errors()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), vocab_only_params())
    if model is None:
        raise ModelFileError(
            f"{path}: llama.cpp cannot load the vocabulary: {runtime.last_errors() or 'no reason given'}.",
            next_step="Fetch the file again, or give another model.",
        )
    return model
