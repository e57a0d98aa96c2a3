// A phone of one user. A test gives its commands and reads `phone.state`.
"use strict";

const phone = {
  ua: null,
  session: null,
  state: {
    connected: false,
    registered: false,
    // Of the call: "", "calling", "ringing", "established", "ended", "failed".
    call: "",
    cause: "",
    by: "",
    peer: "",
    sent: 0,
    received: 0,
    trouble: [],
  },
};

// No server for addresses: both ends are on this machine.
const MEDIA = {
  mediaConstraints: { audio: true, video: false },
  pcConfig: { iceServers: [] },
};

// Connects to `url` and registers `uri`.
phone.start = ({ url, uri, password }) => {
  const { state } = phone;
  phone.ua = new JsSIP.UA({
    sockets: [new JsSIP.WebSocketInterface(url)],
    uri,
    password,
    register_expires: 600,
    session_timers: false,
  });
  phone.ua.on("connected", () => { state.connected = true; });
  phone.ua.on("disconnected", () => { state.connected = false; });
  phone.ua.on("registered", () => { state.registered = true; });
  phone.ua.on("unregistered", () => { state.registered = false; });
  phone.ua.on("registrationFailed", ({ cause }) => { state.trouble.push(`registration: ${cause}`); });
  phone.ua.on("newRTCSession", ({ session, originator }) => phone.follow(session, originator));
  phone.ua.start();
};

phone.follow = (session, originator) => {
  const { state } = phone;
  phone.session = session;
  Object.assign(state, {
    call: originator === "remote" ? "ringing" : "calling",
    peer: session.remote_identity.uri.toString(),
    cause: "",
    by: "",
    sent: 0,
    received: 0,
  });
  session.on("progress", () => { state.call = "ringing"; });
  session.on("confirmed", () => { state.call = "established"; });
  session.on("ended", ({ cause, originator: by }) => { Object.assign(state, { call: "ended", cause, by }); });
  session.on("failed", ({ cause, originator: by, message }) => {
    const status = message && message.status_code ? ` (${message.status_code})` : "";
    Object.assign(state, { call: "failed", cause: `${cause}${status}`, by });
  });
  for (const event of [
    "getusermediafailed",
    "peerconnection:createofferfailed",
    "peerconnection:createanswerfailed",
    "peerconnection:setlocaldescriptionfailed",
    "peerconnection:setremotedescriptionfailed",
  ]) {
    session.on(event, (error) => { state.trouble.push(`${event}: ${error}`); });
  }
};

phone.call = (target) => { phone.ua.call(target, MEDIA); };
phone.answer = () => { phone.session.answer(MEDIA); };
phone.hangUp = () => { phone.session.terminate(); };
phone.stop = () => { phone.ua.stop(); };

// Packets of media, as the browser counts them.
setInterval(async () => {
  const connection = phone.session && phone.session.connection;
  if (!connection || connection.connectionState === "closed") return;
  for (const report of (await connection.getStats()).values()) {
    if (report.type === "inbound-rtp") phone.state.received = report.packetsReceived;
    if (report.type === "outbound-rtp") phone.state.sent = report.packetsSent;
  }
}, 100);

window.addEventListener("error", ({ message }) => { phone.state.trouble.push(message); });
window.addEventListener("unhandledrejection", ({ reason }) => { phone.state.trouble.push(String(reason)); });
