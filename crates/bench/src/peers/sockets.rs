//! The bare network of one machine: sockets over loopback without any library. In the ping-pong, both ends poll.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use super::cores::{CLIENT_CORE, SERVER_CORE, on_core};
use super::laps::Laps;
use super::probe::{ProbeError, Sample};

/// The payload of a ping.
const PING: [u8; 8] = [7; 8];

/// Sends datagrams of 8 bytes back and forth. An operation of the sample is half a round trip.
pub fn udp_ping_pong(iterations: u64) -> Result<Sample, ProbeError> {
    let [ping, pong] = [(); 2].map(|()| socket());
    let (ping, pong) = (ping?, pong?);
    let [to_pong, to_ping] = [&pong, &ping].map(|socket| socket.local_addr().expect("it is bound"));
    let timed = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            on_core(SERVER_CORE, || {
                (0..iterations).try_for_each(|_| {
                    receive(&pong)?;
                    pong.send_to(&PING, to_ping).map(drop)
                })
            })
        });
        let client = scope.spawn(|| {
            on_core(CLIENT_CORE, || {
                let mut timed = Laps::begin(iterations);
                for _ in 0..iterations {
                    ping.send_to(&PING, to_pong)?;
                    receive(&ping)?;
                    timed.lap();
                }
                Ok(timed)
            })
        });
        let served = server.join().expect("the server's loop does not panic")?;
        let timed: io::Result<Laps> = client.join().expect("the client's loop does not panic")?;
        served.and(timed).map_err(exchange_error)
    })?;
    Ok(timed.sample(2))
}

fn socket() -> Result<UdpSocket, ProbeError> {
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(ProbeError::Port)?;
    socket.set_nonblocking(true).map_err(ProbeError::Port)?;
    Ok(socket)
}

fn receive(socket: &UdpSocket) -> io::Result<()> {
    loop {
        match socket.recv_from(&mut [0; 64]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends one stream of TCP, as iperf3 does. Each write and each read has `size` bytes.
pub fn tcp_stream(size: usize, iterations: u64) -> Result<Sample, ProbeError> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(ProbeError::Port)?;
    let address = listener.local_addr().map_err(ProbeError::Port)?;
    let elapsed = std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            on_core(SERVER_CORE, || {
                let (mut stream, _) = listener.accept()?;
                let mut bytes = vec![0; size];
                (0..iterations).try_for_each(|_| stream.read_exact(&mut bytes))?;
                // Reports that the last piece has arrived.
                stream.write_all(&PING)
            })
        });
        let client = scope.spawn(move || {
            on_core(CLIENT_CORE, || {
                let mut stream = TcpStream::connect(address)?;
                let bytes = vec![7; size];
                let begin = Instant::now();
                (0..iterations).try_for_each(|_| stream.write_all(&bytes))?;
                stream.read_exact(&mut [0; 8])?;
                Ok(begin.elapsed().as_secs_f64())
            })
        });
        let served: io::Result<()> = server.join().expect("the server's loop does not panic")?;
        let elapsed: io::Result<f64> = client.join().expect("the client's loop does not panic")?;
        served.and(elapsed).map_err(exchange_error)
    })?;
    Ok(Sample::of_operations(iterations, elapsed))
}

fn exchange_error(source: io::Error) -> ProbeError {
    ProbeError::Conversation { peer: "bare sockets", source: Box::new(source) }
}
