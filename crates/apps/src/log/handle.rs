//! A session's view of a log: its head, and the mapped segments.

use halite::{
    AccessCause, AccessError, AllocOptions, Lh, NodeId, Permissions, Placement, RegionCause, RegionError,
    Session,
};

use super::error::LogError;
use super::layout::{HEAD_BYTES, KEPT_AT, Layout, MAGIC, NODES_MAX, POSITION_MAX, RESERVED_AT, WORD};
use crate::directory::is_without_directory;

/// Rights of writers and followers to a segment. Followers need to write to mark slots as skipped.
const USER_RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

/// Options of a new log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Length of a slot in bytes, a multiple of 8. The first 8 bytes are the slot's word; the rest holds a record or a
    /// part of one. A record takes as many slots as it needs; choose a length at which most records take one.
    pub slot_bytes: u64,
    /// Slots per segment. A segment is freed as a whole. A record must fit into one segment.
    pub segment_slots: u64,
    /// Nodes that hold the segments in turn, at most 24. If empty, any node with free memory may hold a segment.
    pub nodes: Vec<NodeId>,
    /// Permissions of all principals except the session's.
    pub everyone: Permissions,
}

impl Default for Options {
    /// Returns options for slots of 64 bytes, segments of 4 MiB on any node with room, and no permissions for other
    /// principals.
    fn default() -> Options {
        Options { slot_bytes: 64, segment_slots: 1 << 16, nodes: Vec::new(), everyone: Permissions::empty() }
    }
}

/// A session's handle of a log. Each writer, follower and cleaner has its own.
pub struct Log {
    pub(crate) session: Session,
    pub(crate) layout: Layout,
    name: String,
    head: Lh,
    nodes: Vec<NodeId>,
    everyone: Permissions,
    /// The current segment, and the one used before it. Each has its number and handle.
    mapped: [Option<(u64, Lh)>; 2],
    /// Regions that may have the names of these segments: the directory of names did not answer when they were named.
    maybe_named: Vec<(u64, Lh)>,
}

impl Clone for Log {
    /// Clones the handle without mapped segments.
    fn clone(&self) -> Log {
        let (session, name, nodes) = (self.session.clone(), self.name.clone(), self.nodes.clone());
        Log { session, name, nodes, mapped: [None; 2], maybe_named: Vec::new(), ..*self }
    }
}

impl Log {
    /// Creates a log. Fails with [`RegionCause::NameTaken`] if a region has that name.
    pub async fn create(session: &Session, name: &str, options: &Options) -> Result<Log, LogError> {
        let layout = Layout::new(options.slot_bytes, options.segment_slots)?;
        let placement = match options.nodes.as_slice() {
            [] => Placement::Anywhere,
            [first, ..] => Placement::On(*first),
        };
        if options.nodes.len() > NODES_MAX {
            return Err(too_many_nodes(options.nodes.len() as u64));
        }
        let mut head = vec![MAGIC, layout.slot_bytes(), layout.segment_slots()];
        head.extend([u64::from(options.everyone.bits()), options.nodes.len() as u64]);
        head.extend(options.nodes.iter().map(|node| u64::from(node.0)));
        let bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        let lh = session.alloc(None, HEAD_BYTES, placement, options.everyone).await?;
        session.write(lh, 0, &bytes).await?;
        // The head is named only when it is complete.
        if let Err(error) = session.set_name(lh, name).await {
            session.free(lh).await?;
            return Err(error.into());
        }
        Ok(Log {
            session: session.clone(),
            layout,
            name: name.to_owned(),
            head: lh,
            nodes: options.nodes.clone(),
            everyone: options.everyone,
            mapped: [None; 2],
            maybe_named: Vec::new(),
        })
    }

    /// Opens an existing log.
    pub async fn open(session: &Session, name: &str) -> Result<Log, LogError> {
        let head = session.map(name, USER_RIGHTS).await?;
        let mut bytes = [0; RESERVED_AT as usize];
        let len = session.len(head)?;
        if len != HEAD_BYTES {
            return Err(LogError::NotALog { what: "the length of the region", value: len, wanted: "384" });
        }
        session.read(head, 0, &mut bytes).await?;
        let mut words =
            bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
        let mut next = || words.next().expect("they are 32");
        let magic = next();
        if magic != MAGIC {
            let wanted = "the magic number of this version of logs";
            return Err(LogError::NotALog { what: "the first word", value: magic, wanted });
        }
        let layout = Layout::new(next(), next())?;
        let everyone = Permissions::from_bits_truncate(next() as _);
        let count = next();
        if count > NODES_MAX as u64 {
            return Err(too_many_nodes(count));
        }
        let nodes = (0..count).map(|_| NodeId(next() as u32)).collect();
        let (session, name) = (session.clone(), name.to_owned());
        Ok(Log { session, layout, name, head, nodes, everyone, mapped: [None; 2], maybe_named: Vec::new() })
    }

    /// Returns the maximum length of a record, in bytes.
    pub fn record_bytes_max(&self) -> u64 {
        self.layout.record_bytes_max()
    }

    /// Returns the first unreserved position.
    pub async fn end(&self) -> Result<u64, LogError> {
        self.counter(RESERVED_AT).await
    }

    /// Returns the first position that has not been trimmed.
    pub async fn start(&self) -> Result<u64, LogError> {
        let kept = self.counter(KEPT_AT).await?;
        Ok(kept.saturating_mul(self.layout.segment_slots()))
    }

    pub(crate) async fn counter(&self, at: u64) -> Result<u64, LogError> {
        let mut word = [0; WORD as usize];
        self.session.read(self.head, at, &mut word).await?;
        check_counter(u64::from_le_bytes(word))
    }

    pub(crate) async fn reserve(&self, slots: u64) -> Result<u64, LogError> {
        let first = self.session.fetch_add(self.head, RESERVED_AT, slots).await?;
        check_counter(first)
    }

    /// Reserves all unreserved slots before `position`, so that no writer uses them.
    pub(crate) async fn reserve_up_to(&self, position: u64) -> Result<(), LogError> {
        self.raise(RESERVED_AT, position).await
    }

    /// Raises a counter to `to`, unless it is at least as high.
    pub(crate) async fn raise(&self, at: u64, to: u64) -> Result<(), LogError> {
        let mut found = self.counter(at).await?;
        while found < to {
            match self.session.compare_swap(self.head, at, found, to).await? {
                before if before == found => break,
                before => found = before,
            }
        }
        Ok(())
    }

    /// Returns the segment of a position if it is the current one.
    #[inline]
    pub(crate) fn current_segment(&self, position: u64) -> Option<Lh> {
        let (found, lh) = self.mapped[0]?;
        (found == self.layout.segment_of(position)).then_some(lh)
    }

    /// Returns the segment of a position. Maps or creates it if necessary.
    pub(crate) async fn segment_or_create(&mut self, position: u64) -> Result<Lh, LogError> {
        let segment = self.layout.segment_of(position);
        match self.mapped {
            [Some((found, lh)), _] if found == segment => Ok(lh),
            [_, Some((found, lh))] if found == segment => {
                self.mapped.swap(0, 1);
                Ok(lh)
            }
            // Boxed, because it is rare, and so the futures of appends and polls stay small.
            _ => Box::pin(self.map_or_create(segment)).await,
        }
    }

    /// Returns the segment of a position; `None` if the segment does not exist.
    pub(crate) async fn existing_segment(&mut self, position: u64) -> Result<Option<Lh>, LogError> {
        let segment = self.layout.segment_of(position);
        if let Some((_, lh)) = self.mapped.iter().flatten().find(|(found, _)| *found == segment) {
            return Ok(Some(*lh));
        }
        Box::pin(self.map_existing(segment)).await
    }

    async fn map_existing(&mut self, segment: u64) -> Result<Option<Lh>, LogError> {
        match self.map(segment, USER_RIGHTS).await? {
            Some(lh) => Ok(Some(self.store_mapping(segment, lh).await)),
            None => Ok(None),
        }
    }

    async fn map_or_create(&mut self, segment: u64) -> Result<Lh, LogError> {
        let lh = loop {
            if let Some(lh) = self.map(segment, USER_RIGHTS).await? {
                break lh;
            }
            if let Some(lh) = self.create_segment(segment).await? {
                break lh;
            }
        };
        Ok(self.store_mapping(segment, lh).await)
    }

    async fn store_mapping(&mut self, segment: u64, lh: Lh) -> Lh {
        if let Some((_, oldest)) = self.mapped[1].replace((segment, lh)) {
            // The region may have been freed.
            let _ = self.session.unmap(oldest).await;
        }
        self.mapped.swap(0, 1);
        lh
    }

    /// Unmaps the segment of a position, because its handle is stale.
    pub(crate) async fn unmap_segment_at(&mut self, position: u64) {
        let segment = self.layout.segment_of(position);
        for mapped in &mut self.mapped {
            if let Some((_, lh)) = mapped.take_if(|(found, _)| *found == segment) {
                let _ = Box::pin(self.session.unmap(lh)).await;
            }
        }
    }

    async fn map(&self, segment: u64, wanted: Permissions) -> Result<Option<Lh>, LogError> {
        match self.session.map(&self.segment_name(segment), wanted).await {
            Ok(lh) => Ok(Some(lh)),
            Err(error) => match *error.cause() {
                RegionCause::NotFound => Ok(None),
                RegionCause::Lost(ref lost) => {
                    let next = (segment + 1).saturating_mul(self.layout.segment_slots());
                    Err(LogError::Lost { segment, node: lost.node, next })
                }
                _ => Err(error.into()),
            },
        }
    }

    /// Creates a segment. Returns `None` if another session has just created it.
    async fn create_segment(&mut self, segment: u64) -> Result<Option<Lh>, LogError> {
        if let Err(error) = self.check_not_trimmed(segment).await {
            self.free_maybe_named(segment).await;
            return Err(error);
        }
        let made = match self.retry_naming(segment).await {
            Some(named) => named,
            None => self.allocate_segment(segment).await,
        };
        let lh = match made {
            Ok(lh) => lh,
            Err(error) => return self.handle_creation_error(segment, error),
        };
        // A cleaner may have freed the segment since the last check.
        if let Err(error) = self.check_not_trimmed(segment).await {
            self.session.free(lh).await?;
            return Err(error);
        }
        Ok(Some(lh))
    }

    /// Converts an error of creating a segment. Returns `None` if another session has created it.
    fn handle_creation_error(&self, segment: u64, error: RegionError) -> Result<Option<Lh>, LogError> {
        match error.cause() {
            RegionCause::NameTaken => Ok(None),
            RegionCause::NoSpace { .. } | RegionCause::OutOfMemory { .. } => {
                Err(LogError::Full { first: segment.saturating_mul(self.layout.segment_slots()) })
            }
            _ => Err(error.into()),
        }
    }

    fn placement_of(&self, segment: u64) -> Placement {
        match self.nodes.as_slice() {
            [] => Placement::Anywhere,
            nodes => Placement::On(nodes[(segment % nodes.len() as u64) as usize]),
        }
    }

    async fn allocate_segment(&mut self, segment: u64) -> Result<Lh, RegionError> {
        match self.allocate_segment_at(segment, self.placement_of(segment)).await {
            // The node whose turn it is has left the cluster, so any other node holds the segment.
            Err(error)
                if matches!(
                    error.cause(),
                    RegionCause::UnknownNode(_) | RegionCause::PeerDown(_) | RegionCause::NotMet(_)
                ) =>
            {
                self.allocate_segment_at(segment, Placement::Anywhere).await
            }
            made => made,
        }
    }

    async fn allocate_segment_at(&mut self, segment: u64, placement: Placement) -> Result<Lh, RegionError> {
        let options = AllocOptions { placement, everyone: self.everyone, ..AllocOptions::default() };
        let lh = self.session.alloc_with(None, self.layout.segment_bytes(), options).await?;
        // Naming is a second step: if this future is dropped during the allocation, the region is freed, although other
        // sessions could use a named one.
        self.name_segment(segment, lh).await
    }

    async fn name_segment(&mut self, segment: u64, lh: Lh) -> Result<Lh, RegionError> {
        match self.session.set_name(lh, &self.segment_name(segment)).await {
            Ok(()) => Ok(lh),
            Err(error) if is_without_directory(error.cause()) => {
                // The directory may have recorded the name, and other sessions may append to the region. So this region
                // must become the segment if its name can still be set.
                self.maybe_named.push((segment, lh));
                Err(error)
            }
            Err(error) => {
                let _ = self.session.free(lh).await;
                Err(error)
            }
        }
    }

    /// Names a region of the segment again, after an attempt whose result is unknown. Returns `None` if there is no
    /// such region.
    async fn retry_naming(&mut self, segment: u64) -> Option<Result<Lh, RegionError>> {
        let lh = self.take_maybe_named(segment)?;
        match self.name_segment(segment, lh).await {
            // The region was lost with its node.
            Err(error) if matches!(error.cause(), RegionCause::Stale | RegionCause::Lost(_)) => None,
            named => Some(named),
        }
    }

    fn take_maybe_named(&mut self, segment: u64) -> Option<Lh> {
        let at = self.maybe_named.iter().position(|(found, _)| *found == segment)?;
        Some(self.maybe_named.swap_remove(at).1)
    }

    /// Frees a region that may have the name of a segment, which was or will be freed.
    async fn free_maybe_named(&mut self, segment: u64) {
        if let Some(lh) = self.take_maybe_named(segment) {
            // If this fails, the region is freed at the end of this session, if it has no name.
            let _ = self.session.free(lh).await;
        }
    }

    pub(crate) async fn check_not_trimmed_at(&self, position: u64) -> Result<(), LogError> {
        self.check_not_trimmed(self.layout.segment_of(position)).await
    }

    async fn check_not_trimmed(&self, segment: u64) -> Result<(), LogError> {
        let first = self.start().await?;
        if segment < self.layout.segment_of(first) { Err(LogError::Trimmed { first }) } else { Ok(()) }
    }

    /// Frees a segment. Returns true if it existed.
    pub(crate) async fn free_segment(&mut self, segment: u64) -> Result<bool, LogError> {
        let position = segment.saturating_mul(self.layout.segment_slots());
        self.unmap_segment_at(position).await;
        self.free_maybe_named(segment).await;
        let lh = match self.map(segment, Permissions::MASTER).await {
            Ok(Some(lh)) => lh,
            Ok(None) | Err(LogError::Lost { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        match self.session.free(lh).await {
            Ok(()) => Ok(true),
            // Another cleaner has freed it.
            Err(error) if matches!(error.cause(), RegionCause::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn free_head(self) -> Result<(), LogError> {
        // The handle of the log may have been opened without master's rights.
        let head = self.session.map(&self.name, Permissions::MASTER).await?;
        Ok(self.session.free(head).await?)
    }

    fn segment_name(&self, segment: u64) -> String {
        format!("{}/{segment}", self.name)
    }
}

/// Returns true if a region was freed or moved, or its node is down or out of reach. Mapping the region again reveals
/// which.
pub(crate) fn is_stale_or_down(error: &AccessError) -> bool {
    matches!(error.cause(), AccessCause::Stale | AccessCause::PeerDown(_) | AccessCause::LinkLost(_))
}

fn check_counter(value: u64) -> Result<u64, LogError> {
    if value < POSITION_MAX {
        return Ok(value);
    }
    Err(LogError::NotALog { what: "a counter", value, wanted: "less than 2^62" })
}

fn too_many_nodes(nodes: u64) -> LogError {
    LogError::NotALog { what: "the number of nodes", value: nodes, wanted: "at most 24" }
}
