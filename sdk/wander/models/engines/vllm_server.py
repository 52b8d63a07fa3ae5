"""Sampling with a vLLM server: token ids in, token ids with log-probabilities out, a request for each turn.

Requests are sent immediately, so the environment of a rollout computes while the turn of another rollout is
sampled. vLLM's prefix cache keeps the shared parts of turns. Each request has its own seed. New weights reach
the server in one of two ways:

- through NCCL, like in TRL (`trl.generation.vllm_client`), with the trainer and the server on GPUs;
- as a checkpoint in a shared folder, which the server reloads in place (`collective_rpc` with
  `reload_weights`). This works with any devices and several servers, and needs no rendezvous.

If the policy has adapters and the server serves adapters (`--enable-lora`), only the adapters travel through
the folder: the server loads them next to its own weights (`/v1/load_lora_adapter`), and turns ask for them by
name.

Written for vLLM 0.22 to 0.32, started with `VLLM_SERVER_DEV_MODE=1` and `--logprobs-mode processed_logprobs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, Literal, Protocol

from wander.clients.completions import failure_in
from wander.clients.http_errors import complaint, error_of, one_line
from wander.clients.transport import AiohttpTransport, Answer, TransportError
from wander.errors import ConfigError, ContextOverflow, ModelError
from wander.loop_thread import wait_for
from wander.models.engines.base import Engine, SamplingJob, SamplingTotals, Weights
from wander.models.sampling import Sample, SampleRequest

REQUEST_SECONDS = 1800.0
"""Timeout of a turn, which may wait for hundreds of others."""
CONTROL_SECONDS = 900.0
"""Timeout of control requests; loading the weights of a large model takes minutes."""
BUSY_SECONDS = 60.0
"""Seconds that a server may keep cached prefixes in use after its last turn."""
BUSY_PAUSE = 0.1
SEEDS = 2**63
ADAPTERS = "wander-policy"
"""Name by which a server knows the policy's adapters."""
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Limits that vLLM accepts for the rank of adapters."""


class WeightSync(Protocol):
    """The transfer of new weights to the servers; every process of the run calls it, and one of them
    sends."""

    def send(self, weights: Weights) -> None:
        """Update the servers to these weights."""
        ...


class VLLMServer:
    """The control interface of a server: its model, its caches, its sleep."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")

    def look(self) -> ServerFacts:
        """Return facts about the server.

        Raises `ConfigError` if no server responds, or if the server cannot be used for training.
        """
        models = self._ask("GET", "/v1/models")["data"]
        served = self._ask("GET", "/server_info?config_format=json")["vllm_config"]
        mode = served["model_config"]["logprobs_mode"]
        if mode != "processed_logprobs":
            raise ConfigError(
                f"the server at `{self.url}` returns `{mode}`, not the log-probabilities of sampling",
                hint="start it with `--logprobs-mode processed_logprobs`",
            )
        return ServerFacts(models[0]["id"], int(models[0]["max_model_len"]), served)

    def reload(self, folder: Path) -> None:
        """Load the checkpoint in a folder in place of the current weights, and clear cached prefixes."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._ask("POST", "/collective_rpc", call)
        self._clear_prefixes()

    def load_adapters(self, folder: Path) -> None:
        """Load the adapters in a folder in place of the ones with the same name, and clear cached
        prefixes."""
        call = {"lora_name": ADAPTERS, "lora_path": str(folder), "load_inplace": True}
        self._ask("POST", "/v1/load_lora_adapter", call)
        self._clear_prefixes()

    def most_probable(self, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
        """Return the most probable continuation by the server's own weights, without adapters, and its
        log-probabilities."""
        call = {
            "prompt": prompt,
            "max_tokens": count,
            "temperature": 0.0,
            "ignore_eos": True,
            "logprobs": 0,
            "return_token_ids": True,
        }
        choice = self._ask("POST", "/v1/completions", call)["choices"][0]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def _clear_prefixes(self) -> None:
        asked_at = monotonic()
        # A canceled turn frees its part of the cache a moment later.
        while self._ask("POST", "/reset_prefix_cache").get("success") is False:
            if monotonic() - asked_at > BUSY_SECONDS:
                raise ConfigError(
                    f"the server at `{self.url}` is busy: its prefix cache cannot be cleared",
                    hint="make sure that only the training run sends requests to this server",
                )
            sleep(BUSY_PAUSE)

    def sleep(self, *, keeps_weights: bool) -> None:
        """Release the memory of weights and cache on the GPU. Weights are moved to the CPU or discarded."""
        self._ask("POST", f"/sleep?level={1 if keeps_weights else 2}")

    def wake(self, part: str) -> None:
        """Allocate memory again for `weights` or `kv_cache`."""
        self._ask("POST", f"/wake_up?tags={part}")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        try:
            # Use a separate thread, because the caller may be inside an event loop.
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="wander-vllm") as pool:
                answer = wait_for(pool.submit(asyncio.run, self._send(method, path, body)))
        except TransportError as error:
            raise ConfigError(
                f"no vLLM server answers at `{self.url}`: {error}",
                hint="check `inference.url` and the server's log",
            ) from error
        if answer.status == 404:
            raise ConfigError(
                f"the server at `{self.url}` has no `{path}`",
                hint="start it with `VLLM_SERVER_DEV_MODE=1` in its environment, which enables the endpoints "
                "for weights, and for adapters also with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`",
            )
        if answer.status != 200:
            raise ConfigError(
                f"the server at `{self.url}` answered {answer.status} to `{path}`: {complaint(answer)}",
                hint="check the server's log",
            )
        is_json = answer.body.lstrip().startswith(b"{")  # some calls are answered with a sentence
        data: dict[str, Any] = json.loads(answer.body) if is_json else {}
        return data

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        transport = AiohttpTransport(
            self.url, {}, timeout=CONTROL_SECONDS, connect_timeout=10, max_connections=1
        )
        try:
            return await (transport.get(path) if method == "GET" else transport.post(path, body or {}))
        finally:
            await transport.close()


@dataclass(frozen=True)
class ServerFacts:
    """Facts that a server reports."""

    name: str
    """Name of the served model."""
    context_length: int
    config: dict[str, Any]

    @property
    def largest_rank(self) -> int | None:
        """Largest rank of adapters that the server serves, or None if it serves no adapters."""
        adapters = self.config.get("lora_config")
        return None if adapters is None else int(adapters["max_lora_rank"])

    @property
    def keeps_old_output_layer(self) -> bool:
        """Whether a reload would leave the output layer unchanged.

        vLLM 0.32 on a CPU packs an output layer that is tied to the embeddings into a copy. It updates the
        copy only if the checkpoint contains that layer separately. On a GPU, both are the same tensor.
        """
        model = self.config["model_config"]
        # The server converts values that are not JSON to text.
        described = " ".join(json.dumps(model.get(name)) for name in ("hf_config", "hf_text_config"))
        tied = re.search(r"tie_word_embeddings\W+true", described, re.IGNORECASE) is not None
        return tied and "cpu" in json.dumps(self.config.get("device_config"))


class VLLMServerEngine(Engine):
    """Samples with one of several vLLM servers; `sync` transfers weights to all of them.

    With `adapters`, `sync` transfers adapters, which the server adds to its own weights.
    """

    def __init__(
        self,
        servers: Sequence[VLLMServer],
        sync: WeightSync,
        *,
        end_ids: frozenset[int],
        process: int = 0,
        sleeps: bool = False,
        adapters: bool = False,
    ) -> None:
        super().__init__()
        self._servers = list(servers)
        self._sync: WeightSync | None = sync
        self._sends = process == 0
        self._sleeps = sleeps
        self._adapters = adapters
        self._asleep = False
        self._end_ids = sorted(end_ids)
        self._server = self._servers[process % len(self._servers)]
        self.facts = self._server.look()
        self._gate = TurnGate()
        self._connect()

    def _connect(self) -> None:
        self._asking = 0
        self._asked_at = 0.0
        self._transport = AiohttpTransport(
            self._server.url, {}, timeout=REQUEST_SECONDS, connect_timeout=30, max_connections=None
        )

    def twin(self) -> VLLMServerEngine:
        """Return an engine with separate totals for the same server; this engine updates the weights of
        both."""
        other = copy.copy(self)
        other._sync = None
        other.totals = SamplingTotals()
        other._connect()
        return other

    async def sample(self, job: SamplingJob) -> Sample:
        """Sample a turn; the request is sent immediately unless the weights are changing."""
        async with self._gate.turn() as step:
            sample = await self._ask(job.request)
            self.count(job.request, sample)
            sample.step = step
            return sample

    async def _ask(self, request: SampleRequest) -> Sample:
        if not self._asking:
            self._asked_at = perf_counter()
        self._asking += 1
        try:
            answer = await self._transport.post("/v1/completions", self._payload(request))
        except TransportError as error:
            raise ModelError(
                f"the vLLM server at `{self._transport.base_url}` did not respond: {error}",
                hint="check the server's log",
                retryable=not error.is_final,
            ) from error
        finally:
            self._asking -= 1
            if not self._asking:
                # Count the time during which at least one request was open.
                self.totals.seconds += perf_counter() - self._asked_at
        if answer.status != 200:
            raise error_of(answer, self._transport.base_url, self.facts.name)
        return self._sample(json.loads(answer.body))

    @property
    def is_sampling(self) -> bool:
        """Whether requests to the server are open."""
        return self._asking > 0

    def _payload(self, request: SampleRequest) -> dict[str, Any]:
        room = self.facts.context_length - len(request.ids)
        if room < 1:
            most = self.facts.context_length
            raise ContextOverflow(
                f"the conversation has {len(request.ids)} tokens, the server accepts {most}"
            )
        return {
            "model": ADAPTERS if self._adapters else self.facts.name,
            "prompt": request.ids,
            **vllm_parameters(request, self._end_ids),
            "max_tokens": min(request.max_tokens, room),
            "return_token_ids": True,
        }

    def _sample(self, answer: dict[str, Any]) -> Sample:
        if (failure := failure_in(answer)) is not None:
            raise ModelError(
                f"the vLLM server at `{self._transport.base_url}` failed: {one_line(failure)}",
                hint="check the server's log",
                retryable=True,
            )
        try:
            choice = answer["choices"][0]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            details = answer["usage"].get("prompt_tokens_details") or {}
            context = int(answer["usage"]["prompt_tokens"])
        except (KeyError, IndexError, TypeError) as error:
            raise ModelError(
                f"the server at `{self._transport.base_url}` answered without token ids or log-probabilities",
                hint="it must be vLLM 0.22 or newer",
            ) from error
        if len(ids) != len(logprobs) or not ids:
            raise ModelError(f"{len(ids)} tokens came with {len(logprobs)} log-probabilities")
        self.totals.context_tokens += context
        self.totals.cached_tokens += int(details.get("cached_tokens") or 0)
        return Sample(
            ids=list(ids),
            logprobs=[float(value) for value in logprobs],
            # The mean of this value is the entropy. A server can return it without sending whole
            # distributions.
            entropy=-sum(logprobs),
            finish_reason=end_of(choice["finish_reason"]),
        )

    def update_weights(self, weights: Weights) -> None:
        """Update every server to these weights, and wake servers that sleep."""
        if self._sync is None:
            return
        if self._sends and self._asleep:
            for server in self._servers:
                server.wake("weights")
        self._sync.send(weights)
        if self._sends and self._asleep:
            for server in self._servers:
                server.wake("kv_cache")
        self._asleep = False

    def pause(self) -> None:
        """Wait for this process's turns on the servers, and hold back new turns."""
        self._gate.close()

    def resume(self, step: int | None) -> None:
        """Send turns again, including held-back turns."""
        self._gate.open(step)

    def rest(self) -> None:
        """Let the servers sleep if they share a GPU with the trainer."""
        if not self._sleeps:
            return
        if self._sends:
            for server in self._servers:
                server.sleep(keeps_weights=self._adapters)
        self._asleep = True

    @property
    def wants_weights(self) -> bool:
        """Whether the servers sleep, because they then discarded their weights."""
        return self._asleep

    def describe(self) -> dict[str, Any]:
        """Return facts about the servers."""
        config = self.facts.config["model_config"]
        return {
            "engine": "vllm-server",
            "servers": len(self._servers),
            "adapters": self._adapters,
            "dtype": str(config.get("dtype", "")).removeprefix("torch."),
            "context_length": self.facts.context_length,
        }

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()


def end_of(reason: Any) -> Literal["stop", "length"]:
    """Return the reason why vLLM ended a turn; raises a retryable `ModelError` if vLLM aborted the turn."""
    if reason not in ("stop", "length"):
        raise ModelError(f"vLLM aborted a turn: its finish reason is `{reason}`", retryable=True)
    return "stop" if reason == "stop" else "length"


def vllm_parameters(request: SampleRequest, end_ids: list[int]) -> dict[str, Any]:
    """Return the sampling arguments of a turn by vLLM's names.

    All arguments are given, because a server takes missing ones from the model's generation_config.json.
    """
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": 1.0,
        "seed": request.seed % SEEDS,
        "stop": list(request.stop),
        "stop_token_ids": end_ids,
        "logprobs": 0,
    }


class TurnGate:
    """Lets turns pass, or holds them back.

    Turns run on an event loop, and weights change in another thread. The gate ensures that a turn is sampled
    by a single version of the weights, and that no keys or values of older weights are in use when a cache is
    reset.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._turns = 0
        self._changed = threading.Condition()
        self._opens: Future[None] | None = None

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[int | None]:
        """Keep the weights from changing inside the block; yields their training step."""
        while (opens := self._enter()) is not None:
            # A turn that is canceled while it waits must not cancel the future for the other turns.
            await asyncio.shield(asyncio.wrap_future(opens))
        try:
            yield self._step
        finally:
            with self._changed:
                self._turns -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Hold back new turns, and wait for the running turns."""
        with self._changed:
            self._opens = self._opens or Future()
            self._changed.wait_for(lambda: self._turns == 0)

    def open(self, step: int | None) -> None:
        """Let turns pass again, including held-back turns; `step` is the training step of the weights."""
        with self._changed:
            self._step = step
            opens, self._opens = self._opens, None
        if opens is not None:
            opens.set_result(None)

    def _enter(self) -> Future[None] | None:
        """Count a turn, or return the future to wait for before the next attempt."""
        with self._changed:
            self._turns += self._opens is None
            return self._opens
