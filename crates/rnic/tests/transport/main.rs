//! Transport tests: queue pairs in virtual time, over links that lose, duplicate, delay and damage chosen packets.

mod breaking;
mod hostile;
mod pair;
mod paths;
mod repairing;
mod sharing;
mod single;
mod walk;
mod working;
