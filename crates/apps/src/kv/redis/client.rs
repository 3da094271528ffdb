//! Commands about a connection and about the server, without keys.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::super::decimal::parse_integer;
use super::super::limit::MemoryLimit;
use super::super::store::Totals;
use super::commands::{COMMANDS, Command, CommandKind, check_arity, is};
use super::config;
use super::reply::{OK, Protocol, Reply, printable};
use super::request::Args;

/// Version of Redis whose replies this server imitates.
const REDIS_VERSION: &str = "7.0.15";

/// The client of a connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: u64,
    pub(super) address: SocketAddr,
    pub(super) since: Instant,
    /// True if the client has given the password, or there is none.
    pub(super) is_authenticated: bool,
    name: Box<[u8]>,
    library: Box<[u8]>,
    library_version: Box<[u8]>,
}

/// State and settings of the server that commands report.
#[derive(Clone, Debug)]
pub(super) struct ServerInfo {
    pub(super) address: SocketAddr,
    pub(super) since: Instant,
    pub(super) shards: usize,
    pub(super) clients: usize,
    pub(super) clients_max: usize,
    pub(super) connections: u64,
    pub(super) commands: u64,
    /// Memory of the nodes that hold the shards, in bytes; 0 if unknown.
    pub(super) memory: u64,
    pub(super) limit: MemoryLimit,
    pub(super) password: Option<Password>,
}

impl ServerInfo {
    /// Returns the limit of memory; without one, the memory of the nodes.
    pub(super) fn memory_max(&self) -> u64 {
        if self.limit.bytes == 0 { self.memory } else { self.limit.bytes }
    }
}

/// The password of the server. The `Debug` output does not contain it.
#[derive(Clone)]
pub(super) struct Password(pub(super) Arc<[u8]>);

impl Password {
    /// Compares in a time that depends only on the lengths, so that a client cannot guess the password byte by byte.
    fn equals(&self, given: &[u8]) -> bool {
        let differences = self.0.iter().zip(given).fold(0, |all, (one, other)| all | (one ^ other));
        self.0.len() == given.len() && differences == 0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// What happens to the connection after a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfterReply {
    Continue,
    Close,
}

impl Client {
    pub(super) fn new(id: u64, address: SocketAddr, is_authenticated: bool) -> Client {
        let (name, library, library_version) = Default::default();
        Client { id, address, since: Instant::now(), is_authenticated, name, library, library_version }
    }

    /// Replies to a command without keys.
    pub(super) fn execute<'a>(
        &mut self,
        command: &Command,
        args: Args<'a>,
        protocol: &mut Protocol,
        server_info: &mut ServerInfo,
    ) -> (Reply<'a>, AfterReply) {
        let reply = match command.kind {
            CommandKind::Quit => return (OK, AfterReply::Close),
            CommandKind::Hello => self.hello(args, protocol, server_info),
            CommandKind::Auth => self.auth(args, server_info),
            CommandKind::Reset => {
                (*protocol, self.name) = Default::default();
                self.is_authenticated = server_info.password.is_none();
                Reply::Status("RESET")
            }
            _ if !self.is_authenticated => Reply::error("NOAUTH Authentication required."),
            CommandKind::Script => Reply::error(format!(
                "ERR '{}' is refused: this server runs no scripts; MULTI and EXEC execute commands together, and \
                 DELEX key IFEQ value releases a lock",
                command.name
            )),
            CommandKind::Unwatch => OK,
            CommandKind::Ping => match args.len() {
                1 => Reply::Status("PONG"),
                2 => Reply::Bulk(args.get(1).unwrap_or_default()),
                _ => Reply::error("ERR wrong number of arguments for 'ping' command"),
            },
            CommandKind::Echo => Reply::Bulk(args.get(1).unwrap_or_default()),
            CommandKind::Select => match parse_integer(&args[1]) {
                Some(0) => OK,
                Some(_) => Reply::error("ERR DB index is out of range"),
                None => Reply::error("ERR value is not an integer or out of range"),
            },
            CommandKind::Time => {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                let parts = [now.as_secs().to_string(), now.subsec_micros().to_string()];
                Reply::Array(parts.map(Reply::Text).into())
            }
            CommandKind::Client => self.client(args, *protocol, server_info),
            CommandKind::Config => config::execute(args, server_info),
            _ => list_commands(args),
        };
        (reply, AfterReply::Continue)
    }

    fn hello<'a>(&mut self, args: Args<'a>, protocol: &mut Protocol, server_info: &ServerInfo) -> Reply<'a> {
        let mut wanted = *protocol;
        if let Some(version) = args.get(1) {
            wanted = match parse_integer(version) {
                Some(2) => Protocol::Resp2,
                Some(3) => Protocol::Resp3,
                Some(_) => return Reply::error("NOPROTO unsupported protocol version"),
                None => return Reply::error("ERR Protocol version is not an integer or out of range"),
            };
        }
        let (mut options, mut name, mut is_authenticated) =
            (args.iter().skip(2), None, self.is_authenticated);
        while let Some(option) = options.next() {
            let unknown =
                || Reply::error(format!("ERR Syntax error in HELLO option '{}'", printable(option)));
            if is(option, "setname") {
                let Some(wanted) = options.next() else { return unknown() };
                if !is_printable_word(wanted) {
                    return invalid_name();
                }
                name = Some(wanted);
            } else if is(option, "auth") {
                let (Some(user), Some(given)) = (options.next(), options.next()) else { return unknown() };
                is_authenticated = is_password_valid(user, given, server_info);
                if !is_authenticated {
                    return wrong_password();
                }
            } else {
                return unknown();
            }
        }
        if !is_authenticated {
            return Reply::error(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version \
                 at the same time",
            );
        }
        self.is_authenticated = true;
        *protocol = wanted;
        if let Some(name) = name {
            self.name = name.into();
        }
        let text = |text: &'static str| Reply::Bulk(text.as_bytes());
        Reply::Map(vec![
            (text("server"), text("redis")),
            (text("version"), text(REDIS_VERSION)),
            (text("proto"), Reply::Integer(if wanted == Protocol::Resp3 { 3 } else { 2 })),
            (text("id"), Reply::Integer(self.id as i64)),
            (text("mode"), text("standalone")),
            (text("role"), text("master")),
            (text("modules"), Reply::Array(Vec::new())),
        ])
    }

    fn auth(&mut self, args: Args<'_>, server_info: &ServerInfo) -> Reply<'static> {
        let (user, given) = match args.len() {
            2 if server_info.password.is_none() => {
                return Reply::error(
                    "ERR AUTH <password> called without any password configured for the default user. \
                     Are you sure your configuration is correct?",
                );
            }
            2 => (&b"default"[..], &args[1]),
            3 => (&args[1], &args[2]),
            _ => return Reply::error("ERR syntax error"),
        };
        if !is_password_valid(user, given, server_info) {
            return wrong_password();
        }
        self.is_authenticated = true;
        OK
    }

    fn client<'a>(&mut self, args: Args<'a>, protocol: Protocol, server_info: &ServerInfo) -> Reply<'a> {
        let arg = |index: usize| args.get(index).unwrap_or_default();
        let name = String::from_utf8_lossy(arg(1)).to_ascii_lowercase();
        let arity = match name.as_str() {
            "id" | "getname" | "info" | "help" => 2,
            "setname" | "no-evict" | "no-touch" | "reply" => 3,
            "setinfo" => 4,
            _ => return unknown_subcommand(args),
        };
        if let Err(reply) = check_arity(&format!("client|{name}"), arity, args) {
            return reply;
        }
        match name.as_str() {
            "help" => help(CLIENT_HELP),
            "id" => Reply::Integer(self.id as i64),
            "getname" if self.name.is_empty() => Reply::Null,
            "getname" => Reply::Text(String::from_utf8_lossy(&self.name).into_owned()),
            "setname" if !is_printable_word(arg(2)) => invalid_name(),
            "setname" => {
                self.name = arg(2).into();
                OK
            }
            "setinfo" => self.set_info(arg(2), arg(3)),
            "info" => Reply::Text(self.info_line(protocol, server_info)),
            // No client is evicted, and commands do not change any access time.
            "no-evict" | "no-touch" if is(arg(2), "on") || is(arg(2), "off") => OK,
            "reply" if is(arg(2), "on") => OK,
            _ => Reply::error("ERR syntax error"),
        }
    }

    fn set_info(&mut self, option: &[u8], value: &[u8]) -> Reply<'static> {
        let (place, name) = if is(option, "lib-name") {
            (&mut self.library, "lib-name")
        } else if is(option, "lib-ver") {
            (&mut self.library_version, "lib-ver")
        } else {
            return Reply::error(format!("ERR Unrecognized option '{}'", printable(option)));
        };
        if !is_printable_word(value) {
            return Reply::error(format!(
                "ERR {name} cannot contain spaces, newlines or special characters."
            ));
        }
        *place = value.into();
        OK
    }

    fn info_line(&self, protocol: Protocol, server_info: &ServerInfo) -> String {
        let [name, library, version] =
            [&self.name, &self.library, &self.library_version].map(|bytes| String::from_utf8_lossy(bytes));
        let (id, address, local) = (self.id, self.address, server_info.address);
        let (age, resp) = (self.since.elapsed().as_secs(), if protocol == Protocol::Resp3 { 3 } else { 2 });
        format!(
            "id={id} addr={address} laddr={local} name={name} age={age} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 \
             multi=-1 cmd=client|info user=default lib-name={library} lib-ver={version} resp={resp}\n"
        )
    }
}

/// Returns true if a text is one printable word.
fn is_printable_word(text: &[u8]) -> bool {
    text.len() <= NAME_BYTES_MAX && text.iter().all(|byte| (b'!'..=b'~').contains(byte))
}

/// Maximum length of a client's name, which is kept while it is connected.
const NAME_BYTES_MAX: usize = 1024;

fn invalid_name() -> Reply<'static> {
    Reply::error("ERR Client names cannot contain spaces, newlines or special characters.")
}

fn wrong_password() -> Reply<'static> {
    Reply::error("WRONGPASS invalid username-password pair or user is disabled.")
}

pub(super) fn unknown_subcommand(args: Args<'_>) -> Reply<'static> {
    let subcommand = printable(&args[1]).chars().take(128).collect::<String>();
    let command = String::from_utf8_lossy(&args[0]).to_ascii_uppercase();
    Reply::error(format!("ERR unknown subcommand '{subcommand}'. Try {command} HELP."))
}

const CLIENT_HELP: &[&str] = &[
    "CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "GETNAME",
    "    Return the name of the current connection.",
    "ID",
    "    Return the ID of the current connection.",
    "INFO",
    "    Return information about the current connection.",
    "NO-EVICT (ON|OFF), NO-TOUCH (ON|OFF), REPLY ON",
    "    Accepted without effect.",
    "SETINFO (LIB-NAME|LIB-VER) <value>",
    "    Assign the library's name or version to the current connection.",
    "SETNAME <name>",
    "    Assign the name <name> to the current connection.",
    "HELP",
    "    Print this help.",
];

const COMMAND_HELP: &[&str] = &[
    "COMMAND [<subcommand> [<arg> ...]]. Without a subcommand, return all commands. Subcommands are:",
    "COUNT",
    "    Return the number of commands.",
    "DOCS [<name> ...]",
    "    Return nothing: this server has no documentation of commands.",
    "INFO [<name> ...]",
    "    Return information about commands.",
    "LIST",
    "    Return the names of the commands.",
    "HELP",
    "    Print this help.",
];

/// Returns the reply to `HELP`: a line each.
pub(super) fn help(lines: &'static [&'static str]) -> Reply<'static> {
    Reply::Array(lines.iter().map(|line| Reply::Status(line)).collect())
}

/// Returns true if the user is `default`, the only one, and the password is right or none is required.
fn is_password_valid(user: &[u8], given: &[u8], server_info: &ServerInfo) -> bool {
    user == b"default" && server_info.password.as_ref().is_none_or(|password| password.equals(given))
}

/// Maximum number of arguments of `COMMAND INFO`, whose reply is about a hundred times as long as they are.
const INFO_NAMES_MAX: usize = 1024;

/// `COMMAND`: lists the commands.
fn list_commands(args: Args<'_>) -> Reply<'_> {
    let known = || COMMANDS.iter().filter(|command| command.kind != CommandKind::Script);
    let Some(subcommand) = args.get(1) else {
        return Reply::Array(known().map(describe).collect());
    };
    let rest = || args.iter().skip(2);
    let find = |name: &[u8]| known().find(|command| is(name, command.name));
    if is(subcommand, "help") && args.len() == 2 {
        help(COMMAND_HELP)
    } else if is(subcommand, "count") {
        if let Err(reply) = check_arity("command|count", 2, args) {
            return reply;
        }
        Reply::Integer(known().count() as i64)
    } else if is(subcommand, "list") && args.len() > 2 {
        Reply::error("ERR syntax error")
    } else if is(subcommand, "list") {
        Reply::Array(known().map(|command| Reply::Bulk(command.name.as_bytes())).collect())
    } else if is(subcommand, "docs") {
        // There is no documentation of commands.
        Reply::Map(Vec::new())
    } else if is(subcommand, "info") && args.len() == 2 {
        Reply::Array(known().map(describe).collect())
    } else if is(subcommand, "info") && args.len() > INFO_NAMES_MAX {
        Reply::error(format!("ERR COMMAND INFO takes at most {INFO_NAMES_MAX} arguments"))
    } else if is(subcommand, "info") {
        Reply::Array(rest().map(|name| find(name).map_or(Reply::Null, describe)).collect())
    } else {
        unknown_subcommand(args)
    }
}

fn describe(command: &'static Command) -> Reply<'static> {
    let has_key = command.keys.0 > 0;
    let only_reads = matches!(
        command.kind,
        CommandKind::Get
            | CommandKind::GetMany
            | CommandKind::GetBit
            | CommandKind::GetRange
            | CommandKind::BitCount
            | CommandKind::BitPosition
            | CommandKind::BitFields { is_read_only: true }
            | CommandKind::Lcs
            | CommandKind::Length
            | CommandKind::Exists
            | CommandKind::Type
            | CommandKind::TimeLeft { .. }
            | CommandKind::ExpireTime { .. }
    );
    let flags = match (has_key, only_reads) {
        (true, true) => vec![Reply::Status("readonly")],
        (true, false) => vec![Reply::Status("write")],
        (false, _) => Vec::new(),
    };
    let (first, last, step) = command.keys;
    let none = || Reply::Array(Vec::new());
    Reply::Array(vec![
        Reply::Bulk(command.name.as_bytes()),
        Reply::Integer(command.arity),
        Reply::Array(flags),
        Reply::Integer(first),
        Reply::Integer(last),
        Reply::Integer(step),
        // No categories, tips, key specifications or subcommands.
        none(),
        none(),
        none(),
        none(),
    ])
}

/// `INFO`, for the requested sections.
pub(super) fn info(requested: &[Vec<u8>], server_info: &ServerInfo, totals: Totals) -> Reply<'static> {
    let Totals { keys, bytes_used, evicted } = totals;
    let uptime = server_info.since.elapsed().as_secs();
    let sections = [
        (
            "Server",
            format!(
                "redis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\nhalite_version:{}\r\nhalite_shards:{}\r\n\
                 arch_bits:{}\r\nprocess_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{uptime}\r\n",
                env!("CARGO_PKG_VERSION"),
                server_info.shards,
                usize::BITS,
                std::process::id(),
                server_info.address.port(),
            ),
        ),
        (
            "Clients",
            format!(
                "connected_clients:{}\r\nmaxclients:{}\r\n",
                server_info.clients, server_info.clients_max
            ),
        ),
        (
            "Memory",
            format!(
                "used_memory:{bytes_used}\r\nmaxmemory:{}\r\nmaxmemory_policy:{}\r\n",
                server_info.memory_max(),
                server_info.limit.eviction
            ),
        ),
        ("Persistence", "loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n".to_owned()),
        (
            "Stats",
            format!(
                "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nevicted_keys:{evicted}\r\n",
                server_info.connections, server_info.commands
            ),
        ),
        ("Replication", "role:master\r\nconnected_slaves:0\r\n".to_owned()),
        ("Cluster", "cluster_enabled:0\r\n".to_owned()),
        ("Keyspace", if keys == 0 { String::new() } else { format!("db0:keys={keys}\r\n") }),
    ];
    let is_requested = |section: &str| {
        let all = ["all", "default", "everything"];
        requested.is_empty()
            || requested.iter().any(|arg| is(arg, section) || all.iter().any(|word| is(arg, word)))
    };
    let requested = sections.into_iter().filter(|(name, _)| is_requested(name));
    let texts: Vec<String> = requested.map(|(name, text)| format!("# {name}\r\n{text}")).collect();
    Reply::Text(texts.join("\r\n"))
}
