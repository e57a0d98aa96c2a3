//! A real server among real peers: a module for each subject.

mod abuse;
mod attacks;
mod browser;
mod calls;
mod cancel;
mod cpu;
mod crash;
mod credentials;
mod flawed;
mod floor;
mod forking;
mod full_disk;
mod generator;
mod groups;
mod harness;
mod interworking;
mod neighbours;
mod next_hop;
mod phones;
mod redirect;
mod refusals;
mod registrar;
mod resumption;
mod tls;
mod torture;
mod websocket;
