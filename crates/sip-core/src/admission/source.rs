//! The source that a message counts for.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

use crate::config::Network;

/// One source: an address of IPv4, or a network of 64 bits of IPv6, since a host with one address there has
/// all. Behind the well-known prefix of translators, `64:ff9b::/96` (RFC 6052 §2.1), the source is the IPv4
/// address that was translated: else all of IPv4 would be one source.
///
/// An IPv6 source is the upper half of the address. An IPv4 source stands behind 32 bits that are set, which
/// begin multicast addresses of IPv6 (RFC 4291 §2.7) and so no source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(u64);

const V4: u64 = 0xffff_ffff << 32;

/// The well-known prefix of translators, of 96 bits. No other address of the network of 64 bits around it is
/// in use.
const TRANSLATED: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);

impl Source {
    /// The source that `ip` belongs to. An IPv4-mapped address of IPv6 counts as IPv4, and so does an address
    /// that was translated with the well-known prefix.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V4(ip) => Self(V4 | u64::from(ip.to_bits())),
            IpAddr::V6(ip) if ip.to_bits() >> 64 == TRANSLATED.to_bits() >> 64 => {
                Self(V4 | u64::from(ip.to_bits() as u32))
            }
            IpAddr::V6(ip) => Self((ip.to_bits() >> 64) as u64),
        }
    }

    /// Whether the source belongs to the network, or the network is a part of the source.
    pub fn touches(self, network: &Network) -> bool {
        let first = self.address();
        let translated = match first {
            IpAddr::V4(ip) => Some(IpAddr::V6(Ipv6Addr::from_bits(
                TRANSLATED.to_bits() | u128::from(ip.to_bits()),
            ))),
            IpAddr::V6(_) => None,
        };
        let is_part = network.prefix_len >= 64 && Self::of(network.address) == self;
        // A network of translated addresses has addresses of IPv4 behind it, unless it is the whole prefix.
        let is_behind = |ip| network.prefix_len > 96 && network.contains(ip);
        network.contains(first) || is_part || translated.is_some_and(is_behind)
    }

    /// The first address of the source.
    pub fn address(self) -> IpAddr {
        if self.0 & V4 == V4 {
            Ipv4Addr::from_bits(self.0 as u32).into()
        } else {
            Ipv6Addr::from_bits(u128::from(self.0) << 64).into()
        }
    }

    /// The source as a number of its own. No source is `u64::MAX`.
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }
}

/// Writes the source as `192.0.2.1` or `2001:db8::/64`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            IpAddr::V4(ip) => fmt::Display::fmt(&ip, f),
            IpAddr::V6(ip) => write!(f, "{ip}/64"),
        }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that names no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSource;

/// Reads a displayed source, and any address, which stands for its source.
impl FromStr for Source {
    type Err = NoSource;

    fn from_str(text: &str) -> Result<Self, NoSource> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let ip: IpAddr = address.parse().map_err(|_| NoSource)?;
        let fits = match (length, ip) {
            (None, _) => true,
            (Some(length), IpAddr::V4(_)) => length == "32",
            (Some(length), IpAddr::V6(_)) => length == "64" && Self::of(ip).address().is_ipv6(),
        };
        let is_one = Self::of(ip).bits() != u64::MAX;
        (fits && is_one).then(|| Self::of(ip)).ok_or(NoSource)
    }
}

/// A read-only set of sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources(Box<[Source]>);

impl Sources {
    /// Whether `source` is in the set: a binary search.
    pub fn contains(&self, source: Source) -> bool {
        self.0.binary_search(&source).is_ok()
    }

    /// Whether the set is empty.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All sources of the set, in order.
    pub fn iter(&self) -> impl Iterator<Item = Source> {
        self.0.iter().copied()
    }
}

impl FromIterator<Source> for Sources {
    fn from_iter<I: IntoIterator<Item = Source>>(sources: I) -> Self {
        let mut sources: Vec<Source> = sources.into_iter().collect();
        sources.sort_unstable();
        sources.dedup();
        Self(sources.into_boxed_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec;

    #[test]
    fn addresses_belong_to_sources() {
        for (address, shown) in [
            ("192.0.2.1", Some("192.0.2.1")),
            ("192.0.2.1/32", Some("192.0.2.1")),
            ("0.0.0.0", Some("0.0.0.0")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("2001:db8:1:2:3:4:5:6", Some("2001:db8:1:2::/64")),
            ("2001:db8:1:2::/64", Some("2001:db8:1:2::/64")),
            ("::1", Some("::/64")),
            // Translators' well-known prefix, and its neighbours.
            ("64:ff9b::192.0.2.1", Some("192.0.2.1")),
            ("64:ff9b::c000:201", Some("192.0.2.1")),
            ("64:ff9b::", Some("0.0.0.0")),
            ("64:ff9b:0:1::c000:201", Some("64:ff9b:0:1::/64")),
            ("64:ff9b:1::c000:201", Some("64:ff9b:1::/64")),
            ("64:ff9b::255.255.255.255", None),
            ("64:ff9b::/64", None),
            ("255.255.255.255", None),
            ("192.0.2.0/24", None),
            ("2001:db8::/48", None),
            ("192.0.2", None),
            ("sip.example.com", None),
            ("", None),
        ] {
            let source = address.parse::<Source>();
            assert_eq!(source.ok().map(|s| s.to_string()).as_deref(), shown, "{address}");
            if let Ok(source) = source {
                assert_eq!(source.to_string().parse(), Ok(source));
                assert_eq!(Source::of(source.address()), source);
            }
        }
        let of = |text: &str| text.parse::<Source>().unwrap();
        assert_ne!(of("::"), of("0.0.0.0"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
    }

    #[test]
    fn sources_and_networks_touch() {
        let network = |text: &str| {
            let (address, length) = text.split_once('/').unwrap();
            Network {
                address: address.parse().unwrap(),
                prefix_len: length.parse().unwrap(),
            }
        };
        for (source, of, expected) in [
            ("192.0.2.1", "192.0.2.0/24", true),
            ("192.0.2.1", "198.51.100.0/24", false),
            ("2001:db8::/64", "2001:db8::/32", true),
            ("2001:db8::/64", "2001:db8::9/128", true),
            ("2001:db8::/64", "2001:db8:0:1::9/128", false),
            ("192.0.2.1", "64:ff9b::192.0.2.1/128", true),
            ("192.0.2.1", "64:ff9b::192.0.2.0/120", true),
            ("192.0.2.1", "64:ff9b::198.51.100.0/120", false),
            // An exemption of a translator does not exempt all of IPv4.
            ("192.0.2.1", "64:ff9b::/96", false),
            ("192.0.2.1", "::/0", false),
        ] {
            let source: Source = source.parse().unwrap();
            assert_eq!(source.touches(&network(of)), expected, "{source} {of}");
        }
    }

    #[test]
    fn a_set_holds_what_it_was_made_of() {
        let of = |last: u8| Source::of([192, 0, 2, last].into());
        let set: Sources = [3, 1, 3, 9].map(of).into_iter().collect();
        assert_eq!(
            set.iter().collect::<alloc::vec::Vec<_>>(),
            vec![of(1), of(3), of(9)]
        );
        assert!(set.contains(of(3)) && !set.contains(of(2)));
        assert!(Sources::default().is_empty() && !Sources::default().contains(of(1)));
    }
}
