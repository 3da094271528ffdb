//! Redis, a usual way to share data between processes: `redis-server` behind a Unix socket, and a blocking client.
//!
//! The client supports only four commands. Their replies are constant, except for the ids in replies to `XADD`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::child::query;
use super::cores::{CLIENT_CORE, on_core};
use super::laps::Laps;
use super::probe::{ProbeError, Sample};
use super::socket::SocketServer;

/// Program of the server.
pub const PROGRAM: &str = "redis-server";
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// A command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Replies at once, without access to data.
    Ping,
    /// Reads a value of 8 bytes.
    Get,
    /// Writes a value of 8 bytes.
    Set,
    /// Appends a record of 16 bytes to a stream. The reply is the record's id.
    Append,
}

impl Command {
    /// Returns the command's name in Redis.
    pub fn name(self) -> &'static str {
        match self {
            Command::Ping => "PING",
            Command::Get => "GET",
            Command::Set => "SET",
            Command::Append => "XADD",
        }
    }

    fn request(self) -> &'static [u8] {
        match self {
            Command::Ping => b"*1\r\n$4\r\nPING\r\n",
            Command::Get => b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n",
            Command::Append => {
                b"*5\r\n$4\r\nXADD\r\n$6\r\nstream\r\n$1\r\n*\r\n$1\r\nr\r\n$16\r\nsixteen octets !\r\n"
            }
            Command::Set => b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$8\r\n8 octets\r\n",
        }
    }

    fn reply(self) -> &'static [u8] {
        match self {
            Command::Ping => b"+PONG\r\n",
            Command::Get => b"$8\r\n8 octets\r\n",
            Command::Set => b"+OK\r\n",
            // An id follows, which differs each time.
            Command::Append => b"$",
        }
    }
}

/// Returns the server's version, such as `7.0.15`.
pub fn version() -> Option<String> {
    let text = query(Path::new(PROGRAM), "--version")?;
    text.split_whitespace().find_map(|word| word.strip_prefix("v=")).map(str::to_owned)
}

/// Sends at least `iterations` commands in batches of `window`, and reads the replies of each batch.
pub fn run(command: Command, window: u64, iterations: u64) -> Result<Sample, ProbeError> {
    let server = SocketServer::start(Path::new(PROGRAM), arguments)?;
    let measured = on_core(CLIENT_CORE, || {
        let mut stream = UnixStream::connect(server.path())?;
        // Without a timeout, a reply that is too short would block the client for ever.
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        // A value must exist for GET.
        Batch::new(Command::Set, 1).exchange(&mut stream)?;
        exchange_repeatedly(Batch::new(command, window), &mut stream, iterations.div_ceil(window))
    })?;
    let laps =
        measured.map_err(|source| ProbeError::Conversation { peer: "Redis", source: source.into() })?;
    Ok(laps.sample(window))
}

/// Returns the arguments of a server that listens only on `socket` and writes nothing to disk.
fn arguments(socket: &Path) -> Vec<String> {
    let socket = socket.display().to_string();
    ["--port", "0", "--unixsocket", &socket, "--save", "", "--appendonly", "no", "--loglevel", "warning"]
        .map(str::to_owned)
        .to_vec()
}

fn exchange_repeatedly(mut batch: Batch, stream: &mut UnixStream, count: u64) -> io::Result<Laps> {
    let mut laps = Laps::begin(count);
    for _ in 0..count {
        batch.exchange(stream)?;
        laps.lap();
    }
    Ok(laps)
}

/// A batch of commands, encoded in advance, so that the timed part is only the exchange with the server.
struct Batch {
    command: Command,
    requests: Vec<u8>,
    expected: Vec<u8>,
    replies: Vec<u8>,
}

impl Batch {
    fn new(command: Command, window: u64) -> Batch {
        let expected = command.reply().repeat(window as usize);
        let replies = vec![0; expected.len()];
        Batch { command, requests: command.request().repeat(window as usize), expected, replies }
    }

    fn exchange(&mut self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        stream.write_all(&self.requests)?;
        if self.command == Command::Append {
            return self.read_ids(stream);
        }
        stream.read_exact(&mut self.replies)?;
        if self.replies != self.expected {
            let reply = String::from_utf8_lossy(&self.replies);
            return Err(io::Error::other(format!("unexpected reply: {reply:?}")));
        }
        Ok(())
    }

    /// Reads replies of two lines each: a length and an id.
    fn read_ids(&mut self, stream: &mut impl Read) -> io::Result<()> {
        let (mut lines, mut bytes) = (0, [0; 4096]);
        while lines < 2 * self.expected.len() {
            let count = stream.read(&mut bytes)?;
            let is_error = bytes[..count].contains(&b'E');
            if count == 0 || is_error {
                let reply = String::from_utf8_lossy(&bytes[..count]);
                return Err(io::Error::other(format!("unexpected reply: {reply:?}")));
            }
            lines += bytes[..count].iter().filter(|byte| **byte == b'\n').count();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exchanges a batch of two commands with a server that has already sent `replies`.
    fn exchange(command: Command, replies: &[u8]) -> (io::Result<()>, Vec<u8>) {
        let (mut ours, mut theirs) = UnixStream::pair().expect("a socket pair is created");
        theirs.write_all(replies).expect("the socket has room for the replies");
        let result = Batch::new(command, 2).exchange(&mut ours);
        drop(ours);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).expect("the other side is closed");
        (result, sent)
    }

    #[test]
    fn a_batch_is_sent_before_any_reply_is_read() {
        let (result, sent) = exchange(Command::Ping, b"+PONG\r\n+PONG\r\n");
        result.expect("the replies are valid");
        assert_eq!(sent, b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn an_unexpected_reply_is_in_the_error() {
        let (result, _) = exchange(Command::Set, b"+OK\r\n-NO\r\n");
        let error = result.unwrap_err().to_string();
        assert!(error.contains("-NO"), "{error}");
    }
}
