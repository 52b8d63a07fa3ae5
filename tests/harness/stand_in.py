"""Stands for a command in a shell: has a warm process fork the command, and ends as the fork ends.

Arguments: the address of the warm process, the command, and what the command gets. Imports little, because
it starts 200 times.
"""

import json
import os
import signal
import socket
import sys

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until there is a process to pass them on to
warm = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
warm.connect("\0" + sys.argv[1])
header = {"arguments": sys.argv[2:], "environ": dict(os.environ), "files": [0, 1, 2], "folder": os.getcwd()}
socket.send_fds(warm, [json.dumps(header).encode()], [0, 1, 2])
_, number_of_fork = warm.recv(16).split()  # "pid NUMBER"
pid = int(number_of_fork)
for number in SIGNALS:
    signal.signal(number, lambda number, _frame: os.kill(pid, number))
signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
status = int(warm.recv(16) or -signal.SIGKILL)
sys.exit(status if status >= 0 else 128 - status)
