//! Workers with real sockets on loopback: a module for each subject.

mod bans;
mod defence;
mod new_work;
mod peers;
mod rig;
mod tcp;
mod tls;
mod udp;
mod websocket;
mod worker;
