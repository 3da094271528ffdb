//! Names: those of users' regions, and those of the regions behind locks and barriers.
//!
//! ```text
//!  region   name                 any text that does not begin with NUL
//!  lock     NUL 'l' name         hidden from lists, out of reach of users' regions
//!  barrier  NUL 'b' name
//! ```

use crate::ids::NodeId;
use crate::message::NAME_BYTES_MAX;

const RESERVED: char = '\0';
const PREFIX_BYTES: usize = 2;

/// What a region serves as, if not as a user's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Service {
    /// A lock; see [`crate::lockword`].
    Lock,
    /// A barrier: its first word counts the rounds.
    Barrier,
}

impl Service {
    fn prefix(self) -> &'static str {
        match self {
            Service::Lock => "\0l",
            Service::Barrier => "\0b",
        }
    }

    /// The name of the region behind the lock or barrier `name`.
    pub fn region_name(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }

    /// Whether a region of this name serves so.
    pub fn has(self, region_name: &str) -> bool {
        region_name.starts_with(self.prefix())
    }
}

/// Whether users' regions cannot have this name.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Whether a region can have this name, be it a user's or not.
pub fn is_name(name: &str) -> bool {
    let len_max = if is_reserved(name) { NAME_BYTES_MAX + PREFIX_BYTES } else { NAME_BYTES_MAX };
    (1..=len_max).contains(&name.len())
}

/// By what name a region is known on `node` whose name another has.  If that is taken as well, it is numbered.
pub fn alias(name: &str, node: NodeId, number: u64) -> String {
    let suffix = format!("@{node}");
    let suffix = if name.contains(&suffix) { format!("{suffix}.{number}") } else { suffix };
    let mut cut = name.split(&format!("@{node}")).next().unwrap_or_default();
    while cut.len() + suffix.len() > NAME_BYTES_MAX {
        cut = cut.char_indices().next_back().map_or("", |(last, _)| &cut[..last]);
    }
    format!("{cut}{suffix}")
}

/// The first name, in order, that is not reserved or before which all are.
pub const FIRST_FREE: &str = "\u{1}";
