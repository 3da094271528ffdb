//! Serves metrics: `GET /metrics` over HTTP, and nothing else.
//!
//! One thread serves all connections. Clients are untrusted: at most [`CONNECTIONS_MAX`] connections at a time, each
//! for at most [`CONNECTION_LIFETIME_MAX`] and with one request of at most [`REQUEST_BYTES_MAX`]. Further clients wait
//! in the system's accept queue until a connection ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use halite_providers::threads;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::driver::Driver;
use crate::metrics::Metrics;

/// Maximum number of connections at a time.
const CONNECTIONS_MAX: usize = 16;
/// Maximum length of a request, including its headers, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Maximum lifetime of a connection.
const CONNECTION_LIFETIME_MAX: Duration = Duration::from_secs(2);
/// Pause before the next accept after the system ran out of descriptors.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(100);

/// The thread that serves metrics. The thread ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Responder {
    address: SocketAddr,
    end: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// A bound address at which no node serves metrics yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

impl Bound {
    /// Binds the address; with port 0, the system chooses the port.
    pub(crate) fn at(address: SocketAddr) -> io::Result<Bound> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Bound { listener, address })
    }

    /// Starts to serve the metrics of a node.
    pub(crate) fn serve(self, driver: Arc<Driver>) -> io::Result<Responder> {
        self.serve_with(move || Metrics::collect(&driver).to_string())
    }

    fn serve_with(self, text: impl Fn() -> String + Send + 'static) -> io::Result<Responder> {
        let Bound { listener, address } = self;
        let end = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut server = Server { listener, connections: Vec::new(), not_before: None, text };
        let ends = end.clone();
        let run = move || while server.serve_once(&ends) {};
        let thread = threads::spawn("halite-metrics", run)?;
        Ok(Responder { address, end, thread: Some(thread) })
    }
}

impl Responder {
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        // Cannot block: an eventfd that was written to once has room.
        let _ = rustix::io::write(&*self.end, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

struct Server<T> {
    listener: TcpListener,
    connections: Vec<Connection>,
    /// Time before which the thread accepts no connection, after a shortage of resources.
    not_before: Option<Instant>,
    text: T,
}

struct Connection {
    stream: TcpStream,
    deadline: Instant,
    state: ConnectionState,
}

enum ConnectionState {
    Reading(Vec<u8>),
    /// The response, and how many of its bytes are written.
    Writing(Vec<u8>, usize),
    /// The response is written. The thread waits for the client to close first, because closing earlier could discard
    /// the response.
    Closing,
}

impl<T: Fn() -> String> Server<T> {
    /// Waits for an event and handles it. Returns false when the thread must end.
    fn serve_once(&mut self, end: &OwnedFd) -> bool {
        let now = Instant::now();
        let accepts = self.accepts(now);
        let mut wanted = vec![PollFd::new(end, PollFlags::IN)];
        wanted.extend(self.connections.iter().map(|one| PollFd::new(&one.stream, one.wanted())));
        if accepts {
            wanted.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let deadlines = self.connections.iter().map(|one| one.deadline).chain(self.not_before);
        let timeout = deadlines.min().map(|deadline| deadline.saturating_duration_since(now));
        let timeout = timeout.map(|left| Timespec::try_from(left).expect("seconds are valid"));
        match poll(&mut wanted, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // The poll lacked memory; only a retry can help.
            Err(_) => std::thread::sleep(SHORTAGE_PAUSE),
        }
        let is_ended = !wanted[0].revents().is_empty();
        let ready: Vec<bool> = wanted[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(wanted);
        self.serve(&ready);
        if accepts && ready.last() == Some(&true) {
            self.accept();
        }
        !is_ended
    }

    fn accepts(&mut self, now: Instant) -> bool {
        self.not_before = self.not_before.filter(|until| *until > now);
        self.connections.len() < CONNECTIONS_MAX && self.not_before.is_none()
    }

    fn serve(&mut self, ready: &[bool]) {
        let now = Instant::now();
        let mut ready = ready.iter();
        let text = &self.text;
        self.connections.retain_mut(|one| {
            let is_ready = ready.next() == Some(&true);
            one.deadline > now && (!is_ready || one.advance(text).is_ok())
        });
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) if stream.set_nonblocking(true).is_ok() => {
                let (deadline, state) =
                    (Instant::now() + CONNECTION_LIFETIME_MAX, ConnectionState::Reading(Vec::new()));
                self.connections.push(Connection { stream, deadline, state });
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.not_before = Some(Instant::now() + SHORTAGE_PAUSE),
        }
    }
}

/// The error of a connection that has ended.
struct Ended;

impl Connection {
    fn wanted(&self) -> PollFlags {
        match self.state {
            ConnectionState::Reading(_) | ConnectionState::Closing => PollFlags::IN,
            ConnectionState::Writing(..) => PollFlags::OUT,
        }
    }

    fn advance(&mut self, text: &impl Fn() -> String) -> Result<(), Ended> {
        let mut buffer = [0; 1024];
        match &mut self.state {
            ConnectionState::Reading(request) => {
                let Some(len) = unless_blocked(self.stream.read(&mut buffer))? else { return Ok(()) };
                if len == 0 {
                    return Err(Ended);
                }
                request.extend_from_slice(&buffer[..len]);
                if let Some(answer) = answer(request, text) {
                    self.state = ConnectionState::Writing(answer.into_bytes(), 0);
                }
                Ok(())
            }
            ConnectionState::Writing(bytes, done) => {
                let Some(len) = unless_blocked(self.stream.write(&bytes[*done..]))? else { return Ok(()) };
                *done += len;
                if *done == bytes.len() {
                    self.stream.shutdown(Shutdown::Write).map_err(|_| Ended)?;
                    self.state = ConnectionState::Closing;
                }
                Ok(())
            }
            ConnectionState::Closing => match unless_blocked(self.stream.read(&mut buffer))? {
                Some(0) => Err(Ended),
                _ => Ok(()),
            },
        }
    }
}

/// Returns the number of bytes; `None` if the call would have blocked.
fn unless_blocked(done: io::Result<usize>) -> Result<Option<usize>, Ended> {
    match done {
        Ok(len) => Ok(Some(len)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(_) => Err(Ended),
    }
}

/// Returns the response to a request; `None` while the request is incomplete.
fn answer(request: &[u8], text: impl Fn() -> String) -> Option<String> {
    let end = request.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end.filter(|end| end + 4 <= REQUEST_BYTES_MAX) else {
        let is_too_long = request.len() > REQUEST_BYTES_MAX;
        return is_too_long.then(|| refusal("431 Request Header Fields Too Large", ""));
    };
    let line = request[..end].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = std::str::from_utf8(line).unwrap_or_default();
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else { return Some(refusal("400 Bad Request", "")) };
    if method.is_empty() || !version.starts_with("HTTP/1.") {
        return Some(refusal("400 Bad Request", ""));
    }
    let path = target.split('?').next().unwrap_or_default();
    Some(match (path, method) {
        ("/metrics", "GET") => reply("200 OK", "text/plain; version=0.0.4; charset=utf-8", "", &text()),
        ("/metrics", _) => refusal("405 Method Not Allowed", "Allow: GET\r\n"),
        _ => refusal("404 Not Found", ""),
    })
}

fn refusal(status: &str, header: &str) -> String {
    reply(status, "text/plain; charset=utf-8", header, &format!("{status}; metrics are at /metrics\n"))
}

fn reply(status: &str, kind: &str, header: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\n{header}Connection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Responder {
        let bound = Bound::at("127.0.0.1:0".parse().unwrap()).unwrap();
        bound.serve_with(|| "salt 1\n".to_owned()).unwrap()
    }

    fn connected(to: &Responder) -> TcpStream {
        let stream = TcpStream::connect(to.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Returns the complete response to `request`.
    fn exchange(to: &Responder, request: &[u8]) -> String {
        let mut stream = connected(to);
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn status(text: &str) -> &str {
        text.split(' ').nth(1).unwrap_or_default()
    }

    #[test]
    fn scrapes_may_come_in_pieces_but_are_bounded() {
        let responder = served();
        let mut stream = connected(&responder);
        for piece in ["GET /met", "rics HTTP/1.1\r", "\n\r", "\n"] {
            stream.write_all(piece.as_bytes()).unwrap();
        }
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert_eq!(status(&text), "200");
        let mut long = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        long.resize(REQUEST_BYTES_MAX + 1, b'x');
        assert_eq!(status(&exchange(&responder, &long)), "431");
    }

    #[test]
    fn silent_scrapers_do_not_block_others() {
        let responder = served();
        let silent: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| connected(&responder)).collect();
        // They use up all connections; this request is served once one of them times out.
        assert_eq!(status(&exchange(&responder, b"GET /metrics HTTP/1.1\r\n\r\n")), "200");
        let is_over = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!((&*stream).read(&mut [0; 16]), Ok(0))
        };
        assert!(silent.iter().any(is_over));
        for stream in silent {
            stream.set_nonblocking(false).unwrap();
            assert_eq!(
                (&stream).read(&mut [0; 16]).unwrap(),
                0,
                "the connection ends after its maximum lifetime"
            );
        }
    }
}
