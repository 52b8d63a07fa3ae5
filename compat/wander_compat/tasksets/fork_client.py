"""The process that a task set's library starts instead of a Python program. See `forking.py`.

It runs as a file without site-packages, so that it starts within milliseconds, and does not import this
package.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Hand over the program and wait for it. Returns its exit status."""
    path, *argv = sys.argv[1:]
    request_fields = {"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ), "pid": os.getpid()}
    request = json.dumps(request_fields).encode()
    try:
        connection = socket.socket(socket.AF_UNIX)
    except OSError:  # in a sandbox the file contains a port of its loopback network
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
