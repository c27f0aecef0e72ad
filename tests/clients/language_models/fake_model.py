"""A server that answers as OpenAI's, and does what the last message says: `uses=50 fails=1 chunks=9 breaks=2`."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CHUNK = {"id": "chunk", "object": "chat.completion.chunk", "created": 1, "model": "small"}


class FakeModel(ThreadingHTTPServer):
    """`uses`: tokens. `fails`: attempts that get an error. `breaks`: chunks after which a stream breaks. `waits`: until
    `go` is set, after the first chunk or before an answer that is no stream."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.attempts, self.go = {}, threading.Event()
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def close(self):
        self.go.set()
        self.shutdown()
        self.server_close()
        self.thread.join()

    def handle_error(self, request, client_address):
        """Clients that have gone are what is tested."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = str(asked["messages"][-1]["content"])
        words = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", text)}
        attempts = self.server.attempts[text] = self.server.attempts.get(text, 0) + 1
        if attempts <= words.get("fails", 0):
            self.answer(500, {"error": {"message": "failed as asked"}})
            return
        uses = words.get("uses", 10)
        usage = {"prompt_tokens": 1, "completion_tokens": uses - 1, "total_tokens": uses}
        if asked.get("stream"):
            self.stream(words, usage)
            return
        if "waits" in words:
            self.server.go.wait()
        self.answer(200, CHUNK | {"object": "chat.completion", "usage": usage, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "word"}, "finish_reason": "stop"}]})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, words, usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(words.get("chunks", 3)):
            if number == words.get("breaks"):
                self.close_connection = True
                return
            self.send([{"index": 0, "delta": {"role": "assistant", "content": "word "}, "finish_reason": None}])
            if "waits" in words:
                self.server.go.wait()
        self.send([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        self.send([], usage=usage)
        self.write(b"data: [DONE]\n\n")
        self.write(b"")

    def send(self, choices, **more):
        self.write(b"data: " + json.dumps(CHUNK | {"choices": choices} | more).encode() + b"\n\n")

    def write(self, chunk):
        """An empty chunk says that nothing is missing."""
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        self.wfile.flush()
