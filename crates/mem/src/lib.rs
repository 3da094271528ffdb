//! Memory that other processes may write.
/// A memfd mapped by this process.
pub struct Segment;
/// A bounds-checked view of part of a segment.
#[derive(Clone)]
pub struct Window;
