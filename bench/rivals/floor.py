"""The floor: what bare asyncio (on uvloop, where it is installed) costs for the same frames.

It does nothing but carry them: answers the handshake, believes every hello, cuts frames apart
with `bytes.find`, and passes texts on as the bytes that they came in: no checks, no limits, no
queues, no logs, no timers, and only for peers that send as the load generator does. No relay
in Python on asyncio can cost less per frame than about this; what a real one costs more is the
price of what it promises.

    python floor.py PORT
"""

import asyncio
import contextlib
import ctypes
import gc
import sys

from websockets.speedups import apply_mask

UPGRADE = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
)

peers: dict[bytes, "Peer"] = {}
waiting: dict[bytes, tuple["Peer", bytes]] = {}
count = 0


class Peer(asyncio.Protocol):
    """One connection."""

    __slots__ = ("buffer", "loop", "name", "out", "transport", "upgraded")

    def connection_made(self, transport):
        self.transport = transport
        self.loop = asyncio.get_running_loop()
        self.buffer = b""
        self.out = []
        self.upgraded = False
        self.name = b""

    def data_received(self, data):
        if self.buffer:
            data = self.buffer + data
        if not self.upgraded:
            self.upgraded = True
            self.transport.write(UPGRADE)
            return
        at, have = 0, len(data)
        while have - at >= 6:
            size, head = data[at + 1] & 127, 6
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), 8
            elif size == 127:
                if have - at < 14:
                    break
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), 14
            end = at + head + size
            if end > have:
                break
            if data[at] == 0x81:
                start = at + head
                self.frame(apply_mask(data[start:end], data[start - 4 : start]))
            at = end
        self.buffer = data[at:]

    def frame(self, frame):
        global count
        if frame.startswith(b'{"type":"got"'):
            sender, request = waiting.pop(frame[frame.find(b'"id":"') + 6 : -2])
            sender.write(b'{"type":"ack","id":%b,"state":"delivered","message_id":"0"}' % request)
        elif frame.startswith(b'{"type":"send"'):
            to = frame.find(b',"to":"')
            text = frame.find(b'","text":')
            address = frame[to + 7 : text]
            request = frame[20 - 1 : to]
            if address == b"@all":
                everyone = [peer for peer in peers.values() if peer is not self]
                for peer in everyone:
                    count += 1
                    peer.write(
                        b'{"type":"message","id":"%d","message_id":"0","from":"%b"%b'
                        % (count, self.name, frame[text + 1 :])
                    )
                    waiting[b"%d" % count] = (nobody, request)
                self.write(
                    b'{"type":"ack","id":%b,"state":"fanout","message_id":"0","count":%d}'
                    % (request, len(everyone))
                )
                return
            count += 1
            peers[address].write(
                b'{"type":"message","id":"%d","message_id":"0","from":"%b"%b'
                % (count, self.name, frame[text + 1 :])
            )
            waiting[b"%d" % count] = (self, request)
        else:
            start = frame.find(b'"name":"') + 8
            self.name = frame[start : frame.find(b'"', start)]
            peers[self.name] = self
            self.write(b'{"type":"welcome","name":"%b"}' % self.name)

    def write(self, frame):
        if not self.out:
            self.loop.call_soon(self.flush)
        size = len(frame)
        if size < 126:
            self.out.append(bytes((0x81, size)))
        elif size < 65536:
            self.out.append(b"\x81\x7e" + size.to_bytes(2, "big"))
        else:
            self.out.append(b"\x81\x7f" + size.to_bytes(8, "big"))
        self.out.append(frame)

    def flush(self):
        self.transport.write(b"".join(self.out))
        self.out.clear()


class Nobody:
    """Whoever sent to everyone: is not told of each confirmation."""

    def write(self, frame):
        pass


nobody = Nobody()


async def main(port):
    gc.freeze()
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


with contextlib.suppress(AttributeError):  # another C library than glibc
    for parameter in (-1, -3):  # keep freed memory: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
        ctypes.CDLL(None).mallopt(parameter, 4 * 1024 * 1024)
try:
    import uvloop
except ImportError:
    asyncio.run(main(int(sys.argv[1])))
else:
    uvloop.run(main(int(sys.argv[1])))
