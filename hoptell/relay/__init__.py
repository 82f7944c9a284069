"""The relay: lets peers in, routes messages, holds what is not confirmed yet (docs/protocol.md).

model.py        what the core works with, and the effects in which it says what is to be done
rate.py         how often one name may send
timeouts.py     what falls due, in its order
core.py         who is there, what waits, what is in flight. No I/O, no clock
credentials.py  shared token, members file
wal.py          whether SQLite's write-ahead log is whole
database.py     the journal's file: its schema, and why it cannot be used
store.py        the journal's rows
journal.py      what must outlive the process: a null one, and SQLite in a thread of its own
websocket.py    one connection: websockets' sans-I/O protocol on an asyncio transport
listening.py    sockets, and why one cannot be had
log.py          one line an event, to standard error
metrics.py      what is counted, as Prometheus text
tls.py          the certificate that the relay serves itself
http.py         what the port answers to plain HTTP
server.py       the shell: performs what the core decides, once a loop turn
daemon.py       the process: signals, event loop, limits of the system
"""
