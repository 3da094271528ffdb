//! `CONFIG`: the server's settings. Clients can set the limit of memory, and what happens when it is reached.

use super::super::decimal::parse_integer;
use super::super::layout::VALUE_BYTES_MAX;
use super::super::limit::{Eviction, MemoryLimit};
use super::client::{ServerInfo, help, unknown_subcommand};
use super::commands::{SYNTAX, check_arity, is};
use super::glob;
use super::reply::{OK, Reply, printable};
use super::request::Args;

const MEMORY: &str = "maxmemory";
const EVICTION: &str = "maxmemory-policy";

/// Replies to `CONFIG`, except to a `CONFIG SET` that [`parse_set`] accepts.
pub(super) fn execute<'a>(args: Args<'a>, server_info: &mut ServerInfo) -> Reply<'a> {
    let name = String::from_utf8_lossy(&args[1]).to_ascii_lowercase();
    let arity = match name.as_str() {
        "get" => -3,
        "set" => -4,
        "resetstat" | "help" => 2,
        _ => return unknown_subcommand(args),
    };
    if let Err(reply) = check_arity(&format!("config|{name}"), arity, args) {
        return reply;
    }
    match name.as_str() {
        "get" => {
            let is_requested = |name: &str| {
                let mut patterns = args.iter().skip(2);
                patterns.any(|pattern| glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let requested = settings(server_info).into_iter().filter(|(name, _)| is_requested(name));
            Reply::Map(
                requested.map(|(name, value)| (Reply::Bulk(name.as_bytes()), Reply::Text(value))).collect(),
            )
        }
        "set" => parse_set(args, server_info).err().unwrap_or(OK),
        "help" => help(HELP),
        _ => {
            (server_info.connections, server_info.commands) = (0, 0);
            OK
        }
    }
}

const HELP: &[&str] = &[
    "CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GET <pattern>",
    "    Return the settings that match the glob-like <pattern>, and their values.",
    "SET <directive> <value>",
    "    Set maxmemory or maxmemory-policy.",
    "RESETSTAT",
    "    Reset the statistics of INFO.",
    "HELP",
    "    Print this help.",
];

fn settings(server_info: &ServerInfo) -> [(&'static str, String); 9] {
    [
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", server_info.clients_max.to_string()),
        (MEMORY, server_info.memory_max().to_string()),
        (EVICTION, server_info.limit.eviction.to_string()),
        ("port", server_info.address.port().to_string()),
        ("proto-max-bulk-len", VALUE_BYTES_MAX.to_string()),
        ("save", String::new()),
        ("timeout", "0".to_owned()),
    ]
}

/// Returns the limit that a request sets, if it is a `CONFIG SET` without mistakes.
pub(super) fn parse_set(args: Args<'_>, server_info: &ServerInfo) -> Result<MemoryLimit, Reply<'static>> {
    if !is(&args[1], "set") || args.len() < 4 || !args.len().is_multiple_of(2) {
        return Err(Reply::error(SYNTAX));
    }
    let mut limit = server_info.limit;
    let (mut names, mut values) = (args.iter().skip(2).step_by(2), args.iter().skip(3).step_by(2));
    while let (Some(name), Some(value)) = (names.next(), values.next()) {
        let failed = |why: &str| {
            let name = printable(name);
            Reply::error(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
        };
        if is(name, MEMORY) {
            limit.bytes = parse_bytes(value).ok_or_else(|| failed("argument must be a memory value"))?;
        } else if is(name, EVICTION) {
            let text = String::from_utf8_lossy(value);
            limit.eviction = text.parse().map_err(|_| {
                let names = Eviction::NAMES.map(|(_, name)| name).join(", ");
                failed(&format!("argument(s) must be one of the following: {names}"))
            })?;
        } else if settings(server_info).iter().any(|(other, _)| is(name, other)) {
            return Err(failed("can't set immutable config"));
        } else {
            let name = printable(name);
            return Err(Reply::error(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{name}'"
            )));
        }
    }
    Ok(limit)
}

/// Parses a number of bytes as Redis does: `k`, `m` and `g` are powers of 1000, `kb`, `mb` and `gb` powers of 1024.
fn parse_bytes(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.to_ascii_lowercase().as_slice() {
        b"" | b"b" => 1,
        b"k" => 1000,
        b"kb" => 1 << 10,
        b"m" => 1000 * 1000,
        b"mb" => 1 << 20,
        b"g" => 1000 * 1000 * 1000,
        b"gb" => 1 << 30,
        _ => return None,
    };
    u64::try_from(parse_integer(number)?).ok()?.checked_mul(unit)
}
