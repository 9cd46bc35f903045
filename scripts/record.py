#!/usr/bin/env python3
"""Runs a command in a terminal of its own and writes what it shows as an asciicast (version 2).

    record.py COLUMNS ROWS FILE COMMAND [ARGUMENT...]
"""
import fcntl
import json
import os
import pty
import struct
import sys
import termios
import time


def main(columns, rows, path, command):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    began = time.monotonic()
    with open(path, "w", encoding="utf-8") as cast:
        print(json.dumps({"version": 2, "width": columns, "height": rows}), file=cast)
        while True:
            try:
                shown = os.read(terminal, 65536)
            except OSError:  # EIO: nobody has the terminal open any more
                break
            if not shown:
                break
            text = shown.decode("utf-8", "replace")
            print(json.dumps([round(time.monotonic() - began, 3), "o", text]), file=cast)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
