//! The context of converting one table: the machine, the place of each key, the problems so far.

use std::path::PathBuf;

use super::Machine;
use super::model::ListenTransport;
use super::problems::Problems;
use super::tree::{Node, Value};

/// Arguments of conversions besides their own table.
pub(super) struct Context<'a> {
    pub machine: &'a Machine,
    /// The transports of the listeners, from which requests can be sent.
    pub speaks: Vec<ListenTransport>,
    pub tree: &'a Node,
    /// Directory of the file.
    pub base: PathBuf,
    pub problems: &'a mut Problems,
}

impl<'a> Context<'a> {
    /// Reports a problem of the key at `path` (`table[index].key`, as in the settings read), at the place
    /// of the key or of the nearest table around it.
    pub(super) fn problem(&mut self, path: &str, what: impl Into<String>, remedy: impl Into<String>) {
        let (node, shown) = self.place(path);
        let (mut what, mut remedy) = (what.into(), remedy.into());
        if let Value::String { text, secret: true } = &node.value {
            for message in [&mut what, &mut remedy] {
                *message = message
                    .replace(&format!("{text:?}"), "the value")
                    .replace(text.as_str(), "…");
            }
        }
        self.problems.add(&node.span, &shown, what, remedy);
    }

    /// Prefix of later messages about the key at `path`: `FILE:LINE: path`.
    pub(super) fn place_text(&self, path: &str) -> String {
        let (node, shown) = self.place(path);
        self.problems.place(&node.span, &shown)
    }

    /// Whether a problem of the key at `path`, or below it, is already reported.
    pub(super) fn is_told(&self, path: &str) -> bool {
        self.problems.has(&self.place(path).1)
    }

    /// The value at `path`, or the nearest around it, and the path as in the file: wrong elements, which were
    /// left out, count there.
    fn place(&self, path: &str) -> (&'a Node, String) {
        let mut node = self.tree;
        let mut rest = path;
        while let Some((below, after)) = step(node, rest) {
            node = below;
            rest = after;
        }
        let mut shown = node.path.clone();
        if !rest.is_empty() {
            let dot = if shown.is_empty() || rest.starts_with('[') {
                ""
            } else {
                "."
            };
            shown.push_str(dot);
            shown.push_str(rest);
        }
        (node, shown)
    }

    /// Whether the file gives `key` in `table`.
    pub(super) fn has(&self, table: &str, key: &str) -> bool {
        self.tree
            .get(table)
            .is_some_and(|entry| entry.node.get(key).is_some())
    }

    /// A path of the file, relative to its directory.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        self.base.join(text)
    }
}

/// The value that the first part of `path` names in `node`, and the rest of the path.
fn step<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
    match &node.value {
        Value::Array(nodes) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            let below = nodes.get(index.parse::<usize>().ok()?)?;
            Some((below, rest.strip_prefix('.').unwrap_or(rest)))
        }
        Value::Table(entries) => {
            // Names of header fields may contain dots, so the longest matching key is taken.
            let fits = |key: &str| {
                let rest = path.strip_prefix(key)?;
                (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
            };
            let found = entries
                .iter()
                .filter_map(|entry| Some((entry, fits(&entry.key)?)));
            let (entry, rest) = found.max_by_key(|(entry, _)| entry.key.len())?;
            Some((&entry.node, rest.strip_prefix('.').unwrap_or(rest)))
        }
        Value::String { .. }
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Boolean(_)
        | Value::Datetime
        | Value::Wrong => None,
    }
}
