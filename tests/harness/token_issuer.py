"""An issuer of identity tokens on this machine: real keys, real signatures, served over HTTP."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from serving import serving

AUDIENCE = "hub.example"


@dataclass
class Issuer:
    """Signs claims with its newest key; `asked` records the requested paths."""

    url: str
    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    job: dict[str, Any] = field(default_factory=dict)
    """Claims of the job that asks for its identity token the way it is done on GitHub."""
    endpoints: dict[str, str] = field(default_factory=dict)
    """What its configuration says beside where its keys are."""
    trade: Callable[[str, dict[str, str]], tuple[int, dict[str, Any]]] | None = None
    """Answers at `/token`, given the header `Authorization` and the form."""

    def new_key(self) -> str:
        """Add a key and return its id."""
        kid = f"key-{len(self.keys)}"
        self.keys[kid] = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        return kid

    def token(
        self, *, kid: str | None = None, key: Any = None, algorithm: str = "RS256", **claims: Any
    ) -> str:
        """Return a signed token valid for five minutes, without claims whose value is None."""
        moment = int(time.time())
        kid = kid or list(self.keys)[-1]
        usual = {"iss": self.url, "aud": AUDIENCE, "sub": "job", "iat": moment, "exp": moment + 300}
        body = {**usual, "jti": uuid.uuid4().hex, **claims}
        body = {name: value for name, value in body.items() if value is not None}
        return jwt.encode(body, key or self.keys[kid], algorithm=algorithm, headers={"kid": kid})

    def key_set(self) -> dict[str, Any]:
        """Return the public keys as a JSON Web Key Set."""
        encode = jwt.algorithms.RSAAlgorithm.to_jwk
        return {
            "keys": [
                {**encode(key.public_key(), as_dict=True), "kid": kid, "alg": "RS256", "use": "sig"}
                for kid, key in self.keys.items()
            ]
        }


def github_claims(**changes: Any) -> dict[str, Any]:
    """Return GitHub's claims for a job of `acme/environments`."""
    claims = {
        "repository": "Acme/environments",
        "repository_id": "11",
        "repository_owner_id": "7",
        "job_workflow_ref": "Acme/environments/.github/workflows/release.yml@refs/tags/v1",
        "event_name": "push",
        "ref": "refs/tags/v1",
        "sha": "0123456789abcdef0123456789abcdef01234567",
        "run_id": "99",
    }
    return {**claims, **changes}


@contextmanager
def token_issuer() -> Iterator[Issuer]:
    """Serve an issuer with one key on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            issuer.asked.append(parts.path)
            answers = {
                "/.well-known/openid-configuration": lambda: {
                    "issuer": issuer.url,
                    "jwks_uri": f"{issuer.url}/keys",
                    **issuer.endpoints,
                },
                "/keys": issuer.key_set,
                "/job-token": lambda: {
                    "value": issuer.token(aud=parse_qs(parts.query)["audience"][0], **issuer.job)
                },
            }
            answer = answers.get(parts.path)
            self.reply(200 if answer else 404, answer() if answer else {})

        def do_POST(self) -> None:
            assert issuer.trade is not None
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            self.reply(*issuer.trade(self.headers.get("Authorization", ""), form))

        def reply(self, status: int, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer = Issuer(f"http://127.0.0.1:{server.server_port}")
    issuer.new_key()
    with serving(server):
        yield issuer
