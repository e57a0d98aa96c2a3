//! How many bytes a batch puts on the wire, each way.
//!
//! Counted as the paper counts ("Improving authentication performance of distributed SIP proxies" by Dacosta and
//! others, 2009, §5.2 and §5.3): whole Ethernet frames. Its packets of 126 and 247 bytes for a single look-up have
//! 66 of headers (Ethernet 14, IPv4 20, TCP with timestamps 32).

use super::line::{FitError, Line, Point, fit};

/// Headers of one segment, bytes; also the length of a bare acknowledgement.
pub const HEADERS: f64 = 66.0;
/// Payload of a full segment where the MTU is 1,500 and TCP writes timestamps, bytes.
pub const SEGMENT: f64 = 1448.0;

/// Payload of batches of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesSample {
    /// Mean number of rows asked for.
    pub rows: f64,
    /// Mean payload towards the database, bytes.
    pub out: f64,
    /// Mean payload of the answer, bytes.
    pub back: f64,
    /// Number of batches.
    pub batches: f64,
}

/// Payload of a batch, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesCost {
    out: Line,
    back: Line,
}

/// Bytes on the wire, each way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WireBytes {
    /// Towards the database.
    pub out: f64,
    /// From it.
    pub back: f64,
}

impl BytesCost {
    /// The payloads given by these lines, in bytes.
    #[must_use]
    pub fn new(out: Line, back: Line) -> Self {
        Self { out, back }
    }

    /// The paper's packets (§5.3, figure 12): 126 and 247 bytes for one row, 277 and 569 for 8, less the headers.
    pub const OF_THE_PAPER: Self = Self {
        out: Line::between(126.0 - HEADERS, 277.0 - HEADERS, 7.0),
        back: Line::between(247.0 - HEADERS, 569.0 - HEADERS, 7.0),
    };

    /// Payload towards the database, bytes.
    #[must_use]
    pub fn out(self) -> Line {
        self.out
    }

    /// Payload of the answer, bytes.
    #[must_use]
    pub fn back(self) -> Line {
        self.back
    }

    /// Fits both lines to what was measured.
    ///
    /// # Errors
    /// As [`fit`].
    pub fn fit(samples: &[BytesSample]) -> Result<Self, FitError> {
        let line = |value: fn(&BytesSample) -> f64| {
            let points = samples.iter().map(|s| Point {
                size: s.rows,
                value: value(s),
                weight: s.batches,
            });
            fit(&points.collect::<Vec<_>>()).map(|found| found.line)
        };
        Ok(Self {
            out: line(|s| s.out)?,
            back: line(|s| s.back)?,
        })
    }

    /// Bytes on the wire for a batch of `rows`: payload, 66 bytes of headers for each segment of 1,448, and an
    /// acknowledgement of 66 for every second segment (RFC 9293 §3.8.6.3): also for the last of an answer, so one
    /// for an answer of one segment; what is left of a question is acknowledged by the answer itself.
    #[must_use]
    pub fn wire(self, rows: f64) -> WireBytes {
        let segments = |payload: f64| (payload / SEGMENT).ceil().max(1.0);
        let (out, back) = (self.out.at(rows), self.back.at(rows));
        let acknowledge_out = (segments(out) / 2.0).floor();
        let acknowledge_back = (segments(back) / 2.0).ceil();
        WireBytes {
            out: out + HEADERS * (segments(out) + acknowledge_back),
            back: back + HEADERS * (segments(back) + acknowledge_out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_with_each_segment() {
        let line = |fixed, per_row| Line::new(fixed, per_row).expect("in range");
        let bytes = BytesCost::new(line(40.0, 20.0), line(100.0, 50.0));
        // One segment each way, and the acknowledgement of the answer.
        assert_eq!(
            bytes.wire(1.0),
            WireBytes {
                out: 60.0 + 66.0 + 66.0,
                back: 150.0 + 66.0
            }
        );
        // 2,600 and 6,500 bytes: two segments out with one acknowledgement, five back with three.
        assert_eq!(
            bytes.wire(128.0),
            WireBytes {
                out: 2600.0 + 2.0 * 66.0 + 3.0 * 66.0,
                back: 6500.0 + 5.0 * 66.0 + 66.0
            }
        );
        // 10,280 bytes out are eight segments: four acknowledgements.
        assert!((bytes.wire(512.0).back - (25_700.0 + 18.0 * 66.0 + 4.0 * 66.0)).abs() < 1e-9);
    }

    #[test]
    fn measured_payloads_are_found_again() {
        let samples = [1.0, 4.0, 16.0].map(|rows| BytesSample {
            rows,
            out: 30.0 + 12.0 * rows,
            back: 90.0 + 70.0 * rows,
            batches: 10.0,
        });
        let found = BytesCost::fit(&samples).expect("fits");
        assert!((found.out().at(8.0) - 126.0).abs() < 1e-6 && (found.back().at(8.0) - 650.0).abs() < 1e-6);
        assert_eq!(BytesCost::fit(&samples[..1]), Err(FitError::OneSize(1.0)));
    }
}
