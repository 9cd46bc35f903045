"""Answers how often each path was asked for. Worker processes count, in memory that they share, under locks."""
import multiprocessing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COUNTS = multiprocessing.Array("q", 64)


def count(number):
    with COUNTS.get_lock():
        COUNTS[number] += 1
        return COUNTS[number]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        n = POOL.apply(count, (int(self.path[1:]),))
        answer = f"{self.path} {n}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments):
        pass


if __name__ == "__main__":
    POOL = multiprocessing.Pool(4)
    ThreadingHTTPServer(("0.0.0.0", 80), Handler).serve_forever()
