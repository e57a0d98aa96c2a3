//! Control messages (`cmsg(3)`), read within the bounds of the bytes that the kernel wrote.
//!
//! The C library's macros follow the lengths that they find. These come from the kernel and are right. But
//! code that relies on them needs a longer safety argument than code that checks them.

use std::mem::offset_of;
use std::ptr;

/// The control messages in `bytes`, each as level, type and data. The first message with a length that is too
/// small or not within `bytes` ends them.
pub(super) struct ControlMessages<'a>(&'a [u8]);

impl<'a> ControlMessages<'a> {
    /// The messages in `bytes` as the kernel filled them: `msg_controllen` bytes at `msg_control`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for ControlMessages<'a> {
    type Item = (libc::c_int, libc::c_int, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        // SAFETY: `cmsghdr` is integers and, with some C libraries, padding: any bytes are one.
        let header: libc::cmsghdr = unsafe { read(bytes) }?;
        // The field's type differs between C libraries.
        let len: usize = header.cmsg_len as _;
        // SAFETY: arithmetic on lengths, without memory.
        let data_at = unsafe { libc::CMSG_LEN(0) } as usize;
        let data = bytes.get(data_at..len)?;
        // SAFETY: as above; no more than the length of `bytes`, which is some hundred.
        let next_at = unsafe { libc::CMSG_SPACE(data.len() as libc::c_uint) } as usize;
        self.0 = bytes.get(next_at..).unwrap_or_default();
        Some((header.cmsg_level, header.cmsg_type, data))
    }
}

/// The first bytes as a `T`; `None` if there are fewer.
///
/// # Safety
/// Any bytes must be a valid `T`.
pub(super) unsafe fn read<T: Copy>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: `bytes` is as long as a `T`, need not be aligned for it, and is a valid one by the caller's word.
    Some(unsafe { ptr::read_unaligned(bytes.as_ptr().cast()) })
}

// `next` looks for the data behind the header's last field.
const _: () =
    assert!(offset_of!(libc::cmsghdr, cmsg_type) + size_of::<libc::c_int>() <= size_of::<libc::cmsghdr>());

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A control message as the kernel writes it. Its header says that it is `claims` bytes long, header
    /// included; `None`: its true length.
    pub(in crate::sys) fn message(level: i32, kind: i32, data: &[u8], claims: Option<usize>) -> Vec<u8> {
        let header = size_of::<libc::cmsghdr>();
        let len = claims.unwrap_or(header + data.len());
        let mut bytes = vec![0; (header + data.len()).next_multiple_of(size_of::<usize>())];
        let put = |bytes: &mut Vec<u8>, at: usize, value: &[u8]| {
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(
            &mut bytes,
            offset_of!(libc::cmsghdr, cmsg_len),
            &len.to_ne_bytes(),
        );
        put(
            &mut bytes,
            offset_of!(libc::cmsghdr, cmsg_level),
            &level.to_ne_bytes(),
        );
        put(
            &mut bytes,
            offset_of!(libc::cmsghdr, cmsg_type),
            &kind.to_ne_bytes(),
        );
        put(&mut bytes, header, data);
        bytes
    }

    /// Walks memory that ends where the bytes do, so that the address sanitizer notices a read beyond them.
    fn walk(bytes: &[u8]) -> Vec<(i32, i32, Vec<u8>)> {
        let exact: Box<[u8]> = bytes.into();
        ControlMessages::new(&exact)
            .map(|(level, kind, data)| (level, kind, data.to_vec()))
            .collect()
    }

    const HEADER: usize = size_of::<libc::cmsghdr>();

    #[test]
    fn messages_come_one_after_the_other() {
        let bytes = [
            message(1, 2, b"abc", None),
            message(3, 4, b"", None),
            message(5, 6, &[7; 17], None),
        ]
        .concat();
        let expected = [(1, 2, b"abc".to_vec()), (3, 4, vec![]), (5, 6, vec![7; 17])];
        assert_eq!(walk(&bytes), expected);
        // The kernel does not pad the last message.
        assert_eq!(walk(&bytes[..2 * HEADER + 8 + HEADER + 17]), expected);
    }

    #[test]
    fn what_is_cut_off_or_lies_about_its_length_is_none() {
        let first = message(1, 2, b"12345678", None);
        assert_eq!(walk(&[]), []);
        for end in 0..first.len() {
            assert_eq!(walk(&first[..end]), [], "{end} bytes");
        }
        let known = [(1, 2, b"12345678".to_vec())];
        for claims in [
            0,
            1,
            HEADER - 1,
            HEADER + 9,
            HEADER + 4096,
            usize::MAX - 7,
            usize::MAX,
        ] {
            let second = message(3, 4, b"12345678", Some(claims));
            assert_eq!(walk(&second), [], "{claims}");
            assert_eq!(walk(&[first.clone(), second].concat()), known, "{claims}");
        }
        for end in first.len()..first.len() + HEADER {
            assert_eq!(
                walk(&[first.clone(), first.clone()].concat()[..end]),
                known,
                "{end}"
            );
        }
        // A length shorter than the bytes present: the rest of them is no message.
        let second = message(3, 4, &[0; 8], Some(HEADER + 3));
        assert_eq!(walk(&second), [(3, 4, vec![0; 3])]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_to_an_end(bytes in prop::collection::vec(prop_oneof![Just(0u8), 0u8..40, any::<u8>()], 0..300)) {
            let found = walk(&bytes);
            let data: usize = found.iter().map(|(_, _, data)| HEADER + data.len()).sum();
            prop_assert!(data <= bytes.len());
        }

        #[test]
        fn what_was_written_is_read(list in prop::collection::vec((any::<i32>(), any::<i32>(), prop::collection::vec(any::<u8>(), 0..40)), 0..6)) {
            let bytes: Vec<u8> = list.iter().flat_map(|(level, kind, data)| message(*level, *kind, data, None)).collect();
            prop_assert_eq!(walk(&bytes), list);
        }
    }
}
