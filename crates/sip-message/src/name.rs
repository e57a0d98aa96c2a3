//! Header field names. Known names become one byte when the message is indexed.

/// Defines the names once: variant, long form, compact form (RFC 3261 §7.3.3 and the IANA registry).
macro_rules! names {
    ($($variant:ident $long:literal $($compact:literal)?;)+) => {
        /// A header field name. Unknown ones are [`HeaderName::Other`]; their text is in the message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        #[expect(missing_docs, reason = "the variants are the names")]
        pub enum HeaderName { $($variant,)+ Other }

        impl HeaderName {
            /// Number of names, `Other` included.
            pub const COUNT: usize = Self::Other as usize + 1;
            const ALL: [Self; Self::COUNT - 1] = [$(Self::$variant,)+];
            const LONG: [&'static str; Self::COUNT] = [$($long,)+ ""];

            /// Long form in its usual spelling; empty for `Other`.
            #[expect(clippy::indexing_slicing, reason = "the table has a place for every name")]
            pub const fn as_str(self) -> &'static str {
                Self::LONG[self as usize]
            }
        }

        /// Every spelling with its name.
        const SPELLINGS: &[(&str, HeaderName)] = &[
            $(($long, HeaderName::$variant), $(($compact, HeaderName::$variant),)?)+
        ];
    };
}

names! {
    Via "Via" "v";
    From "From" "f";
    To "To" "t";
    CallId "Call-ID" "i";
    CSeq "CSeq";
    MaxForwards "Max-Forwards";
    Contact "Contact" "m";
    Route "Route";
    RecordRoute "Record-Route";
    Path "Path";
    ServiceRoute "Service-Route";
    Expires "Expires";
    MinExpires "Min-Expires";
    ContentLength "Content-Length" "l";
    ContentType "Content-Type" "c";
    ContentEncoding "Content-Encoding" "e";
    Authorization "Authorization";
    ProxyAuthorization "Proxy-Authorization";
    WwwAuthenticate "WWW-Authenticate";
    ProxyAuthenticate "Proxy-Authenticate";
    AuthenticationInfo "Authentication-Info";
    ProxyAuthenticationInfo "Proxy-Authentication-Info";
    Supported "Supported" "k";
    Unsupported "Unsupported";
    Require "Require";
    ProxyRequire "Proxy-Require";
    Allow "Allow";
    Accept "Accept";
    Subject "Subject" "s";
    UserAgent "User-Agent";
    Server "Server";
    Date "Date";
    Timestamp "Timestamp";
    Warning "Warning";
    RetryAfter "Retry-After";
    Reason "Reason";
    Privacy "Privacy";
    PAssertedIdentity "P-Asserted-Identity";
    PPreferredIdentity "P-Preferred-Identity";
    Event "Event" "o";
    ReferTo "Refer-To" "r";
    ReferredBy "Referred-By" "b";
    SessionExpires "Session-Expires" "x";
    MinSe "Min-SE";
    AllowEvents "Allow-Events" "u";
    SubscriptionState "Subscription-State";
    RAck "RAck";
    RSeq "RSeq";
    MaxBreadth "Max-Breadth";
    HistoryInfo "History-Info";
    Identity "Identity" "y";
    AcceptContact "Accept-Contact" "a";
    RejectContact "Reject-Contact" "j";
    RequestDisposition "Request-Disposition" "d";
    Replaces "Replaces";
    Join "Join";
    SecurityClient "Security-Client";
    SecurityVerify "Security-Verify";
    MimeVersion "MIME-Version";
    ContentDisposition "Content-Disposition";
    ContentLanguage "Content-Language";
    AcceptEncoding "Accept-Encoding";
    AcceptLanguage "Accept-Language";
    AlertInfo "Alert-Info";
    CallInfo "Call-Info";
    ErrorInfo "Error-Info";
    InReplyTo "In-Reply-To";
    Organization "Organization";
    Priority "Priority";
    ReplyTo "Reply-To";
    ResourcePriority "Resource-Priority";
    SipETag "SIP-ETag";
    SipIfMatch "SIP-If-Match";
}

const SLOTS: usize = 512;

/// The slot of a name by its length and three of its characters, in lower case. The multipliers were found by
/// search; [`TABLE`] fails to compile if two spellings ever share a slot.
const fn slot(len: usize, first: u8, middle: u8, last: u8) -> usize {
    (len * 659
        + (first | 0x20) as usize * 1587
        + (last | 0x20) as usize * 1989
        + (middle | 0x20) as usize * 1944)
        % SLOTS
}

const EMPTY: u8 = u8::MAX;

/// The index into [`SPELLINGS`] for each slot.
#[expect(clippy::indexing_slicing, reason = "a fault is one of compilation")]
const TABLE: [u8; SLOTS] = {
    let mut table = [EMPTY; SLOTS];
    let mut i = 0;
    while i < SPELLINGS.len() {
        let name = SPELLINGS[i].0.as_bytes();
        let slot = slot(name.len(), name[0], name[name.len() / 2], name[name.len() - 1]);
        assert!(
            table[slot] == EMPTY,
            "two header names share a slot: search for other multipliers"
        );
        table[slot] = i as u8;
        i += 1;
    }
    table
};

/// A spelling of up to 16 characters as two numbers, first character lowest.
#[derive(Clone, Copy)]
struct FastSpelling {
    low: u64,
    high: u64,
    /// The number of characters: a name that ends in NUL is another one.
    len: u64,
    name: HeaderName,
}

/// The slot of such a pair. The multiplier was found by search, as those of [`slot`] were.
const fn fast_slot(low: u64, high: u64) -> usize {
    ((low ^ high.rotate_left(7)).wrapping_mul(0x2146_4b6d_4111_329b) >> 55) as usize
}

/// The number of places of [`FAST_PATH`]: a power of two, so that an index need not be compared with it.
const FAST_PATH_PLACES: usize = 128;

/// The spellings of up to 16 characters, and the index into them for each slot. The last place is empty.
#[expect(clippy::indexing_slicing, reason = "a fault is one of compilation")]
const FAST_PATH: ([FastSpelling; FAST_PATH_PLACES], [u8; SLOTS]) = {
    const NO_NAME: FastSpelling = FastSpelling {
        low: u64::MAX,
        high: u64::MAX,
        len: u64::MAX,
        name: HeaderName::Other,
    };
    let mut usual = [NO_NAME; FAST_PATH_PLACES];
    let mut table = [FAST_PATH_PLACES as u8 - 1; SLOTS];
    let mut i = 0;
    let mut at = 0;
    while i < SPELLINGS.len() {
        let name = SPELLINGS[i].0.as_bytes();
        if name.len() <= 16 {
            let mut packed = 0u128;
            let mut j = name.len();
            while j > 0 {
                j -= 1;
                packed = packed << 8 | name[j] as u128;
            }
            let (low, high) = (packed as u64, (packed >> 64) as u64);
            usual[at] = FastSpelling {
                low,
                high,
                len: name.len() as u64,
                name: SPELLINGS[i].1,
            };
            let slot = fast_slot(low, high);
            assert!(
                table[slot] == FAST_PATH_PLACES as u8 - 1,
                "two header names share a slot: search for another multiplier"
            );
            table[slot] = at as u8;
            at += 1;
        }
        i += 1;
    }
    assert!(at < FAST_PATH_PLACES, "more spellings than places");
    (usual, table)
};

static FAST_PATH_NAMES: [FastSpelling; FAST_PATH_PLACES] = FAST_PATH.0;
static FAST_PATH_TABLE: [u8; SLOTS] = FAST_PATH.1;

/// Masks of the first bytes of a block, by their number.
static FIRST_BYTES: [(u64, u64); 17] = {
    let mut masks = [(0, 0); 17];
    let mut len = 1;
    #[expect(clippy::indexing_slicing, reason = "a fault is one of compilation")]
    while len <= 16 {
        let mask = u128::MAX >> (128 - 8 * len);
        masks[len] = (mask as u64, (mask >> 64) as u64);
        len += 1;
    }
    masks
};

impl HeaderName {
    /// The name that is the first `len` bytes of `block`, if it is a known one in its usual spelling. Nearly
    /// all names are, at a fraction of the price of [`HeaderName::lookup`].
    #[inline(always)]
    pub(crate) fn lookup_usual(block: &[u8; 16], len: usize) -> Option<Self> {
        let both = u128::from_le_bytes(*block);
        let (low_mask, high_mask) = FIRST_BYTES.get(len)?;
        let (low, high) = (both as u64 & low_mask, (both >> 64) as u64 & high_mask);
        let index = *FAST_PATH_TABLE.get(fast_slot(low, high))?;
        let usual = FAST_PATH_NAMES.get(usize::from(index) % FAST_PATH_PLACES)?;
        let difference = (usual.low ^ low) | (usual.high ^ high) | (usual.len ^ len as u64);
        (difference == 0).then_some(usual.name)
    }

    /// Recognises a name in any case, long or compact form.
    pub fn lookup(name: &[u8]) -> Self {
        let (Some(&first), Some(&middle), Some(&last)) =
            (name.first(), name.get(name.len() / 2), name.last())
        else {
            return Self::Other;
        };
        let index = TABLE
            .get(slot(name.len(), first, middle, last))
            .copied()
            .unwrap_or(EMPTY);
        match SPELLINGS.get(usize::from(index)) {
            // Most senders use the usual spelling, and comparing that is cheaper.
            Some((text, known)) if text.as_bytes() == name || text.as_bytes().eq_ignore_ascii_case(name) => {
                *known
            }
            _ => Self::Other,
        }
    }

    /// Every known name.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    /// Whether a second field of this name is a fault (RFC 3261 §20, RFC 4475 §3.3.8). Only names that a
    /// proxy depends on.
    pub const fn is_single(self) -> bool {
        matches!(
            self,
            Self::From | Self::To | Self::CallId | Self::CSeq | Self::MaxForwards | Self::ContentLength
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    #[test]
    fn every_spelling_is_found_in_any_case() {
        for (text, name) in SPELLINGS {
            assert_eq!(HeaderName::lookup(text.as_bytes()), *name, "{text}");
            let upper: String = text.chars().map(|c| c.to_ascii_uppercase()).collect();
            assert_eq!(HeaderName::lookup(upper.as_bytes()), *name, "{upper}");
            let lower: String = text.chars().map(|c| c.to_ascii_lowercase()).collect();
            assert_eq!(HeaderName::lookup(lower.as_bytes()), *name, "{lower}");
        }
    }

    #[test]
    fn usual_spellings_are_found_in_a_block() {
        for (text, name) in SPELLINGS.iter().filter(|(text, _)| text.len() <= 16) {
            let mut block = [b':'; 16];
            block[..text.len()].copy_from_slice(text.as_bytes());
            for len in 0..=16 {
                let found = HeaderName::lookup_usual(&block, len);
                // A compact form may begin a longer name.
                let expected = core::str::from_utf8(&block[..len])
                    .ok()
                    .and_then(|t| SPELLINGS.iter().find(|s| s.0 == t));
                assert_eq!(found, expected.map(|s| s.1), "{text} {len}");
            }
            assert_eq!(HeaderName::lookup_usual(&block, text.len()), Some(*name));
        }
        assert_eq!(HeaderName::lookup_usual(b"Call\rID:        ", 7), None);
        assert_eq!(HeaderName::lookup_usual(b"Via\0\0\0:         ", 6), None);
    }

    #[test]
    fn near_misses_are_other() {
        for text in [
            "",
            "Vi",
            "Viaa",
            "Fron",
            "Cseq-",
            "Content-Lengti",
            "X-Foo",
            "call_id",
            "\u{0}",
        ] {
            assert_eq!(HeaderName::lookup(text.as_bytes()), HeaderName::Other, "{text}");
        }
    }
}
