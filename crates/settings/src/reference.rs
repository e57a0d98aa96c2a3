//! The tables of `docs/configuration.md`, made from the schema. A test keeps them equal.
//!
//! In the page, `<!-- keys: TABLE -->` begins the table of the keys of TABLE (empty: the top level)
//! and `<!-- end -->` ends it. `UPDATE_DOCS=1 cargo test -p settings reference` writes them anew.

use std::fmt::Write as _;

use serde_json::Value as Json;

use super::shape::{alternative, range, schema, type_of, variants};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");

/// Every table with keys of its own: its dotted name and its schema.
fn tables(schema: &Json, path: &str, out: &mut Vec<(String, Json)>) {
    out.push((path.to_owned(), schema.clone()));
    for (key, below) in properties(schema) {
        let below = content(below);
        if !properties(below).is_empty() {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            tables(below, &path, out);
        }
    }
}

fn properties(schema: &Json) -> Vec<(&String, &Json)> {
    schema
        .get("properties")
        .and_then(Json::as_object)
        .into_iter()
        .flatten()
        .collect()
}

/// The schema of a list's elements, or of an optional value itself.
fn content(schema: &Json) -> &Json {
    let schema = alternative(schema);
    if type_of(schema) == "array" {
        schema.get("items").unwrap_or(schema)
    } else {
        schema
    }
}

/// The Markdown table of one configuration table.
fn render(schema: &Json) -> String {
    let mut out =
        String::from("| key | type | default | range | meaning |\n| --- | --- | --- | --- | --- |\n");
    let required: Vec<&str> = schema
        .get("required")
        .and_then(Json::as_array)
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .collect();
    for (key, property) in properties(schema) {
        if !properties(content(property)).is_empty() {
            continue;
        }
        let kind = kind(key, property);
        let default = default(property, required.contains(&key.as_str()));
        let range = limits(property);
        let meaning = property
            .get("description")
            .and_then(Json::as_str)
            .unwrap_or_default();
        assert!(!meaning.is_empty(), "{key} has no description");
        let meaning = meaning.replace('\n', " ").replace('|', "\\|");
        writeln!(out, "| `{key}` | {kind} | {default} | {range} | {meaning} |").expect("a string");
    }
    out
}

/// Type of a key, with the unit in which the key's name ends.
fn kind(key: &str, schema: &Json) -> String {
    let unit = [("_ms", "milliseconds"), ("_s", "seconds"), ("_bytes", "bytes")];
    let unit = unit.iter().find(|(suffix, _)| key.ends_with(suffix));
    match type_of(schema) {
        "integer" => unit.map_or("number", |(_, unit)| unit).to_owned(),
        "boolean" => "boolean".to_owned(),
        "array" if type_of(content(schema)) == "integer" => "list of numbers".to_owned(),
        "array" => "list of strings".to_owned(),
        "object" => "table of strings".to_owned(),
        _ => "string".to_owned(),
    }
}

fn default(schema: &Json, required: bool) -> String {
    if required {
        return "required".to_owned();
    }
    if let Some(text) = schema.get("x-default").and_then(Json::as_str) {
        return text.to_owned();
    }
    match schema.get("default") {
        Some(Json::Null) | None => panic!("no default in {schema}"),
        Some(Json::Object(map)) if map.is_empty() => "`{}`".to_owned(),
        Some(Json::Array(values)) => {
            let values: Vec<String> = values.iter().map(Json::to_string).collect();
            format!("`[{}]`", values.join(", "))
        }
        Some(value) => format!("`{value}`"),
    }
}

fn limits(schema: &Json) -> String {
    let element = content(schema);
    if let Some(names) = variants(element) {
        return names
            .iter()
            .map(|name| format!("`\"{name}\"`"))
            .collect::<Vec<_>>()
            .join(", ");
    }
    let bound = |name: &str| schema.get(name).and_then(Json::as_u64);
    match type_of(schema) {
        "integer" => {
            let (least, most) = range(schema);
            assert!(most < i64::MAX, "an integer without an upper bound: {schema}");
            format!("{least} to {most}")
        }
        "array" => {
            let most = bound("maxItems").expect("a list without a bound");
            if type_of(element) == "integer" {
                let (least, greatest) = range(element);
                format!("{most} elements at most, each {least} to {greatest}")
            } else {
                format!("{most} elements at most")
            }
        }
        "object" => format!(
            "{} keys at most",
            bound("maxProperties").expect("a table without a bound")
        ),
        "boolean" => "`true`, `false`".to_owned(),
        _ => format!("{} characters at most", bound("maxLength").unwrap_or(4096)),
    }
}

/// The page with its tables generated anew.
fn renewed(page: &str, tables: &[(String, Json)]) -> String {
    let mut out = String::new();
    let mut rest = page;
    while let Some((before, after)) = rest.split_once("<!-- keys: ") {
        let (name, after) = after.split_once(" -->").expect("an end of the marker");
        let (_, after) = after.split_once("<!-- end -->").expect("an end of the table");
        let (_, schema) = tables
            .iter()
            .find(|(path, _)| path == name)
            .unwrap_or_else(|| panic!("the page has keys of {name}, which does not exist"));
        write!(
            out,
            "{before}<!-- keys: {name} -->\n{}<!-- end -->",
            render(schema)
        )
        .expect("a string");
        rest = after;
    }
    out.push_str(rest);
    out
}

#[test]
fn the_reference_has_every_key_as_it_is() {
    let schema = schema();
    let mut all = Vec::new();
    tables(schema, "", &mut all);
    let page = std::fs::read_to_string(PAGE).expect("docs/configuration.md");
    for (path, table) in &all {
        let leaves = properties(table)
            .iter()
            .any(|(_, below)| properties(content(below)).is_empty());
        let marker = format!("<!-- keys: {path} -->");
        assert!(
            !leaves || page.contains(&marker),
            "docs/configuration.md lacks {marker}"
        );
    }
    let renewed = renewed(&page, &all);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &renewed).expect("docs/configuration.md is writable");
    }
    assert!(
        page == renewed,
        "docs/configuration.md is not what the model says: run with UPDATE_DOCS=1 (cargo test -p settings reference)"
    );
}

#[test]
fn the_schema_has_descriptions_defaults_and_ranges() {
    let schema = schema();
    let at = |path: &str| path.split('/').fold(schema, |schema, key| &schema[key]).clone();
    assert_eq!(at("properties/location/properties/max_contacts/default"), 10);
    assert_eq!(at("properties/location/properties/max_contacts/minimum"), 1);
    assert_eq!(
        at("properties/listen/items/properties/transport/enum"),
        serde_json::json!(["udp", "tcp", "tls", "ws", "wss"])
    );
    assert_eq!(at("properties/server/additionalProperties"), false);
    assert!(
        at("properties/timers/properties/c_s/description")
            .as_str()
            .is_some_and(|text| text.contains("16.6"))
    );
}
