"""The `messages` of a chat request: checked one by one, and reduced to role and text.

Errors name the exact place (`messages[2].content[0].type`) in the client's spelling.
"""

from __future__ import annotations

from shoal.core.errors import BadRequest
from shoal.gateway.service import ChatMessages

ROLES = ("system", "developer", "user", "assistant")
_ROLES_NOT_YET = ("tool", "function")
# What openai's own objects carry when an earlier answer is sent back as it came.
_EMPTY_ANSWER_FIELDS = ("refusal", "annotations", "audio", "tool_calls", "function_call", "name")


def read_messages(raw: object) -> ChatMessages:
    """Check `raw` and return role and text of each message, in order.

    The role developer becomes system. Text parts are joined as they are, with nothing between
    them. Raises BadRequest.
    """
    if not isinstance(raw, list):
        raise BadRequest("messages must be a list of messages.", param="messages", code="invalid_type")
    if not raw:
        raise BadRequest("messages is empty.", param="messages", code="empty_array")
    messages = [_read_message(message, f"messages[{index}]") for index, message in enumerate(raw)]
    if not messages[-1]["content"]:
        raise BadRequest(
            f"messages[{len(messages) - 1}].content, the last message's, is empty.", param="messages"
        )
    return messages


def _read_message(raw: object, path: str) -> dict[str, str]:
    if not isinstance(raw, dict):
        raise BadRequest(f"{path} must be an object.", param=path, code="invalid_type")
    role = _read_role(raw, path)
    for name, value in raw.items():
        if name in ("role", "content") or (name in _EMPTY_ANSWER_FIELDS and value in (None, [])):
            continue
        raise BadRequest(
            f"{path}.{name} is not supported.", param=f"{path}.{name}", code="unsupported_parameter"
        )
    return {"role": role, "content": _read_content(raw.get("content"), f"{path}.content")}


def _read_role(message: dict[str, object], path: str) -> str:
    role = message.get("role")
    if isinstance(role, str) and role in ROLES:
        # OpenAI's newer name for the same thing. Templates do not know it: Qwen's drops the message.
        return "system" if role == "developer" else role
    param = f"{path}.role"
    known = ", ".join(ROLES)
    if role is None:
        raise BadRequest(f"{param} is missing.", param=param, next_step=f"Known roles: {known}.")
    if isinstance(role, str) and role in _ROLES_NOT_YET:
        raise BadRequest(
            f"{param}: the role {role!r} is not supported yet.",
            param=param,
            next_step=f"Supported: {known}.",
        )
    shown = repr(role[:40]) if isinstance(role, str) else f"a {type(role).__name__}"
    raise BadRequest(f"{param}: {shown} is not a role.", param=param, next_step=f"Known roles: {known}.")


def _read_content(raw: object, path: str) -> str:
    if raw is None:
        return ""
    if isinstance(raw, str):
        return raw
    if isinstance(raw, list):
        return "".join(_read_part(part, f"{path}[{index}]") for index, part in enumerate(raw))
    raise BadRequest(f"{path} must be a string or a list of parts.", param=path, code="invalid_type")


def _read_part(raw: object, path: str) -> str:
    if not isinstance(raw, dict):
        raise BadRequest(f"{path} must be an object.", param=path, code="invalid_type")
    kind = raw.get("type")
    if kind != "text":
        shown = f"type {kind[:40]!r}" if isinstance(kind, str) else "no type"
        raise BadRequest(
            f"{path} is a part of {shown}; this model takes text only.",
            param=path,
            next_step="Send parts of type 'text'.",
        )
    text = raw.get("text")
    if not isinstance(text, str):
        raise BadRequest(f"{path}.text must be a string.", param=f"{path}.text", code="invalid_type")
    for name in raw:
        if name not in ("type", "text"):
            raise BadRequest(
                f"{path}.{name} is not supported.", param=f"{path}.{name}", code="unsupported_parameter"
            )
    return text
