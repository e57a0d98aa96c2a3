//! Checks the tree against the schema of the model: known keys, types, ranges, lengths, choices.
//!
//! Wrong parts are reported and left out. So the rest can be read and checked further, and all problems of a
//! file are reported at once.

use std::sync::OnceLock;

use serde_json::Value as Json;

use super::problems::Problems;
use super::tree::{Entry, Node, Value, join};
use super::unsupported;

/// The schema of the configuration with its references resolved; made once.
pub(crate) fn schema() -> &'static Json {
    static SCHEMA: OnceLock<Json> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let generator = schemars::generate::SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        generator
            .into_root_schema_for::<super::model::Settings>()
            .to_value()
    })
}

/// The part of `node` that fits `schema`; `None` if no part does.
pub(crate) fn check(node: Node, schema: &Json, problems: &mut Problems) -> Option<Node> {
    let schema = alternative(schema);
    match (type_of(schema), &node.value) {
        ("object", Value::Table(_)) => table(node, schema, problems),
        ("array", Value::Array(_)) => array(node, schema, problems),
        ("string", Value::String { .. }) => string(node, schema, problems),
        ("integer", Value::Integer(_)) => integer(node, schema, problems),
        ("boolean", Value::Boolean(_)) => Some(node),
        (_, Value::Wrong) => None,
        (expected, _) => {
            mismatch(&node, expected, schema, problems);
            None
        }
    }
}

/// For a schema of `T` or null, that of `T`.
pub(crate) fn alternative(schema: &Json) -> &Json {
    let branches = schema.get("anyOf").and_then(Json::as_array);
    branches
        .and_then(|branches| branches.iter().find(|branch| type_of(branch) != "null"))
        .unwrap_or(schema)
}

/// The type in the schema; for a type and null, the type.
pub(crate) fn type_of(schema: &Json) -> &str {
    match schema.get("type") {
        Some(Json::String(name)) => name,
        Some(Json::Array(names)) => names
            .iter()
            .filter_map(Json::as_str)
            .find(|name| *name != "null")
            .unwrap_or("null"),
        _ if schema.get("enum").is_some() => "string",
        _ => "null",
    }
}

fn table(node: Node, schema: &Json, problems: &mut Problems) -> Option<Node> {
    let Value::Table(entries) = node.value else {
        return None;
    };
    let known = schema.get("properties").and_then(Json::as_object);
    let others = schema
        .get("additionalProperties")
        .filter(|others| others.is_object());
    let mut kept: Vec<Entry> = Vec::new();
    let mut present: Vec<String> = Vec::new();
    for mut entry in entries {
        present.push(entry.key.clone());
        let Some(below) = known.and_then(|known| known.get(&entry.key)).or(others) else {
            unknown_key(&entry, &node.path, known, problems);
            continue;
        };
        if let Some(fitting) = check(entry.node, below, problems) {
            entry.node = fitting;
            kept.push(entry);
        }
    }
    let most = schema.get("maxProperties").and_then(Json::as_u64);
    if let Some(most) = most.filter(|most| kept.len() as u64 > *most) {
        problems.add(&node.span, &node.path, "too many keys", format!("{most} at most"));
    }
    let required = schema
        .get("required")
        .and_then(Json::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    for key in required.iter().filter_map(Json::as_str) {
        if !present.iter().any(|name| name == key) {
            let path = join(&node.path, key);
            let example = example(known.and_then(|known| known.get(key)));
            problems.add(&node.span, &path, "missing", format!("write {key} = {example}"));
        }
    }
    let complete = required
        .iter()
        .filter_map(Json::as_str)
        .all(|key| kept.iter().any(|e| e.key == key));
    complete.then_some(Node {
        value: Value::Table(kept),
        ..node
    })
}

fn unknown_key(
    entry: &Entry,
    parent: &str,
    known: Option<&serde_json::Map<String, Json>>,
    problems: &mut Problems,
) {
    let path = join(parent, &entry.key);
    if let Some(remedy) = unsupported::key(&path) {
        problems.add(&entry.key_span, &path, "not supported by this version", remedy);
        return;
    }
    let names: Vec<&str> = known
        .into_iter()
        .flat_map(|known| known.keys())
        .map(String::as_str)
        .collect();
    let remedy = match closest(&entry.key, &names) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => format!("known here: {}", names.join(", ")),
    };
    problems.add(&entry.key_span, &path, "unknown key", remedy);
}

/// The name nearest to `word`, if it is near enough to be the intended one.
pub(crate) fn closest<'a>(word: &str, names: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase());
    let allowed = |name: &str| (name.len().max(word.len()) / 3).max(1);
    let part = |name: &str| word.len() >= 3 && (name.starts_with(&word) || word.starts_with(name));
    names
        .iter()
        .copied()
        .filter(|name| distance(name) <= allowed(name) || part(name))
        .min_by_key(|name| distance(name))
}

fn array(node: Node, schema: &Json, problems: &mut Problems) -> Option<Node> {
    let Value::Array(elements) = node.value else {
        return None;
    };
    let count = elements.len() as u64;
    let bound = |name: &str| schema.get(name).and_then(Json::as_u64);
    let least = bound("minItems").unwrap_or(0);
    let most = bound("maxItems").unwrap_or(u64::MAX);
    let items = schema.get("items").unwrap_or(&Json::Null);
    if count > most {
        problems.add(
            &node.span,
            &node.path,
            format!("{count} elements"),
            format!("{most} at most"),
        );
        return None;
    }
    let kept: Vec<Node> = elements
        .into_iter()
        .filter_map(|element| check(element, items, problems))
        .collect();
    if count < least {
        let remedy = format!(
            "write at least one of {}",
            choices(items).unwrap_or_else(|| "them".to_owned())
        );
        problems.add(&node.span, &node.path, "empty", remedy);
        return None;
    }
    // If elements were left out, a list that must not be empty would only cause a second message.
    (kept.len() as u64 >= least).then_some(Node {
        value: Value::Array(kept),
        ..node
    })
}

fn string(node: Node, schema: &Json, problems: &mut Problems) -> Option<Node> {
    let Value::String { text, .. } = &node.value else {
        return None;
    };
    if let Some(allowed) = variants(schema) {
        if allowed.contains(&text.as_str()) {
            return Some(node);
        }
        let (what, remedy) = match unsupported::value(&node.path, text) {
            Some(remedy) => (
                format!("{} is not supported by this version", node.shown()),
                remedy.to_owned(),
            ),
            None => {
                let list = choices(schema).unwrap_or_default();
                let remedy = match closest(text, &allowed) {
                    Some(name) => format!("did you mean \"{name}\"? One of {list}"),
                    None => format!("one of {list}"),
                };
                (format!("{} is not known", node.shown()), remedy)
            }
        };
        problems.add(&node.span, &node.path, what, remedy);
        return None;
    }
    let most = schema.get("maxLength").and_then(Json::as_u64).unwrap_or(4096);
    if text.chars().count() as u64 > most {
        problems.add(
            &node.span,
            &node.path,
            "too long",
            format!("{most} characters at most"),
        );
        return None;
    }
    Some(node)
}

fn integer(node: Node, schema: &Json, problems: &mut Problems) -> Option<Node> {
    let Value::Integer(number) = node.value else {
        return None;
    };
    let (least, most) = range(schema);
    if number.is_some_and(|number| number >= least && number <= most) {
        return Some(node);
    }
    let what = format!("{} is out of range", node.shown());
    problems.add(&node.span, &node.path, what, format!("{least} to {most}"));
    None
}

/// Least and greatest value of an integer.
pub(crate) fn range(schema: &Json) -> (i64, i64) {
    let bound = |name: &str| schema.get(name).and_then(Json::as_i64);
    (
        bound("minimum").unwrap_or(0),
        bound("maximum").unwrap_or(i64::MAX),
    )
}

/// The strings that the schema allows, if it names them.
pub(crate) fn variants(schema: &Json) -> Option<Vec<&str>> {
    let list = alternative(schema).get("enum")?.as_array()?;
    Some(list.iter().filter_map(Json::as_str).collect())
}

fn choices(schema: &Json) -> Option<String> {
    let quoted: Vec<String> = variants(schema)?
        .iter()
        .map(|name| format!("\"{name}\""))
        .collect();
    Some(quoted.join(", "))
}

fn mismatch(node: &Node, expected: &str, schema: &Json, problems: &mut Problems) {
    let one_table = expected == "array" && matches!(node.value, Value::Table(_));
    let list_of_tables = expected == "object"
        && matches!(&node.value, Value::Array(nodes)
        if nodes.iter().all(|node| matches!(node.value, Value::Table(_))));
    let (what, remedy) = if one_table
        && schema
            .get("items")
            .is_some_and(|items| type_of(items) == "object")
    {
        (
            "one table where a list of tables belongs".to_owned(),
            format!("write [[{}]]", node.path),
        )
    } else if list_of_tables {
        (
            "a list of tables where one table belongs".to_owned(),
            format!("write [{}]", node.path),
        )
    } else {
        (
            format!("{} is not {}", node.shown(), kind(expected)),
            format!("write {}", wanted(node, schema)),
        )
    };
    problems.add(&node.span, &node.path, what, remedy);
}

fn kind(expected: &str) -> &'static str {
    match expected {
        "object" => "a table",
        "array" => "an array",
        "integer" => "a whole number",
        "boolean" => "true or false",
        _ => "a string",
    }
}

/// The remedy for a value of the wrong type.
fn wanted(node: &Node, schema: &Json) -> String {
    match type_of(schema) {
        "array" if matches!(node.value, Value::String { secret: false, .. }) => format!("[{}]", node.shown()),
        "array" => "[…]".to_owned(),
        "object" => "{ key = value }".to_owned(),
        "integer" => {
            let (least, most) = range(schema);
            format!("a number from {least} to {most}")
        }
        "boolean" => "true or false, without quotes".to_owned(),
        _ => match choices(schema) {
            Some(choices) => format!("one of {choices}"),
            None if matches!(
                node.value,
                Value::Integer(Some(_)) | Value::Float(_) | Value::Boolean(_)
            ) =>
            {
                format!("\"{}\"", node.shown())
            }
            None => "text in quotes".to_owned(),
        },
    }
}

/// An example value for a missing key.
fn example(schema: Option<&Json>) -> String {
    let Some(schema) = schema else {
        return "…".to_owned();
    };
    match (type_of(schema), variants(schema)) {
        (_, Some(names)) => names
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect::<Vec<_>>()
            .join(" or "),
        ("string", None) => "\"…\"".to_owned(),
        ("object", None) => "{ … }".to_owned(),
        ("array", None) => "[ … ]".to_owned(),
        _ => "…".to_owned(),
    }
}
