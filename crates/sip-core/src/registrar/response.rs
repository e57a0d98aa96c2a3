//! The responses to a REGISTER.

use alloc::vec::Vec;

use sip_message::number::write_decimal;
use sip_message::{HeaderName, Message};

use super::extensions::write_unsupported;
use super::{Registration, Rejection, stored_path, unsupported};
use crate::location::{AorRecord, Binding};

impl Rejection {
    /// The status code of the response.
    pub(crate) const fn status(self) -> u16 {
        match self {
            Self::Bad(_) => 400,
            Self::Extension => 420,
            Self::TooBrief(_) => 423,
            Self::FirstHopLacksOutbound => 439,
            Self::OutOfOrder => 500,
            Self::TooManyContacts | Self::Path | Self::NotProved | Self::TooManyNew => 403,
            Self::Full => 503,
        }
    }

    /// The reason phrase of the response.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Bad(reason) => reason,
            Self::Extension => "Bad Extension",
            Self::TooBrief(_) => "Interval Too Brief",
            Self::FirstHopLacksOutbound => "First Hop Lacks Outbound Support",
            Self::OutOfOrder => "CSeq Out Of Order",
            Self::TooManyContacts => "Too Many Contacts",
            Self::Path => "Path Not Trusted",
            Self::NotProved => "Source Not Proved",
            Self::TooManyNew => "Too Many New Addresses",
            Self::Full => "Service Unavailable",
        }
    }

    /// Appends the header lines that the response to `request` needs besides those of any response.
    pub(crate) fn write_headers(self, request: &Message<'_>, out: &mut Vec<u8>) {
        match self {
            // §21.4.15.
            Self::Extension => {
                write_unsupported(out, &unsupported(request));
            }
            // §21.4.17.
            Self::TooBrief(min) => line(out, HeaderName::MinExpires, |out| {
                write_decimal(out, u64::from(min))
            }),
            Self::Bad(_)
            | Self::FirstHopLacksOutbound
            | Self::OutOfOrder
            | Self::TooManyContacts
            | Self::Path
            | Self::NotProved
            | Self::TooManyNew
            | Self::Full => {}
        }
    }
}

impl Registration<'_> {
    /// Appends the header lines of the 200 (§10.3 step 8): every binding with the seconds that it has left,
    /// Path for a phone that supports it (RFC 3327 §5.3), our extensions, and the time. Those of other phones
    /// with an equal Contact are left out.
    pub(crate) fn write_headers(&self, record: &AorRecord, out: &mut Vec<u8>) {
        let now = self.now.unix_s();
        let is_own = |binding: &Binding| *binding.call_id == *self.call_id;
        let is_hidden = |binding: &Binding| {
            let mut own = record.live(now).filter(|own| is_own(own));
            !is_own(binding) && own.any(|own| own.has_uri_of(binding))
        };
        for binding in record.live(now).filter(|binding| !is_hidden(binding)) {
            line(out, HeaderName::Contact, |out| write_contact(out, binding, now));
        }
        if self.message.has_option(HeaderName::Supported, b"path") {
            let path = stored_path(&self.message);
            if !path.is_empty() {
                line(out, HeaderName::Path, |out| out.extend_from_slice(&path));
            }
        }
        // RFC 5626 §6.
        if self.outbound {
            line(out, HeaderName::Require, |out| {
                out.extend_from_slice(b"outbound");
            });
        }
        line(out, HeaderName::Supported, |out| out.extend_from_slice(b"path"));
        line(out, HeaderName::Date, |out| write_date(out, now));
    }
}

fn line(out: &mut Vec<u8>, name: HeaderName, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(name.as_str().as_bytes());
    out.extend_from_slice(b": ");
    value(out);
    out.extend_from_slice(b"\r\n");
}

fn write_contact(out: &mut Vec<u8>, binding: &Binding, now_unix_s: u64) {
    out.push(b'<');
    out.extend_from_slice(&binding.contact);
    out.push(b'>');
    if binding.q_milli < 1000 {
        out.extend_from_slice(b";q=0.");
        for unit in [100, 10, 1] {
            out.push(b'0' + (binding.q_milli / unit % 10) as u8);
        }
    }
    out.extend_from_slice(b";expires=");
    write_decimal(out, binding.expires_unix_s.saturating_sub(now_unix_s));
    if !binding.instance.is_empty() {
        out.extend_from_slice(b";+sip.instance=\"");
        out.extend_from_slice(&binding.instance);
        out.push(b'"');
    }
    if binding.reg_id != 0 {
        out.extend_from_slice(b";reg-id=");
        write_decimal(out, u64::from(binding.reg_id));
    }
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Appends an RFC 1123 date, always GMT (§20.17). Years 1970 to 9999.
fn write_date(out: &mut Vec<u8>, unix_s: u64) {
    let unix_s = unix_s.min(253_402_300_799);
    let (day, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, date) = civil(day);
    let two = |out: &mut Vec<u8>, n: u64| {
        out.extend_from_slice(&[b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8])
    };
    let text = |names: &[&'static str], i: u64| names.get(i as usize).copied().unwrap_or_default();
    out.extend_from_slice(text(&DAYS, day % 7).as_bytes());
    out.extend_from_slice(b", ");
    two(out, date);
    out.push(b' ');
    out.extend_from_slice(text(&MONTHS, month).as_bytes());
    out.push(b' ');
    write_decimal(out, year);
    for (separator, n) in [
        (b' ', second / 3600),
        (b':', second / 60 % 60),
        (b':', second % 60),
    ] {
        out.push(separator);
        two(out, n);
    }
    out.extend_from_slice(b" GMT");
}

/// Year, month (0 to 11) and day of the month (1 to 31) of a day since 1970-01-01.
fn civil(day: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last of its year; 719,468 days lie
    // between 0000-03-01 and 1970-01-01, 146,097 are in 400 years.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months of 31, 30, 31, 30, 31 days repeat: 153 in five.
    let from_march = (5 * of_year + 2) / 153;
    let date = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    (era * 400 + year_of_era + u64::from(month < 2), month, date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_rfc_3261() {
        for (unix_s, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (951_868_800, "Wed, 01 Mar 2000 00:00:00 GMT"),
            // RFC 3261 §20.17.
            (1_289_690_940, "Sat, 13 Nov 2010 23:29:00 GMT"),
            (1_798_761_599, "Thu, 31 Dec 2026 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (u64::MAX, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            let mut out = Vec::new();
            write_date(&mut out, unix_s);
            assert_eq!(core::str::from_utf8(&out).unwrap(), text);
        }
    }
}
