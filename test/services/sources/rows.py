"""Inserts a row into a SQLite database for each request, and answers how many there are of its path.

Arguments: the mode of the journal, and "each" if each thread is to have a connection of its own, or "one" if
the process is to have a single one. Then another process, with a connection of its own, reads all the time.
"""
import multiprocessing
import sqlite3
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JOURNAL, CONNECTIONS = sys.argv[1:3]
LOCAL = threading.local()
LOCK = threading.Lock()


def connect():
    rows = sqlite3.connect("/srv/rows.db", timeout=60, isolation_level=None, check_same_thread=False)
    rows.execute(f"PRAGMA journal_mode={JOURNAL}")
    return rows


def own_connection():
    if not hasattr(LOCAL, "connection"):
        LOCAL.connection = connect()
    return LOCAL.connection


def insert(rows, path):
    rows.execute("INSERT INTO rows VALUES (?)", (path,))
    return rows.execute("SELECT count(*) FROM rows WHERE path = ?", (path,)).fetchone()[0]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        if CONNECTIONS == "one":
            with LOCK:
                n = insert(self.server.rows, self.path)
        else:
            n = insert(own_connection(), self.path)
        answer = f"{self.path} {n}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


def read():
    """Reads all rows, again and again, as another process that has the database open."""
    rows = connect()
    while True:
        rows.execute("SELECT count(*) FROM rows").fetchone()
        time.sleep(0.05)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("0.0.0.0", 80), Handler)
    server.rows = connect()
    server.rows.execute("CREATE TABLE IF NOT EXISTS rows (path TEXT)")
    if CONNECTIONS == "one":
        multiprocessing.get_context("spawn").Process(target=read, daemon=True).start()
    server.serve_forever()
