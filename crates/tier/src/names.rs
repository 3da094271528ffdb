//! Names of users' regions, and of the regions behind locks and barriers.
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

/// The purpose of a region that is not user memory.
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

    /// The name of the region behind the lock or barrier `name`.
    pub fn region_name(self, name: &str) -> String {
        format!("{}{name}", self.prefix())
    }

    /// Whether a region with this name serves that purpose.
    pub fn has(self, region_name: &str) -> bool {
        region_name.starts_with(self.prefix())
    }
}

/// Whether the name is reserved for locks and barriers.
pub fn is_reserved(name: &str) -> bool {
    name.starts_with(RESERVED)
}

/// Whether the name is valid for any region.
pub fn is_name(name: &str) -> bool {
    let len_max = if is_reserved(name) { NAME_BYTES_MAX + PREFIX_BYTES } else { NAME_BYTES_MAX };
    (1..=len_max).contains(&name.len())
}

/// Returns the new name of a region on `node` that lost its name; numbered if `name` is an alias already.
pub fn alias(name: &str, node: NodeId, number: u64) -> String {
    let suffix = format!("@{node}");
    let suffix = if name.contains(&suffix) { format!("{suffix}.{number}") } else { suffix };
    let mut cut = name.split(&format!("@{node}")).next().unwrap_or_default();
    while cut.len() + suffix.len() > NAME_BYTES_MAX {
        cut = cut.char_indices().next_back().map_or("", |(last, _)| &cut[..last]);
    }
    format!("{cut}{suffix}")
}

/// The lowest name that is not reserved.
pub const FIRST_FREE: &str = "\u{1}";
