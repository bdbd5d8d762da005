"""A jinja2 environment for templates that came with a model file, which nobody here has read.

jinja2's immutable sandbox keeps a template away from Python's internals. This adds what the
sandbox leaves open: a budget of steps (loop rounds and calls) for each rendering, because loops
nest, and a bound on every text that a template builds, because texts double. A single built-in
filter can still take memory for one oversized result before it is refused.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_STEPS = 1_000_000
MAX_TEXT_CHARS = 16 * 2**20
_MAX_FACTOR = 100_000
_WIDE_PADDING = re.compile(r"[0-9]{6}|\*")


class TemplateRefusal(Exception):
    """The template called raise_exception: it does not take these messages."""


class TemplateTooCostly(Exception):
    """The template went past a bound of the sandbox."""


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Renders chat templates as the `transformers` library does. One thread at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationBlock],
        )
        self._steps = 0
        self.filters["tojson"] = _to_json
        for name, function in self.filters.items():
            self.filters[name] = self._guarded(function)
        self.filters[_COUNTED] = self._counted
        self.filters[_BOUNDED] = self._bounded
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = self._strftime_now

    def render_bounded(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        """Render `template` with a fresh budget.

        Raises TemplateRefusal, TemplateTooCostly, and jinja2's or Python's own errors where the
        template does something that these variables do not allow.
        """
        self._steps = 0
        pieces: list[str] = []
        length = 0
        for piece in template.generate(variables):
            length += len(piece)
            self._refuse_length(length)
            pieces.append(piece)
        return "".join(pieces)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """As jinja2, with every loop counted and every `~` bounded."""
        tree = super()._parse(source, name, filename)
        _wrap_fields(tree)
        return tree

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        __self._count()
        __self._refuse_numbers(*args, *kwargs.values())
        if getattr(__obj, "__name__", "").startswith("format"):
            # The sandbox wraps a text's own `format`.
            __self._refuse_padding(getattr(inspect.unwrap(__obj), "__self__", None))
        return __self._bounded(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._count()
        if operator == "%" and isinstance(left, str):
            self._refuse_padding(left)
        elif operator != "+":
            self._refuse_factors(left, right)
        return self._bounded(super().call_binop(context, operator, left, right))

    def _count(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TemplateTooCostly(f"more than {MAX_STEPS} steps")

    def _counted(self, iterable: Iterable[Any]) -> Iterator[Any]:
        for element in iterable:
            self._count()
            yield element

    def _bounded(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            self._refuse_length(len(value))
        return value

    def _refuse_length(self, length: int) -> None:
        if length > MAX_TEXT_CHARS:
            raise TemplateTooCostly(f"a text of more than {MAX_TEXT_CHARS} characters")

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A jinja2 filter with its numbers and its result bounded."""

        @functools.wraps(function)  # keeps the mark by which jinja2 knows what to pass first
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._count()
            self._refuse_numbers(*args, *kwargs.values())
            if function.__name__ == "do_format":
                self._refuse_padding(args[0])
            return self._bounded(function(*args, **kwargs))

        return guarded

    def _strftime_now(self, form: str) -> str:
        self._refuse_padding(form)
        return datetime.now().strftime(form)

    def _refuse_numbers(self, *values: Any) -> None:
        """Widths, counts and ranges are made before their result could be measured."""
        for value in values:
            if isinstance(value, int) and abs(value) > _MAX_FACTOR:
                raise TemplateTooCostly(f"a call with the number {value}")

    def _refuse_padding(self, form: Any) -> None:
        if isinstance(form, str) and _WIDE_PADDING.search(form):
            raise TemplateTooCostly("a format that pads to six digits or more")

    def _refuse_factors(self, left: Any, right: Any) -> None:
        """Products of text and powers are made before they could be measured."""
        for operand, other in ((left, right), (right, left)):
            if isinstance(operand, int) and abs(operand) > _MAX_FACTOR and not isinstance(other, float):
                raise TemplateTooCostly(f"arithmetic with the number {operand}")
        if isinstance(left, str) and isinstance(right, int):
            self._refuse_length(len(left) * right)
        if isinstance(left, int) and isinstance(right, str):
            self._refuse_length(left * len(right))


_COUNTED = "_counted"
_BOUNDED = "_bounded"


def _wrap_fields(node: nodes.Node) -> None:
    """Send every loop's iterable and every `~` below `node` through the counting filters."""
    for child in list(node.iter_child_nodes()):
        _wrap_fields(child)
    if isinstance(node, nodes.For):
        node.iter = _filtered(node.iter, _COUNTED)
    for name, value in node.iter_fields():
        if isinstance(value, nodes.Concat):
            setattr(node, name, _filtered(value, _BOUNDED))
        elif isinstance(value, list):
            value[:] = [_filtered(v, _BOUNDED) if isinstance(v, nodes.Concat) else v for v in value]


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    assert isinstance(node, nodes.Expr)
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own spelling

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML; the model was not trained on that.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise TemplateRefusal(message)
