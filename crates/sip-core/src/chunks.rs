//! A vector that grows by chunks, which never move.
//!
//! A plain vector copies everything to a larger place when it is full. With hundreds of thousands
//! of transactions that takes tens of milliseconds: a stall of all signalling.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Elements of one chunk.
const CHUNK: usize = 1024;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
}

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T> Chunks<T> {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self.chunks.last() {
            Some(last) => (self.chunks.len() - 1) * CHUNK + last.len(),
            None => 0,
        }
    }

    /// The element at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.chunks.get(index / CHUNK)?.get(index % CHUNK)
    }

    /// The element at `index`.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.chunks.get_mut(index / CHUNK)?.get_mut(index % CHUNK)
    }

    /// Appends an element; its index.
    pub(crate) fn push(&mut self, element: T) -> usize {
        let index = self.len();
        if index.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(element);
        }
        index
    }
}

impl<T> Index<usize> for Chunks<T> {
    type Output = T;
    fn index(&self, index: usize) -> &T {
        &self.chunks[index / CHUNK][index % CHUNK]
    }
}

impl<T> IndexMut<usize> for Chunks<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_where_they_are() {
        let mut chunks = Chunks::default();
        assert_eq!((chunks.push(0), chunks.len()), (0, 1));
        let first: *const usize = &chunks[0];
        for n in 1..3 * CHUNK + 5 {
            assert_eq!((chunks.push(n), chunks.len()), (n, n + 1));
        }
        assert!((0..chunks.len()).all(|n| chunks.get(n) == Some(&n) && chunks[n] == n));
        assert_eq!(chunks.get(chunks.len()), None);
        assert_eq!(first, &raw const chunks[0]);
        if let Some(n) = chunks.get_mut(CHUNK) {
            *n = 7;
        }
        assert_eq!(chunks[CHUNK], 7);
    }
}
