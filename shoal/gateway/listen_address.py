"""Where a server listens: `HOST:PORT` as people type it, and as a URL to print.

Pure: no name is resolved and no socket opened here.
"""

from __future__ import annotations

import ipaddress
import re

from shoal.core.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000

_HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_LOOKS_NUMERIC = re.compile(r"[0-9.]+")
_EXAMPLES = (
    f"Write HOST:PORT, for example {DEFAULT_HOST}:{DEFAULT_PORT}, [::1]:{DEFAULT_PORT} "
    f"or 0.0.0.0:{DEFAULT_PORT} (every address of this machine)."
)


def parse_listen(text: str, default_port: int = DEFAULT_PORT) -> tuple[str, int]:
    """Split `HOST:PORT`, `HOST`, `[IPV6]:PORT`, `[IPV6]` or a bare IPv6 address.

    A missing port is `default_port`; port 0 lets the system choose one. The host comes back
    without brackets. Raises ConfigError for everything else.
    """
    if "://" in text or "/" in text:
        raise _bad(text, "it is a URL, not an address")
    if text.startswith("["):
        return _parse_bracketed(text, default_port)
    if _is_ipv6(text):
        return text, default_port
    if text.count(":") > 1:
        raise _bad(text, "an IPv6 address with a port needs brackets, and this is not one")
    host, colon, port = text.partition(":")
    if not host:
        raise _bad(text, "the host is missing")
    return _check_host(text, host), _parse_port(text, port) if colon else default_port


def url_of(host: str, port: int) -> str:
    """The base URL to print for a listening address; a wildcard is shown as loopback."""
    if host in ("0.0.0.0", ""):
        host = "127.0.0.1"
    elif host == "::":
        host = "::1"
    # RFC 6874: the zone's percent sign is written %25 in a URL.
    return f"http://[{host.replace('%', '%25')}]:{port}" if ":" in host else f"http://{host}:{port}"


def _parse_bracketed(text: str, default_port: int) -> tuple[str, int]:
    host, closed, rest = text[1:].partition("]")
    if not closed:
        raise _bad(text, "the bracket is not closed")
    if not _is_ipv6(host):
        raise _bad(text, f"{host!r} is not an IPv6 address")
    if not rest:
        return host, default_port
    if not rest.startswith(":"):
        raise _bad(text, "after the bracket there must be a colon and a port")
    return host, _parse_port(text, rest[1:])


def _check_host(text: str, host: str) -> str:
    if _LOOKS_NUMERIC.fullmatch(host):
        # Left to the resolver, "8000" would become the address 0.0.31.64.
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise _bad(text, f"{host!r} is not an IPv4 address") from None
    elif not _HOST_NAME.fullmatch(host):
        raise _bad(text, f"{host!r} is not a host name")
    return host


def _parse_port(text: str, port: str) -> int:
    if not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        raise _bad(text, f"{port!r} is not a port (0 to 65535)")
    return int(port)


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _bad(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} is no address and port: {why}.", next_step=_EXAMPLES)
