//! Tests of composite fabrics.

mod composite;
mod scripted;
