//! One stream of TCP over an emulated link, with what the system chooses to control its congestion.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::network::Network;

/// Written and read in pieces of this size.
const PIECE_BYTES: usize = 64 << 10;
/// Each flow has a port of its own.
const FIRST_PORT: u16 = 5001;
/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// What arrives of each of so many streams from side 0 to side 1, in megabits a second, once they have run for `warm_up`.
pub fn goodput_mbps(
    network: &Network,
    flows: usize,
    warm_up: Duration,
    time: Duration,
) -> io::Result<Vec<f64>> {
    let are_listening = Barrier::new(2 * flows);
    let are_listening = &are_listening;
    let received = std::thread::scope(|scope| {
        let receivers: Vec<_> = (0..flows)
            .map(|flow| {
                scope.spawn(move || {
                    network.inside(1, || {
                        let listener = TcpListener::bind((Network::address(1), port(flow)));
                        are_listening.wait();
                        receive(&listener?, warm_up, time)
                    })
                })
            })
            .collect();
        let senders: Vec<_> = (0..flows)
            .map(|flow| {
                scope.spawn(move || {
                    network.inside(0, || {
                        are_listening.wait();
                        send(TcpStream::connect((Network::address(1), port(flow)))?)
                    })
                })
            })
            .collect();
        let sent = senders.into_iter().map(|sender| sender.join().expect("it does not panic"));
        sent.collect::<io::Result<()>>()?;
        let received = receivers.into_iter().map(|receiver| receiver.join().expect("it does not panic"));
        received.collect::<io::Result<Vec<f64>>>()
    })?;
    Ok(received)
}

/// Which way of controlling congestion the system gives to a stream.
pub fn congestion_control() -> String {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    read.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

fn port(flow: usize) -> u16 {
    FIRST_PORT + flow as u16
}

fn receive(listener: &TcpListener, warm_up: Duration, time: Duration) -> io::Result<f64> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let begin = Instant::now();
    let mut piece = vec![0; PIECE_BYTES];
    let (mut bytes, mut from) = (0, None);
    loop {
        let now = Instant::now();
        match from {
            None if now - begin >= warm_up => (from, bytes) = (Some(now), 0),
            Some(from) if now - from >= time => {
                return Ok(bytes as f64 * 8.0 / 1e6 / (now - from).as_secs_f64());
            }
            _ => {}
        }
        match stream.read(&mut piece)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            len => bytes += len,
        }
    }
}

/// Until the receiver has enough.
fn send(mut stream: TcpStream) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let piece = vec![7; PIECE_BYTES];
    loop {
        match stream.write_all(&piece) {
            Ok(()) => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}
