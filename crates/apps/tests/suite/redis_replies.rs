//! What clients of Redis say, one thing behind the other, and what they are replied: the same by `redis-server`, where that is installed.

use crate::common;

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use common::redis::{Client, Served};

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
    ("set once 1 ex 1 ex 100", "+OK\r\n"),
    ("ttl once", ":100\r\n"),
    ("getex once persist persist", "$1\r\n1\r\n"),
    ("ttl once", ":-1\r\n"),
    ("getex once ex 1 ex 50", "$1\r\n1\r\n"),
    ("ttl once", ":50\r\n"),
    ("getex none ex x", "$-1\r\n"),
    ("getex once persist ex 1", SYNTAX),
    ("del once", ":1\r\n"),
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

/// What somebody may say who is mistaken, or means it oddly.
const ODD: &[&str] = &[
    "scan 18446744073709551616",
    "scan 0x10",
    "scan 0 count 1 count 0",
    "scan 0 count -1",
    "scan 0 type string type list",
    "scan 0 match",
    "scan 0 nonsense 1",
    "scan x count 0",
    "scan 0 count 1 nonsense",
    r#"scan " 0""#,
    r#"scan "0 ""#,
    "scan 1.5",
    "set k v ex 1 ex 2",
    "set k v ex 100 px 100",
    "set k v nx nx",
    "set k v xx xx",
    "set k v get get",
    "set k v keepttl keepttl",
    "set k v ex 10 keepttl",
    "set k v keepttl ex 10",
    "set k v nx xx",
    "set k v xx nx get",
    "set k v ex",
    "set k v ex nx",
    "set k v nonsense",
    "set k v ex 0",
    "set k v ex -1",
    "set k v ex 1.5",
    r#"set k v ex """#,
    r#"set k v ex " 1""#,
    "set k v px 0",
    "set k v exat 0",
    "set k v pxat -1",
    "set k v ex 9223372036854775807",
    "set k v exat 9223372036854775807",
    "set k v pxat 9223372036854775807",
    "set k v px 9223372036854775807",
    "set k v ex x nx xx",
    "set k v nx ex x",
    "set k",
    "set",
    "getex k ex 1 ex 2",
    "getex k persist persist",
    "getex k persist ex 1",
    "getex k ex 1 persist",
    "getex k nonsense",
    "getex k ex",
    "getex k ex 0",
    "getex k ex x",
    "getex nokey ex 0",
    "getex nokey ex x",
    "getex nokey nonsense",
    "expire k 10 nx nx",
    "expire k 10 nx xx",
    "expire k 10 gt gt",
    "expire k 10 gt lt",
    "expire k 10 nonsense",
    "expire k x nonsense",
    "expire k x",
    "expire nokey x",
    "expire nokey 10 nonsense",
    "expire k 10 nx nonsense",
    "expire k 10 nx gt",
    "expire k 10 xx gt",
    "expire k 9223372036854775807",
    "expire k -9223372036854775808",
    "pexpire k 9223372036854775807",
    "pexpire k -1",
    "expireat k 9223372036854775807",
    "expireat k -1",
    "pexpireat k 0",
    "setex k 0 v",
    "setex k -1 v",
    "setex k x v",
    "setex k 1",
    "setex k 9223372036854775807 v",
    "psetex k 0 v",
    "psetex k 9223372036854775807 v",
    "setnx k",
    "getset k",
    "incrby n x",
    "incrby n 1.0",
    r#"incrby n """#,
    r#"incrby n " 1""#,
    "incrby n 01",
    "incrby n +1",
    "incrby n -0",
    "incrby n 9223372036854775808",
    "decrby n -9223372036854775808",
    "decrby n x",
    "incr s",
    "mset a",
    "mset a 1 b",
    "mset",
    "mget",
    "del",
    "exists",
    "unlink",
    "touch",
    "strlen",
    "append a",
    "type",
    "keys",
    "keys a b",
    "dbsize x",
    "flushall async sync",
    "flushall nonsense",
    "flushdb async async",
    "ping a b",
    r#"ping """#,
    "echo",
    "echo a b",
    "select -1",
    "select 16",
    "select 0 0",
    "select 1.0",
    r#"select """#,
    "hello 1",
    "hello 2 setname",
    "hello 2 nonsense",
    "hello x setname a",
    "hello 4 nonsense",
    "hello 2 auth default",
    r#"hello """#,
    "client",
    "client nonsense",
    r#"client setname "a b""#,
    r#"client setname """#,
    "client getname x",
    "client id x",
    "client no-evict",
    "client no-evict x",
    "client no-evict on",
    "client reply x",
    "client reply",
    "config",
    "config get",
    "config nonsense",
    "config resetstat x",
    "config set",
    "command count x",
    "command info nonsense",
    "command docs nonsense",
    "command nonsense",
    "command list x",
    "time x",
    "info nonsense",
    "reset x",
    "auth",
    "auth a b c",
    "ttl",
    "ttl a b",
    "pttl",
    "persist",
    "persist a b",
    "type a b",
    "getdel",
    "getdel a b",
    r#""""#,
    "nonsense",
    r#""nonsense a""#,
    r#"get "a\r\nb""#,
    r#"no\x0asuch"#,
    "scan -1 match none",
    "scan +0 match none",
    "scan 00 match none",
    r#"scan "" match none"#,
    "scan - match none",
    "scan +",
    "scan --1",
    "scan -18446744073709551616",
    "scan 0 count 1000 match a match k",
    "scan 0 count 1 count 1000 match k",
];

#[test]
fn odd_commands_are_replied_to_as_redis_does() {
    let Some(mut redis) = Redis::start() else { return };
    let served = Served::new();
    let (mut theirs, mut ours) = (redis.client(), served.client());
    for line in ODD {
        let mut heard = [&mut theirs, &mut ours].map(|client| {
            // What there is before, and what of it is there afterwards.
            let lines =
                ["flushall", "mset k old s str n 5", line, "mget k n", "ttl k", "dbsize", "client getname"];
            lines.map(|line| {
                client.send(format!("{line}\r\n"));
                client.reply()
            })
        });
        let [theirs, ours] = &mut heard;
        assert_eq!(ours, theirs, "{line}");
    }
    served.end();
}
