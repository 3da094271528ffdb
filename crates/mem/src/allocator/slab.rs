//! Slabs: pieces of a segment cut into objects of one size.
//!
//! A slab of 64 KiB holds from 16 objects (of 4 KiB) to 1024 objects (of 64 B). Its bitmap and bookkeeping take about
//! 200 bytes of private memory, 0.2 to 12 bytes per object.

/// Length of a slab in bytes.
pub(super) const SLAB_BYTES: u64 = 64 << 10;

/// Maximum length of objects in slabs, in bytes. For longer objects, a slab would save little memory.
const OBJECT_BYTES_MAX: u64 = 4096;

const BITMAP_WORDS: usize = (SLAB_BYTES / 64 / 64) as usize;

/// Size classes, in units of the alignment: every length up to 16 units, and then four classes per doubling. So
/// rounding up to a class wastes at most a fifth of an object.
const CLASS_UNITS: [u8; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 24, 28, 32, 40, 48, 56, 64];

/// A class of objects of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Class {
    index: u8,
    bytes: u32,
}

impl Class {
    /// Returns the length of one object in bytes.
    pub(super) fn bytes(self) -> u64 {
        u64::from(self.bytes)
    }

    fn objects(self) -> u32 {
        SLAB_BYTES as u32 / self.bytes
    }
}

/// The number of a slab. A later slab may get the number once this slab is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlabId(u32);

/// One slab.
#[derive(Debug)]
pub(super) struct Slab {
    offset: u64,
    segment: u32,
    class: Class,
    objects_free: u32,
    /// Index of this slab in the list of [`Slabs::with_free`]; unused if no object is free.
    list_index: u32,
    /// One bit per object, set while it is free.
    free: [u64; BITMAP_WORDS],
}

impl Slab {
    /// Creates a slab whose objects are all free.
    pub(super) fn new(segment: u32, offset: u64, class: Class) -> Slab {
        let objects = class.objects();
        let free = std::array::from_fn(|word| match objects.saturating_sub(64 * word as u32) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        });
        Slab { offset, segment, class, objects_free: objects, list_index: 0, free }
    }

    fn allocate(&mut self) -> u64 {
        let word = self.free.iter().position(|word| *word != 0).expect("the slab has a free object");
        let bit = self.free[word].trailing_zeros();
        self.free[word] &= self.free[word] - 1;
        self.objects_free -= 1;
        self.offset + (64 * word as u64 + u64::from(bit)) * self.class.bytes()
    }

    /// Marks an object as free. Returns true if an object at `offset` was allocated.
    fn free(&mut self, offset: u64) -> bool {
        let relative_offset = offset - self.offset;
        let object = relative_offset / self.class.bytes();
        if !relative_offset.is_multiple_of(self.class.bytes()) || object >= self.class.objects().into() {
            return false;
        }
        let word = &mut self.free[object as usize / 64];
        let bit = 1 << (object % 64);
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.objects_free += 1;
        true
    }
}

/// All slabs of an allocator.
#[derive(Debug)]
pub(super) struct Slabs {
    alignment: u64,
    slabs: Vec<Slab>,
    /// Numbers of removed slabs, to be reused.
    unused: Vec<SlabId>,
    /// The slabs of each class that have a free object.
    with_free: [Vec<SlabId>; CLASS_UNITS.len()],
}

impl Slabs {
    pub(super) fn new(alignment: u64) -> Slabs {
        let with_free = std::array::from_fn(|_| Vec::new());
        Slabs { alignment, slabs: Vec::new(), unused: Vec::new(), with_free }
    }

    /// Returns the size class for objects of `len` bytes; `None` if such objects are too long for slabs.
    pub(super) fn class_of(&self, len: u64) -> Option<Class> {
        let units = len.div_ceil(self.alignment);
        if units == 0 || len > OBJECT_BYTES_MAX || self.alignment > OBJECT_BYTES_MAX {
            return None;
        }
        let index = match units {
            1..=16 => units as usize - 1,
            _ => CLASS_UNITS.partition_point(|class_units| u64::from(*class_units) < units),
        };
        let bytes = u64::from(CLASS_UNITS[index]) * self.alignment;
        Some(Class { index: index as u8, bytes: bytes as u32 })
    }

    /// Returns the length in bytes of each object of a slab.
    pub(super) fn object_bytes(&self, id: SlabId) -> u64 {
        self.slabs[id.0 as usize].class.bytes()
    }

    pub(super) fn has_free(&self, class: Class) -> bool {
        !self.with_free[usize::from(class.index)].is_empty()
    }

    /// Adds a slab whose objects are all free.
    pub(super) fn add(&mut self, slab: Slab) -> SlabId {
        let id = match self.unused.pop() {
            Some(id) => {
                self.slabs[id.0 as usize] = slab;
                id
            }
            None => {
                self.slabs.push(slab);
                SlabId(self.slabs.len() as u32 - 1)
            }
        };
        self.add_to_free_list(id);
        id
    }

    /// Allocates an object of a class that has a free object. Returns its segment and offset.
    pub(super) fn allocate(&mut self, class: Class) -> (u32, u64) {
        let with_free = &self.with_free[usize::from(class.index)];
        let id = *with_free.last().expect("the class has a slab with a free object");
        let slab = &mut self.slabs[id.0 as usize];
        let address = (slab.segment, slab.allocate());
        if slab.objects_free == 0 {
            self.remove_from_free_list(id);
        }
        address
    }

    /// Frees an object. Returns false if the slab has no object of this class allocated at `offset`.
    pub(super) fn free(&mut self, id: SlabId, class: Class, offset: u64) -> bool {
        let slab = &mut self.slabs[id.0 as usize];
        if slab.class != class || !slab.free(offset) {
            return false;
        }
        if slab.objects_free == 1 {
            self.add_to_free_list(id);
        }
        true
    }

    /// Removes a slab if all its objects are free, and returns its segment and offset; otherwise returns `None`.
    pub(super) fn remove_if_empty(&mut self, id: SlabId) -> Option<(u32, u64)> {
        let slab = &self.slabs[id.0 as usize];
        if slab.objects_free < slab.class.objects() {
            return None;
        }
        let address = (slab.segment, slab.offset);
        self.remove_from_free_list(id);
        self.unused.push(id);
        Some(address)
    }

    fn add_to_free_list(&mut self, id: SlabId) {
        let slab = &mut self.slabs[id.0 as usize];
        let with_free = &mut self.with_free[usize::from(slab.class.index)];
        slab.list_index = with_free.len() as u32;
        with_free.push(id);
    }

    fn remove_from_free_list(&mut self, id: SlabId) {
        let slab = &self.slabs[id.0 as usize];
        let position = slab.list_index;
        let with_free = &mut self.with_free[usize::from(slab.class.index)];
        with_free.swap_remove(position as usize);
        if let Some(moved) = with_free.get(position as usize) {
            self.slabs[moved.0 as usize].list_index = position;
        }
    }
}
