"""The one tree of errors.

Every error says what happened, where, why, and what to do next (`next_step`). Code that only
needs to know whether another try may help reads `retryable`; the HTTP edge maps classes to
status codes. This module knows nothing about HTTP, sockets or engines.
"""

from __future__ import annotations

from collections.abc import Sequence


class ShoalError(Exception):
    """Base of everything Shoal raises on purpose.

    next_step: one plain sentence a person can act on, printed after the message.
    """

    retryable = False
    code = "internal_error"

    def __init__(self, message: str, *, next_step: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step

    def __str__(self) -> str:
        return self.message if self.next_step is None else f"{self.message} {self.next_step}"


# ---------------------------------------------------------------- what a client asked for


class BadRequest(ShoalError):
    """The request cannot be served as it stands; nothing was spent on it.

    param: the field at fault, in the client's spelling.
    """

    code = "invalid_value"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        next_step: str | None = None,
    ) -> None:
        super().__init__(message, next_step=next_step)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthExceeded(BadRequest):
    """Prompt plus the tokens asked for do not fit the context."""

    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, max_tokens: int, n_ctx: int, param: str) -> None:
        asked = f" plus max_tokens {max_tokens}" if max_tokens else ""
        super().__init__(
            f"This model's context is {n_ctx} tokens, and the prompt has {prompt_tokens} tokens{asked}.",
            param=param,
            next_step="Shorten the prompt, lower max_tokens, or serve with a larger --ctx.",
        )
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.n_ctx = n_ctx


class ModelNotFound(BadRequest):
    """A model id that this server does not serve."""

    code = "model_not_found"

    def __init__(self, *, asked: str, served: Sequence[str]) -> None:
        super().__init__(
            f"The model {asked!r} is not served here.",
            param="model",
            next_step=f"Served: {', '.join(served)}.",
        )


class Overloaded(ShoalError):
    """The waiting queue is full. retry_after_s: when another try makes sense."""

    retryable = True
    code = "overloaded"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, next_step=f"Try again in {retry_after_s:.0f} s.")
        self.retry_after_s = retry_after_s


class NotReady(ShoalError):
    """No complete pipeline stands. The message names the layers that have no live owner."""

    retryable = True
    code = "not_ready"

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, next_step=f"Try again in {retry_after_s:.0f} s.")
        self.retry_after_s = retry_after_s


class Cancelled(ShoalError):
    """The client went away, or the server is shutting down, before the answer was complete."""

    code = "cancelled"


# ---------------------------------------------------------------- what the machines did


class NodeLost(ShoalError):
    """A worker died, or does not answer, and no other holds its layers."""

    retryable = True
    code = "node_lost"

    def __init__(self, *, node: str, layers: str, cause: str) -> None:
        super().__init__(
            f"Node {node} (layers {layers}) was lost: {cause}.",
            next_step="Send the request again once /health/ready answers 200.",
        )
        self.node = node
        self.layers = layers
        self.cause = cause


class StageTimeout(ShoalError):
    """A step got no answer though it was sent again as often as allowed."""

    retryable = True
    code = "stage_timeout"


class StalePlacement(ShoalError):
    """A message or a call belongs to an epoch that has ended."""

    retryable = True
    code = "stale_placement"


class EngineError(ShoalError):
    """The engine could not compute a batch. The sessions in it are lost on that worker."""

    retryable = True
    code = "engine_error"


class KvExhausted(EngineError):
    """Fewer free cells or sequences than the batch needs. Admission should make it impossible."""

    code = "kv_exhausted"


class ProtocolError(ShoalError):
    """A peer sent something that this protocol version does not allow."""

    code = "protocol_error"


class ClusterError(ShoalError):
    """The cluster could not be started, joined or ended."""

    retryable = True
    code = "cluster_error"


# ---------------------------------------------------------------- what the operator gave us


class ConfigError(ShoalError):
    """A flag, a file or a variable has a value that cannot work. Ends a command with status 2."""

    code = "config_error"


class ModelFileError(ConfigError):
    """A model file that is missing, damaged, truncated or not GGUF."""

    code = "model_file_error"


class UnsupportedModel(ConfigError):
    """A sound model file of a kind that cannot be cut here. Says what is missing."""

    code = "unsupported_model"


class IllegalCut(ConfigError):
    """A layer range or a list of cuts that this model does not allow."""

    code = "illegal_cut"


class InsufficientMemory(ConfigError):
    """A slice with its cache does not fit a node's usable memory."""

    code = "insufficient_memory"

    def __init__(self, *, node: str, layers: str, need_bytes: int, usable_bytes: int) -> None:
        missing = need_bytes - usable_bytes
        super().__init__(
            f"Node {node} cannot hold layers {layers}: needs {need_bytes / 2**20:.0f} MiB, "
            f"has {usable_bytes / 2**20:.0f} MiB usable ({missing / 2**20:.0f} MiB missing).",
            next_step="Use more nodes, a smaller --ctx, or a smaller quantisation.",
        )
        self.need_bytes = need_bytes
        self.usable_bytes = usable_bytes


class FetchError(ConfigError):
    """A model could not be fetched, or what came does not match its digest."""

    retryable = True
    code = "fetch_error"


# ---------------------------------------------------------------- what cannot happen


class InvariantBroken(ShoalError):
    """A bug: something that the protocol rules out was observed."""

    code = "invariant_broken"
