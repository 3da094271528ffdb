//! Several fabrics as one.

mod composite;
mod scripted;
