//! Stories of clients of Redis, over sockets, and a store of two nodes of this process, of which one serves.

use crate::common;

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::Command;
use std::time::Duration;

use common::MIB;
use common::redis::{Client, Served, Value, bulk, request};
use halite_apps::kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

#[test]
#[ignore = "slow: .ci/deep slow"]
fn who_asks_for_much_and_says_no_more_gets_all_of_it() {
    const COUNT: usize = 200;
    let served = Served::new();
    let value = vec![b'v'; VALUE_BYTES_MAX];
    // One of each shard.
    for key in ["m0", "m1", "m2", "m3"] {
        served.client().ask(&[b"SET", key.as_bytes(), &value], "+OK\r\n");
    }
    for is_slow in [false, true] {
        let mut client = served.client();
        client.send((0..COUNT).map(|index| format!("GET m{}\r\n", index % 4)).collect::<String>());
        client.0.shutdown(Shutdown::Write).unwrap();
        let mut reply = vec![0; format!("${VALUE_BYTES_MAX}\r\n").len() + VALUE_BYTES_MAX + 2];
        for index in 0..COUNT {
            if is_slow {
                std::thread::yield_now();
            }
            client.0.read_exact(&mut reply).unwrap_or_else(|error| panic!("reply {index}: {error}"));
            assert!(reply.starts_with(b"$1048576\r\nv") && reply.ends_with(b"v\r\n"), "reply {index}");
        }
        client.expect_end();
    }
    served.end();
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn values_that_are_too_long_together_are_refused_before_they_are_copied() {
    let served = Served::new();
    let mut client = served.client();
    let value = vec![b'v'; VALUE_BYTES_MAX];
    for key in ["m0", "m1", "m2", "m3"] {
        client.ask(&[b"SET", key.as_bytes(), &value], "+OK\r\n");
        let asked: Vec<&[u8]> =
            std::iter::once(&b"MGET"[..]).chain(std::iter::repeat_n(key.as_bytes(), 20_000)).collect();
        client.ask(&asked, "-ERR the reply would have more than 67108864 bytes\r\n");
    }
    // What is told of a command is longer than its name.
    let known = [&b"COMMAND"[..], b"INFO"].into_iter().chain(std::iter::repeat_n(&b"set"[..], 1023));
    client.ask(&known.collect::<Vec<_>>(), "-ERR at most 1024 arguments are answered for\r\n");
    client.say("PING", "+PONG\r\n");
    served.end();
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
        one.ask(&[command, &long], "-ERR the key has 65537 bytes; the maximum is 65536\r\n");
    }
    one.ask(&[b"mget", b"", &long], "-ERR the key has 65537 bytes; the maximum is 65536\r\n");
    one.send(format!("*3\r\n$3\r\nset\r\n$1\r\na\r\n${}\r\n", VALUE_BYTES_MAX + 1));
    one.expect("-ERR Protocol error: invalid bulk length\r\n");
    one.expect_end();
    served.end();
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn who_sends_a_value_that_is_too_long_hears_why_when_it_has_sent_it() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    for mib in [2, 16] {
        let mut one = served.client();
        one.send(request(&[b"set", b"key", &vec![b'v'; mib << 20]]));
        one.expect("-ERR Protocol error: invalid bulk length\r\n");
        let mut rest = Vec::new();
        assert_eq!(one.0.read_to_end(&mut rest).unwrap(), 0, "it ends, and is not cut off");
    }
    // Who goes on for ever is not listened to as long, and holds nobody up.
    one.send("*3\r\n$3\r\nset\r\n$1\r\na\r\n$2000000000\r\n");
    let (piece, mut sent) = (vec![b'v'; 1 << 20], 0);
    while one.0.write_all(&piece).is_ok() {
        sent += piece.len();
        assert!(sent < 1 << 30, "it is listened to for ever");
        other.say("ping", "+PONG\r\n");
    }
    other.say("dbsize", ":0\r\n");
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

/// A web page could have its browser send lines to a port of its own host.
#[test]
fn what_browsers_say_is_not_carried_out() {
    let served = Served::new();
    for begin in ["POST / HTTP/1.1", "GET / HTTP/1.1\r\nHost: localhost", "host: x"] {
        let mut client = served.client();
        client.send(format!("{begin}\r\n\r\nset owned yes\r\nflushall\r\n"));
        let mut heard = String::new();
        client.0.read_to_string(&mut heard).unwrap();
        assert!(heard.ends_with("-ERR Protocol error: this is no server of HTTP\r\n"), "{heard}");
    }
    served.client().say("exists owned", ":0\r\n");
    served.end();
}

/// Anybody can compute keys of one bucket, for the hash has no secret.
#[test]
fn keys_that_were_chosen_to_have_one_bucket_are_refused_and_the_table_stays_small() {
    let served = Served::new();
    let mut client = served.client();
    let hash = |key: &u32| xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes());
    // Of one shard, and of one bucket of each table that has up to 1024.
    let chosen = (0..).filter(|key| hash(key) >> 63 == 0 && hash(key) % 1024 == 0).take(20);
    let mut set = |key: u32| {
        client.send(request(&[b"set", &key.to_le_bytes(), b"v"]));
        match client.reply() {
            Value::Line(line) => line,
            other => panic!("{other:?}"),
        }
    };
    let told: Vec<String> = chosen.map(&mut set).collect();
    assert!(told[..16].iter().all(|line| line == "+OK"), "{told:?}");
    assert!(told[16..].iter().all(|line| line.starts_with("-OOM ")), "{told:?}");
    client.say("set another v", "+OK\r\n");
    let bytes: u64 =
        served.shards.cluster.session(0).status().unwrap().iter().map(|node| node.bytes_used).sum();
    assert!(bytes < 4 * MIB, "{bytes}");
    drop(client);
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
fn as_many_clients_wait_to_be_let_in_as_at_redis() {
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    if most.trim().parse::<u32>().unwrap() < 511 {
        return eprintln!("left out: the system lets no more than {} wait", most.trim());
    }
    let (_shards, server) = Served::prepare(1000);
    // Nobody is let in; one that finds no place among those who wait never connects.
    let connect = |_| TcpStream::connect_timeout(&server.address(), Duration::from_secs(60)).unwrap();
    let waiting: Vec<TcpStream> = (0..500).map(connect).collect();
    assert_eq!(waiting.len(), 500);
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
