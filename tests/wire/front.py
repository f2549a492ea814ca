"""A Function URL with response streaming, for an emulator that has none.

The emulator serves Function URLs but hands an answer over only when the function has ended, so an
event stream would show nothing for minutes. This front end sends every ordinary request on to the
emulator's Function URL, and runs streams itself: it starts the same release `bootstrap` with the
deployed function's environment and speaks Lambda's Runtime API to it, streaming protocol included:
a JSON prelude with status and headers, eight zero bytes, then the body as it is made.
"""

import base64
import http.client
import json
import queue
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

PRELUDE_END = b"\0" * 8
TIMEOUT_S = 900
HOP_HEADERS = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """Clients leave streams whenever they like; anything else is worth a look."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Invocation:
    """One request on its way through a function: an event in, pieces of an answer out."""

    def __init__(self, event):
        self.id = str(uuid.uuid4())
        self.event = json.dumps(event).encode()
        # Pieces of the streamed answer; None at its end, an exception when the function failed.
        self.pieces = queue.Queue()


class Environment:
    """One execution environment: a bootstrap process and the Runtime API that it polls."""

    def __init__(self, bootstrap, variables):
        self.waiting = queue.Queue()
        self.current = {}
        self.server = Server(("127.0.0.1", 0), self.handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        api = f"127.0.0.1:{self.server.server_address[1]}"
        self.process = subprocess.Popen([str(bootstrap)], env=variables | {"AWS_LAMBDA_RUNTIME_API": api})
        threading.Thread(target=self.watch, daemon=True).start()

    def invoke(self, event):
        invocation = Invocation(event)
        self.current[invocation.id] = invocation
        self.waiting.put(invocation)
        return invocation

    def watch(self):
        """Whoever waits for a process that has ended must hear of it."""
        self.process.wait()
        for invocation in list(self.current.values()):
            invocation.pieces.put(RuntimeError("the function's process ended"))

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.server.shutdown()

    def handler(environment):
        class RuntimeApi(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                invocation = environment.waiting.get()
                self.send_response(200)
                self.send_header("Lambda-Runtime-Aws-Request-Id", invocation.id)
                self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + TIMEOUT_S) * 1000)))
                self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:000000000000:function:api")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(invocation.event)))
                self.end_headers()
                self.wfile.write(invocation.event)

            def do_POST(self):
                # /2018-06-01/runtime/invocation/ID/response or …/error
                parts = self.path.split("/")
                invocation = environment.current.pop(parts[4], None) if len(parts) > 5 else None
                failed = parts[-1] == "error"
                for piece in pieces_of(self):
                    if invocation and failed:
                        invocation.pieces.put(RuntimeError(piece.decode(errors="replace")))
                    elif invocation:
                        invocation.pieces.put(piece)
                if invocation:
                    invocation.pieces.put(None)
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return RuntimeApi


def pieces_of(request):
    """The body of a request as it comes in, chunked or whole."""
    if "chunked" not in request.headers.get("Transfer-Encoding", "").lower():
        length = int(request.headers.get("Content-Length", 0))
        if length:
            yield request.rfile.read(length)
        return
    while size := int(request.rfile.readline().split(b";")[0].strip() or b"0", 16):
        yield request.rfile.read(size)
        request.rfile.readline()
    # Trailers, which Lambda uses to report an error in mid-stream, and the empty line.
    while request.rfile.readline().strip():
        pass


class Front:
    """The base URL that clients use. Use as a context."""

    def __init__(self, function_url, emulator_url, bootstrap, variables):
        self.function_host = urlsplit(function_url).netloc
        self.emulator = urlsplit(emulator_url).netloc
        self.bootstrap = bootstrap
        self.variables = variables
        self.idle = queue.Queue()
        self.all = []
        self.server = Server(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        for environment in self.all:
            environment.stop()

    def environment(self):
        """An idle environment, or a new one: Lambda gives each request one of its own."""
        try:
            return self.idle.get_nowait()
        except queue.Empty:
            environment = Environment(self.bootstrap, self.variables)
            self.all.append(environment)
            return environment

    def handler(front):
        class Client(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if urlsplit(self.path).path.endswith("/events/stream"):
                    self.stream(body)
                else:
                    self.forward(body)

            do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = serve

            def forward(self, body):
                connection = http.client.HTTPConnection(front.emulator, timeout=TIMEOUT_S)
                headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
                connection.request(self.command, self.path, body, headers | {"Host": front.function_host})
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def stream(self, body):
                environment = front.environment()
                invocation = environment.invoke(event_of(self, body))
                try:
                    self.relay(invocation.pieces)
                    front.idle.put(environment)
                except OSError:
                    # The client left. The function may go on for minutes: it is not used again.
                    environment.stop()
                    self.close_connection = True

            def relay(self, pieces):
                start = b""
                while PRELUDE_END not in start:
                    piece = pieces.get(timeout=TIMEOUT_S)
                    if piece is None or isinstance(piece, Exception):
                        message = str(piece).encode()
                        self.send_response(502)
                        self.send_header("Content-Length", str(len(message)))
                        self.end_headers()
                        self.wfile.write(message)
                        return
                    start += piece
                prelude, rest = start.split(PRELUDE_END, 1)
                prelude = json.loads(prelude)
                self.send_response(prelude["statusCode"])
                for name, value in prelude.get("headers", {}).items():
                    if name.lower() not in HOP_HEADERS:
                        self.send_header(name, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                piece = rest
                while piece is not None and not isinstance(piece, Exception):
                    if piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    piece = pieces.get(timeout=TIMEOUT_S)
                if piece is None:
                    self.wfile.write(b"0\r\n\r\n")
                else:
                    # Cut off, so that the client sees that the answer is not whole.
                    self.close_connection = True

        return Client


def event_of(request, body):
    """The event of a Function URL (payload format 2.0) for one HTTP request."""
    url = urlsplit(request.path)
    host = "front.lambda-url.us-east-1.on.aws"
    return {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": url.path,
        "rawQueryString": url.query,
        "headers": {k.lower(): v for k, v in request.headers.items()} | {"host": host},
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "front",
            "domainName": host,
            "domainPrefix": "front",
            "http": {
                "method": request.command,
                "path": url.path,
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",
                "userAgent": request.headers.get("User-Agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime()),
            "timeEpoch": int(time.time() * 1000),
        },
        "body": base64.b64encode(body).decode() if body else None,
        "isBase64Encoded": bool(body),
    }
