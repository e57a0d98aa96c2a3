//! Parameters: `;name`, `;name=value`, `;name="quoted value"`.

use crate::chars::{loose_len, quoted_len, token_len, trim_start, value_len};

/// A borrowed list of parameters, read on demand. The list begins at the first `;` or is empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params<'a> {
    text: &'a [u8],
}

/// One parameter. The value is as written, quotes included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param<'a> {
    /// Name as written.
    pub name: &'a [u8],
    /// Value as written (a quoted string keeps its quotes), if there is a `=`.
    pub value: Option<&'a [u8]>,
}

impl<'a> Param<'a> {
    /// Value without surrounding quotes (escapes are left as they are); empty if there is none.
    pub fn unquoted(&self) -> &'a [u8] {
        match self.value {
            Some([b'"', inner @ .., b'"']) => inner,
            Some(value) => value,
            None => &[],
        }
    }
}

impl<'a> Params<'a> {
    /// The parameters in `text`, which begins with `;` (white space before it is skipped) or is blank.
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// The parameters as written.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.text
    }

    /// All parameters in order. The first fault ends the iteration; see [`Params::is_valid`].
    pub fn iter(&self) -> ParamIter<'a> {
        ParamIter {
            rest: self.text,
            failed: false,
        }
    }

    /// The first parameter of this name, in any case.
    pub fn get(&self, name: &[u8]) -> Option<Param<'a>> {
        self.iter().find(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The value of the first parameter of this name, as written.
    pub fn value(&self, name: &[u8]) -> Option<&'a [u8]> {
        self.get(name).and_then(|p| p.value)
    }

    /// Whether there is a parameter of this name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.get(name).is_some()
    }

    /// Whether the whole text is well-formed header parameters (`generic-param` of RFC 3261 §25.1), none of
    /// them twice (§7.3.1), and at most 64.
    pub fn is_valid(&self) -> bool {
        self.check(|_| {})
    }

    /// Checks as [`Params::is_valid`] does, and shows each parameter to `visit` on the way, so that
    /// parameters that are read often need not be searched for again.
    #[inline]
    pub(crate) fn check(&self, mut visit: impl FnMut(&Param<'a>)) -> bool {
        let mut rest = self.text;
        // The names seen, by length and first letter: all names are compared only if two agree in those.
        let mut seen: u64 = 0;
        for count in 0..=MAX_PARAMS {
            let (param, tail) = match one(rest, token_len, value_len) {
                One::Param(param, tail) => (param, tail),
                One::End => return true,
                One::Broken => return false,
            };
            let first = param.name.first().copied().unwrap_or_default() | 0x20;
            let bit = 1 << ((usize::from(first) + param.name.len() * 7) % 64);
            if seen & bit != 0 && self.repeats(param.name, count) {
                return false;
            }
            seen |= bit;
            visit(&param);
            rest = tail;
        }
        false
    }

    /// Whether one of the first `count` parameters has this name.
    #[cold]
    #[inline(never)]
    fn repeats(&self, name: &[u8], count: usize) -> bool {
        self.iter().take(count).any(|p| p.name.eq_ignore_ascii_case(name))
    }

    /// The number of parameters. `None`: the text is not only parameters, as far as a URI's separators go
    /// (`uri-parameters` of RFC 3261 §25.1).
    pub(crate) fn count_loose(&self) -> Option<usize> {
        let mut iter = self.iter();
        let count = iter.by_ref().count();
        (!iter.failed).then_some(count)
    }
}

/// The most parameters that one value may have.
pub(crate) const MAX_PARAMS: usize = 64;

/// Iterator over [`Params`].
#[derive(Clone, Debug)]
pub struct ParamIter<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> Iterator for ParamIter<'a> {
    type Item = Param<'a>;

    fn next(&mut self) -> Option<Param<'a>> {
        match one(self.rest, loose_len, loose_value_len) {
            One::Param(param, rest) => {
                self.rest = rest;
                Some(param)
            }
            One::End => {
                self.rest = &[];
                None
            }
            One::Broken => {
                self.rest = &[];
                self.failed = true;
                None
            }
        }
    }
}

enum One<'a> {
    /// A parameter, and the text behind it.
    Param(Param<'a>, &'a [u8]),
    /// Nothing but white space is left.
    End,
    /// The text is no parameter.
    Broken,
}

/// The length of a bare value, which may hold further `=`, as encoded data does.
fn loose_value_len(text: &[u8]) -> usize {
    let mut len = loose_len(text);
    while text.get(len) == Some(&b'=') {
        len += 1;
        len += text.get(len..).map_or(0, loose_len);
    }
    len
}

/// Reads one parameter, `;` included. `name_len` and `bare_len` return how much of a text is a name or a bare
/// value.
#[inline(always)]
fn one<'a>(text: &'a [u8], name_len: impl Fn(&[u8]) -> usize, bare_len: impl Fn(&[u8]) -> usize) -> One<'a> {
    let after = match trim_start(text) {
        [] => return One::End,
        [b';', after @ ..] => trim_start(after),
        _ => return One::Broken,
    };
    let Some((name, rest)) = after.split_at_checked(name_len(after)) else {
        return One::Broken;
    };
    if name.is_empty() {
        return One::Broken;
    }
    let rest = trim_start(rest);
    let [b'=', value @ ..] = rest else {
        return if matches!(rest, [] | [b';', ..]) {
            One::Param(Param { name, value: None }, rest)
        } else {
            One::Broken
        };
    };
    let value = trim_start(value);
    let len = match value.first() {
        Some(b'"') => match quoted_len(value) {
            Some(len) => len,
            None => return One::Broken,
        },
        _ => bare_len(value),
    };
    let Some((value, rest)) = value.split_at_checked(len) else {
        return One::Broken;
    };
    let rest = trim_start(rest);
    if !matches!(rest, [] | [b';', ..]) {
        return One::Broken;
    }
    One::Param(
        Param {
            name,
            value: Some(value),
        },
        rest,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    #[test]
    fn reads_flags_values_and_quotes() {
        let p = Params::new(b" ;lr ; Tag = abc;x=\"a;b\\\"c\";y=[2001:db8::1]");
        assert!(p.is_valid());
        assert!(p.has(b"LR"));
        assert_eq!(p.value(b"tag"), Some(&b"abc"[..]));
        assert_eq!(p.get(b"x").unwrap().unquoted(), b"a;b\\\"c");
        assert_eq!(p.value(b"y"), Some(&b"[2001:db8::1]"[..]));
        assert_eq!(p.value(b"lr"), None);
    }

    #[test]
    fn what_is_no_parameter_is_noticed() {
        for text in [
            &b";;a"[..],
            b"a",
            b";a=\"x",
            b";=1",
            b"; a b=1",
            b";a;",
            b";a=b c",
            b";a=\"x\"y",
            b";a=1, <sip:b>;b",
            b";a=<x>",
            b";a=x\"y\"",
            b";tag=1;x;TAG=2",
            b";a\0",
        ] {
            assert!(!Params::new(text).is_valid(), "{:?}", core::str::from_utf8(text));
        }
        for text in [
            &b""[..],
            b" ",
            b";a=",
            b";a=b==;c",
            b" ; a = \r\n b ;c",
            b";a=1;b=1;ab",
        ] {
            assert!(Params::new(text).is_valid(), "{:?}", core::str::from_utf8(text));
        }
        let many = |n: usize| -> Vec<u8> { (0..n).flat_map(|i| format!(";p{i}").into_bytes()).collect() };
        assert!(Params::new(&many(64)).is_valid());
        assert!(!Params::new(&many(65)).is_valid());
    }
}
