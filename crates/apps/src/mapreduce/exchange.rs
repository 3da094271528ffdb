//! Results in regions: each region is written once by its worker, and read by other workers with one-sided reads.

use halite::{Lh, Permissions, Placement, Posted, Session};
use serde::{Deserialize, Serialize};

use super::error::Error;
use super::job::Job;
use super::table::Table;

/// A piece of a published region.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub(super) struct Section {
    pub(super) region: String,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Sum of the weights of all values.
    pub(super) weight: u64,
}

/// Encoded results that become a section.
#[derive(Clone, Default)]
pub(super) struct Buffer {
    pub(super) bytes: Vec<u8>,
    /// Sum of the weights of all values.
    pub(super) weight: u64,
}

/// The regions of one worker.
pub(super) struct Publisher<'a> {
    session: &'a Session,
    run: &'a str,
    worker: u32,
    published: Vec<Lh>,
}

impl<'a> Publisher<'a> {
    pub(super) fn new(session: &'a Session, run: &'a str, worker: u32) -> Publisher<'a> {
        Publisher { session, run, worker, published: Vec::new() }
    }

    /// Publishes buffers as the sections of a new region.
    pub(super) async fn publish(&mut self, buffers: &[Buffer]) -> Result<Vec<Section>, Error> {
        let bytes: u64 = buffers.iter().map(|buffer| buffer.bytes.len() as u64).sum();
        let region = format!("{}/{}.{}", self.run, self.worker, self.published.len());
        let mut lh = None;
        if bytes > 0 {
            let worker = self.worker;
            let allocated =
                self.session.alloc(Some(&region), bytes, Placement::Anywhere, Permissions::empty());
            lh = Some(allocated.await.map_err(|source| Error::Publish { worker, bytes, source })?);
        }
        self.published.extend(lh);
        let mut sections = Vec::with_capacity(buffers.len());
        let mut offset = 0;
        for buffer in buffers {
            let len = buffer.bytes.len() as u64;
            if let Some(lh) = lh.filter(|_| len > 0) {
                self.session.write(lh, offset, &buffer.bytes).await?;
            }
            sections.push(Section { region: region.clone(), offset, len, weight: buffer.weight });
            offset += len;
        }
        Ok(sections)
    }

    /// Frees all regions. Continues after an error, and returns the first one.
    pub(super) async fn free(self) -> Result<(), Error> {
        let mut freed = Ok(());
        for lh in self.published {
            freed = freed.and(self.session.free(lh).await);
        }
        Ok(freed?)
    }
}

/// Reads sections of several workers at the same time, and passes the bytes of each to `receive`, in order. Returns the
/// first worker whose section cannot be read, and the reason; `None` if all were read.
pub(super) async fn read_sections<'s>(
    session: &Session,
    sections: impl Iterator<Item = (u32, &'s Section)>,
    mut receive: impl FnMut(Vec<u8>) -> Result<(), Error>,
) -> Result<Option<(u32, String)>, Error> {
    let mut reads = Vec::new();
    for (owner, section) in sections {
        reads.push((owner, post_read(session, section).await));
    }
    for (owner, read) in reads {
        let bytes = match read {
            Ok(read) => finish_read(session, read).await,
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => receive(bytes)?,
            Err(error) => {
                return Ok(Some((owner, format!("cannot read the results of worker {owner}: {error}"))));
            }
        }
    }
    Ok(None)
}

/// A posted read of a section; `None` for an empty section.
type PendingRead = Option<(Lh, Posted<Vec<u8>>)>;

async fn post_read(session: &Session, section: &Section) -> Result<PendingRead, Error> {
    if section.len == 0 {
        return Ok(None);
    }
    let lh = session.map(&section.region, Permissions::READ).await?;
    Ok(Some((lh, session.post_read(lh, section.offset, vec![0; section.len as usize]))))
}

async fn finish_read(session: &Session, read: PendingRead) -> Result<Vec<u8>, Error> {
    let Some((lh, posted)) = read else { return Ok(Vec::new()) };
    let (bytes, outcome) = posted.await;
    let unmapped = session.unmap(lh).await;
    outcome?;
    unmapped?;
    Ok(bytes)
}

/// Encodes a table as a buffer for each of `parts` parts.
pub(super) fn encode<J: Job>(job: &J, table: &Table<J::Value>, parts: usize) -> Result<Vec<Buffer>, Error> {
    let mut buffers = vec![Buffer::default(); parts];
    for (part, key, value) in table.iter_parts(parts) {
        let buffer = &mut buffers[part];
        let mut bytes = std::mem::take(&mut buffer.bytes);
        bytes = postcard::to_extend(&key.len(), bytes)?;
        bytes.extend_from_slice(key);
        buffer.bytes = postcard::to_extend(value, bytes)?;
        buffer.weight += job.weight(value);
    }
    Ok(buffers)
}

/// Adds encoded keys and values to a table.
pub(super) fn decode<J: Job>(job: &J, mut bytes: &[u8], table: &mut Table<J::Value>) -> Result<(), Error> {
    while !bytes.is_empty() {
        let (len, rest) = postcard::take_from_bytes::<usize>(bytes)?;
        let (key, rest) = rest.split_at_checked(len).ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        let (value, rest) = postcard::take_from_bytes(rest)?;
        table.add(key, value, |into, more| job.combine(into, more));
        bytes = rest;
    }
    Ok(())
}
