//! A reader of SIP messages for the user agents and the checkers. It is plain and our own, so that the core's
//! parser is not judged by itself. It reads only what the nodes here write: one value a line, full names, no
//! folding.

/// A message.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    text: &'a str,
}

impl<'a> View<'a> {
    /// A view of `text`.
    pub const fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// The whole text.
    pub const fn text(&self) -> &'a str {
        self.text
    }

    /// Request line or status line.
    pub fn first_line(&self) -> &'a str {
        self.text.split("\r\n").next().unwrap_or_default()
    }

    /// The status of a response; `None` for a request.
    pub fn status(&self) -> Option<u16> {
        self.text.strip_prefix("SIP/2.0 ")?.get(..3)?.parse().ok()
    }

    /// The method of a request; for a response, that of its CSeq.
    pub fn method(&self) -> &'a str {
        match self.status() {
            None => self.first_line().split(' ').next().unwrap_or_default(),
            Some(_) => self.cseq().1,
        }
    }

    /// The Request-URI of a request.
    pub fn uri(&self) -> &'a str {
        self.first_line().split(' ').nth(1).unwrap_or_default()
    }

    /// Values of a header in order.
    pub fn all(&self, name: &'static str) -> impl Iterator<Item = &'a str> + use<'a> {
        let head = self.text.split("\r\n\r\n").next().unwrap_or_default();
        head.split("\r\n")
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .filter(move |(found, _)| found.trim_end().eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
    }

    /// First value of a header; empty if there is none.
    pub fn get(&self, name: &'static str) -> &'a str {
        self.all(name).next().unwrap_or_default()
    }

    /// Number and method of CSeq.
    pub fn cseq(&self) -> (u32, &'a str) {
        let (number, method) = self.get("CSeq").split_once(' ').unwrap_or_default();
        (number.parse().unwrap_or(0), method.trim())
    }

    /// Branch of the topmost Via.
    pub fn branch(&self) -> &'a str {
        param(self.get("Via"), "branch")
    }

    /// Tag of To.
    pub fn to_tag(&self) -> &'a str {
        tag(self.get("To"))
    }

    /// The number of the call, from the Call-ID.
    pub fn call(&self) -> Option<u32> {
        self.get("Call-ID")
            .strip_prefix("call-")?
            .split('@')
            .next()?
            .parse()
            .ok()
    }
}

/// The tag of a From or To value.
pub fn tag(value: &str) -> &str {
    match value.find('>') {
        Some(end) => param(&value[end..], "tag"),
        None => param(value, "tag"),
    }
}

/// A parameter of a value; empty if there is none.
pub fn param<'a>(value: &'a str, name: &str) -> &'a str {
    value
        .split(';')
        .skip(1)
        .filter_map(|p| p.split_once('='))
        .find(|(found, _)| found.trim().eq_ignore_ascii_case(name))
        .map(|(_, v)| v.trim())
        .unwrap_or_default()
}

/// The URI between angle brackets.
pub fn bracketed(value: &str) -> &str {
    let Some((_, rest)) = value.split_once('<') else {
        return value;
    };
    rest.split('>').next().unwrap_or_default()
}

/// Host and port of a SIP URI whose host is an IPv4 address.
pub fn address_of(uri: &str) -> Option<std::net::SocketAddr> {
    let rest = uri.strip_prefix("sip:")?;
    let rest = rest.split([';', '?', '>']).next()?;
    let host = rest.rsplit('@').next()?;
    host.parse().or_else(|_| format!("{host}:5060").parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there() {
        let text = "SIP/2.0 180 Ringing\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bKx;rport\r\nVia: b\r\n\
                    To: <sip:bob@example.com;x=y>;tag=t\r\nCall-ID: call-7@sim\r\nCSeq: 2 INVITE\r\n\r\n";
        let view = View::new(text);
        assert_eq!(
            (view.status(), view.method(), view.cseq().0),
            (Some(180), "INVITE", 2)
        );
        assert_eq!(
            (view.branch(), view.to_tag(), view.call()),
            ("z9hG4bKx", "t", Some(7))
        );
        assert_eq!(view.all("via").count(), 2);
        assert_eq!(address_of("sip:bob@192.0.2.1;lr"), "192.0.2.1:5060".parse().ok());
        assert_eq!(bracketed("\"B\" <sip:b@c>;tag=1"), "sip:b@c");
    }
}
