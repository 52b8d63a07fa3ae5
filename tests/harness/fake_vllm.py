"""A package `vllm` with vLLM's command line and a chat server, for a machine without vLLM.

It replaces the one program that no test can install. Tests start, watch and end a real
process with real children and a real HTTP server that needs time to become healthy.
"""

from __future__ import annotations

from pathlib import Path

SERVER = """
import argparse, json, os, signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
for name in ("--model", "--served-model-name", "--host", "--dtype", "--behave"):
    parser.add_argument(name, default="")
parser.add_argument("--port", type=int)
given = parser.parse_args()
print("loading", given.model, flush=True)
if given.behave == "crash":
    print("RuntimeError: no memory for the weights", file=sys.stderr)
    sys.exit(3)
if given.behave == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
# As vLLM has its engine: a process of its own, which nobody but its parent ends.
engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
with open(os.environ["VLLM_FAKE_PIDS"], "a") as pids:
    pids.write(f"{os.getpid()}\\\\n{engine.pid}\\\\n")
asked = answered = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global asked
        if self.path == "/health":
            asked += 1
            self.answer({}, 200 if asked > 2 and given.behave != "sick" else 503)
        else:
            self.answer({"object": "list", "data": [{"id": given.served_model_name}]})

    def do_POST(self):
        global answered
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if given.behave == "dies":
            print("RuntimeError: CUDA error", file=sys.stderr, flush=True)
            os._exit(4)
        if given.behave == "slow":
            time.sleep(0.2)
        if given.behave == "hangs" and answered:
            time.sleep(600)
        answered += 1
        message = {"role": "assistant", "content": body["messages"][-1]["content"].removeprefix("say ")}
        usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        self.answer({"id": "c", "object": "chat.completion", "choices": choices, "usage": usage})

    def answer(self, data, status=200):
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


ThreadingHTTPServer((given.host, given.port), Handler).serve_forever()
""".replace("\\\\n", "\\n")


def install_fake_vllm(place: Path) -> Path:
    """Write the package and its metadata into a folder for `PYTHONPATH`; return the folder."""
    package = place / "vllm" / "entrypoints" / "openai"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").write_text("")
    (package / "api_server.py").write_text(SERVER)
    metadata = place / "vllm-0.99.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n")
    (metadata / "top_level.txt").write_text("vllm\n")
    return place
