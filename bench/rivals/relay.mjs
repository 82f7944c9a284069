// A relay with hoptell's semantics on Node and npm's `ws`: what hoptell is measured against.
//
// It is meant to win: it keeps every rule of the protocol (docs/protocol.md: names, tokens,
// roles, queues and their bounds, in-flight limit, acknowledgements, redelivery in order,
// time to live, idempotency keys, rate, pings, sizes, /healthz, /metrics, one log line an
// event) in the way that someone who knows Node writes it: no compression, one
// JSON.stringify per delivery, Maps and arrays, no framework.
//
//   node relay.mjs PORT            `ws.send` per frame, as people write it
//   node relay.mjs PORT --joined   tuned: frames of one tick leave in one write per socket,
//                                  its log lines in one write, and the backlog is larger
//
// Settings as hoptell's: HOPTELL_TOKEN, HOPTELL_MEMBERS, HOPTELL_RATE ("30/10", "0"). Logs go
// to standard error.

import { createHash, randomUUID, timingSafeEqual } from "node:crypto";
import { readFileSync, writeSync } from "node:fs";
import { createServer } from "node:http";
import { WebSocketServer } from "ws";

const PORT = Number(process.argv[2]);
const JOINED = process.argv.includes("--joined");

const NAME = /^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$/;
const MAX_ROLES = 16;
const MAX_IN_FLIGHT = 50;
const MAX_QUEUED = 50;
const MAX_QUEUED_IN_ALL = 2000;
const MAX_QUEUED_BYTES = 64 * 1024 * 1024;
const MAX_NAMES = 10_000;
const MAX_TEXT = 100_000;
const MAX_TTL = 604_800;
const MAX_HELLO_BYTES = 16 * 1024;
const MAX_FRAME_BYTES = 2 * 1024 * 1024;
const HELLO_TIMEOUT = 5_000;
const CONFIRM_TIMEOUT = 5_000;
const PING_INTERVAL = 15_000;
const KEY_LIFETIME = 600_000;
const FORGET_AFTER = 6 * 3_600_000;
const [RATE_SENDS, RATE_SECONDS] = (process.env.HOPTELL_RATE ?? "30/10").split("/").map(Number);

const BAD_HELLO = 4001;
const NAME_REFUSED = 4002;
const BAD_TOKEN = 4003;
const REPLACED = 4004;
const BAD_VERSION = 4005;

// Logs ------------------------------------------------------------------------------------

const pendingLines = [];

function log(line) {
  const text = `${new Date().toISOString()} ${line}\n`;
  if (!JOINED) {
    process.stderr.write(text);
    return;
  }
  if (pendingLines.push(text) === 1) setImmediate(writeLines);
}

function writeLines() {
  writeSync(2, pendingLines.join(""));
  pendingLines.length = 0;
}

// Tokens ----------------------------------------------------------------------------------

const digest = (secret) => createHash("sha256").update(secret).digest();

const credentials = loadCredentials();

function loadCredentials() {
  const stored = (secret) =>
    secret.startsWith("sha256:") ? Buffer.from(secret.slice(7), "hex") : digest(secret);
  const found = [];
  if (process.env.HOPTELL_TOKEN) found.push({ member: null, hash: stored(process.env.HOPTELL_TOKEN) });
  if (process.env.HOPTELL_MEMBERS) {
    const members = JSON.parse(readFileSync(process.env.HOPTELL_MEMBERS, "utf8"));
    for (const [member, secret] of Object.entries(members)) found.push({ member, hash: stored(secret) });
  }
  return found;
}

function findCredential(token) {
  const hash = digest(token);
  let found = null;
  for (const credential of credentials) {
    if (timingSafeEqual(hash, credential.hash)) found = credential;
  }
  return found;
}

// State -----------------------------------------------------------------------------------

// name -> { name, host, roles, wake, connection, queue, sends, forgetAt }
const peers = new Map();
const keys = new Map(); // "name\0key" -> { ack, until }
let queuedInAll = 0;
let queuedBytes = 0;
const counters = {
  connections: 0, inFlight: 0, accepted: 0, delivered: 0, redelivered: 0, expired: 0, bytes: 0,
};
const refused = {};

function peerNamed(name) {
  let peer = peers.get(name);
  if (peer === undefined) {
    peer = { name, host: "", roles: [], wake: undefined, connection: null, queue: [], sends: [],
             offlineSince: Date.now() };
    peers.set(name, peer);
  }
  return peer;
}

class Refusal extends Error {
  constructor(reason, sentence) {
    super(sentence);
    this.reason = reason;
  }
}

// Writing ---------------------------------------------------------------------------------

const corked = [];

function write(connection, frame) {
  if (connection.closed) return;
  if (JOINED && !connection.corked) {
    connection.corked = true;
    connection.socket.cork();
    if (corked.push(connection) === 1) setImmediate(uncorkAll);
  }
  connection.ws.send(JSON.stringify(frame));
}

function uncorkAll() {
  for (const connection of corked) {
    connection.corked = false;
    connection.socket.uncork();
  }
  corked.length = 0;
}

function close(connection, code, reason) {
  connection.closed = true;
  connection.ws.close(code, reason);
  left(connection, `closed ${code}`);
}

// Login -----------------------------------------------------------------------------------

function login(connection, frame) {
  if (frame.type !== "hello" || typeof frame.name !== "string" || typeof frame.token !== "string" ||
      (frame.host !== undefined && typeof frame.host !== "string") ||
      (frame.mode !== undefined && frame.mode !== "peer" && frame.mode !== "send") ||
      (frame.roles !== undefined && !isListOfStrings(frame.roles)) ||
      (frame.wake !== undefined && typeof frame.wake !== "string")) {
    return close(connection, BAD_HELLO, "the first frame must be a hello");
  }
  if ((frame.v ?? 1) !== 1) return close(connection, BAD_VERSION, "this relay speaks version 1");
  const credential = findCredential(frame.token);
  if (credential === null) return close(connection, BAD_TOKEN, "this token is not known here");
  const { member } = credential;
  const roles = [...new Set(frame.roles ?? [])];
  if (!NAME.test(frame.name) || roles.length > MAX_ROLES ||
      roles.some((role) => !NAME.test(role) || role === "all")) {
    return close(connection, NAME_REFUSED, "that name or role cannot be used");
  }
  if (member !== null && frame.name !== member && !frame.name.startsWith(`${member}-`)) {
    return close(connection, NAME_REFUSED, `this token owns ${member} and ${member}-... only`);
  }
  clearTimeout(connection.helloTimer);
  connection.name = frame.name;
  connection.member = member;
  connection.host = frame.host ?? "";
  connection.mode = frame.mode ?? "peer";
  if (connection.mode === "peer") {
    if (!peers.has(frame.name) && peers.size >= MAX_NAMES) {
      return close(connection, NAME_REFUSED, "this relay knows as many names as it can");
    }
    const peer = peerNamed(frame.name);
    if (peer.connection !== null) close(peer.connection, REPLACED, "a newer connection took this name");
    Object.assign(peer, { host: connection.host, roles, wake: frame.wake, connection });
    connection.peer = peer;
  }
  write(connection, { type: "welcome", name: connection.name });
  log(`info connected name=${connection.name} host=${JSON.stringify(connection.host)} mode=${connection.mode}`);
  if (connection.mode === "peer") pump(connection.peer);
}

function isListOfStrings(value) {
  return Array.isArray(value) && value.every((item) => typeof item === "string");
}

function left(connection, why) {
  if (connection.gone) return;
  connection.gone = true;
  clearTimeout(connection.helloTimer);
  counters.connections -= 1;
  const { peer } = connection;
  if (connection.name !== null) log(`info disconnected name=${connection.name} why=${why}`);
  if (!peer || peer.connection !== connection) return;
  peer.connection = null;
  peer.offlineSince = Date.now();
  const returned = [...connection.inFlight.values()];
  counters.inFlight -= returned.length;
  connection.inFlight.clear();
  for (const delivery of returned) {
    queuedInAll += 1;
    queuedBytes += delivery.size;
    counters.redelivered += 1;
    clearTimeout(delivery.timer);
    answer(delivery, "queued");
  }
  if (returned.length > 0) {
    peer.queue = returned.concat(peer.queue);
    log(`info requeued name=${peer.name} count=${returned.length}`);
  }
}

// Sending ---------------------------------------------------------------------------------

const isScalar = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);

function send(connection, frame) {
  const { id, to, text, ttl, reply_to: replyTo, key } = frame;
  if (!("id" in frame) || !isScalar(id) || typeof to !== "string" || typeof text !== "string" ||
      (ttl !== undefined && !(Number.isInteger(ttl) && ttl >= 1 && ttl <= MAX_TTL)) ||
      (replyTo !== undefined && typeof replyTo !== "string") ||
      (key !== undefined && !(typeof key === "string" && /^[ -~]{1,64}$/.test(key)))) {
    throw new Refusal("frame", "this send has missing or wrong fields");
  }
  const now = Date.now();
  if (key !== undefined) {
    const before = keys.get(`${connection.name}\0${key}`);
    if (before !== undefined && before.until > now) return repeat(connection, id, before);
  }
  takeRate(connection, now);
  checkText(text);
  const recipients = to.startsWith("@") ? audience(connection, to) : [direct(connection, to)];
  const message = {
    messageId: randomUUID(), replyTo, from: connection.name, member: connection.member,
    host: connection.host, to, text, ts: now, expires: ttl === undefined ? undefined : now + ttl * 1000,
    noReply: connection.mode === "send" && !peers.has(connection.name) ? true : undefined,
  };
  const request = { connection, id, answered: false, remembered: null };
  const size = Buffer.byteLength(text);
  if (key !== undefined) {
    request.remembered = { ack: null, until: now + KEY_LIFETIME, waiting: [] };
    keys.set(`${connection.name}\0${key}`, request.remembered);
  }
  if (to.startsWith("@")) fanOut(message, recipients, request, size);
  else deliver(message, recipients[0], request, size);
  counters.accepted += 1;
  counters.bytes += size;
  log(`info accepted from=${message.from} to=${to} size=${size} ref=${message.messageId}`);
}

function repeat(connection, id, before) {
  if (before.ack === null) before.waiting.push({ connection, id });
  else write(connection, { ...before.ack, id });
}

function takeRate(connection, now) {
  if (!(RATE_SENDS > 0)) return;
  const { sends } = peerNamed(connection.name);
  while (sends.length > 0 && sends[0] <= now - RATE_SECONDS * 1000) sends.shift();
  const over = sends.length >= RATE_SENDS;
  if (over) {
    const wait = Math.ceil((sends[0] + RATE_SECONDS * 1000 - now) / 1000);
    throw new Refusal("rate", `too many messages: try again in ${wait} s`);
  }
  sends.push(now);
}

function checkText(text) {
  const tooLong = text.length > MAX_TEXT && [...text].length > MAX_TEXT; // code points
  if (tooLong) throw new Refusal("size", `a text has at most ${MAX_TEXT} characters`);
  if (!/\S/.test(text)) throw new Refusal("size", "a text must not be empty");
}

function direct(connection, to) {
  if (!NAME.test(to)) throw new Refusal("address", "that is not an address");
  if (to === connection.name) throw new Refusal("self", "that is your own name");
  const peer = peers.get(to);
  if (peer === undefined) throw new Refusal("unknown", `no peer is called ${to}: use list`);
  if (!hasRoomFor(peer)) throw new Refusal("full", `the queue of ${to} is full: try again later`);
  return peer;
}

function audience(connection, to) {
  const role = to.slice(1);
  if (!NAME.test(role)) throw new Refusal("address", "that is not an address");
  const found = [];
  for (const peer of peers.values()) {
    if (peer.connection === null || peer.name === connection.name) continue;
    if (role === "all" || peer.roles.includes(role)) found.push(peer);
  }
  if (found.length === 0) throw new Refusal("nobody", `nobody online has the role ${role}`);
  return found;
}

const isFree = (peer) =>
  peer.connection !== null && peer.queue.length === 0 && peer.connection.inFlight.size < MAX_IN_FLIGHT;

function hasRoomFor(peer) {
  return isFree(peer) || (peer.queue.length < MAX_QUEUED && queuedInAll < MAX_QUEUED_IN_ALL &&
                          queuedBytes < MAX_QUEUED_BYTES);
}

function deliver(message, peer, request, size) {
  const delivery = { id: randomUUID(), message, peer, request, size, timer: null };
  if (isFree(peer)) {
    forward(delivery);
    if (request !== null) delivery.timer = setTimeout(answer, CONFIRM_TIMEOUT, delivery, "unconfirmed");
    return;
  }
  peer.queue.push(delivery);
  queuedInAll += 1;
  queuedBytes += size;
  answer(delivery, "queued");
}

function fanOut(message, recipients, request, size) {
  const skipped = [];
  for (const peer of recipients) {
    if (hasRoomFor(peer)) deliver(message, peer, null, size);
    else skipped.push(peer.name);
  }
  respond(request, message, { state: "fanout", count: recipients.length - skipped.length, skipped });
}

function forward(delivery) {
  const { message, peer } = delivery;
  peer.connection.inFlight.set(delivery.id, delivery);
  counters.inFlight += 1;
  write(peer.connection, {
    type: "message", id: delivery.id, message_id: message.messageId, reply_to: message.replyTo,
    from: message.from, fromMember: message.member ?? undefined, fromHost: message.host,
    to: message.to, text: message.text, ts: message.ts, expires: message.expires,
    noReply: message.noReply,
  });
}

function answer(delivery, state) {
  if (delivery.request === null || delivery.request.answered) return;
  respond(delivery.request, delivery.message, { state });
}

function respond(request, message, fields) {
  request.answered = true;
  const ack = { type: "ack", id: request.id, message_id: message.messageId, expires: message.expires,
                ...fields };
  write(request.connection, ack);
  if (request.remembered === null) return;
  request.remembered.ack = ack;
  for (const other of request.remembered.waiting) write(other.connection, { ...ack, id: other.id });
  request.remembered.waiting = [];
}

function got(connection, frame) {
  if (typeof frame.id !== "string") throw new Refusal("frame", "got needs the id of a delivery");
  const delivery = connection.inFlight.get(frame.id);
  if (delivery === undefined) return;
  connection.inFlight.delete(frame.id);
  clearTimeout(delivery.timer);
  counters.inFlight -= 1;
  counters.delivered += 1;
  answer(delivery, "delivered");
  log(`info confirmed from=${delivery.message.from} by=${connection.name} ref=${delivery.message.messageId}`);
  if (connection.peer.queue.length > 0) pump(connection.peer);
}

function pump(peer) {
  while (peer.queue.length > 0 && peer.connection.inFlight.size < MAX_IN_FLIGHT) {
    const delivery = peer.queue.shift();
    queuedInAll -= 1;
    queuedBytes -= delivery.size;
    if (delivery.message.expires !== undefined && delivery.message.expires <= Date.now()) expire(delivery);
    else forward(delivery);
  }
}

function expire(delivery) {
  counters.expired += 1;
  log(`info expired to=${delivery.peer.name} ref=${delivery.message.messageId}`);
}

function list(connection, frame) {
  if (!("id" in frame) || !isScalar(frame.id)) throw new Refusal("frame", "list needs an id");
  const found = [];
  for (const peer of peers.values()) {
    if (peer.name === connection.name) continue;
    found.push({ name: peer.name, host: peer.host, roles: peer.roles, online: peer.connection !== null,
                 queued: peer.queue.length, wake: peer.wake });
  }
  found.sort((a, b) => (a.name < b.name ? -1 : 1));
  write(connection, { type: "peers", id: frame.id, peers: found });
}

// Connections -----------------------------------------------------------------------------

function receive(connection, data, isBinary) {
  if (connection.closed) return;
  connection.alive = true;
  if (connection.name === null && data.length > MAX_HELLO_BYTES) {
    return close(connection, BAD_HELLO, "a hello has at most 16 KiB");
  }
  let frame = null;
  if (!isBinary) {
    try {
      frame = JSON.parse(data);
    } catch {
      // answered below, as every other thing that is no object
    }
  }
  if (frame === null || typeof frame !== "object" || Array.isArray(frame)) {
    if (connection.name === null) return close(connection, BAD_HELLO, "a frame is one JSON object");
    return write(connection, { type: "error", error: "a frame is one JSON object" });
  }
  if (connection.name === null) return login(connection, frame);
  try {
    if (frame.type === "send") send(connection, frame);
    else if (frame.type === "got" && connection.mode === "peer") got(connection, frame);
    else if (frame.type === "list") list(connection, frame);
    else throw new Refusal("frame", "use send, list or got");
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    refused[error.reason] = (refused[error.reason] ?? 0) + 1;
    log(`info refused name=${connection.name} reason=${error.reason}`);
    write(connection, { type: "error", id: isScalar(frame.id) ? frame.id : undefined, error: error.message });
  }
}

const http = createServer((request, response) => {
  const answers = { "/healthz": () => "ok", "/metrics": metrics };
  const found = answers[request.url];
  response.writeHead(found ? 200 : 426, { "Content-Type": "text/plain" });
  response.end(found ? found() : "this is a relay: connect with a WebSocket client\n");
});

function metrics() {
  let online = 0;
  for (const peer of peers.values()) online += peer.connection === null ? 0 : 1;
  const lines = Object.entries({ ...counters, online, queued: queuedInAll })
    .map(([name, value]) => `relay_${name} ${value}`);
  for (const [reason, value] of Object.entries(refused)) lines.push(`relay_refused{reason="${reason}"} ${value}`);
  return `${lines.join("\n")}\n`;
}

const server = new WebSocketServer({ server: http, perMessageDeflate: false, maxPayload: MAX_FRAME_BYTES });

server.on("connection", (ws, request) => {
  const connection = {
    ws, socket: request.socket, name: null, member: null, host: "", mode: "peer", peer: null,
    inFlight: new Map(), alive: true, silentRounds: 0, closed: false, gone: false, corked: false,
    helloTimer: null,
  };
  connection.helloTimer = setTimeout(close, HELLO_TIMEOUT, connection, BAD_HELLO, "no hello came");
  counters.connections += 1;
  ws.connection = connection;
  ws.on("message", (data, isBinary) => receive(connection, data, isBinary));
  ws.on("pong", () => (connection.alive = true));
  ws.on("close", () => {
    connection.closed = true;
    left(connection, "gone");
  });
  ws.on("error", () => {});
});

setInterval(() => {
  for (const ws of server.clients) {
    const { connection } = ws;
    connection.silentRounds = connection.alive ? 0 : connection.silentRounds + 1;
    connection.alive = false;
    if (connection.silentRounds >= 2) ws.terminate();
    else ws.ping();
  }
}, PING_INTERVAL);

setInterval(() => {
  const now = Date.now();
  for (const [key, remembered] of keys) if (remembered.until <= now) keys.delete(key);
  for (const peer of peers.values()) {
    peer.queue = peer.queue.filter((delivery) => {
      if (delivery.message.expires === undefined || delivery.message.expires > now) return true;
      queuedInAll -= 1;
      queuedBytes -= delivery.size;
      expire(delivery);
      return false;
    });
    if (peer.connection === null && peer.queue.length === 0 && now - peer.offlineSince > FORGET_AFTER) {
      peers.delete(peer.name);
    }
  }
}, 1000);

for (const signal of ["SIGTERM", "SIGINT"]) {
  process.on(signal, () => {
    for (const ws of server.clients) ws.close(1001, "the relay stops");
    http.close();
    setTimeout(() => process.exit(0), 500);
  });
}

// The plain form keeps Node's default backlog of 511: in a larger storm the rest of the
// connections waits a second for TCP to try again.
http.listen({ port: PORT, host: "127.0.0.1", backlog: JOINED ? 2048 : 511 }, () =>
  log(`info listening on 127.0.0.1:${PORT}`),
);
