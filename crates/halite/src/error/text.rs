//! Static texts in errors and explanations that travel from a node to its attached sessions.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Deserializer, Serializer};

/// A static text. An alias, because serde would take a `&'static str` for a text that the message lends.
pub(crate) type Text = &'static str;

/// Maximum number of different texts that a process keeps. The node's texts are constants of its program, and far
/// fewer; the bound holds if the node misbehaves.
const TEXTS_MAX: usize = 1024;

/// Texts that were received. Each is allocated once and never freed, because it must be static.
static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static str, D::Error> {
    Ok(kept(<&str>::deserialize(deserializer)?))
}

pub(crate) fn deserialize_option<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'static str>, D::Error> {
    Ok(Option::<&str>::deserialize(deserializer)?.map(kept))
}

/// Returns the text as one that is kept for the life of the process.
fn kept(text: &str) -> &'static str {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= TEXTS_MAX {
        return "(a text that this process cannot keep)";
    }
    let text: &'static str = Box::leak(text.into());
    texts.insert(text);
    text
}
