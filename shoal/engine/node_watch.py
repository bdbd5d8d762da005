"""The quick half of llama.cpp's evaluation callback: no to all nodes but a few.

llama.cpp asks about every node of every graph, some 35 a layer. In Python, which answers where the C library
was not compiled, this takes 3 % of a decode step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any

from shoal.engine.llama_library import llama_cpp, native

Judge = Callable[[int, bool], bool]
"""Called with a node's address, and whether llama.cpp asks if it is wanted or tells that it is computed."""


class _Watch(ctypes.Structure):
    """struct node_watch of native/node_watch.c."""

    _fields_ = (
        ("progress", ctypes.c_long),
        ("is_searching", ctypes.c_bool),
        ("num_wanted", ctypes.c_int),
        ("wanted", ctypes.POINTER(ctypes.c_void_p)),
        ("judge", llama_cpp.ggml_backend_sched_eval_callback),
    )


class NodeWatch:
    """Asks `judge` about the nodes at wanted addresses, while it searches about all, and tells it of those
    that were computed. callback, user_data: for llama.cpp's context; this must outlive it."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._wanted: Collection[int] = ()
        self._watch = _Watch(
            is_searching=True,
            judge=llama_cpp.ggml_backend_sched_eval_callback(lambda node, asks, _: judge(node, asks)),
        )
        self.user_data = ctypes.addressof(self._watch)
        if native is None:
            self.callback: Any = llama_cpp.ggml_backend_sched_eval_callback(self._on_node)
        else:
            self.callback = llama_cpp.ggml_backend_sched_eval_callback(_address_of(native.shoal_watch_node))

    @property
    def progress(self) -> int:
        """Moves with every node asked about and every one computed. From any thread."""
        return int(self._watch.progress)

    @property
    def is_searching(self) -> bool:
        """Whether all nodes are asked about."""
        return bool(self._watch.is_searching)

    def search(self) -> None:
        """Ask about all nodes from now on."""
        self._watch.is_searching = True

    def want(self, nodes: Collection[int]) -> None:
        """Ask only about the nodes at these addresses from now on."""
        if nodes is not self._wanted:
            self._wanted = nodes
            self._watch.wanted = (ctypes.c_void_p * len(nodes))(*nodes)
            self._watch.num_wanted = len(nodes)
        self._watch.is_searching = False

    def _on_node(self, node: int, is_question: bool, _user: object) -> bool:
        self._watch.progress += 1
        if is_question and not self._watch.is_searching and node not in self._wanted:
            return False
        return self._judge(node, is_question)


def _address_of(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
