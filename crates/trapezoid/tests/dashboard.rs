//! `docs/grafana.json`: each of its queries names series and labels that a running server has.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rcgen::generate_simple_self_signed;
use serde_json::Value;

use crate::common::{Place, Server, get};

/// Labels that the scraper adds.
const OF_SCRAPER: [&str; 2] = ["instance", "job"];

/// Names of series, each with its labels and their values.
type Series = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn series(page: &str) -> Series {
    let mut all = Series::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let (series, _) = line.rsplit_once(' ').expect("a value");
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let of_name = all.entry(name.to_owned()).or_default();
        for pair in labels.trim_end_matches('}').split("\",") {
            if let Some((key, value)) = pair.split_once("=\"") {
                let values = of_name.entry(key.to_owned()).or_default();
                values.insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    all
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The selectors of a query: each name of a series with the text in its braces.
fn selectors(query: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(at) = ["trapezoid_", "process_"]
        .iter()
        .filter_map(|prefix| rest.find(prefix))
        .min()
    {
        let from = &rest[at..];
        let end = from.find(|c| !is_word(c)).unwrap_or(from.len());
        let (name, after) = from.split_at(end);
        let labels = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        found.push((
            name.to_owned(),
            labels.map_or(String::new(), |(labels, _)| labels.to_owned()),
        ));
        rest = after;
    }
    found
}

fn check(query: &str, all: &Series) {
    let count = |c: char| query.matches(c).count();
    assert_eq!(count('('), count(')'), "{query}");
    assert_eq!(count('{'), count('}'), "{query}");
    let selectors = selectors(query);
    assert!(!selectors.is_empty(), "{query}");
    for (name, conditions) in &selectors {
        let known = all
            .get(name)
            .unwrap_or_else(|| panic!("no series {name}: {query}"));
        for condition in conditions.split(',').filter(|condition| !condition.is_empty()) {
            let key: String = condition.chars().take_while(|c| is_word(*c)).collect();
            let (operator, value) = condition[key.len()..].split_once('"').expect("a quoted value");
            if OF_SCRAPER.contains(&&*key) {
                continue;
            }
            let values = known
                .get(&key)
                .unwrap_or_else(|| panic!("{name} has no label {key}: {query}"));
            for value in value.trim_end_matches('"').split('|') {
                assert!(
                    values.contains(value),
                    "{name} with {key}{operator}{value:?}: {query}"
                );
            }
        }
    }
    // In `sum by (labels) (series…)` the first series after the labels must have these labels.
    for grouped in query.split(" by (").skip(1) {
        let (keys, of) = grouped.split_once(')').expect("a closing bracket");
        let (name, _) = &self::selectors(of)[0];
        for key in keys.split(',').map(str::trim) {
            let has = all[name].contains_key(key) || OF_SCRAPER.contains(&key);
            assert!(has, "{name} has no label {key}: {query}");
        }
    }
}

/// A server with a listener for TLS and a group, so that it has the series of both. `keys`: further ones of `[admin]`.
pub(crate) fn server_of_all_kinds(dir: &Path, place: &Place, keys: &str) -> Server {
    let certified = generate_simple_self_signed(vec!["example.com".to_owned()]).expect("a certificate");
    let key = dir.join("own.key");
    fs::write(dir.join("own.pem"), certified.cert.pem()).expect("writable");
    fs::write(&key, certified.signing_key.serialize_pem()).expect("writable");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("ours");
    let (sip, tls, admin) = (place.at(5060), place.at(5061), place.at(8080));
    let text = format!(
        "[server]\nworkers = 2\ndrain_s = 1\n[[listen]]\ntransport = \"udp\"\naddress = \"{sip}\"\n\
         [[listen]]\ntransport = \"tls\"\naddress = \"{tls}\"\n\
         tls = {{ certificate = \"own.pem\", key = \"own.key\" }}\n[admin]\nlisten = \"{admin}\"\n{keys}\
         [[group]]\nname = \"carriers\"\nprobe_s = 0\nmembers = [{{ uri = \"sip:192.0.2.2\" }}]\n\
         [[route]]\ndo = {{ relay = \"group:carriers\" }}\n"
    );
    fs::write(dir.join("t.toml"), text).expect("writable");
    let mut server = Server::start(dir);
    server.wait_for("is ready");
    server
}

#[test]
fn each_query_of_the_dashboard_names_what_there_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let admin = place.at(8080);
    let mut server = server_of_all_kinds(dir.path(), &place, "");
    let (status, page) = get(admin, "/metrics");
    assert_eq!(status, 200);
    assert!(!page.contains("worker=\""), "one series for all workers");
    let (_, of_each) = get(admin, "/metrics?by=worker");
    assert!(of_each.contains(",worker=\"1\"}"), "{of_each}");

    let text = include_str!("../../../docs/grafana.json");
    let dashboard: Value = serde_json::from_str(text).expect("JSON");
    let all = series(&page);
    let (mut queries, mut ids) = (0, BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels") {
        assert!(
            panel["title"].is_string() && ids.insert(panel["id"].as_u64()),
            "{panel}"
        );
        for target in panel["targets"].as_array().into_iter().flatten() {
            check(target["expr"].as_str().expect("a query"), &all);
            queries += 1;
        }
    }
    assert!(queries > 20, "{queries}");
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let query = variable["query"].as_str().expect("a query");
        assert!(
            query == "prometheus" || query.contains("trapezoid_build_info"),
            "{query}"
        );
    }
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}
