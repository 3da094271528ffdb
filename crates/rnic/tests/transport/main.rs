//! Stories of packets: two queue pairs in virtual time, and a link that loses, repeats, delays and damages what it is told to.

mod breaking;
mod emulator;
mod hostile;
mod incast;
mod pair;
mod paths;
mod repairing;
mod sharing;
mod single;
mod walk;
mod working;
