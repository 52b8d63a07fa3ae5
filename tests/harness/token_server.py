"""A server with vLLM's endpoints for training and a real, tiny model behind them.

It samples from that model and answers in the format of vLLM 0.32 (recorded): token ids, log-probabilities,
`/server_info`, `/collective_rpc` with `reload_weights`, `/v1/load_lora_adapter`, sleep. Its weights come from
the checkpoints and adapters that the client tells it to load.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from peft import PeftConfig, PeftModel
from serving import serving
from transformers import AutoModelForCausalLM
from wander.models.loading import load_model, weights_digest
from wander.models.sampling import Sampler, SampleRequest


class TokenServer:
    """The state of the server and a record of its requests."""

    def __init__(self, folder: Path) -> None:
        self.loaded = load_model(folder, device="cpu")
        self.sampler = Sampler(self.loaded.model, self.loaded.tokenizer)
        self.url = ""
        self.device = "cuda"
        self.tied = True
        self.logprobs_mode = "processed_logprobs"
        self.largest_rank: int | None = None
        """Of the adapters that it serves; None serves none."""
        self.updates_adapters = True
        """Whether it was started with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=True`."""
        self.adapters: dict[str, Sampler] = {}
        self.dev_mode = True
        self.obeys = True
        """False answers that weights were loaded, and keeps the old ones."""
        self.calls: list[str] = []
        self.digests: list[str | None] = []
        """Of the checkpoints that it was told to load."""
        self.asleep = False
        self.requests: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.sampling = 0
        """Turns that are under way."""
        self.delay = 0.0
        """Seconds that a turn takes at least."""
        self.held_blocks = 0
        """How often it still answers that its prefix cache is in use."""
        self.disturbed = 0
        """Checkpoints that it was told to load while it sampled."""
        self.versions: list[tuple[int, list[int]]] = []
        """How many checkpoints it had loaded when it sampled these tokens."""

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET."""
        if path == "/health":
            return 200, {}
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "policy", "max_model_len": 256}]}
        if path == "/server_info" and self.dev_mode:
            hf = f'LlamaConfig {{"tie_word_embeddings": {str(self.tied).lower()}}}'
            model = {"logprobs_mode": self.logprobs_mode, "dtype": "torch.float32", "hf_config": hf}
            config = {"model_config": model, "device_config": {"device_type": self.device}}
            rank = self.largest_rank
            config["lora_config"] = None if rank is None else {"max_lora_rank": rank, "max_loras": 1}
            return 200, {"vllm_config": config}
        return 404, {"detail": "Not Found"}

    def post(self, path: str, query: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a POST."""
        self.calls.append(path + (f"?{query}" if query else ""))
        if path == "/v1/completions":
            return self.complete(body)
        if path == "/v1/load_lora_adapter" and self.largest_rank and self.updates_adapters:
            return self.load_adapters(body)
        if not self.dev_mode:
            return 404, {"detail": "Not Found"}
        if path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            self.reload(Path(body["kwargs"]["weights_path"]))
            return 200, {"results": [None]}
        if path in ("/sleep", "/wake_up"):
            self.asleep = path == "/sleep"
            return 200, {"status": "sleeping" if self.asleep else "awake"}
        if path != "/reset_prefix_cache":
            return 404, {"detail": "Not Found"}
        self.held_blocks -= 1
        return 200, {"success": self.held_blocks < 0 and not self.sampling}

    def reload(self, folder: Path) -> None:
        """Load the weights of a checkpoint."""
        self.digests.append(weights_digest(folder))
        self.disturbed += self.sampling > 0
        if self.obeys:
            model = AutoModelForCausalLM.from_pretrained(folder).eval()
            with self.lock:
                self.sampler.model = model

    def load_adapters(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Load adapters next to the weights."""
        name = body["lora_name"]
        if name in self.adapters and not body.get("load_inplace"):
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        self.disturbed += self.sampling > 0
        base = copy.deepcopy(self.loaded.model)
        config = PeftConfig.from_pretrained(body["lora_path"])
        config.init_lora_weights = True  # vLLM adds adapters to its weights, however these were initialized
        with self.lock:
            model = PeftModel.from_pretrained(base, body["lora_path"], config=config).eval()
            self.adapters[name] = Sampler(model, self.loaded.tokenizer)
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Sample one completion."""
        if self.asleep:
            return 500, {"error": {"message": "the engine sleeps"}}
        self.requests.append(body)
        sampler = self.adapters.get(body.get("model"), self.sampler)
        if sampler is self.sampler and body.get("model") not in (None, "policy"):
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        request = SampleRequest(
            body["prompt"],
            body["max_tokens"],
            temperature=body["temperature"],
            top_p=body.get("top_p", 1.0),
            top_k=body.get("top_k", 0),
            min_p=body.get("min_p", 0.0),
            stop=tuple(body.get("stop", ())),
            seed=body.get("seed", 0),
        )
        with self.lock:
            self.sampling += 1
        time.sleep(self.delay)
        with self.lock:
            (sample,) = sampler.sample([request])
            self.sampling -= 1
            self.versions.append((len(self.digests), sample.ids))
        choice = {
            "index": 0,
            "text": self.loaded.tokenizer.decode(sample.ids),
            "token_ids": sample.ids,
            "prompt_token_ids": body["prompt"],
            "logprobs": {"token_logprobs": sample.logprobs},
            "finish_reason": sample.finish_reason,
        }
        usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(sample.ids)}
        return 200, {"model": "policy", "choices": [choice], "usage": usage | {"prompt_tokens_details": None}}


@contextmanager
def token_server(folder: Path) -> Iterator[TokenServer]:
    """Run a server for the model of a folder."""
    server = TokenServer(folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *unused: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.answer(*server.get(urlsplit(self.path).path))

        def do_POST(self) -> None:
            asked = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer(*server.post(asked.path, asked.query, json.loads(raw) if raw.strip() else {}))

        def answer(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    server.url = f"http://127.0.0.1:{http.server_port}"
    with serving(http):
        yield server
