//! Tests of composite fabrics, and of requests that wait for their turn.

mod backlog;
mod composite;
mod scripted;
