//! Datagrams with RoCEv2 packets between the generator's sockets and the server's.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use halite_rnic::stateless::{OVERHEAD_BYTES, PAYLOAD_BYTES_FIRST, PAYLOAD_BYTES_MAX};
use halite_rnic::{Config, Memory, Mtu, Refused, Retry};

use super::{BYTES_MAX, MEMORY_BYTES, RKEY};

/// Length of a buffer for any packet of either mode, in bytes.
pub const PACKET_BYTES: usize = OVERHEAD_BYTES + PAYLOAD_BYTES_MAX;
const _: () = assert!(PAYLOAD_BYTES_FIRST as u64 >= BYTES_MAX);

/// Time without an answer after which the other side counts as gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// Size of a socket's receive buffer in bytes, as far as the system permits it. It has room for the windows of the clients
/// that have long calls or answers.
const RECEIVE_BYTES: usize = 4 << 20;

pub fn open() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)?;
    Ok(socket)
}

pub fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The monotonic clock of the protocol.
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Returns the time in ns. The clock starts at 1 s, so that times shortly before its start are not negative.
    pub fn now_ns(&self) -> u64 {
        1_000_000_000 + self.0.elapsed().as_nanos() as u64
    }
}

/// The configuration of both ends of a reliable connection.
pub fn config() -> Config {
    Config {
        mtu: Mtu::Bytes1024,
        selective: true,
        send_queue_max: 4,
        reads_max: 4,
        answers_max: 4,
        read_packets_max: 1,
        write_packets_max: 1,
        retry: Retry::Lease(PATIENCE),
        ..Config::default()
    }
}

/// Memory of a process that only its own threads access, under one key.
pub struct Own(std::cell::RefCell<Vec<u8>>);

impl Own {
    pub fn new(bytes: Vec<u8>) -> Own {
        Own(std::cell::RefCell::new(bytes))
    }

    pub fn with<R>(&self, use_bytes: impl FnOnce(&mut [u8]) -> R) -> R {
        use_bytes(&mut self.0.borrow_mut())
    }
}

impl Memory for Own {
    fn check(&self, key: u32, _: halite_rnic::Access, address: u64, len: u64) -> Result<(), Refused> {
        let is_covered = address.checked_add(len).is_some_and(|end| end <= MEMORY_BYTES);
        if key == RKEY && is_covered { Ok(()) } else { Err(Refused) }
    }

    fn read(&self, _: u32, address: u64, target: &mut [u8]) -> Result<(), Refused> {
        let bytes = self.0.borrow();
        let from =
            bytes.get(address as usize..).and_then(|bytes| bytes.get(..target.len())).ok_or(Refused)?;
        target.copy_from_slice(from);
        Ok(())
    }

    fn write(&self, _: u32, address: u64, source: &[u8]) -> Result<(), Refused> {
        let mut bytes = self.0.borrow_mut();
        let to = bytes.get_mut(address as usize..).and_then(|bytes| bytes.get_mut(..source.len()));
        to.ok_or(Refused)?.copy_from_slice(source);
        Ok(())
    }

    fn fetch_add(&self, _: u32, _: u64, _: u64) -> Result<u64, Refused> {
        Err(Refused)
    }

    fn compare_swap(&self, _: u32, _: u64, _: u64, _: u64) -> Result<u64, Refused> {
        Err(Refused)
    }
}
