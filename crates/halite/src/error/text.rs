//! Static texts in errors and explanations that travel from a node to its attached sessions.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serializer};

/// A static text. This alias hides the `&'static str` from serde's derive, which would borrow the text from the
/// message.
pub(crate) type Text = &'static str;

/// Maximum number of different received texts that a process keeps. A node sends far fewer, because its texts are
/// constants of its program; the bound protects the process from a faulty node.
const TEXTS_MAX: usize = 1024;

/// The received texts. Each is allocated once and never freed, because errors hold it as a `&'static str`.
static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(intern(<&str>::deserialize(deserializer)?))
}

pub(crate) fn deserialize_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'static str>, D::Error> {
    Ok(Option::<&str>::deserialize(deserializer)?.map(intern))
}

/// Returns a static copy of the text.
fn intern(text: &str) -> &'static str {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= TEXTS_MAX {
        return "(text omitted: the node sent too many different texts)";
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}
