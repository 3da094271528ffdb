//! A conversation with a client, with the replies of Redis 7.0.

use crate::common;

use common::redis::Served;

const NOT_AN_INTEGER: &str = "-ERR value is not an integer or out of range\r\n";
const SYNTAX: &str = "-ERR syntax error\r\n";

/// Requests of a client, and the replies of Redis, one after the other.
const REPLIES: &[(&str, &str)] = &[
    ("ping", "+PONG\r\n"),
    ("PiNg hello", "$5\r\nhello\r\n"),
    ("echo hello", "$5\r\nhello\r\n"),
    ("nonsense a b", "-ERR unknown command 'nonsense', with args beginning with: 'a' 'b' \r\n"),
    ("GET a b", "-ERR wrong number of arguments for 'get' command\r\n"),
    // Values.
    ("get a", "$-1\r\n"),
    ("set a 1", "+OK\r\n"),
    ("get a", "$1\r\n1\r\n"),
    ("set a 2 nx", "$-1\r\n"),
    ("set a 3 XX GET", "$1\r\n1\r\n"),
    ("set b 3 nx get", "$-1\r\n"),
    ("set b 4 nx get", "$1\r\n3\r\n"),
    ("set a 1 nx xx", SYNTAX),
    ("set a 1 ex", SYNTAX),
    ("set a 1 ex 10 px 10", SYNTAX),
    ("set a 1 else", SYNTAX),
    ("set a 1 ex ten", NOT_AN_INTEGER),
    ("set a 1 ex 0", "-ERR invalid expire time in 'set' command\r\n"),
    ("set a 1 ex 9223372036854775807", "-ERR invalid expire time in 'set' command\r\n"),
    ("setex a 0 1", "-ERR invalid expire time in 'setex' command\r\n"),
    ("setnx c 1", ":1\r\n"),
    ("getset c 2", "$1\r\n1\r\n"),
    ("set gone 1", "+OK\r\n"),
    ("getdel gone", "$1\r\n1\r\n"),
    ("getdel gone", "$-1\r\n"),
    ("set kept 1", "+OK\r\n"),
    ("getex kept", "$1\r\n1\r\n"),
    ("getex kept ex 100", "$1\r\n1\r\n"),
    ("ttl kept", ":100\r\n"),
    ("getex kept persist", "$1\r\n1\r\n"),
    ("getex kept ex 0", "-ERR invalid expire time in 'getex' command\r\n"),
    ("del kept", ":1\r\n"),
    ("strlen a", ":1\r\n"),
    ("strlen none", ":0\r\n"),
    ("append a bcd", ":4\r\n"),
    ("get a", "$4\r\n3bcd\r\n"),
    ("type a", "+string\r\n"),
    ("exists a a none b", ":3\r\n"),
    ("del a", ":1\r\n"),
    ("unlink b c none", ":2\r\n"),
    ("mset a 1 b 2 c 3", "+OK\r\n"),
    ("mget a b c", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"),
    ("mset a 1 b", "-ERR wrong number of arguments for 'mset' command\r\n"),
    ("dbsize", ":3\r\n"),
    // Numbers.
    ("incr a", ":2\r\n"),
    ("incrby n 41", ":41\r\n"),
    ("decr n", ":40\r\n"),
    ("incrby n ten", NOT_AN_INTEGER),
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
    ("ttl n", ":-1\r\n"),
    ("expire n 300 lt", ":1\r\n"),
    ("expire n 10 else", "-ERR Unsupported option else\r\n"),
    ("expire n 10 nx gt", "-ERR NX and XX, GT or LT options at the same time are not compatible\r\n"),
    ("expire n 9223372036854775", "-ERR invalid expire time in 'expire' command\r\n"),
    ("expire n -1", ":1\r\n"),
    ("get n", "$-1\r\n"),
    ("set n 1 ex 100", "+OK\r\n"),
    ("ttl n", ":100\r\n"),
    ("set n 2", "+OK\r\n"),
    ("ttl n", ":-1\r\n"),
    ("expireat n 1", ":1\r\n"),
    ("exists n", ":0\r\n"),
];

/// Commands that do not touch keys.
const ABOUT: &[(&str, &str)] = &[
    ("scan x", "-ERR invalid cursor\r\n"),
    ("scan 0 count 0", SYNTAX),
    ("scan 0 type list", "*2\r\n$1\r\n0\r\n*0\r\n"),
    ("flushdb async", "+OK\r\n"),
    ("flushall", "+OK\r\n"),
    ("dbsize", ":0\r\n"),
    ("select 0", "+OK\r\n"),
    ("select 99", "-ERR DB index is out of range\r\n"),
    ("hello 4", "-NOPROTO unsupported protocol version\r\n"),
    ("auth somebody x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"),
    ("auth default x", "+OK\r\n"),
    (
        "auth x",
        "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
         configuration is correct?\r\n",
    ),
    // Transactions.
    ("exec", "-ERR EXEC without MULTI\r\n"),
    ("discard", "-ERR DISCARD without MULTI\r\n"),
    ("multi", "+OK\r\n"),
    ("multi", "-ERR MULTI calls can not be nested\r\n"),
    ("watch a", "-ERR WATCH inside MULTI is not allowed\r\n"),
    ("set a 1", "+QUEUED\r\n"),
    ("exec", "*1\r\n+OK\r\n"),
    ("multi", "+OK\r\n"),
    ("exec", "*0\r\n"),
    ("multi", "+OK\r\n"),
    ("set a 2", "+QUEUED\r\n"),
    ("get", "-ERR wrong number of arguments for 'get' command\r\n"),
    ("exec", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
    ("multi", "+OK\r\n"),
    ("set a 2", "+QUEUED\r\n"),
    ("discard", "+OK\r\n"),
    ("multi", "+OK\r\n"),
    ("get a", "+QUEUED\r\n"),
    ("set b x", "+QUEUED\r\n"),
    ("incr b", "+QUEUED\r\n"),
    ("ping", "+QUEUED\r\n"),
    ("mget a b none", "+QUEUED\r\n"),
    ("dbsize", "+QUEUED\r\n"),
    ("getdel b", "+QUEUED\r\n"),
    ("flushall", "+QUEUED\r\n"),
    ("set b 1 ex 0", "+QUEUED\r\n"),
    ("echo x", "+QUEUED\r\n"),
    (
        "exec",
        "*10\r\n$1\r\n1\r\n+OK\r\n-ERR value is not an integer or out of range\r\n+PONG\r\n\
         *3\r\n$1\r\n1\r\n$1\r\nx\r\n$-1\r\n:2\r\n$1\r\nx\r\n+OK\r\n\
         -ERR invalid expire time in 'set' command\r\n$1\r\nx\r\n",
    ),
    ("watch a b", "+OK\r\n"),
    ("set b 1", "+OK\r\n"),
    ("multi", "+OK\r\n"),
    ("set a 1", "+QUEUED\r\n"),
    ("exec", "*-1\r\n"),
    ("exists a", ":0\r\n"),
    ("watch a b", "+OK\r\n"),
    ("unwatch", "+OK\r\n"),
    ("set b 2", "+OK\r\n"),
    ("multi", "+OK\r\n"),
    ("get b", "+QUEUED\r\n"),
    ("exec", "*1\r\n$1\r\n2\r\n"),
    ("del b", ":1\r\n"),
    ("client getname", "$-1\r\n"),
    ("client setname me", "+OK\r\n"),
    ("client getname", "$2\r\nme\r\n"),
    ("client else", "-ERR unknown subcommand 'else'. Try CLIENT HELP.\r\n"),
    ("config get save", "*2\r\n$4\r\nsave\r\n$0\r\n\r\n"),
    ("config set else 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'else'\r\n"),
    ("reset", "+RESET\r\n"),
    ("quit", "+OK\r\n"),
];

/// Commands that Redis 7.0 does not have, or does not refuse.
const OWN: &[(&str, &str)] = &[
    ("set lock me", "+OK\r\n"),
    ("delex lock ifeq you", ":0\r\n"),
    ("delex lock ifne me", ":0\r\n"),
    ("delex lock ifeq", SYNTAX),
    ("delex lock ifeq me", ":1\r\n"),
    ("delex lock ifeq me", ":0\r\n"),
    (
        "eval return_1 0",
        "-ERR 'eval' is refused: this server runs no scripts; MULTI and EXEC execute commands together, and DELEX key \
         IFEQ value releases a lock\r\n",
    ),
];

#[test]
fn replies_are_as_listed() {
    let served = Served::new();
    let mut client = served.client();
    for (line, expected) in REPLIES.iter().chain(OWN).chain(ABOUT) {
        client.say(line, expected);
    }
    client.expect_end();
    served.end();
}
