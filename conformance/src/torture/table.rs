//! The table.

use super::Outcome::{self, Answered, Dropped, Forwarded, Incomplete, Registered};
use super::Row;
use super::Stream::{self, Closed, Otherwise, Same};

const fn row(
    section: &'static str,
    file: &'static str,
    datagram: Outcome,
    stream: Stream,
    says: &'static str,
) -> Row {
    Row {
        file,
        section,
        datagram,
        stream,
        says,
    }
}

const fn bad(reason: &'static str) -> Outcome {
    Answered(400, reason, &[])
}

const STRAY: Outcome = Dropped("stray-response");
const OPTIONS_OK: Outcome = Answered(200, "OK", &["Accept: */*", "Supported: path"]);

/// RFC 4475, in the order of its sections.
pub const RFC4475: [Row; 49] = [
    row(
        "3.1.1.1",
        "rfc4475/wsinv.dat",
        Forwarded(4),
        Same,
        "valid: white space and folding",
    ),
    row(
        "3.1.1.2",
        "rfc4475/intmeth.dat",
        Forwarded(2),
        Same,
        "valid: a proxy relays any method",
    ),
    row(
        "3.1.1.3",
        "rfc4475/esc01.dat",
        Forwarded(2),
        Same,
        "valid: escapes stay as they are",
    ),
    row(
        "3.1.1.4",
        "rfc4475/escnull.dat",
        Registered(&["sip:%00%00@host5.example.com", "sip:%00@host5.example.com"]),
        Same,
        "valid: two contacts that are not equal",
    ),
    row(
        "3.1.1.5",
        "rfc4475/esc02.dat",
        Forwarded(2),
        Same,
        "valid: RE%47IST%45R is not REGISTER, C%6Fntact not Contact",
    ),
    row(
        "3.1.1.6",
        "rfc4475/lwsdisp.dat",
        Forwarded(2),
        Same,
        "valid: no space before <",
    ),
    row(
        "3.1.1.7",
        "rfc4475/longreq.dat",
        Forwarded(35),
        Same,
        "valid: long values, 34 Vias",
    ),
    row(
        "3.1.1.8",
        "rfc4475/dblreq.dat",
        Registered(&["sip:j.user@host.example.com"]),
        Otherwise {
            outcomes: &[Registered(&["sip:j.user@host.example.com"]), Forwarded(2)],
            closed: true,
            why: "RFC 3261 §18.3: in a datagram what follows the body is no message, in a stream it is; \
                  its own body is longer than it says, and what is left over begins no message",
        },
        "valid: a REGISTER; the INVITE behind it is ignored",
    ),
    row(
        "3.1.1.9",
        "rfc4475/semiuri.dat",
        Forwarded(2),
        Same,
        "valid: the parameter is the user's",
    ),
    row(
        "3.1.1.10",
        "rfc4475/transports.dat",
        Forwarded(6),
        Same,
        "valid: unknown transports in Vias",
    ),
    row(
        "3.1.1.11",
        "rfc4475/mpart01.dat",
        Forwarded(2),
        Same,
        "valid: NUL and bare LF in the body",
    ),
    row(
        "3.1.1.12",
        "rfc4475/unreason.dat",
        STRAY,
        Same,
        "valid; a response to nothing here is dropped",
    ),
    row(
        "3.1.1.13",
        "rfc4475/noreason.dat",
        STRAY,
        Same,
        "valid; a response to nothing here is dropped",
    ),
    row(
        "3.1.2.1",
        "rfc4475/badinv01.dat",
        bad("Missing Or Malformed Via"),
        Same,
        "should be answered 400: sent-by can be read, its parameters cannot",
    ),
    row(
        "3.1.2.2",
        "rfc4475/clerr.dat",
        bad("Body Shorter Than Content-Length"),
        Otherwise {
            outcomes: &[Incomplete],
            closed: false,
            why: "RFC 4475 §3.1.2.2: a stream cannot tell that no more will come",
        },
        "refused with 400 when it is a datagram",
    ),
    row(
        "3.1.2.3",
        "rfc4475/ncl.dat",
        bad("Bad Content-Length"),
        Closed("Bad Content-Length"),
        "refused with 400; a stream cannot be followed further",
    ),
    row(
        "3.1.2.4",
        "rfc4475/scalar02.dat",
        bad("Missing Or Malformed CSeq"),
        Same,
        "refused with 400",
    ),
    row(
        "3.1.2.5",
        "rfc4475/scalarlg.dat",
        Dropped("malformed"),
        Same,
        "a response: discarded",
    ),
    row(
        "3.1.2.6",
        "rfc4475/quotbal.dat",
        bad("Missing Or Malformed To"),
        Same,
        "refused with 400",
    ),
    row(
        "3.1.2.7",
        "rfc4475/ltgtruri.dat",
        bad("Malformed Request-URI"),
        Same,
        "should be 400",
    ),
    row(
        "3.1.2.8",
        "rfc4475/lwsruri.dat",
        bad("Malformed Request-Line"),
        Same,
        "should be 400",
    ),
    row(
        "3.1.2.9",
        "rfc4475/lwsstart.dat",
        bad("Malformed Request-Line"),
        Same,
        "400 is recommended",
    ),
    row(
        "3.1.2.10",
        "rfc4475/trws.dat",
        bad("Malformed Request-Line"),
        Same,
        "400 is recommended",
    ),
    row(
        "3.1.2.11",
        "rfc4475/escruri.dat",
        bad("Headers In Request-URI"),
        Same,
        "should be 400",
    ),
    row(
        "3.1.2.12",
        "rfc4475/baddate.dat",
        Forwarded(2),
        Same,
        "a proxy need not look at Date",
    ),
    row(
        "3.1.2.13",
        "rfc4475/regbadct.dat",
        bad("Malformed Contact"),
        Same,
        "a registrar answers 400",
    ),
    row(
        "3.1.2.14",
        "rfc4475/badaspec.dat",
        bad("Missing Or Malformed To"),
        Same,
        "400 is recommended",
    ),
    row(
        "3.1.2.15",
        "rfc4475/baddn.dat",
        bad("No Empty Line After Headers"),
        Otherwise {
            outcomes: &[Incomplete],
            closed: false,
            why: "its headers do not end: a stream cannot tell that no more will come",
        },
        "may be refused with 400",
    ),
    row(
        "3.1.2.16",
        "rfc4475/badvers.dat",
        Answered(505, "Version Not Supported", &[]),
        Same,
        "505",
    ),
    row(
        "3.1.2.17",
        "rfc4475/mismatch01.dat",
        bad("CSeq Method Does Not Match"),
        Same,
        "400",
    ),
    row(
        "3.1.2.18",
        "rfc4475/mismatch02.dat",
        bad("CSeq Method Does Not Match"),
        Same,
        "400 or 501",
    ),
    row(
        "3.1.2.19",
        "rfc4475/bigcode.dat",
        Dropped("not-sip"),
        Same,
        "a response: discarded",
    ),
    row(
        "3.2.1",
        "rfc4475/badbranch.dat",
        Forwarded(2),
        Same,
        "the cookie alone: a branch as of RFC 2543",
    ),
    row(
        "3.3.1",
        "rfc4475/insuf.dat",
        Dropped("malformed"),
        Same,
        "ideally 400; without Call-ID, From and To an answer has no form",
    ),
    row(
        "3.3.2",
        "rfc4475/unkscm.dat",
        Answered(416, "Unsupported URI Scheme", &[]),
        Same,
        "416",
    ),
    row(
        "3.3.3",
        "rfc4475/novelsc.dat",
        Answered(416, "Unsupported URI Scheme", &[]),
        Same,
        "416",
    ),
    row(
        "3.3.4",
        "rfc4475/unksm2.dat",
        bad("To Is Not A SIP URI"),
        Same,
        "a registrar answers 400",
    ),
    row(
        "3.3.5",
        "rfc4475/bext01.dat",
        Answered(
            420,
            "Bad Extension",
            &["Unsupported: noProxiesSupportThis, norDoAnyProxiesSupportThis"],
        ),
        Same,
        "420 with what Proxy-Require names, and nothing of Require",
    ),
    row(
        "3.3.6",
        "rfc4475/invut.dat",
        Forwarded(2),
        Same,
        "a proxy relays any body",
    ),
    row(
        "3.3.7",
        "rfc4475/regaut01.dat",
        Registered(&["sip:j.user@host.example.com"]),
        Same,
        "who asks nobody for credentials overlooks an unknown scheme; it asks for the bindings",
    ),
    row(
        "3.3.8",
        "rfc4475/multi01.dat",
        bad("Repeated Header Field"),
        Same,
        "400",
    ),
    row(
        "3.3.9",
        "rfc4475/mcl01.dat",
        bad("Repeated Header Field"),
        Closed("Repeated Content-Length"),
        "400; a stream cannot be followed further",
    ),
    row(
        "3.3.10",
        "rfc4475/bcast.dat",
        STRAY,
        Same,
        "the topmost Via is not ours: discarded",
    ),
    row(
        "3.3.11",
        "rfc4475/zeromf.dat",
        Answered(483, "Too Many Hops", &[]),
        Same,
        "483",
    ),
    row(
        "3.3.12",
        "rfc4475/cparam01.dat",
        Registered(&["sip:+19725552222@gw1.example.net"]),
        Same,
        "the parameter is Contact's",
    ),
    row(
        "3.3.13",
        "rfc4475/cparam02.dat",
        Registered(&["sip:+19725552222@gw1.example.net;unknownparam"]),
        Same,
        "the parameter is the URI's; by RFC 3261 §19.1.4 it is the binding of cparam01",
    ),
    row(
        "3.3.14",
        "rfc4475/regescrt.dat",
        Registered(&["sip:user@example.com?Route=%3Csip:sip.example.com%3E"]),
        Same,
        "accepted; the header is the contact's",
    ),
    row(
        "3.3.15",
        "rfc4475/sdp01.dat",
        Forwarded(2),
        Same,
        "Accept concerns the callee",
    ),
    row(
        "3.4.1",
        "rfc4475/inv2543.dat",
        Forwarded(2),
        Otherwise {
            outcomes: &[Answered(400, "Missing Content-Length", &[])],
            closed: true,
            why: "RFC 3261 §18.3: without Content-Length only the end of a datagram ends the body",
        },
        "of RFC 2543, and understood: no branch, From without tag, no Max-Forwards",
    ),
];

const BOTH: &[&str] = &[
    "sip:caller@[2001:db8::1]",
    "sip:user@example.com?Route=%3Csip:sip.example.com%3E",
];

/// RFC 5118, after RFC 4475 at the same server.
pub const RFC5118: [Row; 12] = [
    row("4.1", "rfc5118/ipv6-good", Registered(BOTH), Same, "valid"),
    row(
        "4.2",
        "rfc5118/ipv6-bad",
        bad("Malformed Request-URI"),
        Same,
        "no brackets: 400",
    ),
    row(
        "4.3",
        "rfc5118/port-ambiguous",
        Registered(BOTH),
        Same,
        "what was meant as a port is part of the address",
    ),
    row("4.4", "rfc5118/port-unambiguous", Registered(BOTH), Same, "valid"),
    row(
        "4.5",
        "rfc5118/via-received-param-with-delim",
        Answered(481, "Call/Transaction Does Not Exist", &[]),
        Same,
        "to be read; there is no such call here",
    ),
    row(
        "4.5",
        "rfc5118/via-received-param-no-delim",
        OPTIONS_OK,
        Same,
        "valid, and for us",
    ),
    row("4.6", "rfc5118/ipv6-in-sdp", Forwarded(2), Same, "valid"),
    row("4.7", "rfc5118/mult-ip-in-header", Forwarded(4), Same, "valid"),
    row("4.8", "rfc5118/mult-ip-in-sdp", Forwarded(2), Same, "valid"),
    row("4.9", "rfc5118/ipv4-mapped-ipv6", Forwarded(3), Same, "valid"),
    row(
        "4.10",
        "rfc5118/ipv6-bug-abnf-3-colons",
        bad("Malformed Request-URI"),
        Same,
        "a fault of RFC 3261's grammar made it; three colons are no address",
    ),
    row(
        "4.10",
        "rfc5118/ipv6-correct-abnf-2-colons",
        Forwarded(2),
        Same,
        "valid",
    ),
];
