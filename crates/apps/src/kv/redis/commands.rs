//! The commands of Redis, and their operations on the store.

use std::fmt::Write;

use super::super::decimal::parse_integer;
use super::super::wire::{Answer, Expires, Only, Request, When};
use super::bits::{Span, bit_at, parse_bit_offset, parse_fields};
use super::lcs::Lcs;
use super::multi_key::{Combination, MultiKeyCommand};
use super::reply::{OK, Reply, printable};
use super::request::Args;

/// Description of a command.
pub(super) struct Command {
    pub(super) name: &'static str,
    /// Number of arguments including the name; if negative, the minimum.
    pub(super) arity: i64,
    /// First key, last key, and the step between keys.
    pub(super) keys: (i64, i64, i64),
    pub(super) kind: CommandKind,
}

/// Kinds of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CommandKind {
    Append,
    Auth,
    BitCount,
    BitFields {
        is_read_only: bool,
    },
    BitPosition,
    Combine,
    Copy,
    Client,
    Command,
    Config,
    Count,
    Decrement,
    DecrementBy,
    Delete,
    DeleteIf,
    Discard,
    Echo,
    Exec,
    Exists,
    Expire {
        unit_ms: i64,
        is_absolute: bool,
    },
    ExpireTime {
        unit_ms: i64,
    },
    Flush,
    Get,
    GetBit,
    GetRange,
    GetAndDelete,
    GetAndExpire,
    GetSet,
    Hello,
    Increment,
    IncrementBy,
    IncrementByFloat,
    Info,
    Keys,
    Lcs,
    GetMany,
    Multi,
    SetMany,
    SetManyIfAbsent,
    Persist,
    Ping,
    Quit,
    RandomKey,
    Rename {
        only: Only,
    },
    Reset,
    Scan,
    /// A command that runs scripts, which this server does not.
    Script,
    Select,
    Set,
    SetFor {
        unit_ms: i64,
    },
    SetIfAbsent,
    SetBit,
    SetRange,
    Length,
    Time,
    TimeLeft {
        unit_ms: i64,
    },
    Type,
    Unwatch,
    Watch,
}

const fn command(name: &'static str, arity: i64, keys: (i64, i64, i64), kind: CommandKind) -> Command {
    Command { name, arity, keys, kind }
}

const NO_KEY: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);

/// All commands, ordered by name.
pub(super) const COMMANDS: &[Command] = &[
    command("append", 3, ONE_KEY, CommandKind::Append),
    command("auth", -2, NO_KEY, CommandKind::Auth),
    command("bitcount", -2, ONE_KEY, CommandKind::BitCount),
    command("bitfield", -2, ONE_KEY, CommandKind::BitFields { is_read_only: false }),
    command("bitfield_ro", -2, ONE_KEY, CommandKind::BitFields { is_read_only: true }),
    command("bitop", -4, (2, -1, 1), CommandKind::Combine),
    command("bitpos", -3, ONE_KEY, CommandKind::BitPosition),
    command("client", -2, NO_KEY, CommandKind::Client),
    command("command", -1, NO_KEY, CommandKind::Command),
    command("config", -2, NO_KEY, CommandKind::Config),
    command("copy", -3, (1, 2, 1), CommandKind::Copy),
    command("dbsize", 1, NO_KEY, CommandKind::Count),
    command("decr", 2, ONE_KEY, CommandKind::Decrement),
    command("decrby", 3, ONE_KEY, CommandKind::DecrementBy),
    command("del", -2, ALL_KEYS, CommandKind::Delete),
    command("delex", -2, ONE_KEY, CommandKind::DeleteIf),
    command("discard", 1, NO_KEY, CommandKind::Discard),
    command("echo", 2, NO_KEY, CommandKind::Echo),
    command("eval", -3, NO_KEY, CommandKind::Script),
    command("eval_ro", -3, NO_KEY, CommandKind::Script),
    command("evalsha", -3, NO_KEY, CommandKind::Script),
    command("evalsha_ro", -3, NO_KEY, CommandKind::Script),
    command("exec", 1, NO_KEY, CommandKind::Exec),
    command("exists", -2, ALL_KEYS, CommandKind::Exists),
    command("expire", -3, ONE_KEY, CommandKind::Expire { unit_ms: 1000, is_absolute: false }),
    command("expireat", -3, ONE_KEY, CommandKind::Expire { unit_ms: 1000, is_absolute: true }),
    command("expiretime", 2, ONE_KEY, CommandKind::ExpireTime { unit_ms: 1000 }),
    command("fcall", -3, NO_KEY, CommandKind::Script),
    command("fcall_ro", -3, NO_KEY, CommandKind::Script),
    command("flushall", -1, NO_KEY, CommandKind::Flush),
    command("flushdb", -1, NO_KEY, CommandKind::Flush),
    command("get", 2, ONE_KEY, CommandKind::Get),
    command("getbit", 3, ONE_KEY, CommandKind::GetBit),
    command("getdel", 2, ONE_KEY, CommandKind::GetAndDelete),
    command("getex", -2, ONE_KEY, CommandKind::GetAndExpire),
    command("getrange", 4, ONE_KEY, CommandKind::GetRange),
    command("getset", 3, ONE_KEY, CommandKind::GetSet),
    command("hello", -1, NO_KEY, CommandKind::Hello),
    command("incr", 2, ONE_KEY, CommandKind::Increment),
    command("incrby", 3, ONE_KEY, CommandKind::IncrementBy),
    command("incrbyfloat", 3, ONE_KEY, CommandKind::IncrementByFloat),
    command("info", -1, NO_KEY, CommandKind::Info),
    command("keys", 2, NO_KEY, CommandKind::Keys),
    command("lcs", -3, (1, 2, 1), CommandKind::Lcs),
    command("mget", -2, ALL_KEYS, CommandKind::GetMany),
    command("mset", -3, (1, -1, 2), CommandKind::SetMany),
    command("msetnx", -3, (1, -1, 2), CommandKind::SetManyIfAbsent),
    command("multi", 1, NO_KEY, CommandKind::Multi),
    command("persist", 2, ONE_KEY, CommandKind::Persist),
    command("pexpire", -3, ONE_KEY, CommandKind::Expire { unit_ms: 1, is_absolute: false }),
    command("pexpireat", -3, ONE_KEY, CommandKind::Expire { unit_ms: 1, is_absolute: true }),
    command("pexpiretime", 2, ONE_KEY, CommandKind::ExpireTime { unit_ms: 1 }),
    command("ping", -1, NO_KEY, CommandKind::Ping),
    command("psetex", 4, ONE_KEY, CommandKind::SetFor { unit_ms: 1 }),
    command("pttl", 2, ONE_KEY, CommandKind::TimeLeft { unit_ms: 1 }),
    command("quit", -1, NO_KEY, CommandKind::Quit),
    command("randomkey", 1, NO_KEY, CommandKind::RandomKey),
    command("rename", 3, (1, 2, 1), CommandKind::Rename { only: Only::Always }),
    command("renamenx", 3, (1, 2, 1), CommandKind::Rename { only: Only::IfAbsent }),
    command("reset", 1, NO_KEY, CommandKind::Reset),
    command("scan", -2, NO_KEY, CommandKind::Scan),
    command("script", -2, NO_KEY, CommandKind::Script),
    command("select", 2, NO_KEY, CommandKind::Select),
    command("set", -3, ONE_KEY, CommandKind::Set),
    command("setbit", 4, ONE_KEY, CommandKind::SetBit),
    command("setex", 4, ONE_KEY, CommandKind::SetFor { unit_ms: 1000 }),
    command("setnx", 3, ONE_KEY, CommandKind::SetIfAbsent),
    command("setrange", 4, ONE_KEY, CommandKind::SetRange),
    command("strlen", 2, ONE_KEY, CommandKind::Length),
    command("substr", 4, ONE_KEY, CommandKind::GetRange),
    command("time", 1, NO_KEY, CommandKind::Time),
    command("touch", -2, ALL_KEYS, CommandKind::Exists),
    command("ttl", 2, ONE_KEY, CommandKind::TimeLeft { unit_ms: 1000 }),
    command("type", 2, ONE_KEY, CommandKind::Type),
    command("unlink", -2, ALL_KEYS, CommandKind::Delete),
    command("unwatch", 1, NO_KEY, CommandKind::Unwatch),
    command("watch", -2, ALL_KEYS, CommandKind::Watch),
];

/// Operation of a command on the store.
#[derive(Clone, Debug)]
pub(super) enum Query<'a> {
    /// Reads the value of a key, or a property of it.
    Get(&'a [u8], ReplyKind),
    /// Sends a request to the owner of a key.
    Request(&'a [u8], Request<'a>, ReplyKind),
    /// Sends encoded [fields](super::super::fields::Field) to the owner of a key.
    EditFields(&'a [u8], Vec<u8>),
    /// Sends requests to the owners of several keys, one after the other.
    Requests(Vec<(&'a [u8], Request<'a>)>, Total),
    /// Reads the values of several keys.
    GetMany(Args<'a>),
    /// Executes a command on several keys as a transaction.
    MultiKey(MultiKeyCommand),
    /// Returns a key chosen at random.
    RandomKey,
    /// Returns some keys, about `count`, that match the pattern.
    Scan { cursor: u64, count: u64, pattern: Option<&'a [u8]>, is_of_strings: bool },
    /// Returns all keys that match the pattern.
    Keys(&'a [u8]),
    /// Returns the number of keys.
    Count,
    /// Removes all keys.
    Clear,
}

/// The conversion of an owner's answer to a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReplyKind {
    /// The value, or nil.
    Value,
    /// This error if the key exists, otherwise nil.
    ErrorIfPresent(&'static str),
    /// The length of the value; 0 if there is none.
    Length,
    /// OK, or nil.
    Done,
    /// 1 or 0.
    Flag,
    /// The number.
    Number,
    /// The time until the key expires, in units of this many ms.
    TimeLeft(i64),
    /// The time of day at which the key expires, in units of this many ms.
    ExpireTime(i64),
    /// The type of the value.
    Type,
    /// Some bytes of the value.
    Range(Span),
    /// A bit of the value.
    Bit(u64),
    /// The number of set bits.
    BitCount(Span),
    /// The position of the first bit of a range that has this value. The last value is true if the client named the end
    /// of the range.
    BitPosition(Span, bool, bool),
    /// The results of fields.
    Fields,
}

/// The conversion of several answers to a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Total {
    /// The number of positive answers.
    Count,
    /// OK.
    Done,
}

pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub(super) const SYNTAX: &str = "ERR syntax error";

/// Returns the command of a request, if its number of arguments is valid.
pub(super) fn find<'a>(args: Args<'a>) -> Result<&'static Command, Reply<'a>> {
    let found = name_as_integer(&args[0]).and_then(|name| NAMES.binary_search(&name).ok());
    let Some(command) = found.map(|index| &COMMANDS[index]) else { return Err(unknown_command(args)) };
    check_arity(command.name, command.arity, args)?;
    Ok(command)
}

/// Maximum length of a command's name.
const NAME_BYTES_MAX: usize = 16;

/// All names as numbers, for fast comparison.
static NAMES: [u128; COMMANDS.len()] = {
    let (mut names, mut at) = ([0; COMMANDS.len()], 0);
    while at < COMMANDS.len() {
        names[at] = name_as_integer(COMMANDS[at].name.as_bytes()).expect("no name is longer");
        at += 1;
    }
    names
};

/// Returns a name in lower case as a number; the order of the numbers is that of the names. Returns `None` if the name
/// is too long, or contains NUL, which pads shorter names.
const fn name_as_integer(name: &[u8]) -> Option<u128> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    let (mut bytes, mut at) = ([0; NAME_BYTES_MAX], 0);
    while at < name.len() {
        if name[at] == 0 {
            return None;
        }
        bytes[at] = name[at].to_ascii_lowercase();
        at += 1;
    }
    Some(u128::from_be_bytes(bytes))
}

/// Checks the number of a command's arguments.
pub(super) fn check_arity(name: &str, arity: i64, args: Args<'_>) -> Result<(), Reply<'static>> {
    let (count, wanted) = (args.len(), arity.unsigned_abs() as usize);
    let fits = if arity < 0 { count >= wanted } else { count == wanted };
    if fits { Ok(()) } else { Err(wrong_number(name)) }
}

fn wrong_number(name: &str) -> Reply<'static> {
    Reply::error(format!("ERR wrong number of arguments for '{name}' command"))
}

/// Maximum number of bytes of client input in an error reply.
const SHOWN_BYTES_MAX: usize = 128;

fn unknown_command(args: Args<'_>) -> Reply<'static> {
    let cut = |bytes: &[u8], max: usize| printable(&bytes[..bytes.len().min(max)]);
    let mut text =
        format!("ERR unknown command '{}', with args beginning with: ", cut(&args[0], SHOWN_BYTES_MAX));
    let begin = text.len();
    for arg in args.iter().skip(1) {
        let left = SHOWN_BYTES_MAX.saturating_sub(text.len() - begin);
        if left == 0 {
            break;
        }
        // Writing to a string cannot fail.
        let _ = write!(text, "'{}' ", cut(arg, left));
    }
    Reply::error(text)
}

/// Returns a command's operation on the store, if it has one.
pub(super) fn plan<'a>(
    command: &Command,
    args: Args<'a>,
    unix_ms: fn() -> i64,
) -> Result<Option<Query<'a>>, Reply<'static>> {
    let arg = |index: usize| args.get(index).expect("the number of arguments has been checked");
    let key = args.get(1).unwrap_or_default();
    let request = |request, reply_kind| Ok(Some(Query::Request(key, request, reply_kind)));
    let set = |value, only, expires, returns_old| Request::Set {
        key,
        value,
        only,
        expires,
        returns_old,
        is_renamed: false,
    };
    let number = |index: usize| parse_integer(arg(index)).ok_or_else(|| Reply::error(NOT_AN_INTEGER));
    match command.kind {
        CommandKind::Get => Ok(Some(Query::Get(key, ReplyKind::Value))),
        CommandKind::Length => Ok(Some(Query::Get(key, ReplyKind::Length))),
        CommandKind::Set => set_with_options(args, unix_ms).map(Some),
        CommandKind::GetAndDelete => request(Request::Take { key }, ReplyKind::Value),
        CommandKind::GetAndExpire if args.len() == 2 => Ok(Some(Query::Get(key, ReplyKind::Value))),
        CommandKind::GetAndExpire => match getex_options(args, unix_ms)? {
            Ok(expires) => request(Request::GetAndExpire { key, expires }, ReplyKind::Value),
            // Redis reports these errors only if the key exists.
            Err(error) => Ok(Some(Query::Get(key, ReplyKind::ErrorIfPresent(error)))),
        },
        CommandKind::SetFor { unit_ms } => {
            let expires = time_to_live(number(2)?, unit_ms, command.name, unix_ms())?;
            request(set(arg(3), Only::Always, expires, false), ReplyKind::Done)
        }
        CommandKind::SetIfAbsent => {
            request(set(arg(2), Only::IfAbsent, Expires::Never, false), ReplyKind::Flag)
        }
        CommandKind::GetSet => request(set(arg(2), Only::Always, Expires::Never, true), ReplyKind::Value),
        CommandKind::Append => request(Request::Append { key, value: arg(2) }, ReplyKind::Number),
        CommandKind::Increment => request(Request::Add { key, number: 1 }, ReplyKind::Number),
        CommandKind::Decrement => request(Request::Add { key, number: -1 }, ReplyKind::Number),
        CommandKind::IncrementBy => request(Request::Add { key, number: number(2)? }, ReplyKind::Number),
        CommandKind::DecrementBy => match number(2)?.checked_neg() {
            Some(number) => request(Request::Add { key, number }, ReplyKind::Number),
            None => Err(Reply::error("ERR decrement would overflow")),
        },
        CommandKind::Expire { unit_ms, is_absolute } => {
            let when = expire_condition(args)?;
            let expires = expiry(number(2)?, (unit_ms, is_absolute), command.name, unix_ms())?;
            request(Request::Expire { key, expires, when }, ReplyKind::Flag)
        }
        CommandKind::Persist => {
            request(Request::Expire { key, expires: Expires::Never, when: When::Expiring }, ReplyKind::Flag)
        }
        CommandKind::TimeLeft { unit_ms } => request(Request::TimeLeft { key }, ReplyKind::TimeLeft(unit_ms)),
        CommandKind::Type => request(Request::TimeLeft { key }, ReplyKind::Type),
        CommandKind::Delete if args.len() == 2 => request(Request::Delete { key }, ReplyKind::Flag),
        CommandKind::DeleteIf if args.len() == 2 => request(Request::Delete { key }, ReplyKind::Flag),
        CommandKind::DeleteIf => match args.get(2).filter(|_| args.len() == 4) {
            Some(condition) if is(condition, "ifeq") || is(condition, "ifne") => {
                let is_equal = is(condition, "ifeq");
                request(Request::DeleteIf { key, value: arg(3), is_equal }, ReplyKind::Flag)
            }
            _ => Err(Reply::error(SYNTAX)),
        },
        CommandKind::Exists if args.len() == 2 => request(Request::TimeLeft { key }, ReplyKind::Flag),
        CommandKind::Delete => {
            let requests = args.iter().skip(1).map(|key| (key, Request::Delete { key }));
            Ok(Some(Query::Requests(requests.collect(), Total::Count)))
        }
        CommandKind::Exists => {
            let requests = args.iter().skip(1).map(|key| (key, Request::TimeLeft { key }));
            Ok(Some(Query::Requests(requests.collect(), Total::Count)))
        }
        CommandKind::GetMany => Ok(Some(Query::GetMany(args))),
        CommandKind::GetRange => {
            let span = Span::parse(args, 2, false)?;
            Ok(Some(Query::Get(key, ReplyKind::Range(span))))
        }
        CommandKind::GetBit => Ok(Some(Query::Get(key, ReplyKind::Bit(parse_bit_offset(arg(2))?)))),
        CommandKind::BitCount if args.len() == 2 => Ok(Some(Query::Get(key, ReplyKind::BitCount(Span::ALL)))),
        CommandKind::BitCount if args.len() == 3 => Err(Reply::error(SYNTAX)),
        CommandKind::BitCount => Ok(Some(Query::Get(key, ReplyKind::BitCount(Span::parse(args, 2, true)?)))),
        CommandKind::BitPosition => {
            let bit = match number(2)? {
                bit @ 0..=1 => bit == 1,
                _ => return Err(Reply::error("ERR The bit argument must be 1 or 0.")),
            };
            let span = if args.len() == 3 { Span::ALL } else { Span::parse(args, 3, true)? };
            Ok(Some(Query::Get(key, ReplyKind::BitPosition(span, bit, args.len() > 4))))
        }
        CommandKind::BitFields { is_read_only } => {
            Ok(Some(Query::EditFields(key, parse_fields(args, is_read_only)?)))
        }
        CommandKind::SetBit => {
            let offset = parse_bit_offset(arg(2))?;
            let bit = parse_integer(arg(3)).filter(|bit| (0..=1).contains(bit));
            let bit = bit.ok_or_else(|| Reply::error("ERR bit is not an integer or out of range"))? == 1;
            request(Request::SetBit { key, offset, bit }, ReplyKind::Number)
        }
        CommandKind::SetRange => match u64::try_from(number(2)?) {
            Ok(offset) => request(Request::SetRange { key, offset, value: arg(3) }, ReplyKind::Number),
            Err(_) => Err(Reply::error("ERR offset is out of range")),
        },
        CommandKind::IncrementByFloat => request(Request::AddFloat { key, value: arg(2) }, ReplyKind::Value),
        CommandKind::ExpireTime { unit_ms } => {
            request(Request::ExpireTime { key }, ReplyKind::ExpireTime(unit_ms))
        }
        CommandKind::RandomKey => Ok(Some(Query::RandomKey)),
        CommandKind::Rename { only } => {
            let (from, to) = (key.to_vec(), arg(2).to_vec());
            Ok(Some(Query::MultiKey(MultiKeyCommand::Move { from, to, only, is_copy: false })))
        }
        CommandKind::Copy => copy(args).map(Some),
        CommandKind::Combine => combine(args).map(Some),
        CommandKind::Lcs => {
            let keys = [key.to_vec(), arg(2).to_vec()];
            Ok(Some(Query::MultiKey(MultiKeyCommand::Lcs(Lcs::parse(args)?, keys))))
        }
        CommandKind::SetManyIfAbsent if args.len().is_multiple_of(2) => Err(wrong_number(command.name)),
        CommandKind::SetManyIfAbsent => {
            let pair = |at: usize| (arg(at).to_vec(), arg(at + 1).to_vec());
            let pairs = (1..args.len()).step_by(2).map(pair).collect();
            Ok(Some(Query::MultiKey(MultiKeyCommand::SetIfAbsent(pairs))))
        }
        CommandKind::SetMany if args.len().is_multiple_of(2) => Err(wrong_number(command.name)),
        CommandKind::SetMany => {
            let request = |at: usize| {
                let (key, value) = (arg(at), arg(at + 1));
                let (only, expires) = (Only::Always, Expires::Never);
                (key, Request::Set { key, value, only, expires, returns_old: false, is_renamed: false })
            };
            let requests = (1..args.len()).step_by(2).map(request);
            Ok(Some(Query::Requests(requests.collect(), Total::Done)))
        }
        CommandKind::Scan => scan(args).map(Some),
        CommandKind::Keys => Ok(Some(Query::Keys(key))),
        CommandKind::Count => Ok(Some(Query::Count)),
        CommandKind::Flush => match args.len() {
            1 => Ok(Some(Query::Clear)),
            2 if is(key, "async") || is(key, "sync") => Ok(Some(Query::Clear)),
            _ => Err(Reply::error(SYNTAX)),
        },
        _ => Ok(None),
    }
}

/// `COPY`.
fn copy<'a>(args: Args<'a>) -> Result<Query<'a>, Reply<'static>> {
    let (mut only, mut options) = (Only::IfAbsent, args.iter().skip(3));
    while let Some(option) = options.next() {
        if is(option, "replace") {
            only = Only::Always;
        } else if is(option, "db") {
            let database = options.next().ok_or_else(|| Reply::error(SYNTAX))?;
            match parse_integer(database) {
                Some(0) => {}
                Some(_) => return Err(Reply::error("ERR DB index is out of range")),
                None => return Err(Reply::error(NOT_AN_INTEGER)),
            }
        } else {
            return Err(Reply::error(SYNTAX));
        }
    }
    if args[1] == args[2] {
        return Err(Reply::error("ERR source and destination objects are the same"));
    }
    let (from, to) = (args[1].to_vec(), args[2].to_vec());
    Ok(Query::MultiKey(MultiKeyCommand::Move { from, to, only, is_copy: true }))
}

/// `BITOP`.
fn combine<'a>(args: Args<'a>) -> Result<Query<'a>, Reply<'static>> {
    let all = [
        ("and", Combination::And),
        ("or", Combination::Or),
        ("xor", Combination::Xor),
        ("not", Combination::Not),
    ];
    let found = all.into_iter().find(|(name, _)| is(&args[1], name));
    let how = found.ok_or_else(|| Reply::error(SYNTAX))?.1;
    if how == Combination::Not && args.len() != 4 {
        return Err(Reply::error("ERR BITOP NOT must be called with a single source key."));
    }
    let keys = args.iter().skip(3).map(<[u8]>::to_vec).collect();
    Ok(Query::MultiKey(MultiKeyCommand::Combine { how, to: args[2].to_vec(), keys }))
}

/// Returns true if an argument is `word`, in any case.
pub(super) fn is(arg: &[u8], word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

fn set_with_options<'a>(args: Args<'a>, unix_ms: fn() -> i64) -> Result<Query<'a>, Reply<'static>> {
    let syntax = || Reply::error(SYNTAX);
    let (key, value) = (args.get(1).unwrap_or_default(), args.get(2).unwrap_or_default());
    let (mut only, mut returns_old, mut keeps_expiry) = (Only::Always, false, false);
    let mut time = None;
    let mut options = args.iter().skip(3);
    while let Some(option) = options.next() {
        let other = |wanted| if only == Only::Always || only == wanted { Ok(wanted) } else { Err(syntax()) };
        if is(option, "nx") {
            only = other(Only::IfAbsent)?;
        } else if is(option, "xx") {
            only = other(Only::IfPresent)?;
        } else if is(option, "get") {
            returns_old = true;
        } else if is(option, "keepttl") && time.is_none() {
            keeps_expiry = true;
        } else {
            time = Some(
                parse_time_option(option, &mut options, time).filter(|_| !keeps_expiry).ok_or_else(syntax)?,
            );
        }
    }
    let expires = match time {
        None if keeps_expiry => Expires::Unchanged,
        None => Expires::Never,
        Some((number, unit)) => parse_expiry(number, unit, "set", unix_ms())?,
    };
    let reply_kind = if returns_old { ReplyKind::Value } else { ReplyKind::Done };
    let request = Request::Set { key, value, only, expires, returns_old, is_renamed: false };
    Ok(Query::Request(key, request, reply_kind))
}

/// Parses an option with a time. The same option may be repeated, and the last one applies; a different one is an
/// error.
fn parse_time_option<'a>(
    option: &[u8],
    options: &mut impl Iterator<Item = &'a [u8]>,
    before: Option<(&'a [u8], (i64, bool))>,
) -> Option<(&'a [u8], (i64, bool))> {
    let unit = time_unit(option).filter(|unit| before.is_none_or(|(_, other)| other == *unit))?;
    Some((options.next()?, unit))
}

/// Returns the expiry that `GETEX` sets, or an error for the case that the key exists.
fn getex_options(
    args: Args<'_>,
    unix_ms: fn() -> i64,
) -> Result<Result<Expires, &'static str>, Reply<'static>> {
    let syntax = || Reply::error(SYNTAX);
    let (mut persists, mut time) = (false, None);
    let mut options = args.iter().skip(2);
    while let Some(option) = options.next() {
        if is(option, "persist") && time.is_none() {
            persists = true;
        } else {
            time =
                Some(parse_time_option(option, &mut options, time).filter(|_| !persists).ok_or_else(syntax)?);
        }
    }
    let Some((number, unit)) = time else { return Ok(Ok(Expires::Never)) };
    if parse_integer(number).is_none() {
        return Ok(Err(NOT_AN_INTEGER));
    }
    let invalid = "ERR invalid expire time in 'getex' command";
    Ok(parse_expiry(number, unit, "getex", unix_ms()).map_err(|_| invalid))
}

/// Returns the unit in ms of an option with a time, and whether the option is a time of day.
fn time_unit(option: &[u8]) -> Option<(i64, bool)> {
    let units = [("ex", (1000, false)), ("px", (1, false)), ("exat", (1000, true)), ("pxat", (1, true))];
    units.into_iter().find(|(name, _)| is(option, name)).map(|(_, unit)| unit)
}

/// Returns the expiry of an option with a time.
fn parse_expiry(
    number: &[u8],
    (unit_ms, is_absolute): (i64, bool),
    command: &str,
    unix_ms: i64,
) -> Result<Expires, Reply<'static>> {
    let number = parse_integer(number).ok_or_else(|| Reply::error(NOT_AN_INTEGER))?;
    match is_absolute {
        false => time_to_live(number, unit_ms, command, unix_ms),
        true if number <= 0 => Err(invalid_time(command)),
        true => expiry(number, (unit_ms, is_absolute), command, unix_ms),
    }
}

fn invalid_time(command: &str) -> Reply<'static> {
    Reply::error(format!("ERR invalid expire time in '{command}' command"))
}

/// Returns the expiry after a time to live, which must be positive.
fn time_to_live(number: i64, unit_ms: i64, command: &str, unix_ms: i64) -> Result<Expires, Reply<'static>> {
    if number <= 0 {
        return Err(invalid_time(command));
    }
    expiry(number, (unit_ms, false), command, unix_ms)
}

/// Returns the expiry after, or at, a time of `number` units. Refuses times that exceed 64 bits, as Redis does.
fn expiry(
    number: i64,
    (unit_ms, is_absolute): (i64, bool),
    command: &str,
    unix_ms: i64,
) -> Result<Expires, Reply<'static>> {
    let number_ms = number.checked_mul(unit_ms).ok_or_else(|| invalid_time(command))?;
    let ms = u64::try_from(number_ms).unwrap_or(0);
    match is_absolute {
        true => Ok(Expires::At { ms }),
        false if number_ms.checked_add(unix_ms).is_none() => Err(invalid_time(command)),
        false => Ok(Expires::After { ms }),
    }
}

/// Returns the condition of `EXPIRE` and similar commands.
fn expire_condition(args: Args<'_>) -> Result<When, Reply<'static>> {
    let [mut nx, mut xx, mut gt, mut lt] = [false; 4];
    for option in args.iter().skip(3) {
        let known = [("nx", &mut nx), ("xx", &mut xx), ("gt", &mut gt), ("lt", &mut lt)];
        let found = known.into_iter().find(|(name, _)| is(option, name));
        let Some((_, flag)) = found else {
            let option = printable(&option[..option.len().min(SHOWN_BYTES_MAX)]);
            return Err(Reply::error(format!("ERR Unsupported option {option}")));
        };
        *flag = true;
    }
    match (nx, xx, gt, lt) {
        (true, true, ..) | (true, _, true, _) | (true, _, _, true) => {
            Err(Reply::error("ERR NX and XX, GT or LT options at the same time are not compatible"))
        }
        (_, _, true, true) => Err(Reply::error("ERR GT and LT options at the same time are not compatible")),
        (true, ..) => Ok(When::KeptForEver),
        // "Never" counts as the latest time, so GT applies only to keys with an expiry.
        (_, _, true, _) => Ok(When::Later),
        (_, true, _, true) => Ok(When::SoonerIfExpiring),
        (_, _, _, true) => Ok(When::Sooner),
        (_, true, ..) => Ok(When::Expiring),
        _ => Ok(When::Always),
    }
}

/// Default number of keys of a scan.
const SCAN_COUNT: i64 = 10;

fn scan<'a>(args: Args<'a>) -> Result<Query<'a>, Reply<'static>> {
    let syntax = || Reply::error(SYNTAX);
    let cursor = parse_cursor(&args[1]).ok_or_else(|| Reply::error("ERR invalid cursor"))?;
    let (mut count, mut pattern, mut is_of_strings) = (SCAN_COUNT, None, true);
    let mut options = args.iter().skip(2);
    while let Some(option) = options.next() {
        let value = options.next().ok_or_else(syntax)?;
        if is(option, "count") {
            count = parse_integer(value).ok_or_else(|| Reply::error(NOT_AN_INTEGER))?;
            if count < 1 {
                return Err(syntax());
            }
        } else if is(option, "match") {
            pattern = Some(value);
        } else if is(option, "type") {
            is_of_strings = is(value, "string");
        } else {
            return Err(syntax());
        }
    }
    Ok(Query::Scan { cursor, count: count as u64, pattern, is_of_strings })
}

/// Parses a cursor as Redis does: like `strtoul`, but without leading spaces.
fn parse_cursor(text: &[u8]) -> Option<u64> {
    let (is_negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if !digits.first()?.is_ascii_digit() {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

impl ReplyKind {
    /// Returns true if the owner's answer to a request other than a read contains bytes of any length.
    pub(super) fn has_value(self) -> bool {
        matches!(self, ReplyKind::Value | ReplyKind::Fields)
    }

    /// Returns the reply for the value of a key.
    pub(super) fn of_value(self, value: Option<&[u8]>) -> Reply<'_> {
        match (self, value) {
            (ReplyKind::Length, Some(value)) => Reply::Integer(value.len() as i64),
            (ReplyKind::Length, None) => Reply::Integer(0),
            (ReplyKind::ErrorIfPresent(error), Some(_)) => Reply::error(error),
            (ReplyKind::Range(span), value) => Reply::Bulk(span.bytes_of(value.unwrap_or_default())),
            (ReplyKind::Bit(at), value) => Reply::Integer(bit_at(value.unwrap_or_default(), at).into()),
            (ReplyKind::BitCount(span), value) => Reply::Integer(span.count(value.unwrap_or_default())),
            (ReplyKind::BitPosition(span, bit, has_end), Some(value)) => {
                Reply::Integer(span.find(value, bit, has_end))
            }
            (ReplyKind::BitPosition(_, bit, _), None) => Reply::Integer(if bit { -1 } else { 0 }),
            (_, Some(value)) => Reply::Bulk(value),
            (_, None) => Reply::Null,
        }
    }

    /// Returns the reply for an owner's answer.
    pub(super) fn of<'a>(self, answer: Option<Answer<'a>>) -> Reply<'a> {
        let is_there = !matches!(answer, Some(Answer::Nothing));
        match answer {
            Some(Answer::Full) => Reply::error("OOM command not allowed when used memory > 'maxmemory'."),
            Some(Answer::NoDirectory) => Reply::error(
                "TRYAGAIN no memory can be added to the store while the directory of names does not answer",
            ),
            Some(Answer::NotANumber) => Reply::error(NOT_AN_INTEGER),
            Some(Answer::NotAFloat) => Reply::error("ERR value is not a valid float"),
            Some(Answer::Infinite) => Reply::error("ERR increment would produce NaN or Infinity"),
            Some(Answer::Overflow) => Reply::error("ERR increment or decrement would overflow"),
            Some(Answer::TooLong) => {
                Reply::error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
            }
            Some(Answer::AnotherStore) => Reply::error("CLUSTERDOWN the key's shard is no longer served"),
            Some(Answer::Malformed) | None => Reply::error("ERR the key's owner sent an invalid answer"),
            Some(Answer::Number(_) | Answer::Bytes(..) | Answer::Nothing) => match (self, answer) {
                (ReplyKind::Value, Some(Answer::Bytes(_, bytes))) => Reply::Bulk(bytes),
                (
                    ReplyKind::Range(_)
                    | ReplyKind::Bit(_)
                    | ReplyKind::BitCount(_)
                    | ReplyKind::BitPosition(..),
                    Some(Answer::Bytes(_, bytes)),
                ) => self.of_value(Some(bytes)),
                (
                    ReplyKind::Range(_)
                    | ReplyKind::Bit(_)
                    | ReplyKind::BitCount(_)
                    | ReplyKind::BitPosition(..),
                    _,
                ) => self.of_value(None),
                (ReplyKind::Fields, Some(Answer::Bytes(_, results))) => {
                    let result = |result: &[u8; 9]| match result.split_first_chunk::<1>() {
                        Some(([1], number)) => {
                            Reply::Integer(i64::from_le_bytes(number.try_into().expect("8 bytes")))
                        }
                        _ => Reply::Null,
                    };
                    Reply::Array(results.as_chunks().0.iter().map(result).collect())
                }
                (ReplyKind::Fields, _) => Reply::Null,
                (ReplyKind::ExpireTime(..), _) if !is_there => Reply::Integer(-2),
                (ReplyKind::ExpireTime(unit_ms), Some(Answer::Number(ms))) if ms >= 0 => {
                    Reply::Integer(ms.saturating_add(unit_ms / 2) / unit_ms)
                }
                (ReplyKind::ExpireTime(..), _) => Reply::Integer(-1),
                (ReplyKind::ErrorIfPresent(error), _) if is_there => Reply::error(error),
                (ReplyKind::Value | ReplyKind::ErrorIfPresent(_), _) => Reply::Null,
                (ReplyKind::Length, Some(Answer::Bytes(_, bytes))) => Reply::Integer(bytes.len() as i64),
                (ReplyKind::Length, _) => Reply::Integer(0),
                (ReplyKind::Done, _) if is_there => OK,
                (ReplyKind::Done, _) => Reply::Null,
                (ReplyKind::Flag, _) => Reply::Integer(is_there.into()),
                (ReplyKind::Type, _) => Reply::Status(if is_there { "string" } else { "none" }),
                (ReplyKind::Number, Some(Answer::Number(number))) => Reply::Integer(number),
                (ReplyKind::Number, _) => Reply::Integer(0),
                (ReplyKind::TimeLeft(_), _) if !is_there => Reply::Integer(-2),
                (ReplyKind::TimeLeft(unit_ms), Some(Answer::Number(ms))) if ms >= 0 => {
                    Reply::Integer(ms.saturating_add(unit_ms / 2) / unit_ms)
                }
                (ReplyKind::TimeLeft(_), _) => Reply::Integer(-1),
            },
        }
    }
}
