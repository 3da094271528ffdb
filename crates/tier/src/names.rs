//! Formats of names: of regions, of the regions behind locks and barriers, and of servers.
//!
//! ```text
//!  region         name                    any text that does not begin with NUL
//!  lock           NUL 'l' name            hidden from lists, out of reach of users' regions
//!  barrier        NUL 'b' name
//!  server         NUL 's' name NUL        no region; the only server of this name
//!  shared server  NUL 's' name NUL node   one of several servers; the node in 8 hexadecimal digits
//! ```

use crate::ids::NodeId;
use crate::message::NAME_BYTES_MAX;

const RESERVED: char = '\0';
/// Bytes that a reserved name may have in addition to the user's name: the prefix, and a server's NUL and node.
const RESERVED_BYTES: usize = 2 + 1 + 8;
const SERVER_PREFIX: &str = "\0s";

/// The kind of a region that holds no user memory: a lock or a barrier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// A lock; see [`crate::lockword`].
    Lock,
    /// A barrier, whose first word counts the rounds.
    Barrier,
}

impl Service {
    fn prefix(self) -> &'static str {
        match self {
            Service::Lock => "\0l",
            Service::Barrier => "\0b",
        }
    }

    /// Returns the name of the region behind the lock or barrier `name`.
    pub fn region_name(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }

    /// Returns true if `region_name` names a region of this kind.
    pub fn has(self, region_name: &str) -> bool {
        region_name.starts_with(self.prefix())
    }
}

/// Returns the name under which the directory records a server on `node` for the service `name`, which contains no NUL.
/// An exclusive server has the same name on each node, so only one exclusive server can register.
pub fn server_name(name: &str, node: NodeId, is_shared: bool) -> String {
    let suffix = if is_shared { format!("{:08x}", node.0) } else { String::new() };
    format!("{SERVER_PREFIX}{name}{RESERVED}{suffix}")
}

/// Returns a text that sorts just before the names of all servers of `service`. With `None`, the text sorts just before
/// the names of the servers of all services.
pub fn before_servers_of(service: Option<&str>) -> String {
    format!("{SERVER_PREFIX}{}", service.unwrap_or_default())
}

/// Parses a server's name. Returns its service, and true if other servers share the service; `None` if the name is not
/// that of a server.
pub fn service_of(server_name: &str) -> Option<(&str, bool)> {
    let (service, node) = server_name.strip_prefix(SERVER_PREFIX)?.split_once(RESERVED)?;
    Some((service, !node.is_empty()))
}

/// Returns true if the name is reserved for locks, barriers and servers.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Returns true if the length of the name is valid: 1 to [`NAME_BYTES_MAX`] bytes, or a few more for a reserved name.
pub fn is_name(name: &str) -> bool {
    let len_max = if is_reserved(name) { NAME_BYTES_MAX + RESERVED_BYTES } else { NAME_BYTES_MAX };
    (1..=len_max).contains(&name.len())
}

/// Returns the new name of a region on `node` that lost its name: `name@node`, or `name@node.number` if `name` is such
/// an alias already.
pub fn alias(name: &str, node: NodeId, number: u64) -> String {
    let suffix = format!("@{node}");
    let suffix = if name.contains(&suffix) { format!("{suffix}.{number}") } else { suffix };
    let mut cut = name.split(&format!("@{node}")).next().unwrap_or_default();
    while cut.len() + suffix.len() > NAME_BYTES_MAX {
        cut = cut.char_indices().next_back().map_or("", |(last, _)| &cut[..last]);
    }
    format!("{cut}{suffix}")
}

/// The first name, in sorting order, that is not reserved for locks, barriers and servers.
pub const FIRST_FREE: &str = "\u{1}";
