//! Stories of clients of Redis, over sockets, and a store of two nodes of this process, of which one serves.

mod common;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use common::{MIB, Shards};
use halite_apps::kv::redis::{Clock, Server, ServerError, ServerStopper};
use halite_apps::kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// A served store.
struct Served {
    shards: Shards,
    address: SocketAddr,
    stopper: ServerStopper,
    serving: JoinHandle<Result<(), ServerError>>,
}

impl Served {
    fn new() -> Served {
        Served::with(1000)
    }

    fn with(clients_max: usize) -> Served {
        let mut shards = Shards::new(64 * MIB);
        let (session, store) = shards.open(0);
        // Nobody is given up because this machine is busy.
        let store = store.with_timeout(Duration::from_secs(3600));
        // The other shard is not at hand for the one that serves, as it would not be in another process.
        let here = vec![shards.locals.swap_remove(0)];
        let now_ms = shards.now_ms.clone();
        let clock: Clock = Arc::new(move || now_ms.load(Ordering::Relaxed));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::new(session, listener, store, here, clock, clients_max).unwrap();
        let (address, stopper) = (server.address(), server.stopper());
        let serving = std::thread::spawn(move || server.run());
        Served { shards, address, stopper, serving }
    }

    fn client(&self) -> Client {
        Client(TcpStream::connect(self.address).unwrap())
    }

    fn pass_ms(&self, ms: u64) {
        self.shards.now_ms.fetch_add(ms, Ordering::Relaxed);
    }

    fn end(self) {
        self.stopper.stop();
        self.serving.join().unwrap().unwrap();
        for (stopper, owner) in self.shards.owners {
            stopper.stop();
            owner.join().unwrap().unwrap();
        }
    }
}

struct Client(TcpStream);

impl Client {
    fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).unwrap();
    }

    /// The next so many bytes are these.
    #[track_caller]
    fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let mut bytes = vec![0; expected.as_ref().len()];
        let read = self.0.read_exact(&mut bytes);
        let (told, expected) =
            (bytes.escape_ascii().to_string(), expected.as_ref().escape_ascii().to_string());
        assert!(read.is_ok() && told == expected, "{read:?}: {told} is not {expected}");
    }

    #[track_caller]
    fn ask(&mut self, args: &[&[u8]], expected: impl AsRef<[u8]>) {
        self.send(request(args));
        self.expect(expected);
    }

    /// As `ask`, with arguments that have no spaces.
    #[track_caller]
    fn say(&mut self, line: &str, expected: &str) {
        let args: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&args, expected);
    }

    /// The server has closed the connection.
    #[track_caller]
    fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(rest.escape_ascii().to_string(), ""),
            // It had not read all that was sent.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }

    fn reply(&mut self) -> Value {
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

    /// Keys that a scan from `cursor` on finds, and where to go on.
    fn scan(&mut self, cursor: &str, rest: &str) -> (String, Vec<Vec<u8>>) {
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
enum Value {
    Line(String),
    Number(i64),
    Bytes(Vec<u8>),
    Null,
    List(Vec<Value>),
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(*arg);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";

/// What a client says, and what Redis replies, one behind the other.
const REPLIES: &[(&str, &str)] = &[
    ("ping", "+PONG\r\n"),
    ("PiNg hello", "$5\r\nhello\r\n"),
    ("ping a b", "-ERR wrong number of arguments for 'ping' command\r\n"),
    ("echo hello", "$5\r\nhello\r\n"),
    ("echo", "-ERR wrong number of arguments for 'echo' command\r\n"),
    ("nonsense", "-ERR unknown command 'nonsense', with args beginning with: \r\n"),
    ("nonsense a b", "-ERR unknown command 'nonsense', with args beginning with: 'a' 'b' \r\n"),
    ("get", "-ERR wrong number of arguments for 'get' command\r\n"),
    ("GET a b", "-ERR wrong number of arguments for 'get' command\r\n"),
    // Values.
    ("get a", "$-1\r\n"),
    ("set a 1", "+OK\r\n"),
    ("get a", "$1\r\n1\r\n"),
    ("set a 2 nx", "$-1\r\n"),
    ("set b 2 xx", "$-1\r\n"),
    ("set a 3 XX GET", "$1\r\n1\r\n"),
    ("set b 3 nx get", "$-1\r\n"),
    ("set b 4 nx get", "$1\r\n3\r\n"),
    ("mget a none b", "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n3\r\n"),
    ("set a 1 nx xx", SYNTAX),
    ("set a 1 ex", SYNTAX),
    ("set a 1 ex 10 px 10", SYNTAX),
    ("set a 1 keepttl ex 5", SYNTAX),
    ("set a 1 else", SYNTAX),
    ("set a 1 ex ten", NOT_AN_INTEGER),
    ("set a 1 ex 0", "-ERR invalid expire time in 'set' command\r\n"),
    ("set a 1 px -1", "-ERR invalid expire time in 'set' command\r\n"),
    ("set a 1 exat 0", "-ERR invalid expire time in 'set' command\r\n"),
    ("set a 1 ex 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
    ("set a 1 px 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
    ("setex a 0 1", "-ERR invalid expire time in 'setex' command\r\n"),
    ("setex a ten 1", NOT_AN_INTEGER),
    ("psetex a -1 1", "-ERR invalid expire time in 'psetex' command\r\n"),
    ("setnx a 1", ":0\r\n"),
    ("setnx c 1", ":1\r\n"),
    ("getset c 2", "$1\r\n1\r\n"),
    ("getset d 2", "$-1\r\n"),
    ("set gone 1", "+OK\r\n"),
    ("getdel gone", "$1\r\n1\r\n"),
    ("getdel gone", "$-1\r\n"),
    ("set kept 1", "+OK\r\n"),
    ("getex kept", "$1\r\n1\r\n"),
    ("ttl kept", ":-1\r\n"),
    ("getex kept ex 100", "$1\r\n1\r\n"),
    ("ttl kept", ":100\r\n"),
    ("getex kept persist", "$1\r\n1\r\n"),
    ("ttl kept", ":-1\r\n"),
    ("getex kept ex 0", "-ERR invalid expire time in 'getex' command\r\n"),
    ("getex kept ex x", "-ERR value is not an integer or out of range\r\n"),
    ("getex kept nx", "-ERR syntax error\r\n"),
    ("getex kept persist 1", "-ERR syntax error\r\n"),
    ("getex none px 5", "$-1\r\n"),
    ("del kept", ":1\r\n"),
    ("strlen a", ":1\r\n"),
    ("strlen none", ":0\r\n"),
    ("append a bcd", ":4\r\n"),
    ("append e xy", ":2\r\n"),
    ("get a", "$4\r\n3bcd\r\n"),
    ("type a", "+string\r\n"),
    ("type none", "+none\r\n"),
    ("exists a", ":1\r\n"),
    ("exists none", ":0\r\n"),
    ("exists a a none b", ":3\r\n"),
    ("touch a b none", ":2\r\n"),
    ("del a", ":1\r\n"),
    ("del a", ":0\r\n"),
    ("unlink b c none d d e", ":4\r\n"),
    ("mset a 1 b 2 c 3", "+OK\r\n"),
    ("mget a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("mset a 1 b", "-ERR wrong number of arguments for 'mset' command\r\n"),
    ("dbsize", ":3\r\n"),
    // Numbers.
    ("incr a", ":2\r\n"),
    ("incr n", ":1\r\n"),
    ("incrby n 41", ":42\r\n"),
    ("decr n", ":41\r\n"),
    ("decrby n 50", ":-9\r\n"),
    ("incrby n ten", NOT_AN_INTEGER),
    ("incrby n +1", NOT_AN_INTEGER),
    ("set n ten", "+OK\r\n"),
    ("incr n", NOT_AN_INTEGER),
    ("set n 9223372036854775807", "+OK\r\n"),
    ("incr n", "-ERR increment or decrement would overflow\r\n"),
    ("get n", "$19\r\n9223372036854775807\r\n"),
    ("incrby n -9223372036854775808", ":-1\r\n"),
    ("decrby n -9223372036854775808", "-ERR decrement would overflow\r\n"),
    // Times.
    ("ttl n", ":-1\r\n"),
    ("pttl none", ":-2\r\n"),
    ("expire n 100", ":1\r\n"),
    ("ttl n", ":100\r\n"),
    ("expire none 100", ":0\r\n"),
    ("expire n 200 nx", ":0\r\n"),
    ("expire n 50 gt", ":0\r\n"),
    ("expire n 200 xx gt", ":1\r\n"),
    ("expire n 300 lt", ":0\r\n"),
    ("ttl n", ":200\r\n"),
    ("set n 1 keepttl", "+OK\r\n"),
    ("ttl n", ":200\r\n"),
    ("incr n", ":2\r\n"),
    ("append n 0", ":2\r\n"),
    ("ttl n", ":200\r\n"),
    ("persist n", ":1\r\n"),
    ("persist n", ":0\r\n"),
    ("persist none", ":0\r\n"),
    ("ttl n", ":-1\r\n"),
    ("expire n 300 xx lt", ":0\r\n"),
    ("expire n 300 gt", ":0\r\n"),
    ("expire n 300 lt", ":1\r\n"),
    ("expire n ten", NOT_AN_INTEGER),
    ("expire n 10 else", "-ERR Unsupported option else\r\n"),
    ("expire n 10 nx gt", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("expire n 10 gt lt", "-ERR GT and LT options at the same time are not compatible\r\n"),
    ("expire n 9223372036854775", "-ERR invalid expire time in 'expire' command\r\n"),
    ("expire n -9223372036854775808", "-ERR invalid expire time in 'expire' command\r\n"),
    ("pexpire n 9223372036854775807", "-ERR invalid expire time in 'pexpire' command\r\n"),
    ("expire n -1", ":1\r\n"),
    ("get n", "$-1\r\n"),
    ("set n 1 exat 1", "+OK\r\n"),
    ("get n", "$-1\r\n"),
    ("set n 1 ex 100", "+OK\r\n"),
    ("ttl n", ":100\r\n"),
    ("set n 2", "+OK\r\n"),
    ("ttl n", ":-1\r\n"),
    ("expireat n 1", ":1\r\n"),
    ("exists n", ":0\r\n"),
];

/// What does not touch keys.
const ABOUT: &[(&str, &str)] = &[
    ("scan x", "-ERR invalid cursor\r\n"),
    ("scan 0 count 0", SYNTAX),
    ("scan 0 count x", NOT_AN_INTEGER),
    ("scan 0 match", SYNTAX),
    ("scan 0 type list", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("flushall soon", SYNTAX),
    ("flushdb async", "+OK\r\n"),
    ("flushall", "+OK\r\n"),
    ("keys *", "*0\r\n"),
    ("dbsize", ":0\r\n"),
    ("select 0", "+OK\r\n"),
    ("select 99", "-ERR DB index is out of range\r\n"),
    ("select x", NOT_AN_INTEGER),
    ("hello 4", "-NOPROTO unsupported protocol version\r\n"),
    ("hello x", "-ERR Protocol version is not an integer or out of range\r\n"),
    ("hello 3 else", "-ERR Syntax error in HELLO option 'else'\r\n"),
    ("hello 2 auth somebody x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    ("auth somebody x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    ("auth default x", "+OK\r\n"),
    (
        "auth x",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?\r\n",
    ),
    ("client getname", "$-1\r\n"),
    ("client setname me", "+OK\r\n"),
    ("client getname", "$2\r\nme\r\n"),
    ("client setname \u{e9}", "-ERR Client names cannot contain spaces, newlines or special characters.\r\n"),
    ("client no-evict on", "+OK\r\n"),
    ("client no-evict maybe", SYNTAX),
    ("client reply on", "+OK\r\n"),
    ("client id id", "-ERR wrong number of arguments for 'client|id' command\r\n"),
    ("client else", "-ERR unknown subcommand 'else'. Try CLIENT HELP.\r\n"),
    ("client", "-ERR wrong number of arguments for 'client' command\r\n"),
    ("config get save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
    ("config get APPENDONL?", "*2\r\n$10\r\nappendonly\r\n$2\r\nno\r\n"),
    ("config get", "-ERR wrong number of arguments for 'config|get' command\r\n"),
    ("config set else 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'else'\r\n"),
    ("config resetstat", "+OK\r\n"),
    ("config else", "-ERR unknown subcommand 'else'. Try CONFIG HELP.\r\n"),
    ("command else", "-ERR unknown subcommand 'else'. Try COMMAND HELP.\r\n"),
    ("reset", "+RESET\r\n"),
    ("quit", "+OK\r\n"),
];

/// Says all that, to the end of the connection.
fn converse(mut client: Client) {
    for (line, expected) in REPLIES.iter().chain(ABOUT) {
        client.say(line, expected);
    }
    client.expect_end();
}

#[test]
fn replies_are_as_they_are_listed() {
    let served = Served::new();
    converse(served.client());
    served.end();
}

/// A server of Redis, for the length of a test.
struct Redis {
    child: Child,
    dir: tempfile::TempDir,
}

impl Redis {
    /// `None`, with a word about it, if it is not installed.
    fn start() -> Option<Redis> {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(dir.path().join("socket")).current_dir(dir.path()).stdout(Stdio::piped());
        match command.spawn() {
            Ok(child) => Some(Redis { child, dir }),
            Err(error) => {
                eprintln!("left out: redis-server cannot be started: {error}");
                None
            }
        }
    }

    /// Waits until it listens, and takes what is said to a port of this process there.
    fn client(&mut self) -> Client {
        let mut log = std::io::BufReader::new(self.child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("ready to accept connections") {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut log, &mut line).unwrap() > 0, "it has ended");
        }
        let there = std::os::unix::net::UnixStream::connect(self.dir.path().join("socket")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, _) = listener.accept().unwrap();
        let (mut from, mut to) = (here.try_clone().unwrap(), there.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let (mut from, mut to) = (there, here);
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Both);
        });
        Client(client)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn what_is_listed_is_what_redis_replies() {
    let Some(mut redis) = Redis::start() else { return };
    converse(redis.client());
}

#[test]
fn keys_and_values_are_any_bytes_up_to_their_limits() {
    let served = Served::new();
    let mut one = served.client();
    let (key, value) = (vec![0xff; KEY_BYTES_MAX], vec![b'\r'; VALUE_BYTES_MAX]);
    one.ask(&[b"set", &key, &value], "+OK\r\n");
    one.ask(&[b"get", &key], bulk(&value));
    one.ask(&[b"get", b""], "$-1\r\n");
    one.ask(&[b"set", b"", b""], "+OK\r\n");
    one.ask(&[b"get", b""], "$0\r\n\r\n");
    one.ask(&[b"append", &key, b"1"], "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n");
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    for command in [&b"get"[..], b"del", b"incr", b"ttl"] {
        one.ask(&[command, &long], "-ERR the key has 65537 bytes, and 65536 are the most\r\n");
    }
    one.ask(&[b"mget", b"", &long], "-ERR the key has 65537 bytes, and 65536 are the most\r\n");
    one.send(format!("*3\r\n$3\r\nset\r\n$1\r\na\r\n${}\r\n", VALUE_BYTES_MAX + 1));
    one.expect("-ERR Protocol error: invalid bulk length\r\n");
    one.expect_end();
    served.end();
}

#[test]
fn requests_may_come_in_pieces_in_rows_and_as_lines() {
    let served = Served::new();
    let mut one = served.client();
    let set = request(&[b"set", b"key", b"value"]);
    for byte in &set {
        one.send([*byte]);
    }
    one.expect("+OK\r\n");
    // Many at once, about keys of both shards, done in their order.
    let (mut said, mut expected) = (Vec::new(), Vec::new());
    for number in 0..500 {
        let key = format!("key{}", number % 20);
        said.extend(request(&[b"incr", key.as_bytes()]));
        expected.extend(format!(":{}\r\n", number / 20 + 1).bytes());
        said.extend(request(&[b"get", key.as_bytes()]));
        expected.extend(bulk((number / 20 + 1).to_string().as_bytes()));
        if number % 50 == 0 {
            said.extend(b"PING\r\n\r\n*0\r\nset 'a key' \"\\x00\\n\"\r\nnonsense\r\n");
            expected
                .extend(b"+PONG\r\n+OK\r\n-ERR unknown command 'nonsense', with args beginning with: \r\n");
        }
    }
    one.send(&said);
    one.expect(&expected);
    one.ask(&[b"get", b"a key"], "$2\r\n\0\n\r\n");
    // About so many keys that they do not go together.
    for count in [3, 40, 3_000] {
        let names: Vec<String> = (0..count).map(|number| format!("many{number}")).collect();
        let pairs = names.iter().flat_map(|name| [name.as_bytes(), b"value"]);
        let keys = || names.iter().map(|name| name.as_bytes());
        let said = [
            request(&[&b"mset"[..]].into_iter().chain(pairs).collect::<Vec<_>>()),
            request(&[&b"exists"[..]].into_iter().chain(keys()).collect::<Vec<_>>()),
            request(&[&b"unlink"[..], b"none"].into_iter().chain(keys()).collect::<Vec<_>>()),
            request(&[&b"del"[..]].into_iter().chain(keys()).collect::<Vec<_>>()),
        ];
        one.send(said.concat());
        one.expect(format!("+OK\r\n:{count}\r\n:{count}\r\n:0\r\n"));
    }
    // What is behind a mistake is not heard, and what is before it is.
    one.send("incr key0\r\nincr key1\r\n*1\r\n:5\r\nflushall\r\n");
    one.expect(":26\r\n:26\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    one.expect_end();
    let mut two = served.client();
    two.say("dbsize", ":22\r\n");
    served.end();
}

#[test]
fn what_is_no_request_ends_its_connection_and_no_other() {
    let served = Served::new();
    let mut other = served.client();
    for (garbage, complaint) in [
        (&b"*1048577\r\n"[..], "invalid multibulk length"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"get \"unbalanced\r\n", "unbalanced quotes in request"),
    ] {
        let mut one = served.client();
        one.send(garbage);
        one.expect(format!("-ERR Protocol error: {complaint}\r\n"));
        one.expect_end();
        other.say("ping", "+PONG\r\n");
    }
    // Half a request is no mistake, and nobody waits for the rest.
    let mut half = served.client();
    half.send("*2\r\n$3\r\nget\r\n$5\r\nab");
    other.say("ping", "+PONG\r\n");
    drop(half);
    other.say("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn a_client_that_never_reads_is_read_no_more_and_holds_nobody_up() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    // As long as its reply, so that what the system keeps of requests is not replied to by much more.
    let value = vec![b'v'; 100_000];
    let echo = request(&[b"echo", &value]);
    one.0.set_nonblocking(true).unwrap();
    let (mut sent, mut refusals) = (0, 0);
    // The system takes some of it, until it has been full for a while in which others were served.
    while refusals < 50 {
        match one.0.write(&echo[sent % echo.len()..]) {
            Ok(count) => (sent, refusals) = (sent + count, 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refusals += 1;
                other.say("ping", "+PONG\r\n");
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 256 << 20, "it is read, however much it has not read itself");
    }
    // What it does not lose by that: once it reads, it gets all.
    one.0.set_nonblocking(false).unwrap();
    let mut two = Client(one.0.try_clone().unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| one.send(&echo[sent % echo.len()..]));
        let expected = bulk(&value);
        for _ in 0..sent.div_ceil(echo.len()) {
            two.expect(&expected);
        }
    });
    // So does one that goes without having read.
    let mut gone = served.client();
    gone.send(&echo);
    drop(gone);
    other.say("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn the_third_version_is_spoken_where_a_client_asks_for_it() {
    let served = Served::new();
    let mut one = served.client();
    one.say("get none", "$-1\r\n");
    one.send("hello 3 setname me auth default x\r\n");
    // A map of seven.
    one.expect("%7\r\n");
    let mut keys = BTreeSet::new();
    for _ in 0..7 {
        let (Value::Bytes(key), value) = (one.reply(), one.reply()) else { panic!("keys are strings") };
        if key == b"proto" {
            assert_eq!(value, Value::Number(3));
        }
        keys.insert(String::from_utf8(key).unwrap());
    }
    let expected = ["id", "mode", "modules", "proto", "role", "server", "version"];
    assert!(keys.iter().eq(expected.iter()), "{keys:?}");
    one.say("client getname", "$2\r\nme\r\n");
    one.say("get none", "_\r\n");
    one.say("mget none none", "*2\r\n_\r\n_\r\n");
    one.say("config get save", "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    one.say("set key value", "+OK\r\n");
    one.say("get key", "$5\r\nvalue\r\n");
    one.say("reset", "+RESET\r\n");
    one.say("get none", "$-1\r\n");
    one.say("client getname", "$-1\r\n");
    served.end();
}

#[test]
fn keys_go_when_their_time_is_over_by_the_clock_of_their_owner() {
    let served = Served::new();
    let mut one = served.client();
    let keys: Vec<String> = (0..8).map(|number| format!("key{number}")).collect();
    for key in &keys {
        one.say(&format!("psetex {key} 1000 value"), "+OK\r\n");
    }
    served.pass_ms(999);
    for key in &keys {
        one.say(&format!("pttl {key}"), ":1\r\n");
        one.say(&format!("get {key}"), "$5\r\nvalue\r\n");
    }
    one.say("persist key0", ":1\r\n");
    one.say("pexpire key1 10", ":1\r\n");
    one.say("set key2 another keepttl", "+OK\r\n");
    served.pass_ms(1);
    one.say("mget key0 key1 key2 key3", "*4\r\n$5\r\nvalue\r\n$5\r\nvalue\r\n$-1\r\n$-1\r\n");
    one.say("ttl key3", ":-2\r\n");
    one.say("ttl key1", ":0\r\n");
    one.say("dbsize", ":2\r\n");
    one.say("incr key3", ":1\r\n");
    served.pass_ms(1000);
    one.say("exists key0 key1 key2 key3", ":2\r\n");
    let (_, found) = one.scan("0", "count 1000 match *0");
    assert!(found.len() <= 1);
    served.end();
}

#[test]
fn what_several_clients_count_is_all_counted() {
    let served = Served::new();
    let say = |line: &'static str| {
        let mut client = served.client();
        move || {
            for _ in 0..500 {
                client.send(line);
                assert!(matches!(client.reply(), Value::Number(_)));
            }
        }
    };
    std::thread::scope(|scope| {
        // Two keys of both shards, or of one.
        for line in
            ["incr a\r\n", "incr a\r\n", "incrby b 2\r\n", "decr b\r\n", "append c x\r\n", "append c y\r\n"]
        {
            scope.spawn(say(line));
        }
    });
    let mut one = served.client();
    one.say("mget a b", "*2\r\n$4\r\n1000\r\n$3\r\n500\r\n");
    one.say("strlen c", ":1000\r\n");
    served.end();
}

#[test]
fn a_scan_finds_what_is_there_all_the_time_also_while_the_store_grows() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    for number in 0..200 {
        other.say(&format!("set stays:{number} x"), "+OK\r\n");
    }
    let (mut cursor, mut seen, mut rounds) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let (next, keys) = one.scan(&cursor, "count 7 match stays:*");
        seen.extend(keys);
        rounds += 1;
        // It grows many times over, and no more in the end.
        for number in 0..if rounds < 20 { 50 } else { 0 } {
            other.say(&format!("set comes:{rounds}:{number} x"), "+OK\r\n");
        }
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    let expected: BTreeSet<Vec<u8>> = (0..200).map(|number| format!("stays:{number}").into_bytes()).collect();
    assert!(rounds > 20 && seen == expected, "{rounds} {}", seen.len());
    one.send("keys stays:1?\r\n");
    assert!(matches!(one.reply(), Value::List(keys) if keys.len() == 10));
    one.say("dbsize", &format!(":{}\r\n", 200 + 19 * 50));
    one.say("flushall", "+OK\r\n");
    assert_eq!(one.scan("0", ""), ("0".to_owned(), Vec::new()));
    one.say("dbsize", ":0\r\n");
    served.end();
}

#[test]
fn clients_beyond_the_limit_are_told_so() {
    let served = Served::with(2);
    let (mut one, mut two) = (served.client(), served.client());
    one.say("ping", "+PONG\r\n");
    two.say("ping", "+PONG\r\n");
    let mut three = served.client();
    three.expect("-ERR max number of clients reached\r\n");
    three.expect_end();
    two.say("quit", "+OK\r\n");
    two.expect_end();
    let mut four = served.client();
    four.say("ping", "+PONG\r\n");
    one.send("info clients\r\n");
    let expected = b"# Clients\r\nconnected_clients:2\r\nmaxclients:2\r\n".to_vec();
    assert_eq!(one.reply(), Value::Bytes(expected));
    served.end();
}

#[test]
fn when_an_owner_has_gone_its_keys_are_refused_and_others_stay() {
    let mut served = Served::new();
    let mut one = served.client();
    for number in 0..20 {
        one.say(&format!("set key{number} x"), "+OK\r\n");
    }
    let (_, owner) = served.shards.owners.pop().unwrap();
    served.shards.cluster.nodes.pop().unwrap().leave();
    owner.join().unwrap().unwrap();
    let mut told = (0, 0);
    for number in 0..20 {
        one.send(format!("set key{number} y\r\n"));
        match one.reply() {
            Value::Line(line) if line == "+OK" => told.0 += 1,
            Value::Line(line) if line.starts_with("-ERR ") => told.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(told.0 > 0 && told.1 > 0, "{told:?}");
    one.send("mset key0 z key1 z key2 z key3 z key4 z key5 z key6 z key7 z\r\n");
    assert!(matches!(one.reply(), Value::Line(line) if line.starts_with("-ERR ")));
    one.say("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn an_owner_that_is_silent_holds_up_those_alone_who_wait_for_it() {
    let served = Served::new();
    // A key of the shard here, or there, as the store places them.
    let key = |number: u64, shard: u64| {
        let keys = (0..).map(|salt| format!("{number}-{salt}"));
        keys.into_iter().find(|key| xxhash_rust::xxh3::xxh3_64(key.as_bytes()) >> 63 == shard).unwrap()
    };
    let (here, there) = (key(0, 0), key(0, 1));
    let mut other = served.client();
    other.say(&format!("set {there} old"), "+OK\r\n");
    let silence = served.shards.silence.lock().unwrap();
    let mut waiting = served.client();
    waiting.send(format!("set {} new\r\nget {0}\r\nset {1} too\r\nget {1}\r\n", key(1, 1), key(1, 0)));
    let mut many = served.client();
    many.send(format!("mset {} x {} y\r\ndbsize\r\n", key(2, 0), key(2, 1)));
    let mut values = served.client();
    values.send(format!("getset {} new\r\n", key(3, 1)));
    let mut gone = served.client();
    gone.send(format!("set {} lost\r\n", key(4, 1)));
    drop(gone);
    let mut done = served.client();
    done.send(format!("set {} last\r\n", key(5, 1)));
    done.0.shutdown(Shutdown::Write).unwrap();
    // All these are served meanwhile; what is there is read without its owner.
    for number in 0..100 {
        let mut one = served.client();
        one.say(&format!("set {here} {number}"), "+OK\r\n");
        one.say(&format!("get {here}"), &String::from_utf8(bulk(number.to_string().as_bytes())).unwrap());
        one.say(&format!("get {there}"), "$3\r\nold\r\n");
        other.say("ping", "+PONG\r\n");
    }
    drop(silence);
    waiting.expect("+OK\r\n$3\r\nnew\r\n+OK\r\n$3\r\ntoo\r\n");
    assert!(matches!((many.reply(), many.reply()), (Value::Line(line), Value::Number(5..)) if line == "+OK"));
    values.expect("$-1\r\n");
    done.expect("+OK\r\n");
    done.expect_end();
    other.say(&format!("get {}", key(5, 1)), "$4\r\nlast\r\n");
    served.end();
}

#[test]
fn a_server_that_is_stopped_closes_its_connections() {
    let served = Served::new();
    let mut one = served.client();
    one.say("ping", "+PONG\r\n");
    let address = served.address;
    served.end();
    one.expect_end();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn the_tools_of_redis_are_served() {
    let served = Served::new();
    let port = served.address.port().to_string();
    for line in [
        "redis-benchmark -p PORT -t ping,set,get,incr,mset -n 2000 -c 20 -P 4 -r 100 -q --csv",
        "redis-benchmark -p PORT -3 -t set,get -n 1000 -c 5 -q --csv",
        "redis-cli -p PORT -3 set from cli ex 100",
        "redis-cli -p PORT --scan --pattern fro?",
    ] {
        let mut words = line.split(' ').map(|word| if word == "PORT" { &port } else { word });
        let output = match Command::new(words.next().unwrap()).args(words).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("left out: {line}: {error}");
                continue;
            }
        };
        let (told, complaint) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && complaint.is_empty(), "{line}: {told}{complaint}");
        let expected = if line.contains("benchmark") {
            "SET"
        } else if line.contains("scan") {
            "from\n"
        } else {
            "OK\n"
        };
        assert!(told.contains(expected) && !told.contains("rror"), "{line}: {told}");
    }
    served.end();
}

#[test]
fn transactions_are_refused_and_their_commands_are_not_listed() {
    let served = Served::new();
    let mut client = served.client();
    for line in ["multi", "exec", "discard", "watch a", "unwatch"] {
        let name = line.split(' ').next().unwrap();
        let refusal = "there are no transactions here; commands about one key are atomic";
        client.say(line, &format!("-ERR '{name}' is refused: {refusal}\r\n"));
    }
    client.say("set a 1", "+OK\r\n");
    client.say("command info multi", "*1\r\n$-1\r\n");
    drop(client);
    served.end();
}
