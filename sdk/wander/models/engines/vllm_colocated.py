"""vLLM in this process, on the policy's GPU; every process of a run has its own for its own rollouts.

TRL starts vLLM and transfers weights to it (`trl.generation.vllm_generation`, made for vLLM 0.22 to 0.31).
Every turn has token ids and a seed. Turns are sampled together: a batch waits for every rollout in flight, as
with transformers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from wander.errors import ConfigError, ModelError, require_extra
from wander.models.batching import Tell
from wander.models.engines.base import BatchedEngine, SamplingJob, Weights
from wander.models.engines.vllm_server import end_of, vllm_parameters
from wander.models.sampling import Sample


def require_fitting_vllm(needed_for: str) -> None:
    """Raise `ConfigError` unless this Python has a version of vLLM that TRL can drive.

    vLLM pins its own PyTorch and transformers, so installing it next to the trainer may replace them.
    """
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as unfit:
        warnings.simplefilter("always")
        is_installed = is_vllm_available()
    if is_installed and not unfit:
        return
    found = f"it is not usable: {unfit[0].message}" if unfit else "it is not installed"
    raise ConfigError(
        f"{needed_for} needs vLLM in this Python, but {found}",
        hint='set `inference.engine = "vllm-server"` and `inference.sync = "folder"`. The server runs in its '
        "own virtual environment, with the PyTorch and transformers that vLLM pins: `python3 -m venv ~/vllm "
        "&& ~/vllm/bin/pip install vllm`, and `inference.python`. Or run `pip install "
        "'wander-sdk[train,vllm]'` in a new environment",
    )


class VLLMColocatedEngine(BatchedEngine):
    """Samples with vLLM on the policy's GPU; `memory` is its share of the GPU, which it releases if it
    `sleeps`."""

    def __init__(
        self,
        tokenizer: Any,
        *,
        end_ids: frozenset[int],
        context_length: int,
        memory: float,
        sleeps: bool,
        rows: int,
    ) -> None:
        super().__init__(max_batch_size=rows)
        self._tokenizer = tokenizer
        self._end_ids = sorted(end_ids)
        self._context_length = context_length
        self._memory = memory
        self._sleeps = sleeps
        self._rows = rows
        self._generation: Any = None
        self._asleep = False

    def start(self, model: Any, accelerator: Any) -> None:
        """Start vLLM with the policy, once a trainer holds it."""
        require_fitting_vllm('`inference.engine = "vllm"`')
        with require_extra("vllm", needed_for='`inference.engine = "vllm"`'):
            from trl.generation.vllm_generation import VLLMGeneration

            self._generation = VLLMGeneration(
                model,
                accelerator,
                self._tokenizer,
                mode="colocate",
                gpu_memory_utilization=self._memory,
                max_model_length=self._context_length,
                max_num_seqs=self._rows,
                enable_sleep_mode=self._sleeps,
            )

    def update_weights(self, weights: Weights) -> None:
        """Load the policy's weights; TRL reads them from the model that vLLM was started with."""
        self._generation.sync_weights()
        if self._sleeps:
            self._generation.llm.wake_up(tags=["kv_cache"])
        self._asleep = False

    def rest(self) -> None:
        """Release the GPU's memory for the update."""
        if self._sleeps and not self._asleep:
            self._generation.llm.sleep(level=2)
            self._asleep = True

    @property
    def wants_weights(self) -> bool:
        """Whether it is asleep, because it then discarded its weights."""
        return self._asleep

    def describe(self) -> dict[str, Any]:
        """Return the facts about the engine."""
        return {"engine": "vllm", "memory": self._memory, "context_length": self._context_length}

    def _sample(self, jobs: Sequence[SamplingJob], tell: Tell[Sample]) -> list[Sample]:
        from vllm import SamplingParams  # type: ignore[import-not-found, unused-ignore]

        started = perf_counter()
        outputs = self._generation.llm.generate(
            [{"prompt_token_ids": job.request.ids} for job in jobs],
            sampling_params=[SamplingParams(**vllm_parameters(job.request, self._end_ids)) for job in jobs],
            use_tqdm=False,
        )
        self.totals.seconds += perf_counter() - started
        samples = []
        for job, output in zip(jobs, outputs, strict=True):
            sample = sample_of(output.outputs[0])
            self.totals.context_tokens += len(job.request.ids)
            self.totals.cached_tokens += int(output.num_cached_tokens or 0)
            self.count(job.request, sample)
            samples.append(sample)
        return samples


def sample_of(output: Any) -> Sample:
    """Convert vLLM's `CompletionOutput` to a sample."""
    ids = list(output.token_ids)
    if output.logprobs is None or len(output.logprobs) != len(ids) or not ids:
        raise ModelError("vLLM returned no log-probabilities")
    logprobs = [float(at[token].logprob) for token, at in zip(ids, output.logprobs, strict=True)]
    return Sample(
        ids=ids,
        logprobs=logprobs,
        entropy=-sum(logprobs),
        finish_reason=end_of(output.finish_reason),
    )
