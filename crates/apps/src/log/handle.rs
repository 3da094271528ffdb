//! A log as one session sees it: its head, and the segments that it has at hand.

use halite::{
    AccessCause, AccessError, AllocOptions, Lh, NodeId, Permissions, Placement, RegionCause, RegionError,
    Session,
};

use super::error::LogError;
use super::layout::{HEAD_BYTES, KEPT_AT, Layout, MAGIC, NODES_MAX, POSITION_MAX, RESERVED_AT, WORD};
use crate::directory::is_without_directory;

/// What writers and followers do in a segment: followers skip.
const USE: Permissions = Permissions::READ.union(Permissions::WRITE).union(Permissions::ATOMIC);

/// How a log is to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a slot, of which 8 are its word: a multiple of 8.  A record takes as many slots as it needs; most should take
    /// one.
    pub slot_bytes: u64,
    /// Slots of a segment, which is freed as a whole; no record is longer.
    pub segment_slots: u64,
    /// Nodes that take the segments in turn, at most 24.  None: wherever there is room.
    pub nodes: Vec<NodeId>,
    /// What principals other than the session's may do.
    pub everyone: Permissions,
}

impl Default for Options {
    /// Slots of 64 bytes, segments of 4 MiB wherever there is room, for this principal alone.
    fn default() -> Options {
        Options { slot_bytes: 64, segment_slots: 1 << 16, nodes: Vec::new(), everyone: Permissions::empty() }
    }
}

/// A log of one session.  Each writer, follower and cleaner has one of its own.
pub struct Log {
    pub(crate) session: Session,
    pub(crate) layout: Layout,
    name: String,
    head: Lh,
    nodes: Vec<NodeId>,
    everyone: Permissions,
    /// The one in use, and the one before or after it.
    mapped: [Option<(u64, Lh)>; 2],
    /// Regions of which it is not known whether they are those segments: the directory of names did not say.
    in_doubt: Vec<(u64, Lh)>,
}

impl Clone for Log {
    /// One that has no segment at hand yet.
    fn clone(&self) -> Log {
        let (session, name, nodes) = (self.session.clone(), self.name.clone(), self.nodes.clone());
        Log { session, name, nodes, mapped: [None; 2], in_doubt: Vec::new(), ..*self }
    }
}

impl Log {
    /// Makes a log.  Fails with [`RegionCause::NameTaken`] if there is a region of that name.
    pub async fn create(session: &Session, name: &str, options: &Options) -> Result<Log, LogError> {
        let layout = Layout::new(options.slot_bytes, options.segment_slots)?;
        let placement = match options.nodes.as_slice() {
            [] => Placement::Anywhere,
            [first, ..] => Placement::On(*first),
        };
        if options.nodes.len() > NODES_MAX {
            return Err(too_many(options.nodes.len() as u64));
        }
        let mut head = vec![MAGIC, layout.slot_bytes(), layout.segment_slots()];
        head.extend([u64::from(options.everyone.bits()), options.nodes.len() as u64]);
        head.extend(options.nodes.iter().map(|node| u64::from(node.0)));
        let bytes: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
        let lh = session.alloc(None, HEAD_BYTES, placement, options.everyone).await?;
        session.write(lh, 0, &bytes).await?;
        // It has its name when all of it stands there.
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
            in_doubt: Vec::new(),
        })
    }

    /// Opens a log that somebody has made.
    pub async fn open(session: &Session, name: &str) -> Result<Log, LogError> {
        let head = session.map(name, USE).await?;
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
            let wanted = "that of this version of logs";
            return Err(LogError::NotALog { what: "the first word", value: magic, wanted });
        }
        let layout = Layout::new(next(), next())?;
        let everyone = Permissions::from_bits_truncate(next() as _);
        let count = next();
        if count > NODES_MAX as u64 {
            return Err(too_many(count));
        }
        let nodes = (0..count).map(|_| NodeId(next() as u32)).collect();
        let (session, name) = (session.clone(), name.to_owned());
        Ok(Log { session, layout, name, head, nodes, everyone, mapped: [None; 2], in_doubt: Vec::new() })
    }

    /// Bytes of the longest record.
    pub fn record_bytes_max(&self) -> u64 {
        self.layout.record_bytes_max()
    }

    /// The first position that nobody has reserved.
    pub async fn end(&self) -> Result<u64, LogError> {
        self.counter(RESERVED_AT).await
    }

    /// The first position that is kept.
    pub async fn start(&self) -> Result<u64, LogError> {
        let kept = self.counter(KEPT_AT).await?;
        Ok(kept.saturating_mul(self.layout.segment_slots()))
    }

    pub(crate) async fn counter(&self, at: u64) -> Result<u64, LogError> {
        let mut word = [0; WORD as usize];
        self.session.read(self.head, at, &mut word).await?;
        sound(u64::from_le_bytes(word))
    }

    pub(crate) async fn reserve(&self, slots: u64) -> Result<u64, LogError> {
        let first = self.session.fetch_add(self.head, RESERVED_AT, slots).await?;
        sound(first)
    }

    /// Reserves all that nobody has reserved before `position`, for nobody.
    pub(crate) async fn reserve_up_to(&self, position: u64) -> Result<(), LogError> {
        self.raise(RESERVED_AT, position).await
    }

    /// Raises a counter, unless it is higher already.
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

    /// The segment that a position is in, if it is the one in use.
    #[inline]
    pub(crate) fn segment_at_hand(&self, position: u64) -> Option<Lh> {
        let (found, lh) = self.mapped[0]?;
        (found == self.layout.segment_of(position)).then_some(lh)
    }

    /// The segment that a position is in; made if nobody has made it.
    pub(crate) async fn segment_at(&mut self, position: u64) -> Result<Lh, LogError> {
        let segment = self.layout.segment_of(position);
        match self.mapped {
            [Some((found, lh)), _] if found == segment => Ok(lh),
            [_, Some((found, lh))] if found == segment => {
                self.mapped.swap(0, 1);
                Ok(lh)
            }
            // Rare, and long: kept apart, so that what appends or follows is short to begin.
            _ => Box::pin(self.take_up(segment)).await,
        }
    }

    /// As [`Log::segment_at`], but makes none.
    pub(crate) async fn segment_if_made(&mut self, position: u64) -> Result<Option<Lh>, LogError> {
        let segment = self.layout.segment_of(position);
        if let Some((_, lh)) = self.mapped.iter().flatten().find(|(found, _)| *found == segment) {
            return Ok(Some(*lh));
        }
        Box::pin(self.take_up_if_made(segment)).await
    }

    async fn take_up_if_made(&mut self, segment: u64) -> Result<Option<Lh>, LogError> {
        match self.map(segment, USE).await? {
            Some(lh) => Ok(Some(self.note(segment, lh).await)),
            None => Ok(None),
        }
    }

    async fn take_up(&mut self, segment: u64) -> Result<Lh, LogError> {
        let lh = loop {
            if let Some(lh) = self.map(segment, USE).await? {
                break lh;
            }
            if let Some(lh) = self.make(segment).await? {
                break lh;
            }
        };
        Ok(self.note(segment, lh).await)
    }

    async fn note(&mut self, segment: u64, lh: Lh) -> Lh {
        if let Some((_, oldest)) = self.mapped[1].replace((segment, lh)) {
            // It may have been freed.
            let _ = self.session.unmap(oldest).await;
        }
        self.mapped.swap(0, 1);
        lh
    }

    /// What is mapped of a segment leads nowhere any more.
    pub(crate) async fn forget_segment_at(&mut self, position: u64) {
        let segment = self.layout.segment_of(position);
        for mapped in &mut self.mapped {
            if let Some((_, lh)) = mapped.take_if(|(found, _)| *found == segment) {
                let _ = Box::pin(self.session.unmap(lh)).await;
            }
        }
    }

    async fn map(&self, segment: u64, wanted: Permissions) -> Result<Option<Lh>, LogError> {
        match self.session.map(&self.name_of(segment), wanted).await {
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

    /// Makes a segment, unless somebody else just has.
    async fn make(&mut self, segment: u64) -> Result<Option<Lh>, LogError> {
        if let Err(error) = self.expect_kept(segment).await {
            self.free_doubtful(segment).await;
            return Err(error);
        }
        let made = match self.name_doubtful(segment).await {
            Some(named) => named,
            None => self.make_anew(segment).await,
        };
        let lh = match made {
            Ok(lh) => lh,
            Err(error) => return self.unless_full(segment, error),
        };
        // A cleaner may have passed since we looked.
        if let Err(error) = self.expect_kept(segment).await {
            self.session.free(lh).await?;
            return Err(error);
        }
        Ok(Some(lh))
    }

    /// What comes of a segment that could not be made.
    fn unless_full(&self, segment: u64, error: RegionError) -> Result<Option<Lh>, LogError> {
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

    async fn make_anew(&mut self, segment: u64) -> Result<Lh, RegionError> {
        match self.make_at(segment, self.placement_of(segment)).await {
            // Whose turn it is has gone.
            Err(error) if matches!(error.cause(), RegionCause::UnknownNode(_) | RegionCause::PeerDown(_)) => {
                self.make_at(segment, Placement::Anywhere).await
            }
            made => made,
        }
    }

    async fn make_at(&mut self, segment: u64, placement: Placement) -> Result<Lh, RegionError> {
        let options = AllocOptions { placement, everyone: self.everyone, ..AllocOptions::default() };
        let lh = self.session.alloc_with(None, self.layout.segment_bytes(), options).await?;
        // Not with its name at once: what is made by a call that is given up is freed, and others may use it by then.
        self.name_segment(segment, lh).await
    }

    async fn name_segment(&mut self, segment: u64, lh: Lh) -> Result<Lh, RegionError> {
        match self.session.set_name(lh, &self.name_of(segment)).await {
            Ok(()) => Ok(lh),
            Err(error) if is_without_directory(error.cause()) => {
                // It may have been given: then others append to it, and it is to be this one.
                self.in_doubt.push((segment, lh));
                Err(error)
            }
            Err(error) => {
                let _ = self.session.free(lh).await;
                Err(error)
            }
        }
    }

    /// Tries again to make that region the segment whose name is in doubt; `None` if there is none.
    async fn name_doubtful(&mut self, segment: u64) -> Option<Result<Lh, RegionError>> {
        let lh = self.take_doubtful(segment)?;
        match self.name_segment(segment, lh).await {
            // It went with its node.
            Err(error) if matches!(error.cause(), RegionCause::Stale | RegionCause::Lost(_)) => None,
            named => Some(named),
        }
    }

    fn take_doubtful(&mut self, segment: u64) -> Option<Lh> {
        let at = self.in_doubt.iter().position(|(found, _)| *found == segment)?;
        Some(self.in_doubt.swap_remove(at).1)
    }

    /// The segment is gone, or is to go.
    async fn free_doubtful(&mut self, segment: u64) {
        if let Some(lh) = self.take_doubtful(segment) {
            // Without a name it ends with this session at the latest.
            let _ = self.session.free(lh).await;
        }
    }

    pub(crate) async fn expect_kept_at(&self, position: u64) -> Result<(), LogError> {
        self.expect_kept(self.layout.segment_of(position)).await
    }

    async fn expect_kept(&self, segment: u64) -> Result<(), LogError> {
        let first = self.start().await?;
        if segment < self.layout.segment_of(first) { Err(LogError::Trimmed { first }) } else { Ok(()) }
    }

    /// Frees one segment; whether it was there.
    pub(crate) async fn free_segment(&mut self, segment: u64) -> Result<bool, LogError> {
        let position = segment.saturating_mul(self.layout.segment_slots());
        self.forget_segment_at(position).await;
        self.free_doubtful(segment).await;
        let lh = match self.map(segment, Permissions::MASTER).await {
            Ok(Some(lh)) => lh,
            Ok(None) | Err(LogError::Lost { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        match self.session.free(lh).await {
            Ok(()) => Ok(true),
            // Another cleaner has.
            Err(error) if matches!(error.cause(), RegionCause::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) async fn free_head(self) -> Result<(), LogError> {
        // It need not have been opened by a master.
        let head = self.session.map(&self.name, Permissions::MASTER).await?;
        Ok(self.session.free(head).await?)
    }

    fn name_of(&self, segment: u64) -> String {
        format!("{}/{segment}", self.name)
    }
}

/// Whether a handle leads nowhere any more; mapping the region again tells why.
pub(crate) fn is_gone(error: &AccessError) -> bool {
    matches!(error.cause(), AccessCause::Stale | AccessCause::PeerDown(_))
}

fn sound(value: u64) -> Result<u64, LogError> {
    if value < POSITION_MAX {
        return Ok(value);
    }
    Err(LogError::NotALog { what: "a counter", value, wanted: "less than 2^62" })
}

fn too_many(nodes: u64) -> LogError {
    LogError::NotALog { what: "the number of nodes", value: nodes, wanted: "at most 24" }
}
