"""A mock model: Anthropic Messages, OpenAI Responses and Chat Completions on one port.

It runs in a thread of the test process, so a test sees every request as it arrives
(`Model.wait`) and can put its own rules first (`Model.rules`). What it does is decided from
the conversation alone:

1. The first rule of the test that returns an action.
2. A notice of hoptell that no `read_inbox` call has followed: it calls `read_inbox`.
3. Commands in the newest user text that has some, one a line, one a model turn:
   `mock: call TOOL {json}`, `mock: shell COMMAND`, `mock: stream SECONDS`, `mock: say TEXT`.
4. Otherwise it says `done`.

TOOL is the tool's own name; the model finds the one that the client offers under a longer
name (`mcp__hoptell__read_inbox`).
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMAND = re.compile(r"mock: (call|shell|stream|say) ([^\n]*)")
NOTICE = re.compile(r"hoptell: \d+ messages? waits? for you")
SHELL_TOOLS = ("Bash", "exec_command", "shell_command", "shell", "bash")


@dataclass(frozen=True)
class Item:
    """One piece of a conversation: kind is user, assistant, call or result."""

    kind: str
    text: str


@dataclass(frozen=True)
class Say:
    """Answer with text and end the turn; over some seconds if `seconds` is given."""

    text: str
    seconds: float = 0.0


@dataclass(frozen=True)
class Call:
    """Call a tool."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shell:
    """Call the client's shell tool."""

    command: str


Action = Say | Call | Shell


@dataclass(frozen=True)
class Request:
    """What one client showed the model."""

    at: float
    api: str
    """`anthropic`, `responses` or `chat`."""
    body: dict[str, Any]
    items: list[Item]

    @property
    def agentic(self) -> bool:
        """False for the side requests (titles, summaries) that offer no tools."""
        return bool(self.body.get("tools"))

    def shows(self, text: str) -> int:
        """How many times the whole conversation has `text`."""
        return sum(item.text.count(text) for item in self.items)


Rule = Callable[[Request], Action | None]


class Model:
    """The server. `url` is its address; use it as a context manager."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.rules: list[Rule] = []
        self.title = "a title"
        """What clients are told when they ask what a session is about."""
        self._news = threading.Condition()
        model = self

        class Handler(_Handler):
            pass

        Handler.model = model
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> "Model":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def seen(self, since: int = 0, api: str | None = None) -> list[Request]:
        """The agents' requests from number `since` on."""
        with self._news:
            found = self.requests[since:]
        return [one for one in found if one.agentic and api in (None, one.api)]

    def count(self) -> int:
        """How many requests there were so far: a starting point for `wait` and `seen`."""
        with self._news:
            return len(self.requests)

    def wait(
        self, wanted: Callable[[Request], bool], *, since: int, timeout: float = 20
    ) -> Request:
        """The first request from number `since` on that is wanted; fails after `timeout`."""
        end = time.monotonic() + timeout
        with self._news:
            while True:
                for request in self.requests[since:]:
                    if request.agentic and wanted(request):
                        return request
                since = len(self.requests)
                if not self._news.wait(max(0.0, end - time.monotonic())):
                    raise AssertionError(f"no such request reached the model in {timeout} s")

    def decide(self, request: Request) -> Action:
        """Record a request and say what to do about it."""
        with self._news:
            self.requests.append(request)
            self._news.notify_all()
        if not request.agentic:
            return Say(json.dumps({"title": self.title}))
        for rule in self.rules:
            if (action := rule(request)) is not None:
                return action
        return read_if_told(request.items) or obey(request.items) or Say("done")


def obey(items: list[Item]) -> Action | None:
    """The next of the commands in the newest user text that has some; None when all are done."""
    for at in range(len(items) - 1, -1, -1):
        if items[at].kind == "assistant":
            return None
        if items[at].kind == "user" and (commands := COMMAND.findall(items[at].text)):
            done = sum(1 for item in items[at:] if item.kind == "call")
            return _action(*commands[done]) if done < len(commands) else None
    return None


def read_if_told(items: list[Item]) -> Action | None:
    """Call `read_inbox` where a notice of hoptell came after the last such call."""
    for item in reversed(items):
        if item.kind == "call" and item.text.endswith("read_inbox"):
            return None
        if item.kind == "user" and NOTICE.search(item.text):
            return Call("read_inbox")
    return None


def _action(verb: str, rest: str) -> Action:
    if verb == "call":
        tool, _, arguments = rest.partition(" ")
        return Call(tool, json.loads(arguments or "{}"))
    if verb == "shell":
        return Shell(rest)
    return Say("streamed", float(rest)) if verb == "stream" else Say(rest)


# The three APIs -----------------------------------------------------------------------------


def flat(content: Any) -> str:
    """All text in a piece of content, whatever its nesting."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        return flat(content.get("text") or content.get("content") or content.get("output") or "")
    return "\n".join(flat(part) for part in content or [])


def anthropic_items(body: dict[str, Any]) -> Iterator[Item]:
    for message in body.get("messages", []):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            if block["type"] == "tool_use":
                yield Item("call", block["name"])
            elif block["type"] == "tool_result":
                yield Item("result", flat(block.get("content")))
            elif block["type"] == "text":
                yield Item("assistant" if message["role"] == "assistant" else "user", block["text"])


def responses_items(body: dict[str, Any]) -> Iterator[Item]:
    for entry in body.get("input", []):
        kind = entry.get("type", "message")
        if kind == "message":
            role = "assistant" if entry["role"] == "assistant" else "user"
            yield Item(role, flat(entry["content"]))
        elif kind.endswith("_call"):
            yield Item("call", entry.get("name", kind))
        elif kind.endswith("_output"):
            yield Item("result", flat(entry.get("output")))


def chat_items(body: dict[str, Any]) -> Iterator[Item]:
    for message in body.get("messages", []):
        role, text = message["role"], flat(message.get("content"))
        if role == "tool":
            yield Item("result", text)
        elif role != "assistant":
            yield Item("user", text)
        else:
            if text:
                yield Item("assistant", text)
            for call in message.get("tool_calls") or []:
                yield Item("call", call["function"]["name"])


def offered(body: dict[str, Any]) -> dict[str, tuple[str | None, str]]:
    """Every tool by its full name: the namespace (Responses only) and the name in it."""
    found: dict[str, tuple[str | None, str]] = {}
    for tool in body.get("tools") or []:
        if tool.get("type") == "namespace":
            for inner in tool["tools"]:
                found[f"{tool['name']}__{inner['name']}"] = (tool["name"], inner["name"])
        else:
            name = tool.get("name") or tool.get("function", {}).get("name") or tool["type"]
            found[name] = (None, name)
    return found


def find_tool(wanted: str, names: list[str]) -> str:
    """The offered tool that is meant: the name itself, or one that ends in it."""
    for name in names:
        if re.search(rf"(?:^|[._]){re.escape(wanted)}$", name):
            return name
    return wanted


def shell_call(command: str, names: list[str]) -> Call:
    """The call of the shell tool that the client offers."""
    name = next((tool for tool in SHELL_TOOLS if tool in names), "Bash")
    if name == "exec_command":
        arguments: dict[str, Any] = {"cmd": command}
    elif name == "shell":
        arguments = {"command": ["bash", "-lc", command]}
    else:
        arguments = {"command": command, "description": "what the test asked for"}
    if name in ("exec_command", "shell_command", "shell"):  # Codex: ask for approval
        arguments.pop("description", None)
        arguments |= {"sandbox_permissions": "require_escalated", "justification": "a test"}
    return Call(name, arguments)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._json({"data": [], "object": "list"})

    def do_HEAD(self) -> None:
        self._json({})

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        try:
            if path.endswith("/count_tokens"):
                self._json({"input_tokens": 100})
            elif path.endswith("/messages"):
                self._anthropic(body)
            elif path.endswith("/responses"):
                self._responses(body)
            elif path.endswith("/chat/completions"):
                self._chat(body)
            else:
                self._json({}, 404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the user interrupted

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _json(self, answer: Any, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _decide(self, api: str, body: dict[str, Any], items: Iterator[Item]) -> Say | Call:
        action = self.model.decide(Request(time.monotonic(), api, body, list(items)))
        names = list(offered(body))
        if isinstance(action, Shell):
            action = shell_call(action.command, names)
        if isinstance(action, Call):
            return Call(find_tool(action.tool, names), action.arguments)
        return action

    def _start(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def _event(self, data: Any, name: str | None = None) -> None:
        lines = f"event: {name}\n" if name else ""
        lines += f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
        self.wfile.write(lines.encode())
        self.wfile.flush()

    @staticmethod
    def _pieces(say: Say) -> Iterator[str]:
        end = time.monotonic() + say.seconds
        while time.monotonic() < end:
            yield "word "
            time.sleep(0.2)
        yield say.text

    def _anthropic(self, body: dict[str, Any]) -> None:
        action = self._decide("anthropic", body, anthropic_items(body))
        usage = {"input_tokens": 10, "output_tokens": 1}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        call = isinstance(action, Call)
        message = {
            "id": _id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": body.get("model"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        block: dict[str, Any] = {"type": "text", "text": ""}
        if isinstance(action, Call):
            block = {"type": "tool_use", "id": _id("toolu_"), "name": action.tool, "input": {}}
        if not body.get("stream"):
            if isinstance(action, Call):
                block["input"] = action.arguments
            else:
                block["text"] = action.text
            reason = "tool_use" if call else "end_turn"
            self._json({**message, "content": [block], "stop_reason": reason})
            return
        self._start()
        self._named(type="message_start", message=message)
        self._named(type="content_block_start", index=0, content_block=block)
        if isinstance(action, Call):
            delta = {"type": "input_json_delta", "partial_json": json.dumps(action.arguments)}
            self._named(type="content_block_delta", index=0, delta=delta)
        else:
            for piece in self._pieces(action):
                delta = {"type": "text_delta", "text": piece}
                self._named(type="content_block_delta", index=0, delta=delta)
        self._named(type="content_block_stop", index=0)
        stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
        self._named(type="message_delta", delta=stop, usage={"output_tokens": 5})
        self._named(type="message_stop")

    def _named(self, **event: Any) -> None:
        self._event(event, event["type"])

    def _responses(self, body: dict[str, Any]) -> None:
        action = self._decide("responses", body, responses_items(body))
        response = {
            "id": _id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": body.get("model"),
            "output": [],
            "status": "in_progress",
        }
        self._start()
        self._named(type="response.created", response=response)
        if isinstance(action, Call):
            space, name = offered(body).get(action.tool, (None, action.tool))
            item: dict[str, Any] = {
                "type": "function_call",
                "id": _id("fc_"),
                "call_id": _id("call_"),
                "name": name,
                "arguments": json.dumps(action.arguments),
                "status": "completed",
            }
            if space:
                item["namespace"] = space
            begun = {**item, "arguments": "", "status": "in_progress"}
            self._named(type="response.output_item.added", output_index=0, item=begun)
        else:
            item = {"type": "message", "id": _id("msg_"), "role": "assistant", "content": []}
            begun = {**item, "status": "in_progress"}
            self._named(type="response.output_item.added", output_index=0, item=begun)
            text = ""
            for piece in self._pieces(action):
                text += piece
                self._named(
                    type="response.output_text.delta",
                    item_id=item["id"],
                    output_index=0,
                    content_index=0,
                    delta=piece,
                )
            item |= {"status": "completed"}
            item["content"] = [{"type": "output_text", "text": text, "annotations": []}]
        self._named(type="response.output_item.done", output_index=0, item=item)
        usage = {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
        }
        done = {**response, "status": "completed", "output": [item], "usage": usage}
        self._named(type="response.completed", response=done)

    def _chat(self, body: dict[str, Any]) -> None:
        action = self._decide("chat", body, chat_items(body))
        chunk = {
            "id": _id("chatcmpl-"),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": body.get("model"),
        }
        calls = None
        if isinstance(action, Call):
            function = {"name": action.tool, "arguments": json.dumps(action.arguments)}
            calls = [{"index": 0, "id": _id("call_"), "type": "function", "function": function}]
        finish = "tool_calls" if calls else "stop"
        if not body.get("stream"):
            message: dict[str, Any] = {"role": "assistant", "content": None}
            if isinstance(action, Say):
                message["content"] = action.text
            else:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": finish}
            self._json({**chunk, "object": "chat.completion", "choices": [choice]})
            return
        self._start()

        def delta(delta: dict[str, Any], finish: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            self._event({**chunk, "choices": [choice]})

        delta({"role": "assistant", "content": ""})
        if isinstance(action, Say):
            for piece in self._pieces(action):
                delta({"content": piece})
        else:
            delta({"tool_calls": calls})
        delta({}, finish)
        self._event("[DONE]")


def _id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:20]
