"""Reading hidden states out of llama.cpp while it computes: the evaluation callback.

llama.cpp asks about every graph node before computing it, and calls again when a node that was
wanted is done (`NodeWatch` answers for most). The tap wants the output of each layer: the inner
ones so that `progress` moves during a long batch, the last one for its rows. On every slice but the
model's last, it then stops the graph: the norm and head behind the last layer would be computed for nothing.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Sequence

import numpy as np

from shoal.core.errors import EngineError, InvariantBroken
from shoal.engine.interface import Rows
from shoal.engine.llama_library import ggml_function
from shoal.engine.node_watch import NodeWatch

_FLOAT_BYTES = 4

SHORT_ROWS = 8
SHORT_STRIDE = 8
QUICK_S = 0.25
"""Each node waited for splits the graph, which costs 80 us: 7 % of a decode step if it is done for every
layer. A batch of so few rows computes that many layers soon enough; and all of them, where a batch before
it took less than so long."""


_get_name = ggml_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
_nelements = ggml_function("ggml_nelements", ctypes.c_int64, ctypes.c_void_p)
_nrows = ggml_function("ggml_nrows", ctypes.c_int64, ctypes.c_void_p)
_nbytes = ggml_function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
_tensor_get = ggml_function(
    "ggml_backend_tensor_get", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class HiddenTap:
    """What one context's callback wants and takes.

    watch: for the context's parameters, and its `progress`. The tap must stay referenced as long as
    the context.
    """

    def __init__(self, layer_outputs: Sequence[str], row_width: int, *, takes_rows: bool) -> None:
        """layer_outputs: names of the graph nodes to wait for, in order; the last is the one whose
        rows are taken, unless this is the model's last slice (`takes_rows` False)."""
        self.watch = NodeWatch(self._judge)
        self._wanted = frozenset(name.encode() for name in layer_outputs)
        self._last = layer_outputs[-1].encode()
        self._only_last = frozenset((self._last,))
        kept = layer_outputs[::-1][::SHORT_STRIDE]
        self._kept_when_short = frozenset(name.encode() for name in kept)
        self._is_short = self._is_quick = False
        self._began_s = 0.0
        self._short_batch_s = math.inf  # the last one; before any, it may take long
        self._row_width = row_width
        self._takes_rows = takes_rows
        # Addresses of wanted nodes in the last graph: comparing names would cost more.
        # An address can belong to another node once the graph changes, so a match is verified.
        self._known: dict[int, bytes] = {}
        self._chosen: dict[frozenset[bytes], list[int]] = {}  # of those, by the names wanted of a batch
        self._num_rows = 0
        self._rows: Rows | None = None
        self._error: BaseException | None = None

    def expect(self, num_rows: int) -> None:
        """Forget the batch before; the next one has `num_rows` rows."""
        self._num_rows = num_rows
        self._is_short = num_rows <= SHORT_ROWS
        self._is_quick = self._is_short and self._short_batch_s < QUICK_S
        self._began_s = time.perf_counter()
        self._rows = None
        self._error = None
        if not self.watch.is_searching:
            self._watch_for_known()

    def done(self) -> None:
        """The batch has been computed."""
        if self._is_short:
            self._short_batch_s = time.perf_counter() - self._began_s

    def raise_error(self) -> None:
        """Raises EngineError if the callback failed, which cut the graph short."""
        if self._error is not None:
            raise EngineError(f"Reading the hidden state failed: {self._error}") from self._error

    def take(self) -> Rows | None:
        """The rows of the batch, `[num_rows, row_width]`, a new array; None when the graph passed
        without the awaited node at its known address: computing it again finds it by name.
        Raises as `raise_error` does."""
        self.raise_error()
        if self._rows is None:
            self._search_again()
        rows, self._rows = self._rows, None
        return rows

    def _judge(self, tensor: int, is_question: bool) -> bool:
        # ctypes would print an exception and answer False, which cuts the graph silently.
        try:
            return self._is_wanted(tensor) if is_question else self._goes_on_after(tensor)
        except BaseException as error:
            self._error = error
            return False

    def _is_wanted(self, tensor: int) -> bool:
        actual = _get_name(tensor)
        if self._known.get(tensor, actual) != actual:
            self._search_again()
        if self.watch.is_searching:
            if actual not in self._wanted:
                return False
            self._known[tensor] = actual
            if actual == self._last:
                self._watch_for_known()
        return actual in self._names_wanted()

    def _names_wanted(self) -> frozenset[bytes]:
        """Of the batch that is being computed."""
        if self._is_quick:
            return self._only_last if self._takes_rows else frozenset()
        return self._kept_when_short if self._is_short else self._wanted

    def _watch_for_known(self) -> None:
        """Be asked only about what is wanted of this batch: all addresses are known."""
        names = self._names_wanted()
        if names not in self._chosen:
            self._chosen[names] = [node for node, name in self._known.items() if name in names]
        self.watch.want(self._chosen[names])

    def _goes_on_after(self, tensor: int) -> bool:
        if not self._takes_rows or self._known.get(tensor) != self._last:
            return True
        self._rows = self._read(tensor)
        return False

    def _search_again(self) -> None:
        self._known.clear()
        self._chosen.clear()
        self.watch.search()

    def _read(self, tensor: int) -> Rows:
        if self._rows is not None:
            raise InvariantBroken("the batch was computed in more than one piece")
        num_rows, num_values = _nrows(tensor), _nelements(tensor)
        if num_rows != self._num_rows or num_values != num_rows * self._row_width:
            raise InvariantBroken(
                f"the last layer gave {num_rows} rows with {num_values} values in all, "
                f"not {self._num_rows} rows of {self._row_width}"
            )
        num_bytes = num_values * _FLOAT_BYTES
        if _nbytes(tensor) != num_bytes:
            raise InvariantBroken("the last layer's output is not contiguous float32")
        rows: Rows = np.empty((num_rows, self._row_width), np.float32)
        _tensor_get(tensor, rows.ctypes.data, 0, num_bytes)
        return rows
