"""Difference between the log-probabilities of tokens in training and in sampling.

Both come from the same weights, unless steps are played ahead. A difference therefore comes from arithmetic
(bfloat16, another engine), from a truncated distribution (`top_p`), or from a fault (dropout, old weights).
Every step measures it. If it is expected, gradients are weighted by the ratio of the two probabilities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wander.train.config import GRPOSettings

NATS = 0.05
"""Distance between two log-probabilities above which a token counts as sampled differently, in nats."""
GAP = "sampling/sampling_logp_difference"
SHARE = f"{GAP}/share_over_{NATS}"
RATIO = "sampling/importance_sampling_ratio"
"""Names of the metrics, which are TRL's if TRL has them."""


def is_corrected(settings: GRPOSettings) -> bool:
    """Return whether gradients are corrected for samples drawn with other probabilities than the policy's."""
    model, section = settings.model, settings.inference
    if section.correction == "none" or settings.algorithm.loss in ("rloo", "distill"):
        return False
    own_weights = section.engine == "transformers" and settings.batch.max_staleness == 0
    own_weights = own_weights and not settings.sampling.is_truncated
    own_weights = own_weights and section.dtype in (None, model.dtype)
    # bitsandbytes computes single tokens by another kernel than whole sequences.
    exact = model.dtype == "float32" and not model.autocast and model.quantization is None
    return not (own_weights and exact)


class SamplingGap:
    """Measures the distance between a step's log-probabilities in sampling and training, and corrects it."""

    def __init__(self, settings: GRPOSettings) -> None:
        self.corrects = is_corrected(settings)
        self._mode = settings.inference.correction
        self._largest_ratio = settings.inference.correction_max
        self._sums = torch.zeros(4)
        """Number of tokens, number of tokens over `NATS`, sum of distances, and sum of ratios."""
        self._peaks = torch.zeros(2)
        """Largest distance and largest ratio."""

    @torch.no_grad()
    def read(self, inputs: dict[str, Any], logprobs_GT: torch.Tensor) -> None:
        """Measure a slice of a step, and add the ratios to the inputs of its loss if the loss is corrected.

        If several updates learn from the same rollouts, the inputs contain the log-probabilities of the
        first.
        """
        trained_GT = inputs.get("old_per_token_logps", logprobs_GT.detach())
        mask_GT = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        gap_GT = ((trained_GT - inputs["sampling_per_token_logps"]) * mask_GT).nan_to_num()
        distances, ratios = gap_GT.abs(), mask_GT
        if self.corrects:
            ratios = inputs["importance_sampling_ratio"] = self._ratios(gap_GT)
        over = distances > NATS
        sums = [mask_GT.sum(), over.sum(), distances.sum(), (ratios * mask_GT).sum()]
        self._sums = self._sums.to(gap_GT) + torch.stack([value.to(gap_GT) for value in sums])
        peaks = torch.stack([distances.max(), ratios.max().to(gap_GT)])
        self._peaks = torch.maximum(self._peaks.to(gap_GT), peaks)

    def _ratios(self, gap_GT: torch.Tensor) -> torch.Tensor:
        """Return the weight of each token, or of each rollout."""
        ratios = (gap_GT.sum(-1, keepdim=True) if self._mode.startswith("sequence") else gap_GT).exp()
        if self._mode.endswith("truncate"):
            return ratios.clamp(max=self._largest_ratio)
        return ratios.masked_fill(ratios > self._largest_ratio, 0.0)

    def take_metrics(self, exchange: Callable[[list[Any]], list[Any]]) -> dict[str, float]:
        """Return the metrics of all processes since the last call; empty if `read` was not called."""
        shares = exchange([(self._sums.tolist(), self._peaks.tolist())])
        self._sums, self._peaks = torch.zeros(4), torch.zeros(2)
        tokens, over, gaps, ratios = map(sum, zip(*(sums for sums, _ in shares), strict=True))
        largest_gap, largest_ratio = map(max, zip(*(peaks for _, peaks in shares), strict=True))
        if not tokens:
            return {}
        metrics = {f"{GAP}/mean": gaps / tokens, f"{GAP}/max": largest_gap, SHARE: over / tokens}
        if self.corrects:
            metrics |= {f"{RATIO}/mean": ratios / tokens, f"{RATIO}/max": largest_ratio}
        return metrics
