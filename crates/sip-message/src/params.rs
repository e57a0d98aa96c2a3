//! Parameters: `;name`, `;name=value`, `;name="quoted value"`.

use crate::chars::{is_space, is_token_text, quoted_len, trim};

/// A borrowed list of parameters, read on demand. Begins at the first `;` or is empty.
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
    /// Parameters in `text`, which begins with `;` (white space before it is skipped) or is blank.
    pub const fn new(text: &'a [u8]) -> Self {
        Self { text }
    }

    /// As written.
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.text
    }

    /// All parameters in order. Ends early at what is not a parameter; see [`Params::is_valid`].
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

    /// Whether all of the text is well-formed parameters.
    pub fn is_valid(&self) -> bool {
        let mut iter = self.iter();
        while let Some(param) = iter.next() {
            if !is_token_text(param.name) {
                return false;
            }
        }
        !iter.failed
    }
}

/// Iterator over [`Params`].
#[derive(Clone, Debug)]
pub struct ParamIter<'a> {
    rest: &'a [u8],
    failed: bool,
}

impl<'a> Iterator for ParamIter<'a> {
    type Item = Param<'a>;

    fn next(&mut self) -> Option<Param<'a>> {
        let text = trim(self.rest);
        if text.is_empty() {
            self.rest = &[];
            return None;
        }
        let [b';', after @ ..] = text else {
            return self.fail();
        };
        // Name up to '=', ';' or the end.
        let stop = after
            .iter()
            .position(|c| matches!(c, b'=' | b';'))
            .unwrap_or(after.len());
        let name = trim(after.get(..stop)?);
        if name.is_empty() {
            return self.fail();
        }
        if after.get(stop) != Some(&b'=') {
            self.rest = after.get(stop..)?;
            return Some(Param { name, value: None });
        }
        let mut value_text = after.get(stop + 1..)?;
        while let [first, rest @ ..] = value_text
            && is_space(*first)
        {
            value_text = rest;
        }
        let len = if value_text.first() == Some(&b'"') {
            match quoted_len(value_text) {
                Some(len) => len,
                None => return self.fail(),
            }
        } else {
            memchr::memchr(b';', value_text).unwrap_or(value_text.len())
        };
        let value = trim(value_text.get(..len)?);
        self.rest = value_text.get(len..)?;
        Some(Param {
            name,
            value: Some(value),
        })
    }
}

impl<'a> ParamIter<'a> {
    fn fail(&mut self) -> Option<Param<'a>> {
        self.rest = &[];
        self.failed = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for text in [&b";;a"[..], b"a", b";a=\"x", b";=1", b"; a b=1", b";a;"] {
            assert!(!Params::new(text).is_valid(), "{:?}", core::str::from_utf8(text));
        }
        assert!(Params::new(b"").is_valid());
    }
}
