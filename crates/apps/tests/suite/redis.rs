//! Tests of Redis clients, over sockets, and a store on two nodes of this process, one of which serves the clients.

use crate::common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::redis::{BEGIN_MS, Client, Served, Value, bulk, request};
use common::{MIB, SetAtEnd};
use halite_apps::kv::redis::{ARGS_MAX, REQUEST_BYTES_MAX};
use halite_apps::kv::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

#[test]
fn keys_and_values_may_contain_any_bytes() {
    let served = Served::new();
    let mut one = served.client();
    let (key, value) = (vec![0xff; KEY_BYTES_MAX], vec![b'\r'; 5 << 20]);
    one.check_args(&[b"set", &key, &value], "+OK\r\n");
    one.check_args(&[b"get", &key], bulk(&value));
    one.check_args(&[b"get", b""], "$-1\r\n");
    one.check_args(&[b"set", b"", b""], "+OK\r\n");
    one.check_args(&[b"get", b""], "$0\r\n\r\n");
    one.check_args(&[b"append", &key, b"1"], format!(":{}\r\n", value.len() + 1));
    one.check_args(&[b"setrange", &key, b"536870911", b"12"], TOO_LONG);
    one.send(request(&[b"lcs", &key, &key]));
    assert!(matches!(one.reply(), Value::Line(line) if line.ends_with("the maximum product is 16777216")));
    let long = vec![b'k'; KEY_BYTES_MAX + 1];
    for command in [&b"get"[..], b"del", b"incr", b"ttl"] {
        one.check_args(&[command, &long], "-ERR the key has 65537 bytes; the maximum is 65536\r\n");
    }
    one.check_args(&[b"mget", b"", &long], "-ERR the key has 65537 bytes; the maximum is 65536\r\n");
    served.end();
}

#[test]
fn hello_in_a_transaction_uses_the_new_protocol() {
    let served = Served::new();
    let mut client = served.client();
    client.send("multi\r\nhello 3\r\nexec\r\n");
    client.expect("+OK\r\n+QUEUED\r\n*1\r\n%7\r\n");
    served.end();
}

#[test]
fn oversized_requests_fail_without_closing_the_connection() {
    let served = Served::new();
    let mut client = served.client();
    client.send(b"incr n\r\n");
    client.send(too_many());
    client.check("incr n", &format!(":1\r\n{TOO_MANY}:2\r\n"));
    client.send("*2\r\n$3\r\nget\r\n$1073741825\r\n");
    client.expect("-ERR Protocol error: invalid bulk length\r\n");
    client.expect_end();
    served.end();
}

/// A request with one argument too many, and its reply.
fn too_many() -> Vec<u8> {
    request(&vec![&b"x"[..]; ARGS_MAX + 1])
}

const TOO_MANY: &str = "-ERR the request has 2097154 arguments; the maximum is 2097153\r\n";
const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";

#[test]
#[ignore = "slow: .ci/deep slow"]
fn only_values_up_to_the_maximum_are_accepted() {
    let served = Served::with_memory(2 << 30);
    let mut client = served.client();
    let value: Vec<u8> = (0..VALUE_BYTES_MAX).map(|at| (at / 7) as u8).collect();
    client.check_args(&[b"set", b"long", &value], "+OK\r\n");
    client.check("strlen long", &format!(":{VALUE_BYTES_MAX}\r\n"));
    client.check_args(&[b"get", b"long"], bulk(&value));
    client.check("append long x", TOO_LONG);
    let longer = [&value[..], b"x"].concat();
    client.check_args(
        &[b"set", b"long", &longer],
        "-ERR an argument has 536870913 bytes; the maximum is 536870912\r\n",
    );
    let half = &value[..300 << 20];
    client.check_args(
        &[b"mset", b"one", half, b"two", half],
        format!("-ERR the request has more than {REQUEST_BYTES_MAX} bytes\r\n"),
    );
    client.check("exists one two long", ":1\r\n");
    served.end();
}

#[test]
fn many_keys_are_set_by_one_request() {
    set_by_one_request(20_000);
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn half_a_million_keys_are_set_by_one_request() {
    set_by_one_request(1 << 19);
}

fn set_by_one_request(count: usize) {
    let served = Served::new();
    let mut client = served.client();
    let args = (0..count).map(|number| format!("$6\r\n{number:06}\r\n$1\r\nv\r\n"));
    client.send(format!("*{}\r\n$4\r\nmset\r\n{}", 2 * count + 1, args.collect::<String>()));
    client.expect("+OK\r\n");
    client.check("dbsize", format!(":{count}\r\n").as_str());
    // A scan returns about 10,000 keys at a time, and the rest of the last bucket.
    let (_, keys) = client.scan("0", "count 1000000");
    assert!((10_000..10_016).contains(&keys.len()), "{}", keys.len());
    served.end();
}

#[test]
#[ignore = "slow: .ci/deep slow"]
fn an_endless_value_is_cut_off() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    // The server closes the connection of a client that sends without end, and other clients are not delayed.
    one.send("*3\r\n$3\r\nset\r\n$1\r\na\r\n$2000000000\r\n");
    let (piece, mut sent) = (vec![b'v'; 1 << 20], 0);
    while one.0.write_all(&piece).is_ok() {
        sent += piece.len();
        assert!(sent < 1 << 30, "the server reads for ever");
        other.check("ping", "+PONG\r\n");
    }
    other.check("dbsize", ":0\r\n");
    served.end();
}

#[test]
fn requests_may_be_split_pipelined_or_inline() {
    let served = Served::new();
    let mut one = served.client();
    request(&[b"set", b"key", b"value"]).iter().for_each(|byte| one.send([*byte]));
    one.expect("+OK\r\n");
    // The requests of a pipeline, for keys of both shards, are executed in order.
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for number in 0..500 {
        let key = format!("key{}", number % 20);
        requests.extend(request(&[b"incr", key.as_bytes()]));
        expected.extend(format!(":{}\r\n", number / 20 + 1).bytes());
        requests.extend(request(&[b"get", key.as_bytes()]));
        expected.extend(bulk((number / 20 + 1).to_string().as_bytes()));
        if number % 50 == 0 {
            requests.extend(b"PING\r\n\r\n*0\r\nset 'a key' \"\\x00\\n\"\r\nnonsense\r\n");
            expected
                .extend(b"+PONG\r\n+OK\r\n-ERR unknown command 'nonsense', with args beginning with: \r\n");
        }
    }
    one.send(&requests);
    one.expect(&expected);
    one.check_args(&[b"get", b"a key"], "$2\r\n\0\n\r\n");
    // Requests before a malformed one are executed, requests after it are not.
    one.send("incr key0\r\nincr key1\r\n*1\r\n:5\r\nflushall\r\n");
    one.expect(":26\r\n:26\r\n-ERR Protocol error: expected '$', got ':'\r\n");
    one.expect_end();
    let mut two = served.client();
    two.check("dbsize", ":22\r\n");
    served.end();
}

/// A web page can make a browser send lines to a port of the browser's host.
#[test]
fn requests_of_browsers_are_refused() {
    let served = Served::new();
    for begin in ["POST / HTTP/1.1", "GET / HTTP/1.1\r\nHost: localhost", "host: x"] {
        let mut client = served.client();
        client.send(format!("{begin}\r\n\r\nset owned yes\r\nflushall\r\n"));
        let mut replies = String::new();
        client.0.read_to_string(&mut replies).unwrap();
        assert!(replies.ends_with("-ERR Protocol error: this is not an HTTP server\r\n"), "{replies}");
    }
    served.client().check("exists owned", ":0\r\n");
    served.end();
}

#[test]
fn every_command_requires_the_password() {
    let served = Served::with_server(|server| server.with_password(b"open sesame"));
    let mut client = served.client();
    let noauth = "-NOAUTH Authentication required.\r\n";
    for line in ["ping", "get a", "set a 1", "info", "config get *", "dbsize", "flushall"] {
        client.check(line, noauth);
    }
    client.check("auth open", "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    client.check_args(
        &[b"auth", b"other", b"open sesame"],
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    client.send("hello 3\r\n");
    assert!(matches!(client.reply(), Value::Line(line) if line.starts_with("-NOAUTH HELLO must be called")));
    client.check_args(&[b"auth", b"open sesame"], "+OK\r\n");
    client.check("set a 1", "+OK\r\n");
    client.check("reset", "+RESET\r\n");
    client.check("get a", noauth);
    client.check_args(&[b"auth", b"default", b"open sesame"], "+OK\r\n");
    client.check("get a", "$1\r\n1\r\n");
    let mut other = served.client();
    other.send("hello 2 auth default 'open sesame'\r\n");
    assert!(matches!(other.reply(), Value::List(_)));
    // A client without the password cannot take memory.
    let mut greedy = served.client();
    greedy.send(format!("*2\r\n$4\r\nauth\r\n$1000000\r\n{}", "x".repeat(100_000)));
    greedy.expect("-ERR Protocol error: unauthenticated request is too long\r\n");
    greedy.expect_end();
    served.end();
}

/// Any client can compute keys of one bucket, because the hash has no secret.
#[test]
fn keys_chosen_for_one_bucket_are_refused() {
    let served = Served::new();
    let mut client = served.client();
    let hash = |key: &u32| xxhash_rust::xxh3::xxh3_64(&key.to_le_bytes());
    // Keys of one shard, and of one bucket in each table with up to 1024 buckets.
    let chosen = (0..).filter(|key| hash(key) >> 63 == 0 && hash(key) % 1024 == 0).take(20);
    let mut set = |key: u32| {
        client.send(request(&[b"set", &key.to_le_bytes(), b"v"]));
        match client.reply() {
            Value::Line(line) => line,
            other => panic!("{other:?}"),
        }
    };
    let replies: Vec<String> = chosen.map(&mut set).collect();
    assert!(replies[..16].iter().all(|line| line == "+OK"), "{replies:?}");
    assert!(replies[16..].iter().all(|line| line.starts_with("-OOM ")), "{replies:?}");
    client.check("set another v", "+OK\r\n");
    let bytes: u64 =
        served.shards.cluster.session(0).status().unwrap().iter().map(|node| node.bytes_used).sum();
    assert!(bytes < 4 * MIB, "{bytes}");
    drop(client);
    served.end();
}

#[test]
fn malformed_requests_end_only_their_connection() {
    let served = Served::new();
    let mut other = served.client();
    for (garbage, error) in [
        (&b"*2147483648\r\n"[..], "invalid multibulk length"),
        (b"get \"unbalanced\r\n", "unbalanced quotes in request"),
    ] {
        let mut one = served.client();
        one.send(garbage);
        one.expect(format!("-ERR Protocol error: {error}\r\n"));
        one.expect_end();
        other.check("ping", "+PONG\r\n");
    }
    // An incomplete request is no error, and no other client waits for its rest.
    let mut half = served.client();
    half.send("*2\r\n$3\r\nget\r\n$5\r\nab");
    other.check("ping", "+PONG\r\n");
    drop(half);
    other.check("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn a_whole_pipeline_may_precede_its_replies() {
    let served = Served::new();
    let mut client = served.client();
    // Requests and replies each exceed all buffers of the system. The keys belong to both shards.
    let (keys, value) = ([vec![b'a'; KEY_BYTES_MAX], vec![b'b'; KEY_BYTES_MAX]], vec![b'v'; 200_000]);
    let requests = keys.iter().cycle().take(400);
    keys.iter().for_each(|key| client.check_args(&[b"set", key, &value], "+OK\r\n"));
    client.send(requests.clone().map(|key| request(&[b"get", key])).collect::<Vec<_>>().concat());
    requests.for_each(|_| client.expect(bulk(&value)));
    client.check("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn a_client_that_never_reads_is_disconnected() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    let echo = request(&[b"echo", &vec![b'v'; 1 << 20]]);
    let mut sent = 0;
    while one.0.write_all(&echo).is_ok() {
        sent += echo.len();
        assert!(sent < 256 << 20, "the server reads although the client does not read its replies");
        other.check("ping", "+PONG\r\n");
    }
    other.check("ping", "+PONG\r\n");
    served.end();
}

#[test]
fn clients_can_select_version_3_of_the_protocol() {
    let served = Served::new();
    let mut one = served.client();
    one.check("get none", "$-1\r\n");
    one.send("hello 3 setname me auth default x\r\n");
    one.expect("%7\r\n");
    for _ in 0..7 {
        let (Value::Bytes(key), value) = (one.reply(), one.reply()) else { panic!("keys are strings") };
        assert!(key != b"proto" || value == Value::Number(3));
    }
    one.check("client getname", "$2\r\nme\r\n");
    for command in ["client", "config", "command"] {
        one.send(format!("{command} help\r\n"));
        let Value::List(lines) = one.reply() else { panic!("HELP replies with lines") };
        assert_eq!(lines.last(), Some(&Value::Line("+    Print this help.".to_owned())));
    }
    one.check("get none", "_\r\n");
    one.check("mget none none", "*2\r\n_\r\n_\r\n");
    one.check("config get save", "%1\r\n$4\r\nsave\r\n$0\r\n\r\n");
    one.check("reset", "+RESET\r\n");
    one.check("get none", "$-1\r\n");
    one.check("client getname", "$-1\r\n");
    served.end();
}

#[test]
fn keys_expire_by_the_clock_of_their_owner() {
    let served = Served::new();
    let mut one = served.client();
    let keys: Vec<String> = (0..8).map(|number| format!("key{number}")).collect();
    for key in &keys {
        one.check(&format!("psetex {key} 1000 value"), "+OK\r\n");
    }
    served.pass_ms(999);
    for key in &keys {
        one.check(&format!("pttl {key}"), ":1\r\n");
    }
    one.check("persist key0", ":1\r\n");
    one.check("pexpire key1 10", ":1\r\n");
    one.check("set key2 another keepttl", "+OK\r\n");
    served.pass_ms(1);
    one.check("mget key0 key1 key2 key3", "*4\r\n$5\r\nvalue\r\n$5\r\nvalue\r\n$-1\r\n$-1\r\n");
    one.check("dbsize", ":2\r\n");
    served.end();
}

#[test]
fn times_of_day_are_kept_to_the_millisecond() {
    let served = Served::new();
    let mut one = served.client();
    let end_ms = BEGIN_MS + 1000;
    for number in 0..8 {
        one.check(&format!("set key{number} x pxat {end_ms}"), "+OK\r\n");
        served.pass_ms(1);
        one.check(&format!("pexpiretime key{number}"), &format!(":{end_ms}\r\n"));
        one.check(&format!("pexpireat key{number} {} lt", end_ms + 1), ":0\r\n");
        one.check(&format!("pexpireat key{number} {} gt", end_ms - 1), ":0\r\n");
        one.check(&format!("rename key{number} renamed{number}"), "+OK\r\n");
        one.check(&format!("pexpiretime renamed{number}"), &format!(":{end_ms}\r\n"));
    }
    served.pass_ms(1000 - 8);
    one.check("dbsize", ":0\r\n");
    served.end();
}

#[test]
fn a_scan_finds_all_keys_while_the_store_grows() {
    let served = Served::new();
    let (mut one, mut other) = (served.client(), served.client());
    for number in 0..200 {
        other.check(&format!("set stays:{number} x"), "+OK\r\n");
    }
    let (mut cursor, mut seen, mut rounds) = ("0".to_owned(), BTreeSet::new(), 0);
    loop {
        let (next, keys) = one.scan(&cursor, "count 7 match stays:*");
        seen.extend(keys);
        rounds += 1;
        // The store grows many times over, then stops growing.
        for number in 0..if rounds < 20 { 50 } else { 0 } {
            other.check(&format!("set comes:{rounds}:{number} x"), "+OK\r\n");
        }
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    let expected: BTreeSet<Vec<u8>> = (0..200).map(|number| format!("stays:{number}").into_bytes()).collect();
    assert!(rounds > 20 && seen == expected, "{rounds} {}", seen.len());
    served.end();
}

#[test]
fn clients_beyond_the_limit_get_an_error() {
    let served = Served::with_clients_max(2);
    let (mut one, mut two) = (served.client(), served.client());
    one.check("ping", "+PONG\r\n");
    two.check("ping", "+PONG\r\n");
    let mut three = served.client();
    three.expect("-ERR max number of clients reached\r\n");
    three.expect_end();
    two.check("quit", "+OK\r\n");
    two.expect_end();
    let mut four = served.client();
    four.check("ping", "+PONG\r\n");
    one.send("info clients\r\n");
    let expected = b"# Clients\r\nconnected_clients:2\r\nmaxclients:2\r\n".to_vec();
    assert_eq!(one.reply(), Value::Bytes(expected));
    served.end();
}

#[test]
fn keys_of_a_lost_owner_fail_until_a_new_owner_starts() {
    let mut served = Served::new();
    let mut one = served.client();
    let (here, there) = (key_of(0, "k"), key_of(1, "k"));
    one.check(&format!("mset {here} x {there} x"), "+OK\r\n");
    let (_, owner) = served.shards.owners.pop().unwrap();
    served.shards.cluster.nodes.pop().unwrap().leave();
    owner.join().unwrap().unwrap();
    one.check(&format!("set {here} y"), "+OK\r\n");
    for line in ["set K y", "get K", "mset K z other z", "incr K", "dbsize"] {
        one.send(format!("{}\r\n", line.replace('K', &there)));
        assert!(matches!(one.reply(), Value::Line(line) if line.starts_with("-CLUSTERDOWN ")));
    }
    one.check(&format!("get {here}"), "$1\r\ny\r\n");
    // The limit of memory holds for the next owner, too.
    one.send("config set maxmemory 1\r\n");
    assert!(matches!(one.reply(), Value::Line(line) if line.starts_with("-CLUSTERDOWN ")));
    // The next owner starts without keys, at another node.
    served.shards.replace(1, 2);
    served.control.reopen();
    loop {
        one.send(format!("get {there}\r\n"));
        match one.reply() {
            Value::Null => break,
            Value::Line(line) => assert!(line.starts_with("-CLUSTERDOWN "), "{line}"),
            other => panic!("{other:?}"),
        }
    }
    one.check(&format!("set {here} 1"), OOM);
    let begin = Instant::now();
    loop {
        one.send(format!("set {there} 1\r\n"));
        let Value::Line(line) = one.reply() else { panic!("SET replies with a line") };
        if format!("{line}\r\n") == OOM {
            break;
        }
        assert!(begin.elapsed().as_secs() < 60, "the new owner has no limit");
    }
    one.check("config set maxmemory 0", "+OK\r\n");
    one.check(&format!("mset {here} 1 {there} 2"), "+OK\r\n");
    one.check(&format!("mget {here} {there}"), "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    served.end();
}

#[test]
fn memory_of_short_values_is_reused_for_long_ones() {
    let served = Served::new();
    let mut client = served.client();
    let mut set = |key: &str, len: usize, byte: u8| {
        client.send(request(&[b"set", key.as_bytes(), &vec![byte; len]]));
        matches!(client.reply(), Value::Line(line) if line == "+OK")
    };
    // Sets values until a shard has refused 20.
    let (mut stored, mut refusals) = (Vec::new(), 0);
    for number in 0.. {
        match set(&format!("short{number}"), 10_000, number as u8) {
            true => stored.push(number),
            false => refusals += 1,
        }
        if refusals == 20 {
            break;
        }
    }
    let mut other = served.client();
    let (kept, removed): (Vec<usize>, Vec<usize>) = stored.iter().partition(|number| *number % 10 == 0);
    let removed: Vec<String> = removed.iter().map(|number| format!("short{number}")).collect();
    let args: Vec<&[u8]> = [&b"del"[..]].into_iter().chain(removed.iter().map(String::as_bytes)).collect();
    other.check_args(&args, format!(":{}\r\n", removed.len()));
    let long: Vec<usize> = (0..60).collect();
    long.iter()
        .for_each(|number| assert!(set(&format!("long{number}"), 1_000_000, *number as u8), "{number}"));
    for (kind, len, numbers) in [("short", 10_000, kept), ("long", 1_000_000, long)] {
        for number in numbers {
            other.send(format!("get {kind}{number}\r\n"));
            assert_eq!(other.reply(), Value::Bytes(vec![number as u8; len]), "{kind}{number}");
        }
    }
    // INFO reports the memory of the values, including the unused rest of their blocks.
    assert!((60_000_000..128_000_000).contains(&info(&mut other, "used_memory")));
    assert_eq!(info(&mut other, "maxmemory"), 2 * 64 * MIB);
    served.end();
}

/// Returns a number of `INFO`.
fn info(client: &mut Client, name: &str) -> u64 {
    info_text(client, name).parse().unwrap()
}

fn info_text(client: &mut Client, name: &str) -> String {
    client.send("info\r\n");
    let Value::Bytes(text) = client.reply() else { panic!("INFO replies with a text") };
    let text = String::from_utf8(text).unwrap();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap().to_owned()
}

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";

/// Sets values of new keys of both shards until each shard has refused one. Returns the keys that were set.
fn fill(client: &mut Client, begin: &str, value: &[u8]) -> Vec<String> {
    let (mut keys, mut is_full) = (Vec::new(), [false; 2]);
    for number in 0.. {
        let (key, shard) = (key_of(number % 2, &format!("{begin}{number}")), number as usize % 2);
        client.send(request(&[b"set", key.as_bytes(), value]));
        match client.reply() {
            Value::Line(line) if line == "+OK" => keys.push(key),
            Value::Line(line) => {
                assert_eq!(format!("{line}\r\n"), OOM);
                is_full[shard] = true;
            }
            other => panic!("{other:?}"),
        }
        if is_full == [true; 2] {
            break;
        }
    }
    keys
}

#[test]
fn writes_are_refused_at_the_limit_of_memory() {
    let served = Served::new();
    let mut client = served.client();
    client.check("config set maxmemory 4mb maxmemory-policy NoEviction", "+OK\r\n");
    client.check("config get maxmemory", "*2\r\n$9\r\nmaxmemory\r\n$7\r\n4194304\r\n");
    assert_eq!(info_text(&mut client, "maxmemory_policy"), "noeviction");
    client.check_args(&[b"setex", b"brief", b"10", &[b'v'; 100_000]], "+OK\r\n");
    let keys = fill(&mut client, "k", &[b'v'; 10_000]);
    assert!(info(&mut client, "used_memory").abs_diff(4 * MIB) < 64 << 10);
    for line in ["append K x", "incr n", "setbit K 1 1", "bitfield K set u1 0 0", "setnx K x", "copy K to"] {
        client.check(&line.replace('K', &keys[0]), OOM);
    }
    // Commands that take no memory succeed.
    client.check(&format!("strlen {}", keys[0]), ":10000\r\n");
    client.check_args(&[b"bitfield_ro", keys[0].as_bytes(), b"get", b"u8", b"0"], "*1\r\n:118\r\n");
    client.check(&format!("expire {} 100", keys[0]), ":1\r\n");
    client.check(&format!("rename {} {}", keys[0], key_of(1, "to")), "+OK\r\n");
    client.check(&format!("rename {} {}", key_of(1, "to"), keys[0]), "+OK\r\n");
    // The first value fits, and none remains.
    client.check(&format!("del {}", keys[0]), ":1\r\n");
    let (one, two) = (key_of(0, "one"), key_of(0, "two"));
    let args: &[&[u8]] = &[b"msetnx", one.as_bytes(), &[b'v'; 20_000], two.as_bytes(), b"v"];
    client.check_args(args, OOM);
    client.check(&format!("exists {one} {two}"), ":0\r\n");
    client.check(&format!("del {} {}", keys[1], keys[2]), ":2\r\n");
    client.check(&format!("mset {} x {} y", keys[0], keys[1]), "+OK\r\n");
    // Expired keys make room.
    served.pass_ms(10_000);
    fill(&mut client, "more", &[b'v'; 10_000]);
    client.check("exists brief", ":0\r\n");
    assert_eq!(info(&mut client, "evicted_keys"), 0);
    // The limit can be raised, also by a transaction.
    client.send("multi\r\nconfig set maxmemory 0\r\nset n 1\r\nexec\r\n");
    client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n+OK\r\n");
    assert_eq!(info(&mut client, "maxmemory"), 2 * 64 * MIB);
    served.end();
}

#[test]
fn keys_are_evicted_at_the_limit_of_memory() {
    let served = Served::new();
    let mut client = served.client();
    client.check("config set maxmemory 4000000 maxmemory-policy volatile-ttl", "+OK\r\n");
    for shard in 0..2 {
        let value = [b'v'; 100_000];
        client.check_args(&[b"set", key_of(shard, "stays").as_bytes(), &value], "+OK\r\n");
        for (key, seconds) in [("later", "1000"), ("soon", "100")] {
            client.check_args(
                &[b"setex", key_of(shard, key).as_bytes(), seconds.as_bytes(), &value],
                "+OK\r\n",
            );
        }
    }
    let exists = |client: &mut Client, key: &str| {
        client.send(format!("exists {} {}\r\n", key_of(0, key), key_of(1, key)));
        client.reply()
    };
    // The keys that expire first are evicted first, and keys that do not expire stay.
    let mut number = 0;
    while exists(&mut client, "soon") != Value::Number(0) {
        assert_eq!(exists(&mut client, "later"), Value::Number(2));
        for shard in 0..2 {
            let key = key_of(shard, &format!("filler{number}"));
            client.check_args(&[b"set", key.as_bytes(), &[b'v'; 10_000]], "+OK\r\n");
        }
        number += 1;
    }
    fill(&mut client, "k", &[b'v'; 10_000]);
    assert_eq!(
        (exists(&mut client, "later"), exists(&mut client, "stays")),
        (Value::Number(0), Value::Number(2))
    );
    assert_eq!(info(&mut client, "evicted_keys"), 4);
    // With the other policy, any key may be evicted, and no request is refused.
    client.check("config set maxmemory-policy allkeys-random", "+OK\r\n");
    let mut other = served.client();
    other.check(&format!("watch {}", key_of(0, "stays")), "+OK\r\n");
    while exists(&mut client, "stays") != Value::Number(0) {
        let key = format!("random{number}");
        client.check_args(&[b"set", key.as_bytes(), &[b'r'; 10_000]], "+OK\r\n");
        client.check_args(&[b"get", key.as_bytes()], bulk(&[b'r'; 10_000]));
        number += 1;
    }
    assert!((3_500_000..4_050_000).contains(&info(&mut client, "used_memory")));
    // Eviction is a change of a watched key.
    other.send("multi\r\nping\r\nexec\r\n");
    other.expect("+OK\r\n+QUEUED\r\n*-1\r\n");
    served.end();
}

#[test]
fn keys_are_evicted_when_the_memory_of_a_shard_is_full() {
    let served = Served::with_memory(4 * MIB);
    let mut client = served.client();
    client.check("config set maxmemory-policy allkeys-random", "+OK\r\n");
    for (kind, len, count) in [("short", 10_000, 1000), ("long", 300_000, 40), ("tiny", 10, 5_000)] {
        let value = vec![b'v'; len];
        for number in 0..count {
            let key = format!("{kind}{number}");
            client.check_args(&[b"set", key.as_bytes(), &value], "+OK\r\n");
            client.check_args(&[b"get", key.as_bytes()], bulk(&value));
        }
    }
    assert!(info(&mut client, "used_memory") > 4_000_000);
    served.end();
}

#[test]
fn invalid_limits_of_memory_are_refused() {
    let served = Served::new();
    let mut client = served.client();
    let failed =
        |name, why| format!("-ERR CONFIG SET failed (possibly related to argument '{name}') - {why}\r\n");
    for value in ["-1", "1.5gb", "x", "1tb", "99999999999gb"] {
        let expected = failed("maxmemory", "argument must be a memory value");
        client.check(&format!("config set maxmemory {value}"), &expected);
    }
    let policies = "argument(s) must be one of the following: noeviction, allkeys-random, volatile-ttl";
    client
        .check("config set maxmemory 1 maxmemory-policy allkeys-lru", &failed("maxmemory-policy", policies));
    client.check("config set maxmemory 1 save", "-ERR syntax error\r\n");
    client.check("config set maxmemory 1 save x", &failed("save", "can't set immutable config"));
    client.check(
        "config get maxmemory*",
        "*4\r\n$9\r\nmaxmemory\r\n$9\r\n134217728\r\n$16\r\nmaxmemory-policy\r\n$10\r\nnoeviction\r\n",
    );
    served.end();
}

/// Returns a number that a client reads.
fn read_number(client: &mut Client, key: &str) -> u64 {
    client.send(format!("get {key}\r\n"));
    match client.reply() {
        Value::Bytes(digits) => std::str::from_utf8(&digits).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_transaction_over_several_shards_is_isolated() {
    let served = Served::new();
    let keys = [key_of(0, "k"), key_of(1, "k")];
    let [here, there] = &keys;
    let mut setup = served.client();
    setup.check(&format!("mset {here} 0 {there} 0"), "+OK\r\n");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _at_end = SetAtEnd(&is_over);
        for _ in 0..2 {
            scope.spawn(|| {
                let mut writer = served.client();
                while !is_over.load(Ordering::Relaxed) {
                    writer.send(format!("multi\r\nincr {here}\r\nincr {there}\r\nexec\r\n"));
                    writer.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n");
                    let Value::List(numbers) = writer.reply() else { panic!("not executed") };
                    assert_eq!(numbers[0], numbers[1]);
                }
            });
        }
        let mut reader = served.client();
        for round in 0..500 {
            let (first, second) = (&keys[round % 2], &keys[(round + 1) % 2]);
            // The transaction that stored the first number has incremented the second key, too.
            assert!(read_number(&mut reader, first) <= read_number(&mut reader, second));
        }
    });
    served.end();
}

#[test]
fn a_transaction_is_executed_completely_or_not_at_all() {
    let served = Served::new();
    let (here, there) = (key_of(0, "k"), key_of(1, "k"));
    let transaction = format!("multi\r\nset {here} 1\r\nset {there} 1\r\nget {here}\r\nexec\r\n");
    let queued = "+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n";
    // Each change of a watched key, its removal and its expiry abort the transaction.
    let (mut one, mut other) = (served.client(), served.client());
    for change in ["set K 2", "del K", "setex K 1 x", "append K x", "flushall"] {
        other.check(&format!("set {there} x px 1500"), "+OK\r\n");
        one.check(&format!("watch {there}"), "+OK\r\n");
        other.send(format!("{}\r\n", change.replace('K', &there)));
        other.reply();
        one.send(&transaction);
        one.expect(format!("{queued}*-1\r\n"));
    }
    other.check(&format!("set {there} x px 1500"), "+OK\r\n");
    one.check(&format!("watch {there}"), "+OK\r\n");
    served.pass_ms(1500);
    one.send(&transaction);
    one.expect(format!("{queued}*-1\r\n"));
    one.check(&format!("exists {here} {there}"), ":0\r\n");
    // A request that is too long refuses the transaction around it.
    one.send("multi\r\nset a 1\r\n");
    one.send(too_many());
    one.send("exec\r\n");
    one.expect(format!("+OK\r\n+QUEUED\r\n{TOO_MANY}"));
    one.expect("-EXECABORT Transaction discarded because of previous errors.\r\n");
    // While an owner is silent, transactions on its keys wait, and other shards serve. A transaction is executed even
    // if its client has disconnected.
    let silence = served.shards.silence.lock().unwrap();
    let mut gone = served.client();
    gone.send(&transaction);
    gone.expect(queued);
    other.check("ping", "+PONG\r\n");
    drop((gone, silence));
    while !matches!(other.scan("0", "count 100"), (_, keys) if keys.len() == 2) {}
    // If an owner has ended, the transaction has no effect.
    one.check(&format!("del {here}"), ":1\r\n");
    let mut served = served;
    let (_, owner) = served.shards.owners.pop().unwrap();
    served.shards.cluster.nodes.pop().unwrap().leave();
    owner.join().unwrap().unwrap();
    one.send(&transaction);
    one.expect(queued);
    assert!(matches!(one.reply(), Value::Line(line) if line.starts_with("-")));
    one.check(&format!("get {here}"), "$-1\r\n");
    served.end();
}

/// Returns a key of a shard, according to the store's placement.
fn key_of(shard: u64, begin: &str) -> String {
    let keys = (0..).map(|salt| format!("{begin}-{salt}"));
    keys.into_iter().find(|key| xxhash_rust::xxh3::xxh3_64(key.as_bytes()) >> 63 == shard).unwrap()
}

#[test]
fn a_silent_owner_delays_only_its_own_keys() {
    let served = Served::new();
    // A key of the local shard, and one of the remote shard.
    let key = |number: u64, shard: u64| key_of(shard, &number.to_string());
    let (here, there) = (key(0, 0), key(0, 1));
    let mut other = served.client();
    other.check(&format!("set {there} old"), "+OK\r\n");
    let silence = served.shards.silence.lock().unwrap();
    let mut waiting = served.client();
    waiting.send(format!("set {} new\r\nget {0}\r\nset {1} too\r\nget {1}\r\n", key(1, 1), key(1, 0)));
    let mut many = served.client();
    many.send(format!("mset {} x {} y\r\ndbsize\r\n", key(2, 0), key(2, 1)));
    let mut gone = served.client();
    gone.send(format!("set {} lost\r\n", key(4, 1)));
    drop(gone);
    // The server serves all these meanwhile. It reads existing values without their owner.
    for number in 0..100 {
        let mut one = served.client();
        one.check(&format!("set {here} {number}"), "+OK\r\n");
        one.check(&format!("get {here}"), &String::from_utf8(bulk(number.to_string().as_bytes())).unwrap());
        one.check(&format!("get {there}"), "$3\r\nold\r\n");
        other.check("ping", "+PONG\r\n");
    }
    drop(silence);
    waiting.expect("+OK\r\n$3\r\nnew\r\n+OK\r\n$3\r\ntoo\r\n");
    assert!(matches!((many.reply(), many.reply()), (Value::Line(line), Value::Number(5..)) if line == "+OK"));
    served.end();
}
