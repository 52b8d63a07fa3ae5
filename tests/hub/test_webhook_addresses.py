"""Where webhooks may lead, and what a receiver that means ill can do to the hub and to its network."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from wander.system.addresses import is_allowed
from wander_hub.settings import Settings
from wander_hub.webhooks.addresses import fault_of
from wander_hub.webhooks.connection import resolve
from wander_hub.webhooks.sender import KEPT_BYTES, WebhookSender
from wander_hub.webhooks.signing import signed_headers
from webhook_receiver import webhook_receiver

LOOPBACK = ("127.0.0.0/8",)
HEADERS = signed_headers("msg_1", 1, b"{}", ["whsec_c2VjcmV0"])


def sender(*, networks=LOOPBACK, http=True, **options) -> WebhookSender:
    return WebhookSender(Settings(webhook_http=http, webhook_networks=networks), **options)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
        *("192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1"),
        *(
            "fe80::1%eth0",
            "fc00::1",
            "fd00:ec2::254",
            "fec0::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
        ),
        *("::ffff:10.0.0.1", "::127.0.0.1", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2001::1"),
    ],
)
def test_webhooks_to_internal_addresses_are_rejected(address):
    assert not is_allowed(ip_address(address), ())
    assert is_allowed(ip_address("10.1.2.3"), ("10.0.0.0/8",))


def test_webhooks_to_public_addresses_are_accepted():
    for address in ("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"):
        assert is_allowed(ip_address(address), ())


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "localhost", "[::ffff:127.0.0.1]", "[::]", "0"]
)
def test_no_spelling_of_localhost_is_reached(host):
    with webhook_receiver() as receiver:
        outcome = sender(networks=()).send(f"http://{host}:{receiver.port}/", HEADERS, b"{}")
    assert receiver.received == []
    assert outcome.status is None
    assert outcome.error is not None


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://example.org/",
            "ftp://example.org/",
            "https://",
            "https://ada:pw@example.org/",
            "https:///x",
        ),
        *(
            "https://example.org/#x",
            "https://exa mple.org/",
            "https://example.org\\@127.0.0.1/",
            "https://ü.org/",
        ),
        *("https://127.0.0.1/", "https://[::1]/", "https://example.org:99999/", "https://10.0.0.1/", "hook"),
    ],
)
def test_an_unusable_webhook_address_is_rejected_immediately(url):
    assert fault_of(url, http=False, networks=()) is not None


def test_the_connection_goes_to_the_address_that_was_checked():
    """A name server of ours: the first answer is public, every later one leads inside."""
    asked = []

    def rebinding(host, port):
        asked.append(host)
        return ["93.184.216.34"] if len(asked) == 1 else resolve("127.0.0.1", port)

    with webhook_receiver() as receiver:
        url = f"http://rebound.example:{receiver.port}/"
        assert is_allowed(ip_address(rebinding("rebound.example", 0)[0]), ())
        inside = sender(networks=(), resolver=rebinding).send(url, HEADERS, b"{}")
        absent = sender(networks=(), resolver=lambda *_: resolve("absent.invalid", 1)).send(
            url, HEADERS, b"{}"
        )
        assert receiver.received == []
        assert sender(resolver=rebinding).send(url, HEADERS, b"{}").status == 200
        mixed = sender(resolver=lambda *_: ["10.0.0.1", "127.0.0.1"]).send(url, HEADERS, b"{}")
    assert inside.error == absent.error == "`rebound.example` has no address that this hub may call"
    assert mixed.status == 200, "of several addresses an allowed one is taken"
    assert asked == ["rebound.example"] * 3, "each connection looks a name up once"
    assert receiver.received[0].headers["host"] == f"rebound.example:{receiver.port}"


def test_redirects_are_not_followed(monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")  # nor are proxies asked
    with webhook_receiver() as receiver, webhook_receiver() as inside:
        receiver.answers, receiver.location = [307], inside.url
        outcome = sender().send(receiver.url, HEADERS, b"{}")
    assert (outcome.status, outcome.error) == (307, "it returned status 307; redirects are not followed")
    assert (len(receiver.received), inside.received) == (1, [])


def test_an_endless_webhook_response_is_cut_off():
    with webhook_receiver() as receiver:
        receiver.how = "endless"
        outcome = sender().send(receiver.url, HEADERS, b"{}")
    assert outcome.error is None
    assert outcome.answer is not None
    assert len(outcome.answer) <= KEPT_BYTES
    assert outcome.answer.startswith("thanks wnd_aaaaaa...")


def test_a_slow_webhook_response_times_out():
    with webhook_receiver() as receiver:
        receiver.how = "dripping"
        outcome = sender(timeout=0.5).send(receiver.url, HEADERS, b"{}")
    assert outcome.error == "no complete response within 0.5 s"


def test_a_silent_name_server_does_not_block_other_deliveries():
    asked = threading.Event()
    outcome = sender(timeout=0.3, resolver=lambda *_: asked.wait(60) and []).send(
        "http://slow.example/", HEADERS, b"{}"
    )
    asked.set()
    assert outcome.error == "no complete response within 0.3 s"


def test_receivers_that_do_not_speak_http_are_reported():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        outcome = sender(timeout=0.3).send(f"http://127.0.0.1:{port}/", HEADERS, b"{}")
    assert outcome.error == "no complete response within 0.3 s"
    refused = sender().send(f"http://127.0.0.1:{port}/x?key=s3cr3t", HEADERS, b"{}")
    assert refused.error == "connection refused"


def certified(host: str, folder) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return what serves as a host, and what trusts that."""
    key, name = (
        ec.generate_private_key(ec.SECP256R1()),
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]),
    )
    day = datetime.timedelta(days=1)
    moment = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(moment - day).not_valid_after(moment + day)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
    made = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    written = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "both.pem").write_bytes(key.private_bytes(*written) + made)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "both.pem")
    return serving, ssl.create_default_context(cadata=made.decode())


def test_tls_verifies_the_host_name(tmp_path):
    serving, trusting = certified("hook.example", tmp_path)
    with webhook_receiver(lambda one: serving.wrap_socket(one, server_side=True)) as receiver:
        options = {"http": False, "resolver": lambda *_: ["127.0.0.1"]}
        good = sender(**options, ssl_context=trusting).send(
            f"https://hook.example:{receiver.port}/", HEADERS, b"{}"
        )
        other = sender(**options, ssl_context=trusting).send(
            f"https://other.example:{receiver.port}/", HEADERS, b"{}"
        )
        untrusted = sender(**options).send(f"https://hook.example:{receiver.port}/", HEADERS, b"{}")
    assert (good.status, good.error) == (200, None)
    for one in (other, untrusted):
        assert one.error is not None
        assert "certificate verify failed" in one.error
    assert len(receiver.received) == 1
