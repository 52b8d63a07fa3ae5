"""An https address in front of a local server, for clients that require https."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trustme


@contextmanager
def tls_front(port: int, listen: int, folder: Path) -> Iterator[Path]:
    """Forward https://localhost:LISTEN to a plain port; yield the certificate of the authority."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    certificate = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(certificate))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, ssl.SSLError):
            while piece := await source.read(65_536):
                target.write(piece)
                await target.drain()
        target.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, back_writer), copy(back_reader, writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(carry, "127.0.0.1", listen, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield certificate
    finally:
        asyncio.run_coroutine_threadsafe(_ended(server), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _ended(server: asyncio.Server) -> None:
    server.close()
    mine = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in mine:
        task.cancel()
    await asyncio.gather(*mine, return_exceptions=True)
