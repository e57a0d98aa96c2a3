//! The program as it is run: a module for each subject.

mod commands;
mod common;
mod dashboard;
mod lab;
mod metrics_lint;
mod plan;
mod relay;
mod serve;
mod tls;
mod user_servers;
mod websocket;
