//! Measures a call over UDP without a driver: a ping-pong of RoCE packets, compared with plain UDP of 8 bytes.
//!
//! ```text
//! cargo run --release -p halite-rnic --example roce_ping [ROUNDS]
//! ```
//!
//! Two threads on cores 0 and 1 exchange writes of 64 bytes with immediate over unconnected sockets; checksums are computed and
//! verified, and payloads copied out.  The ways to acknowledge alternate, each with spinning and with sleeping in epoll; a figure
//! is the median of a round's calls, and a ratio compares two figures of one round.

use std::io::{ErrorKind, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::time::Instant;

use halite_rnic::wire::{AethRepr, Credit, Flow, Headers, Packet, Psn, Qpn, RethRepr, Syndrome};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_setaffinity};

/// How a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acknowledged {
    /// Not at all: plain UDP of 8 bytes.
    BareUdp,
    /// Plain UDP through the library that supports trains.
    BareByLibrary,
    /// By a packet behind the next write, in the same train.
    InTheTrain,
    /// As `InTheTrain`, for every sixteenth write.
    Sixteenth,
    /// As `Sixteenth`, with single packets sent by plain `sendto`.
    SixteenthPlain,
    /// By a separate packet, before the next write.
    Apart,
}

const WAYS: [Acknowledged; 6] = [
    Acknowledged::BareUdp,
    Acknowledged::BareByLibrary,
    Acknowledged::InTheTrain,
    Acknowledged::Sixteenth,
    Acknowledged::SixteenthPlain,
    Acknowledged::Apart,
];

struct End {
    socket: UdpSocket,
    state: UdpSocketState,
    epoll: std::os::fd::OwnedFd,
    peer: SocketAddr,
    outwards: Flow,
    inwards: Flow,
    way: Acknowledged,
    sleeps: bool,
    sent: u32,
    received: u32,
    buffer: Vec<u8>,
    landed: [u8; 64],
}

impl End {
    fn pair(way: Acknowledged, sleeps: bool) -> [End; 2] {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a socket"));
        let [a, b] = [0, 1].map(|index| sockets[index].local_addr().expect("bound"));
        let mut ends = sockets.into_iter().zip([(a, b), (b, a)]).map(|(socket, (own, peer))| {
            let state = UdpSocketState::new((&socket).into()).expect("options of the socket");
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
            let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), edges).expect("watched");
            // Plain UDP sleeps in the receive call itself, as is usual.
            socket.set_nonblocking(!(sleeps && way == Acknowledged::BareUdp)).expect("set");
            End {
                socket,
                state,
                epoll,
                peer,
                outwards: Flow::new(own, peer),
                inwards: Flow::new(peer, own),
                way,
                sleeps,
                sent: 0,
                received: 0,
                buffer: vec![0; 1 << 16],
                landed: [0; 64],
            }
        });
        [ends.next().expect("two"), ends.next().expect("two")]
    }

    fn write_packet(&mut self, buffer: &mut [u8]) -> usize {
        let reth = RethRepr { address: 4096, rkey: 7, len: 64 };
        let packet = Packet {
            dest_qp: Qpn::new(17),
            psn: Psn::new(self.sent),
            ack_request: false,
            solicited: true,
            headers: Headers::WriteOnly { reth, imm: Some(self.sent) },
            payload: &[self.sent as u8; 64],
        };
        self.sent += 1;
        let len = packet.emit(buffer);
        self.outwards.seal(0, &mut buffer[..len]);
        len
    }

    fn ack_packet(&self, place: u8, buffer: &mut [u8]) -> usize {
        let aeth = AethRepr { syndrome: Syndrome::Ack(Credit::at_most(24)), msn: self.received };
        let packet = Packet {
            dest_qp: Qpn::new(17),
            psn: Psn::new(self.received - 1),
            ack_request: false,
            solicited: false,
            headers: Headers::Acknowledge(aeth),
            payload: &[],
        };
        let len = packet.emit(buffer);
        self.outwards.seal(place, &mut buffer[..len]);
        len
    }

    fn transmit(&self, contents: &[u8], segment_size: Option<usize>) {
        if self.way == Acknowledged::SixteenthPlain && segment_size.is_none() {
            self.socket.send_to(contents, self.peer).expect("sent");
            return;
        }
        let transmit = Transmit { destination: self.peer, ecn: None, contents, segment_size, src_ip: None };
        self.state.try_send((&self.socket).into(), &transmit).expect("sent");
    }

    fn send(&mut self) {
        if self.way == Acknowledged::BareUdp {
            assert_eq!(self.socket.send_to(&[1; 8], self.peer).expect("sent"), 8);
            return;
        }
        if self.way == Acknowledged::BareByLibrary {
            return self.transmit(&[1; 8], None);
        }
        let mut train = [0; 256];
        let first = self.write_packet(&mut train);
        let due = match self.way {
            Acknowledged::InTheTrain => self.received > 0,
            Acknowledged::Sixteenth | Acknowledged::SixteenthPlain => self.received % 16 == 15,
            _ => false,
        };
        if due {
            let second = self.ack_packet(1, &mut train[first..]);
            self.transmit(&train[..first + second], Some(first));
        } else {
            self.transmit(&train[..first], None);
        }
    }

    fn receive(&mut self) {
        if self.way == Acknowledged::BareUdp {
            let mut bytes = [0; 64];
            loop {
                match self.socket.recv_from(&mut bytes) {
                    Ok((len, _)) => return assert_eq!(len, 8),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
                }
            }
        }
        while !self.drain() {
            if self.sleeps {
                let mut events =
                    [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
                epoll::wait(&self.epoll, &mut events, None).expect("slept");
            }
        }
    }

    /// Receives until a write arrives or the socket is empty; returns true if one arrived.
    fn drain(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut arrived = false;
        while !arrived {
            let mut meta = [RecvMeta::default()];
            let target = &mut [IoSliceMut::new(&mut buffer)];
            match self.state.recv((&self.socket).into(), target, &mut meta) {
                Ok(_) => {
                    for packet in buffer[..meta[0].len].chunks(meta[0].stride) {
                        arrived |= self.take(packet);
                    }
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        self.buffer = buffer;
        arrived
    }

    fn take(&mut self, packet: &[u8]) -> bool {
        if self.way == Acknowledged::BareByLibrary {
            return true;
        }
        let packet = Packet::parse(self.inwards.open(packet).expect("right")).expect("well-formed");
        match packet.headers {
            Headers::WriteOnly { .. } => {
                assert_eq!(packet.psn, Psn::new(self.received));
                self.landed.copy_from_slice(packet.payload);
                self.received += 1;
                if self.way == Acknowledged::Apart {
                    let mut ack = [0; 64];
                    let len = self.ack_packet(0, &mut ack);
                    self.transmit(&ack[..len], None);
                }
                true
            }
            Headers::Acknowledge(aeth) => {
                assert!(aeth.msn <= self.sent);
                false
            }
            _ => panic!("unexpected packet {packet:?}"),
        }
    }
}

fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    sched_setaffinity(None, &cores).expect("two cores");
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |rounds| rounds.parse().expect("a number of rounds"));
    for (sleeps, calls) in [(false, 5000), (true, 1500)] {
        let (mut clients, mut servers): (Vec<End>, Vec<End>) =
            WAYS.iter().map(|way| End::pair(*way, sleeps)).map(|[client, server]| (client, server)).unzip();
        let server = std::thread::spawn(move || {
            pin(1);
            for _ in 0..rounds {
                for end in &mut servers {
                    for _ in 0..calls {
                        end.receive();
                        end.send();
                    }
                }
            }
        });
        pin(0);
        let mut medians = vec![Vec::new(); WAYS.len()];
        for _ in 0..rounds {
            for (end, medians) in clients.iter_mut().zip(&mut medians) {
                let mut times: Vec<f64> = (0..calls)
                    .map(|_| {
                        let begin = Instant::now();
                        end.send();
                        end.receive();
                        begin.elapsed().as_nanos() as f64 / 1000.0
                    })
                    .collect();
                medians.push(median(&mut times));
            }
        }
        server.join().expect("the other end");
        report(sleeps, &medians);
    }
}

fn report(sleeps: bool, medians: &[Vec<f64>]) {
    println!("{}", if sleeps { "asleep in between" } else { "spinning" });
    for (way, of_way) in WAYS.iter().zip(medians) {
        let mut ratios: Vec<f64> = of_way.iter().zip(&medians[0]).map(|(own, bare)| own / bare).collect();
        let middle = median(&mut of_way.clone());
        let ratio = median(&mut ratios);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        println!("  {:<14} {middle:7.2} us   {ratio:.2} ({low:.2} to {high:.2})", format!("{way:?}"));
    }
}
