"""What one time step does to a cell in each of its states, worked out once for a step's length.

Everything that the coarse mode would otherwise compute for every cell in every step depends on the cell's
state alone: how far prompts get, how many tokens an answer makes, how likely answers end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shoal.simulator.coarse_tables import CellTables, Floats, Ints

ALMOST_SURE = 1 - 1e-12


class StepTables:
    """Tables of all kinds of cells as flat arrays by state. mean_tokens: of an answer.

    first_s: as in CellTables. started: prompts that get their first token in a step, on average.
    tokens_each: of one answer; made: of all that run. end_fresh: chance that an answer started within the
    step ends in it, and new_s its time from token to token if only such ones run, [state, answers
    started]. busy_s, link_s: of stages (mean over them) and of links. calm_s: from token to token
    without prompts.
    """

    def __init__(self, tables: Sequence[CellTables], step_s: float, mean_tokens: float) -> None:
        token_s, per_s, first_s, busy, link = (
            np.stack([getattr(table, name) for table in tables])
            for name in ("token_s", "prefill_per_s", "first_s", "stage_busy", "link_s_per_s")
        )
        # The first token comes with the prompt; the others are so many on average, without memory.
        self.later_tokens = mean_tokens - 1
        self._shape = token_s.shape
        prompts, answers = np.indices(self._shape)[2:]
        # Prompts keep the cell busy for a part of the step only, then answers go faster.
        # They come spread over the step: even where few at a time would be done soon, each has its time.
        alone = np.minimum(1.0, first_s[:, :, 1:2, :1] / step_s)
        share = np.maximum(np.minimum(1.0, _over(prompts, per_s) / step_s), 1 - (1 - alone) ** prompts)
        calm_s = np.broadcast_to(token_s[:, :, :1, :], self._shape)
        each = step_s * (_over(share, token_s) + _over(1 - share, calm_s))
        ends = self._chance(each)
        streams = self._shape[-1] - 1
        # Of states without prompts, that of as many answers as have started; none count as one.
        new_s = np.maximum(token_s[:, :, :1, :], token_s[:, :, :1, 1:2])[:, :, :, None, :]
        new_s = np.broadcast_to(new_s, (*self._shape, streams + 1))
        after_prompts = (1 - share / 2)[..., None] * step_s / new_s
        fresh = np.where((answers > 0)[..., None], each[..., None], after_prompts) / 2
        calm_busy, calm_link = busy[:, :, :1, :], link[:, :, :1, :]
        self.first_s = first_s.ravel()
        self.started = (per_s * step_s).ravel()
        self.calm_s = calm_s.ravel()
        self.tokens_each = each.ravel()
        self._end_below = _binomial_below(answers.ravel(), ends.ravel(), streams)
        self.made = (answers * max(self.later_tokens, 0.0) * ends).ravel()
        self.end_fresh = self._chance(fresh).reshape(-1, streams + 1)
        self.new_s = new_s.reshape(-1, streams + 1)
        self.busy_s = (step_s * (share * busy + (1 - share) * calm_busy)).ravel()
        self.link_s = (step_s * (share * link + (1 - share) * calm_link)).ravel()

    def num_ended(self, state: Ints, drawn: Floats) -> Ints:
        """How many of the running answers end in a step, by a draw from [0, 1) for each cell."""
        found = np.zeros(len(state), np.int64)
        left = np.arange(len(state))
        for below in self._end_below:  # few answers end in one step, so few are left after each turn
            left = left[drawn[left] >= below[state[left]]]
            if not len(left):
                break
            found[left] += 1
        return found

    def state(self, kind: Ints, doubling: Ints) -> Ints:
        """Number of the state without requests; further prompts and answers add to it."""
        _, doublings, width, _ = self._shape
        found: Ints = (kind * doublings + doubling) * width * width
        return found

    @property
    def prompt_step(self) -> int:
        """How much further the state of one more prompt is; that of one more answer is the next."""
        return int(self._shape[-1])

    def _chance(self, tokens: Floats) -> Floats:
        """That an answer ends within `tokens` tokens."""
        if self.later_tokens <= 0:
            return np.ones_like(tokens)
        return np.asarray(-np.expm1(-tokens / self.later_tokens))


def _over(numerator: Floats | Ints, denominator: Floats) -> Floats:
    """0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros(denominator.shape), where=denominator > 0)


def _binomial_below(number: Ints, chance: Floats, most: int) -> Floats:
    """P(at most k of `number`), [k, state] for k below `most`."""
    odds = np.minimum(chance, ALMOST_SURE)
    exactly = (1 - odds) ** number
    below = np.empty((most, len(number)))
    for k in range(most):
        below[k] = exactly if k == 0 else below[k - 1] + exactly
        exactly = exactly * np.maximum(0, number - k) / (k + 1) * odds / (1 - odds)
    return below
