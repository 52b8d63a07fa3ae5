"""The process that a task set's library sees in place of a Python program: see `forking.py`.

Run as a file without site-packages, so that it starts in a few milliseconds; it imports nothing of ours.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Hand the program over and wait; returns its status."""
    path, *argv = sys.argv[1:]
    asked = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ), "pid": os.getpid()}
    request = json.dumps(asked).encode()
    try:
        connection = socket.socket(socket.AF_UNIX)
    except OSError:  # in a sandbox; the file holds a port of its loopback network
        with open(path) as file:
            connection = socket.create_connection(("127.0.0.1", int(file.read())))
        connection.sendall(len(request).to_bytes(4, "big") + request)
    else:
        connection.connect(path)
        connection.sendall(len(request).to_bytes(4, "big"))
        sent = socket.send_fds(connection, [request], [0, 1, 2])
        connection.sendall(request[sent:])
    status = connection.recv(1)
    return status[0] if status else 1


if __name__ == "__main__":
    sys.exit(main())
