//! TCP and UDP sockets over loopback: a stream of messages in one direction, and a ping-pong, by one thread per side.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use super::super::cores::{Cores, pin};
use super::super::measure::thread_cpu;
use crate::threads;

/// Length of the longest UDP datagram that is measured, in bytes.
pub const DATAGRAM_MAX: u64 = 32 << 10;
/// Bytes of datagrams in flight: below the default receive buffer, which also holds the kernel's own data.
const WINDOW_BYTES: u64 = 96 << 10;
/// The kernel's own data of a datagram in a receive buffer.
const DATAGRAM_COST: u64 = 1 << 10;
/// Time after which a lost datagram is an error.
const RECEIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The results for one message size.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub messages_per_s: f64,
    pub half_round_trip_us: f64,
    /// Processor time of both sides per message of the stream, in microseconds.
    pub cpu_us: f64,
    /// Messages with wrong bytes.
    pub errors: u64,
}

/// One end of a connection that carries messages.
trait Channel: Send {
    fn send(&mut self, message: &[u8]) -> io::Result<()>;
    /// Receives a message of exactly this length.
    fn receive(&mut self, message: &mut [u8]) -> io::Result<()>;
    /// Returns the number of messages of `bytes` that may be in flight in one direction.
    fn window(&self, bytes: u64) -> u64;
}

impl Channel for TcpStream {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.write_all(message)
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        self.read_exact(message)
    }

    /// TCP controls its flow itself.
    fn window(&self, _: u64) -> u64 {
        u64::MAX
    }
}

impl Channel for UdpSocket {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        UdpSocket::send(self, message).map(|_| ())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<()> {
        match self.recv(message)? {
            received if received == message.len() => Ok(()),
            received => Err(io::Error::other(format!("a datagram has {received} bytes"))),
        }
    }

    fn window(&self, bytes: u64) -> u64 {
        (WINDOW_BYTES / (bytes + DATAGRAM_COST)).max(1)
    }
}

/// Measures TCP with messages of `bytes`.
pub fn tcp(cores: &Cores, bytes: u64) -> io::Result<Figures> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    measure(cores, bytes, client, server)
}

/// Measures UDP with datagrams of `bytes`.
pub fn udp(cores: &Cores, bytes: u64) -> io::Result<Figures> {
    let open = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (client, server) = (open()?, open()?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(RECEIVE_TIMEOUT))?;
    }
    measure(cores, bytes, client, server)
}

fn measure<C: Channel>(cores: &Cores, bytes: u64, mut client: C, mut server: C) -> io::Result<Figures> {
    let streamed = super::stream_messages(bytes);
    let turns = super::ping_pongs(bytes);
    std::thread::scope(|scope| {
        let server_thread = threads::spawn_in(scope, move || -> io::Result<(Duration, u64)> {
            pin(cores.of_server(0))?;
            let cpu = thread_cpu();
            let errors = receive_stream(&mut server, bytes, streamed)?;
            let cpu = thread_cpu().saturating_sub(cpu);
            let mut message = vec![0; bytes as usize];
            for _ in 0..turns {
                server.receive(&mut message)?;
                server.send(&message)?;
            }
            Ok((cpu, errors))
        })?;
        // If the system refuses this thread, its end of the connection closes, and the other thread ends.
        let client_thread = threads::spawn_in(scope, move || -> io::Result<(Duration, f64, f64, u64)> {
            pin(cores.of_client(0))?;
            let (begin, cpu) = (Instant::now(), thread_cpu());
            send_stream(&mut client, bytes, streamed)?;
            let (took, cpu) = (begin.elapsed(), thread_cpu().saturating_sub(cpu));
            let (message, mut answer) = (pattern(bytes, 0), vec![0; bytes as usize]);
            let (begin, mut errors) = (Instant::now(), 0);
            for _ in 0..turns {
                client.send(&message)?;
                client.receive(&mut answer)?;
                errors += u64::from(answer != message);
            }
            let half_us = begin.elapsed().as_secs_f64() * 1e6 / (2 * turns) as f64;
            Ok((cpu, streamed as f64 / took.as_secs_f64(), half_us, errors))
        })?;
        let (cpu, messages_per_s, half_round_trip_us, wrong) =
            client_thread.join().expect("the thread does not panic")?;
        let (server_cpu, errors) = server_thread.join().expect("the thread does not panic")?;
        let cpu_us = (cpu + server_cpu).as_secs_f64() * 1e6 / streamed as f64;
        Ok(Figures { messages_per_s, half_round_trip_us, cpu_us, errors: errors + wrong })
    })
}

/// Sends messages with stamps; returns when the other side has received all of them.
fn send_stream(channel: &mut impl Channel, bytes: u64, count: u64) -> io::Result<()> {
    let (window, mut message, mut credit) = (channel.window(bytes), pattern(bytes, 0), [0]);
    let mut in_flight = 0;
    for number in 0..count {
        if in_flight == window {
            channel.receive(&mut credit)?;
            in_flight -= credit_messages(window);
        }
        stamp(&mut message, number);
        channel.send(&message)?;
        in_flight += 1;
    }
    // Receives the credits for messages in flight, and the final message.
    let granted = if window == u64::MAX { 0 } else { in_flight / credit_messages(window) };
    (0..=granted).try_for_each(|_| channel.receive(&mut credit))
}

/// Receives messages and compares each with the sent one; returns the number of wrong messages.
fn receive_stream(channel: &mut impl Channel, bytes: u64, count: u64) -> io::Result<u64> {
    let window = channel.window(bytes);
    let (mut message, mut expected, mut errors) = (vec![0; bytes as usize], pattern(bytes, 0), 0);
    for number in 0..count {
        channel.receive(&mut message)?;
        stamp(&mut expected, number);
        errors += u64::from(message != expected);
        if window != u64::MAX && (number + 1).is_multiple_of(credit_messages(window)) {
            channel.send(&[1])?;
        }
    }
    channel.send(&[0])?;
    Ok(errors)
}

/// Returns the number of messages that one credit permits.
fn credit_messages(window: u64) -> u64 {
    (window / 2).max(1)
}

fn pattern(bytes: u64, number: u64) -> Vec<u8> {
    let mut message: Vec<u8> = (0..bytes).map(|index| (index % 251) as u8).collect();
    stamp(&mut message, number);
    message
}

fn stamp(message: &mut [u8], number: u64) {
    let len = message.len().min(8);
    message[..len].copy_from_slice(&number.to_le_bytes()[..len]);
}
