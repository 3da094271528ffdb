//! Commands on several keys that other clients of the server see as a whole. Each runs as a transaction.

use std::mem::take;

use super::super::error::KvError;
use super::super::store::{SetOptions, Store};
use super::super::wire::Only;
use super::lcs::Lcs;
use super::reply::{OK, Replies, Reply};

/// A command on several keys.
#[derive(Clone, Debug)]
pub(super) enum MultiKeyCommand {
    /// Moves or copies a value with its expiry.
    Move { from: Vec<u8>, to: Vec<u8>, only: Only, is_copy: bool },
    /// Sets all keys, if none of them exists.
    SetIfAbsent(Vec<(Vec<u8>, Vec<u8>)>),
    /// Compares two values.
    Lcs(Lcs, [Vec<u8>; 2]),
    /// Combines values bit by bit, and sets a key to the result.
    Combine { how: Combination, to: Vec<u8>, keys: Vec<Vec<u8>> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Combination {
    And,
    Or,
    Xor,
    Not,
}

impl MultiKeyCommand {
    pub(super) fn keys(&self) -> Vec<&[u8]> {
        match self {
            MultiKeyCommand::Move { from, to, .. } => vec![from, to],
            MultiKeyCommand::SetIfAbsent(pairs) => pairs.iter().map(|(key, _)| &key[..]).collect(),
            MultiKeyCommand::Lcs(_, keys) => keys.iter().map(|key| &key[..]).collect(),
            MultiKeyCommand::Combine { to, keys, .. } => {
                keys.iter().chain([to]).map(|key| &key[..]).collect()
            }
        }
    }

    pub(super) async fn execute(self, store: &mut Store, replies: &mut Replies) -> Result<(), KvError> {
        let reply = match self {
            MultiKeyCommand::Move { from, to, only, is_copy } => {
                // RENAME replies OK; RENAMENX and COPY reply with a number.
                let is_plain = !is_copy && only == Only::Always;
                match move_value(store, &from, &to, only, is_copy).await? {
                    None if !is_copy => Reply::error("ERR no such key"),
                    Some(true) if is_plain => OK,
                    moved => Reply::Integer((moved == Some(true)).into()),
                }
            }
            MultiKeyCommand::SetIfAbsent(pairs) => {
                for (key, _) in &pairs {
                    if store.time_left(key).await?.is_some() {
                        replies.push(&Reply::Integer(0));
                        return Ok(());
                    }
                }
                for (count, (key, value)) in pairs.iter().enumerate() {
                    if let Err(error) = store.set(key, value, SetOptions::default()).await {
                        // All keys or none: none of them existed before.
                        for (key, _) in &pairs[..count] {
                            store.delete(key).await?;
                        }
                        return Err(error);
                    }
                }
                Reply::Integer(1)
            }
            MultiKeyCommand::Lcs(lcs, [one, other]) => {
                let (one, other) = (store.get(&one).await?, store.get(&other).await?);
                lcs.reply([&one.unwrap_or_default(), &other.unwrap_or_default()], replies);
                return Ok(());
            }
            MultiKeyCommand::Combine { how, to, keys } => {
                let mut combined = Vec::new();
                for (index, key) in keys.iter().enumerate() {
                    let value = store.get(key).await?.unwrap_or_default();
                    combine(how, &mut combined, value, index == 0);
                }
                match combined.is_empty() {
                    true => drop(store.delete(&to).await?),
                    false => drop(store.set(&to, &combined, SetOptions::default()).await?),
                }
                Reply::Integer(combined.len() as i64)
            }
        };
        replies.push(&reply);
        Ok(())
    }
}

/// Moves or copies a value. Returns `Some(false)` if the condition `only` on the key `to` does not hold, and `None` if
/// the key `from` does not exist.
async fn move_value(
    store: &mut Store,
    from: &[u8],
    to: &[u8],
    only: Only,
    is_copy: bool,
) -> Result<Option<bool>, KvError> {
    let (Some(expires), Some(value)) = (store.expiry(from).await?, store.get(from).await?) else {
        return Ok(None);
    };
    if from == to {
        return Ok(Some(only == Only::Always));
    }
    let is_set = store.set_or_rename(to, &value, SetOptions { only, expires }, !is_copy).await?;
    if is_set && !is_copy {
        store.delete(from).await?;
    }
    Ok(Some(is_set))
}

/// Combines a value with the result of the earlier values. The shorter one is extended with zeros.
fn combine(how: Combination, combined: &mut Vec<u8>, mut value: Vec<u8>, is_first: bool) {
    match how {
        Combination::Not => *combined = value.iter().map(|byte| !byte).collect(),
        _ if is_first => *combined = take(&mut value),
        _ => {
            let len = combined.len().max(value.len());
            combined.resize(len, 0);
            value.resize(len, 0);
            for (one, other) in combined.iter_mut().zip(value) {
                match how {
                    Combination::And => *one &= other,
                    Combination::Or => *one |= other,
                    _ => *one ^= other,
                }
            }
        }
    }
}
