"""How long a cell's route has been whole, and from when on it was not, noticed or not."""

from __future__ import annotations


class UpTime:
    """Told of the route as it is; now_s never goes back. It begins down."""

    def __init__(self, now_s: float) -> None:
        self.unnoticed_s = 0.0
        """Of the last time down: how long it went on before anybody knew."""
        self._down_s = 0.0
        self._down_since_s: float | None = now_s
        self._up_since_s = now_s

    def up_s(self, now_s: float) -> float:
        """Seconds so far in which all stages were there. One that died unnoticed ends them at once."""
        return now_s - self._down_s - (0.0 if self._down_since_s is None else now_s - self._down_since_s)

    def note(self, now_s: float, *, is_routed: bool) -> None:
        if not is_routed:
            self.go_down(now_s, now_s)
        elif self._down_since_s is not None:
            self._down_s += now_s - self._down_since_s
            self._down_since_s = None
            self._up_since_s = now_s

    def go_down(self, since_s: float, now_s: float) -> None:
        """It is known now that a stage has been gone since then."""
        if self._down_since_s is None:
            self._down_since_s = max(since_s, self._up_since_s)
            self.unnoticed_s = now_s - self._down_since_s

    def take_unnoticed_s(self) -> float:
        """unnoticed_s, once for each time down."""
        found, self.unnoticed_s = self.unnoticed_s, 0.0
        return found
