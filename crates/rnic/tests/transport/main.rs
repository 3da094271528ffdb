//! Transport tests: queue pairs in virtual time, over links that lose, duplicate, delay and damage chosen packets.

mod connection_end;
mod go_back_n;
mod goodput;
mod hostile;
mod operations;
mod pair;
mod paths;
mod selective_repeat;
mod walk;
