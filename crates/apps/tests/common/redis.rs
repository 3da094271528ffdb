//! Redis clients, and a store on two nodes of this process, one of which serves the clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use halite_apps::kv::redis::{Clock, Server, ServerControl, ServerError};

use super::{MIB, Shards};

/// Time of day at which the clock of a served store begins, in ms.
pub const BEGIN_MS: u64 = 1_700_000_000_000;

/// A served store.
pub struct Served {
    pub shards: Shards,
    pub address: SocketAddr,
    pub control: ServerControl,
    pub serving: JoinHandle<Result<(), ServerError>>,
}

impl Served {
    pub fn new() -> Served {
        Served::with_clients_max(1000)
    }

    /// Serves a store. `change` configures the server.
    pub fn with_server(change: impl FnOnce(Server) -> Server) -> Served {
        let (shards, server) = Served::prepare(1000);
        Served::start(shards, change(server))
    }

    pub fn with_clients_max(clients_max: usize) -> Served {
        let (shards, server) = Served::prepare(clients_max);
        Served::start(shards, server)
    }

    fn start(shards: Shards, server: Server) -> Served {
        let (address, control) = (server.address(), server.control());
        let serving = std::thread::spawn(move || server.run());
        Served { shards, address, control, serving }
    }

    /// Serves a store on nodes with `bytes` of memory each.
    pub fn with_memory(bytes: u64) -> Served {
        let (shards, server) = Served::prepare_with(bytes, 1000);
        Served::start(shards, server)
    }

    /// Returns a server that listens and does not accept connections yet.
    pub fn prepare(clients_max: usize) -> (Shards, Server) {
        Served::prepare_with(64 * MIB, clients_max)
    }

    fn prepare_with(bytes: u64, clients_max: usize) -> (Shards, Server) {
        let mut shards = Shards::new(bytes);
        let (session, store) = shards.open(0);
        // The timeout is long because this machine may be busy.
        let store = store.with_timeout(Duration::from_secs(3600));
        // The serving node reaches the other shard through calls, as it would in another process.
        let here = vec![shards.locals.swap_remove(0)];
        let now_ms = shards.now_ms.clone();
        now_ms.store(BEGIN_MS, Ordering::Relaxed);
        let clock: Clock = Arc::new(move || now_ms.load(Ordering::Relaxed));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(session, listener, store, here, clock, clients_max).unwrap();
        (shards, server)
    }

    pub fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Client(stream)
    }

    pub fn pass_ms(&self, ms: u64) {
        self.shards.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    pub fn end(self) {
        self.control.stop();
        self.serving.join().unwrap().unwrap();
        for (stopper, owner) in self.shards.owners {
            stopper.stop();
            owner.join().unwrap().unwrap();
        }
    }
}

pub struct Client(pub TcpStream);

impl Client {
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// Expects that the next bytes from the server are `expected`.
    #[track_caller]
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let mut bytes = vec![0; expected.as_ref().len()];
        let read = self.0.read_exact(&mut bytes);
        let (replies, expected) =
            (bytes.escape_ascii().to_string(), expected.as_ref().escape_ascii().to_string());
        assert!(read.is_ok() && replies == expected, "{read:?}: {replies} is not {expected}");
    }

    /// Sends a command, and checks the reply.
    #[track_caller]
    pub fn check_args(&mut self, args: &[&[u8]], expected: impl AsRef<[u8]>) {
        self.send(request(args));
        self.expect(expected);
    }

    /// Sends a command whose arguments contain no spaces, and checks the reply.
    #[track_caller]
    pub fn check(&mut self, line: &str, expected: &str) {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.check_args(&args, expected);
    }

    /// Expects that the server has closed the connection.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest.escape_ascii().to_string(), ""),
            // The server closed the connection with unread input.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    pub fn reply(&mut self) -> Value {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        let text = std::str::from_utf8(&line[1..line.len() - 2]).unwrap();
        match line[0] {
            b':' => Value::Number(text.parse().unwrap()),
            b'$' if text == "-1" => Value::Null,
            b'$' => {
                let mut bytes = vec![0; text.parse::<usize>().unwrap() + 2];
                self.0.read_exact(&mut bytes).unwrap();
                bytes.truncate(bytes.len() - 2);
                Value::Bytes(bytes)
            }
            b'*' => Value::List((0..text.parse().unwrap()).map(|_| self.reply()).collect()),
            _ => Value::Line(String::from_utf8_lossy(&line[..line.len() - 2]).into_owned()),
        }
    }

    /// Scans from `cursor`. Returns the next cursor, and the keys that the scan found.
    pub fn scan(&mut self, cursor: &str, rest: &str) -> (String, Vec<Vec<u8>>) {
        self.send(format!("scan {cursor} {rest}\r\n"));
        let Value::List(parts) = self.reply() else { panic!("a scan replies with a list") };
        let [Value::Bytes(cursor), Value::List(keys)] = &parts[..] else { panic!("of two parts: {parts:?}") };
        let bytes = |key: &Value| match key {
            Value::Bytes(bytes) => bytes.clone(),
            other => panic!("{other:?} is no key"),
        };
        (String::from_utf8(cursor.clone()).unwrap(), keys.iter().map(bytes).collect())
    }
}

#[derive(PartialEq, Eq, Debug)]
pub enum Value {
    Line(String),
    Number(i64),
    Bytes(Vec<u8>),
    Null,
    List(Vec<Value>),
}

pub fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(*arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

pub fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}
