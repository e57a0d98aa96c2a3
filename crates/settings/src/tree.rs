//! The TOML text as a tree of values with their places, with `${NAME}` replaced.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problems::Problems;

/// Source of `${NAME}`; a parameter, so that tests need not touch the environment.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    /// The value.
    pub value: Value,
    /// Byte range in the text.
    pub span: Range<usize>,
    /// `table[index].key`.
    pub path: String,
}

/// A TOML value.
#[derive(Debug, Clone)]
pub(crate) enum Value {
    /// Table.
    Table(Vec<Entry>),
    /// Array, also of tables.
    Array(Vec<Node>),
    /// String; `secret` if part of it came from the environment, so that no message shows it.
    String { text: String, secret: bool },
    /// Integer; `None`: beyond 64 bits.
    Integer(Option<i64>),
    /// Float, as written.
    Float(String),
    /// Boolean.
    Boolean(bool),
    /// Date or time.
    Datetime,
    /// A value whose error is already reported.
    Wrong,
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// The key.
    pub key: String,
    /// The key's place.
    pub key_span: Range<usize>,
    /// The key's value.
    pub node: Node,
}

impl Node {
    /// An empty table at the beginning of the file.
    pub(crate) fn empty() -> Self {
        Self {
            value: Value::Table(Vec::new()),
            span: 0..0,
            path: String::new(),
        }
    }

    /// The value for messages: `3`, `"x"`, `a table`.
    pub(crate) fn shown(&self) -> String {
        match &self.value {
            Value::Table(_) => "a table".to_owned(),
            Value::Array(_) => "an array".to_owned(),
            Value::String { secret: true, .. } => "the string".to_owned(),
            Value::String { text, secret: false } => quoted(text),
            Value::Integer(Some(number)) => number.to_string(),
            Value::Integer(None) => "the number".to_owned(),
            Value::Float(text) => text.clone(),
            Value::Boolean(value) => value.to_string(),
            Value::Datetime => "the date".to_owned(),
            Value::Wrong => "the value".to_owned(),
        }
    }

    /// The value under `key`, if this is a table that has it.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Table(entries) => entries.iter().find(|entry| entry.key == key),
            Value::Array(_)
            | Value::String { .. }
            | Value::Integer(_)
            | Value::Float(_)
            | Value::Boolean(_)
            | Value::Datetime
            | Value::Wrong => None,
        }
    }

    /// The value without its places.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            Value::Table(entries) => entries
                .iter()
                .map(|entry| (entry.key.clone(), entry.node.to_json()))
                .collect(),
            Value::Array(nodes) => nodes.iter().map(Self::to_json).collect(),
            Value::String { text, .. } => text.as_str().into(),
            Value::Integer(number) => (*number).into(),
            Value::Float(text) => text.parse::<f64>().ok().into(),
            Value::Boolean(value) => (*value).into(),
            Value::Datetime | Value::Wrong => serde_json::Value::Null,
        }
    }
}

/// `text` in quotes, shortened if it is long, with control characters escaped.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() > LONGEST {
        let cut: String = text.chars().take(LONGEST).collect();
        format!("{cut:?}…")
    } else {
        format!("{text:?}")
    }
}

/// Reads `text`; errors and missing variables go to `problems`. `None` if it is not TOML.
///
/// Only the first syntax error is reported: after a missing brace each further line would be another.
pub(crate) fn parse(text: &str, environment: Environment<'_>, problems: &mut Problems) -> Option<Node> {
    let (table, mut errors) = DeTable::parse_recoverable(text);
    errors.sort_by_key(|error| error.span().map_or(0, |span| span.start));
    let is_broken = |error: &toml::de::Error| !error.message().starts_with("duplicate key");
    let broken = errors.iter().position(is_broken);
    if let Some(first) = broken {
        errors.drain(..first);
        errors.truncate(1);
    }
    for error in &errors {
        let what = error.message().replace('\n', ", ");
        problems.add(
            &error.span().unwrap_or(0..0),
            "",
            what,
            "see https://toml.io for the syntax",
        );
    }
    if broken.is_some() {
        return None;
    }
    let span = table.span();
    let mut builder = Builder {
        environment,
        problems,
    };
    Some(builder.table(table.into_inner(), span, String::new()))
}

struct Builder<'a, 'p> {
    environment: Environment<'a>,
    problems: &'p mut Problems,
}

impl Builder<'_, '_> {
    fn table(&mut self, table: DeTable<'_>, span: Range<usize>, path: String) -> Node {
        let mut entries = Vec::new();
        for (key, value) in table {
            let below = join(&path, key.get_ref());
            let key_span = key.span();
            let node = self.value(value, below);
            entries.push(Entry {
                key: key.into_inner().into_owned(),
                key_span,
                node,
            });
        }
        entries.sort_by_key(|entry| entry.key_span.start);
        Node {
            value: Value::Table(entries),
            span,
            path,
        }
    }

    fn value(&mut self, value: Spanned<DeValue<'_>>, path: String) -> Node {
        let span = value.span();
        let value = match value.into_inner() {
            DeValue::Table(table) => return self.table(table, span, path),
            DeValue::Array(array) => Value::Array(
                array
                    .into_iter()
                    .enumerate()
                    .map(|(i, element)| self.value(element, format!("{path}[{i}]")))
                    .collect(),
            ),
            DeValue::String(text) => self.substitute(&text, &span, &path),
            DeValue::Integer(number) => {
                Value::Integer(i64::from_str_radix(number.as_str(), number.radix()).ok())
            }
            DeValue::Float(number) => Value::Float(number.as_str().to_owned()),
            DeValue::Boolean(value) => Value::Boolean(value),
            DeValue::Datetime(_) => Value::Datetime,
        };
        Node { value, span, path }
    }

    /// Replaces `${NAME}`; `$${` stands for `${` itself.
    fn substitute(&mut self, text: &str, span: &Range<usize>, path: &str) -> Value {
        let mut out = String::with_capacity(text.len());
        let mut secret = false;
        let mut rest = text;
        while let Some(at) = rest.find("${") {
            let (before, from) = rest.split_at(at);
            let after = from.get(2..).unwrap_or_default();
            if let Some(literal) = before.strip_suffix('$') {
                out.push_str(literal);
                out.push_str("${");
                rest = after;
                continue;
            }
            out.push_str(before);
            let end = after.find('}').unwrap_or(after.len());
            let name = after.get(..end).unwrap_or_default();
            rest = after.get(end + 1..).unwrap_or_default();
            match self.variable(name, end < after.len()) {
                Ok(value) => {
                    secret = true;
                    self.problems.hide(&value);
                    out.push_str(&value);
                }
                Err((what, remedy)) => {
                    self.problems.add(span, path, what, remedy);
                    return Value::Wrong;
                }
            }
        }
        out.push_str(rest);
        Value::String { text: out, secret }
    }

    fn variable(&self, name: &str, closed: bool) -> Result<String, (String, String)> {
        let named = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !closed || !named {
            return Err((
                "\"${\" begins the name of an environment variable, and none follows".to_owned(),
                "write \"${NAME}\", or \"$${\" for the characters themselves".to_owned(),
            ));
        }
        (self.environment)(name).ok_or_else(|| {
            (
                format!("the environment variable {name} is not set"),
                "set it before the start, or write the value here".to_owned(),
            )
        })
    }
}

/// `path.key`, with the key quoted as TOML requires.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty()
        && key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let key = if bare { key.to_owned() } else { quoted(key) };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}
