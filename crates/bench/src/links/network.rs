//! Two private networks, and an emulated link in each direction between them.
//!
//! ```text
//!   side 0: wire, 10.78.0.1 ── TUN ──►  [Direction 0]  ──► TUN ── wire, 10.78.0.2 :side 1
//!                               TUN ◄──  [Direction 1]  ◄── TUN
//! ```
//!
//! The kernel's sockets are real; the packets that they send reach a thread through a descriptor, and the thread
//! forwards them according to the links. The TUN devices have no offloads, so the kernel splits large segments
//! beforehand, and each packet has its own fate. The network namespaces have no names, so the kernel removes them when
//! their last descriptor is closed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns, unshare};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tun_rs::{DeviceBuilder, SyncDevice};

use super::link::{Direction, Fates, Link};

/// Environment variable that turns a skipped test of networks into a failure.
const REQUIRED: &str = "HALITE_NETWORK";
/// Maximum length of a packet.
const PACKET_BYTES_MAX: usize = 1 << 16;
/// Maximum number of packets that wait for the forwarder, the thread that forwards packets: more than any queue of a
/// link here.
const DEVICE_PACKETS: u32 = 8192;
/// Maximum number of packets read from one device before the other device is read.
const BATCH: usize = 64;
/// Offsets of the addresses in an IPv4 header.
const SOURCE_AT: usize = 12;
const TARGET_AT: usize = 16;
/// Timer slack of the forwarder, in nanoseconds.
const SLACK_NS: NonZeroU64 = NonZeroU64::new(1_000).expect("not zero");
/// Priority above the measured processes: a forwarder that waits for a core adds delay that the links do not have.
const PRIORITY: i32 = -15;

/// Two networks, connected by links.
pub struct Network {
    sides: [OwnedFd; 2],
    forwarder: Arc<Forwarder>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

struct Forwarder {
    devices: [SyncDevice; 2],
    directions: Mutex<[Direction; 2]>,
    chains: Mutex<Chains>,
    /// Addresses whose packets are dropped in both directions.
    cut_off: Mutex<Vec<Ipv4Addr>>,
    is_over: AtomicBool,
    wake: OwnedFd,
}

impl Network {
    /// Creates both networks with an MTU of `mtu` bytes. The first link leads from side 0 to side 1. Needs root.
    pub fn new(mtu: u16, links: [Link; 2], seed: u64) -> io::Result<Network> {
        let mut ends = Vec::new();
        for side in 0..2 {
            ends.push(in_new_network(|| create_device(side, mtu))?);
        }
        let [(left, near), (right, far)] =
            <[_; 2]>::try_from(ends).unwrap_or_else(|_| unreachable!("there are two sides"));
        let [there, back] = links;
        let directions = [Direction::new(there, seed), Direction::new(back, seed ^ u64::MAX)];
        let forwarder = Arc::new(Forwarder {
            devices: [near, far],
            directions: Mutex::new(directions),
            chains: Mutex::default(),
            cut_off: Mutex::default(),
            is_over: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let thread = std::thread::Builder::new().name("forwarder".to_owned()).spawn({
            let forwarder = forwarder.clone();
            move || forwarder.run()
        })?;
        Ok(Network { sides: [left, right], forwarder, thread: Some(thread) })
    }

    /// Creates both networks for a test. If the machine or the user cannot create networks, prints the reason and
    /// returns `None`, or panics if `HALITE_NETWORK` is set.
    pub fn for_test(mtu: u16, links: [Link; 2], seed: u64) -> Option<Network> {
        match Network::new(mtu, links, seed) {
            Ok(network) => Some(network),
            Err(error) => {
                let is_required = std::env::var_os(REQUIRED).is_some();
                assert!(!is_required, "{REQUIRED} is set, but no network can be created: {error}");
                println!("skipped: networks need root and /dev/net/tun: {error}");
                None
            }
        }
    }

    /// Returns the address of a side.
    pub fn address(side: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, 0, side as u8 + 1)
    }

    /// Runs `then` in a thread of one of the networks, so that the sockets and devices that it opens belong to that
    /// network.
    pub fn inside<R: Send>(&self, side: usize, then: impl FnOnce() -> R + Send) -> R {
        let enter = || {
            setns(&self.sides[side], CloneFlags::CLONE_NEWNET).expect("the network lives, and we are root");
            then()
        };
        std::thread::scope(|scope| scope.spawn(enter).join().expect("the thread does not panic"))
    }

    /// Runs `then` in both networks at the same time, in a thread each.
    pub fn both<R: Send>(&self, then: impl Fn(usize) -> R + Sync) -> [R; 2] {
        let then = &then;
        std::thread::scope(|scope| {
            let [one, two] = [0, 1].map(|side| scope.spawn(move || self.inside(side, || then(side))));
            [one, two].map(|thread| thread.join().expect("the thread does not panic"))
        })
    }

    /// Replaces both links.
    pub fn set(&self, links: [Link; 2]) {
        let mut directions = self.forwarder.directions();
        directions.iter_mut().zip(links).for_each(|(direction, link)| direction.set(link));
    }

    /// Adds an address to a side, and enables the side to send packets to its own addresses.
    pub fn add_address(&self, side: usize, address: Ipv4Addr) -> io::Result<()> {
        for line in ["link set lo up".to_owned(), format!("addr add {address}/24 dev wire")] {
            let status = self.inside(side, || Command::new("ip").args(line.split(' ')).status())?;
            if !status.success() {
                return Err(io::Error::other(format!("`ip {line}`: {status}")));
            }
        }
        Ok(())
    }

    /// Drops all later packets from and to `address`, as if the host of this address had lost power.
    pub fn cut_off(&self, address: Ipv4Addr) {
        self.forwarder.cut_off.lock().expect("no thread panics while it holds this lock").push(address);
    }

    /// Restarts the count of [`Network::chain`].
    pub fn count_chains(&self) {
        let mut chains = self.forwarder.chains();
        *chains = Chains { epoch: chains.epoch + 1, longest: [0; 2] };
    }

    /// Returns the length of the longest chain of dependent packets that has arrived at a side since
    /// [`Network::count_chains`]. A chain is a sequence of packets, each sent by a side after the previous packet of
    /// the chain had arrived at that side.
    ///
    /// The length is at most the elapsed time divided by the link's delay, and at least the number of packets in
    /// sequence that the protocol needs. If the delay is long compared with the processing time, half of the length is
    /// the number of round trips, even on a busy machine.
    pub fn chain(&self, side: usize) -> u64 {
        self.forwarder.chains().longest[side]
    }

    /// Returns the counts of packets of both links: first of the link that carries packets from side 0.
    pub fn fates(&self) -> [Fates; 2] {
        self.forwarder.directions().each_ref().map(Direction::fates)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.forwarder.is_over.store(true, Relaxed);
        let _ = rustix::io::write(&self.forwarder.wake, &1u64.to_ne_bytes());
        if let Some(Err(error)) =
            self.thread.take().map(|thread| thread.join().expect("the thread does not panic"))
        {
            eprintln!("the emulated network stopped forwarding packets: {error}");
        }
    }
}

/// The lengths of chains of packets, as [`Network::chain`] defines them.
#[derive(Clone, Copy, Default)]
struct Chains {
    epoch: u64,
    longest: [u64; 2],
}

impl Chains {
    /// Returns the epoch in which a packet is sent, and the length of the longest chain that ends with this packet.
    fn leave(&self, from: usize) -> (u64, u64) {
        (self.epoch, self.longest[from] + 1)
    }

    fn arrive(&mut self, (epoch, length): (u64, u64), to: usize) {
        if epoch == self.epoch {
            self.longest[to] = self.longest[to].max(length);
        }
    }
}

/// A packet in flight.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at_ns: u64,
    order: u64,
    to: usize,
    chain: (u64, u64),
    packet: Vec<u8>,
}

impl Forwarder {
    fn directions(&self) -> MutexGuard<'_, [Direction; 2]> {
        self.directions.lock().expect("no thread panics while it holds this lock")
    }

    fn chains(&self) -> MutexGuard<'_, Chains> {
        self.chains.lock().expect("no thread panics while it holds this lock")
    }

    fn is_cut_off(&self, packet: &[u8]) -> bool {
        let cut_off = self.cut_off.lock().expect("no thread panics while it holds this lock");
        let is_at = |at: usize| {
            packet
                .get(at..at + 4)
                .is_some_and(|bytes| cut_off.iter().any(|address| address.octets() == bytes))
        };
        is_at(SOURCE_AT) || is_at(TARGET_AT)
    }

    fn run(&self) -> io::Result<()> {
        rustix::thread::set_current_timer_slack(Some(SLACK_NS))?;
        // Affects only this thread, despite the function's name. Without permission, the priority stays normal.
        let _ = rustix::process::setpriority_process(None, PRIORITY);
        let begin = Instant::now();
        let now_ns = || begin.elapsed().as_nanos() as u64;
        let mut in_flight: BinaryHeap<Reverse<Arrival>> = BinaryHeap::new();
        let (mut order, mut buffer) = (0, vec![0; PACKET_BYTES_MAX]);
        while !self.is_over.load(Relaxed) {
            let mut has_received = false;
            for from in 0..2 {
                for _ in 0..BATCH {
                    let Some(len) = receive(&self.devices[from], &mut buffer)? else { break };
                    has_received = true;
                    let packet = &mut buffer[..len];
                    if self.is_cut_off(packet) {
                        continue;
                    }
                    let chain = self.chains().leave(from);
                    let arrivals = self.directions()[from].send(now_ns(), packet);
                    for at_ns in arrivals.into_iter().flatten() {
                        order += 1;
                        in_flight.push(Reverse(Arrival {
                            at_ns,
                            order,
                            to: 1 - from,
                            chain,
                            packet: packet.to_vec(),
                        }));
                    }
                }
            }
            while in_flight.peek().is_some_and(|Reverse(arrival)| arrival.at_ns <= now_ns()) {
                let Some(Reverse(arrival)) = in_flight.pop() else { break };
                self.chains().arrive(arrival.chain, arrival.to);
                deliver(&self.devices[arrival.to], &arrival.packet)?;
            }
            if !has_received {
                let next = in_flight.peek().map(|Reverse(arrival)| arrival.at_ns);
                self.sleep(next.map(|at_ns| at_ns.saturating_sub(now_ns())))?;
            }
        }
        Ok(())
    }

    /// Sleeps until a packet arrives, or for `ns`.
    fn sleep(&self, ns: Option<u64>) -> io::Result<()> {
        let timeout = ns.map(|ns| Timespec::try_from(Duration::from_nanos(ns)).expect("the wait is short"));
        let [near, far] = &self.devices;
        let fds: [BorrowedFd<'_>; 3] = [near.as_fd(), far.as_fd(), self.wake.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the next packet that leaves a network, if any.
fn receive(device: &SyncDevice, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match device.recv(buffer) {
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Delivers a packet; the packet is lost if the kernel has no room for it or rejects it.
fn deliver(device: &SyncDevice, packet: &[u8]) -> io::Result<()> {
    match device.send(packet) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::EINVAL | libc::EAGAIN)) => {
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Runs `create` in a new, empty network, and returns that network with the result.
fn in_new_network<R: Send>(create: impl FnOnce() -> io::Result<R> + Send) -> io::Result<(OwnedFd, R)> {
    let enter = || {
        unshare(CloneFlags::CLONE_NEWNET)?;
        let network = File::open("/proc/thread-self/ns/net")?;
        Ok((network.into(), create()?))
    };
    std::thread::scope(|scope| scope.spawn(enter).join().expect("the thread does not panic"))
}

fn create_device(side: usize, mtu: u16) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new()
        .name("wire")
        .mtu(mtu)
        .tx_queue_len(DEVICE_PACKETS)
        .ipv4(Network::address(side), 24, None)
        .build_sync()?;
    device.set_nonblocking(true)?;
    Ok(device)
}
