//! As much of Rust's lexical structure as the rules need.

/// The same text, byte for byte as long and with the same lines, in which comments and the
/// insides of strings and character literals are blanks: what is left is code.
pub(super) fn mask(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' | b'b' | b'c' if !after_identifier(bytes, at) => prefixed_literal_end(bytes, at),
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        if end == at {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(
                bytes[at..end]
                    .iter()
                    .map(|&b| if b == b'\n' { b'\n' } else { b' ' }),
            );
            at = end;
        }
    }
    String::from_utf8(out).unwrap_or_default() // only whole literals were replaced
}

fn is_identifier(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn after_identifier(bytes: &[u8], at: usize) -> bool {
    at > 0 && is_identifier(bytes[at - 1])
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..]
        .iter()
        .position(|&b| b == b'\n')
        .map_or(bytes.len(), |n| at + n)
}

fn block_comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    bytes.len()
}

/// From the opening quote to behind the closing one.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// `r"…"`, `br#"…"#`, `b"…"`, `b'…'`, `c"…"`; `at` itself where it is only a letter.
fn prefixed_literal_end(bytes: &[u8], at: usize) -> usize {
    let prefix = bytes[at..]
        .iter()
        .take(2)
        .take_while(|b| matches!(b, b'r' | b'b' | b'c'))
        .count();
    let hashes = bytes[at + prefix..].iter().take_while(|&&b| b == b'#').count();
    let open = at + prefix + hashes;
    let raw = bytes[at..at + prefix].contains(&b'r');
    match bytes.get(open) {
        Some(b'"') if raw => {
            let mut close = vec![b'"'];
            close.resize(hashes + 1, b'#');
            let rest = &bytes[open + 1..];
            let length = rest.windows(close.len()).position(|w| w == close);
            length.map_or(bytes.len(), |n| open + 1 + n + close.len())
        }
        Some(b'"') if hashes == 0 => string_end(bytes, open),
        Some(b'\'') if hashes == 0 && prefix == 1 && bytes[at] == b'b' => char_end(bytes, open),
        _ => at,
    }
}

/// `at` itself for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> usize {
    if bytes.get(at + 1) == Some(&b'\\') {
        let rest = bytes.get(at + 3..).unwrap_or_default(); // behind the escaped character
        return rest
            .iter()
            .position(|&b| b == b'\'')
            .map_or(bytes.len(), |n| at + 3 + n + 1);
    }
    let rest = bytes.get(at + 1..).unwrap_or_default();
    let width = match rest.first() {
        None => return at,
        Some(0xF0..) => 4,
        Some(0xE0..) => 3,
        Some(0xC0..) => 2,
        Some(_) => 1,
    };
    let close = at + 1 + width;
    if bytes.get(close) == Some(&b'\'') {
        close + 1
    } else {
        at
    }
}

/// The brace that closes the one at `open`; the end of the text where none does.
pub(super) fn closing_brace(code: &str, open: usize) -> usize {
    let mut depth = 0usize;
    for (at, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    code.len()
}

/// Line number, from 1.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|&&b| b == b'\n')
        .count()
        + 1
}

/// Positions at which `word` stands by itself.
pub(super) fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    let edge_before = word.bytes().next().is_some_and(is_identifier);
    let edge_after = word.bytes().last().is_some_and(is_identifier);
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = edge_before && after_identifier(bytes, at);
        let after = edge_after && bytes.get(at + word.len()).copied().is_some_and(is_identifier);
        !before && !after
    })
}

/// The identifier at the start of `text`, blanks skipped.
pub(super) fn identifier(text: &str) -> &str {
    let text = text.trim_start();
    let end = text.bytes().position(|b| !is_identifier(b)).unwrap_or(text.len());
    &text[..end]
}

/// Masked code with everything under `#[cfg(test)]` blank as well.
pub(super) fn without_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    for (at, _) in code.match_indices("#[cfg(test)]") {
        let item_end = test_item_end(code, at);
        for byte in out.iter_mut().take(item_end).skip(at).filter(|b| **b != b'\n') {
            *byte = b' ';
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

fn test_item_end(code: &str, at: usize) -> usize {
    let body = code[at..].find(['{', ';']).map_or(code.len(), |n| at + n);
    if code.as_bytes().get(body) == Some(&b'{') {
        (closing_brace(code, body) + 1).min(code.len())
    } else {
        body
    }
}

/// Names of modules declared as `#[cfg(test)] mod name;`: their files are tests.
pub(super) fn test_modules(code: &str) -> Vec<String> {
    code.match_indices("#[cfg(test)]")
        .filter_map(|(at, attribute)| {
            let item = &code[at + attribute.len()..test_item_end(code, at)];
            let (_, name) = item.split_once("mod ")?;
            (!item.contains('{')).then(|| identifier(name).to_owned())
        })
        .filter(|name| !name.is_empty())
        .collect()
}

/// How many inline modules (`mod name { … }`) enclose `at`.
pub(super) fn inline_depth(code: &str, at: usize) -> usize {
    words(code, "mod")
        .filter(|&start| start < at)
        .filter(|&start| {
            let name = identifier(&code[start + 3..]);
            let behind = &code[start + 3..].trim_start()[name.len()..];
            let open = start + code[start..].find('{').unwrap_or(0);
            behind.trim_start().starts_with('{') && open < at && at < closing_brace(code, open)
        })
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_comments_strings_and_characters_but_no_lifetimes() {
        let text = "a /* x /* y */ z */ \"s{\\\"\" 'c' '\\'' b'{' r#\"q\"{\"# &'a str // end {\n}";
        let code = mask(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(
            code.split_whitespace().collect::<Vec<_>>(),
            ["a", "&'a", "str", "}"]
        );
        assert_eq!(line_of(&code, code.len() - 1), 2);
    }

    #[test]
    fn a_letter_before_a_string_is_part_of_a_name_or_a_prefix() {
        assert_eq!(mask("number\"x\"").trim(), "number");
        assert_eq!(mask("br\"x\" b\"y\"").trim(), "");
        assert_eq!(mask("r#type + crab").trim(), "r#type + crab");
        assert_eq!(mask("'ü' + 'static").trim(), "+ 'static");
    }

    #[test]
    fn words_stand_alone() {
        assert_eq!(words("std::x mystd::y std", "std").collect::<Vec<_>>(), [0, 16]);
        assert_eq!(words("a.await b.awaiting", ".await").count(), 1);
    }

    #[test]
    fn tests_are_cut_out() {
        let code = "fn a() {}\n#[cfg(test)]\nmod tests { fn b() { c } }\nfn d() {}\n#[cfg(test)]\nmod big;\n";
        let rest = without_tests(code);
        assert!(rest.contains("fn a") && rest.contains("fn d"));
        assert!(!rest.contains("fn b") && !rest.contains("big"));
        assert_eq!(test_modules(code), ["big"]);
    }

    #[test]
    fn inline_modules_are_counted() {
        let code = "mod a { mod b { x } y } mod c; z";
        assert_eq!(inline_depth(code, code.find('x').unwrap()), 2);
        assert_eq!(inline_depth(code, code.find('y').unwrap()), 1);
        assert_eq!(inline_depth(code, code.find('z').unwrap()), 0);
    }
}
