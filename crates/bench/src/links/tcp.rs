//! One stream of TCP over an emulated link, with the system's congestion control.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use super::meter::Meter;
use super::network::Network;

/// Bytes per write and read.
const PIECE_BYTES: usize = 64 << 10;
/// Port of the first flow; each flow has its own port.
const FIRST_PORT: u16 = 5001;
/// Maximum wait of a blocked end between checks for the end.
const WAIT_MAX: Duration = Duration::from_millis(5);

/// Returns the goodput of each of `flows` streams from side 0 to side 1, in megabits per second, measured after
/// `warm_up`.
pub fn goodput_mbps(
    network: &Network,
    flows: usize,
    warm_up: Duration,
    time: Duration,
) -> io::Result<Vec<f64>> {
    let are_listening = Barrier::new(2 * flows);
    let receiving = AtomicUsize::new(flows);
    let (are_listening, receiving) = (&are_listening, &receiving);
    std::thread::scope(|scope| {
        let receivers: Vec<_> = (0..flows)
            .map(|flow| {
                scope.spawn(move || {
                    network.inside(1, || {
                        let listener = TcpListener::bind((Network::address(1), port(flow)));
                        are_listening.wait();
                        let received = receive(&listener?, warm_up, time);
                        receiving.fetch_sub(1, Relaxed);
                        received
                    })
                })
            })
            .collect();
        let senders: Vec<_> = (0..flows)
            .map(|flow| {
                scope.spawn(move || {
                    network.inside(0, || {
                        are_listening.wait();
                        let to = (Network::address(1), port(flow));
                        send(TcpStream::connect(to)?, || receiving.load(Relaxed) == 0)
                    })
                })
            })
            .collect();
        let sent = senders.into_iter().map(|sender| sender.join().expect("the thread does not panic"));
        sent.collect::<io::Result<()>>()?;
        let received =
            receivers.into_iter().map(|receiver| receiver.join().expect("the thread does not panic"));
        received.collect::<io::Result<Vec<f64>>>()
    })
}

/// Returns the name of the system's congestion control.
pub fn congestion_control() -> String {
    let read = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    read.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

fn port(flow: usize) -> u16 {
    FIRST_PORT + flow as u16
}

fn receive(listener: &TcpListener, warm_up: Duration, time: Duration) -> io::Result<f64> {
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut meter = Meter::new(warm_up, time);
    loop {
        if let Some(mbps) = meter.poll() {
            return Ok(mbps);
        }
        match stream.read(&mut piece) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => meter.bytes += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends until all receivers have finished. The receivers decrement a counter, because final messages could get lost.
fn send(mut stream: TcpStream, is_over: impl Fn() -> bool) -> io::Result<()> {
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let piece = vec![7; PIECE_BYTES];
    while !is_over() {
        match stream.write(&piece) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
