//! A table of values with reused indices.

#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn add(&mut self, value: T) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Some(value);
        index
    }

    pub(super) fn get(&self, index: u32) -> &T {
        self.slots[index as usize].as_ref().expect("the index is in use")
    }

    pub(super) fn take(&mut self, index: u32) -> T {
        self.free.push(index);
        self.slots[index as usize].take().expect("the index is in use")
    }
}
