//! `/metrics` of a running server, judged as `promtool check metrics` judges it, in both formats.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::common::{PATIENCE, Place, ask};
use crate::dashboard::server_of_all_kinds;
use crate::serve::options;

/// Words of a name that are abbreviated units.
const ABBREVIATED: [&str; 14] = [
    "s", "ms", "us", "ns", "sec", "b", "kb", "mb", "gb", "tb", "pb", "m", "h", "d",
];
/// Units that have a base unit, and what else stands for a ratio.
const NOT_BASE: [&str; 11] = [
    "minutes", "hours", "days", "weeks", "bits", "percent", "minute", "hour", "day", "week", "percents",
];
/// Base units, which have no prefix.
const BASE: [&str; 4] = ["seconds", "bytes", "second", "byte"];
const PREFIXES: [&str; 12] = [
    "pico", "nano", "micro", "milli", "centi", "deci", "kilo", "kibi", "mega", "mebi", "giga", "gibi",
];
const TYPES: [&str; 5] = ["counter", "gauge", "histogram", "summary", "info"];

type Labels = Vec<(String, String)>;

/// All lines of one name, as one of the formats has it.
#[derive(Debug, Default)]
struct Family {
    help: Option<String>,
    kind: Option<String>,
    /// Name, labels and value of each.
    series: Vec<(String, Labels, f64)>,
}

/// Labels as text, as pairs.
fn labels(text: &str) -> Labels {
    let pairs = text.split("\",").filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (key, value) = pair.split_once("=\"").expect("a quoted value");
        (key.to_owned(), value.trim_end_matches('"').to_owned())
    };
    pairs.map(pair).collect()
}

/// The families of a page; the series of each follow its description.
fn families(page: &str) -> BTreeMap<String, Family> {
    let mut all: BTreeMap<String, Family> = BTreeMap::new();
    let mut last = String::new();
    for line in page.lines().filter(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let mut word = || words.next().expect("three words").to_owned();
            let (what, name, text) = (word(), word(), word());
            let is_new = name != last;
            assert!(!is_new || !all.contains_key(&name), "{name} in two places");
            last.clone_from(&name);
            let family = all.entry(name).or_default();
            let before = match what.as_str() {
                "HELP" => family.help.replace(text),
                "TYPE" => family.kind.replace(text),
                _ => panic!("{line}"),
            };
            assert_eq!(before, None, "twice: {line}");
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect("a value");
        let (name, of) = series.split_once('{').unwrap_or((series, ""));
        let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
        let labels = labels(of.strip_suffix('}').unwrap_or(of));
        let family = all.get_mut(&last).expect("a description before it");
        family.series.push((name.to_owned(), labels, value));
    }
    all
}

/// Whether it matches `[a-z_:][a-z0-9_:]*`.
fn is_name(name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == ':';
    name.chars().all(is_word) && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty()
}

fn check_name(name: &str) {
    assert!(is_name(name) && !name.contains(':'), "{name}");
    for word in name.split('_') {
        let stem = PREFIXES.iter().find_map(|prefix| word.strip_prefix(prefix));
        let is_scaled = stem.is_some_and(|stem| BASE.contains(&stem));
        let is_other = ABBREVIATED.contains(&word) || NOT_BASE.contains(&word);
        assert!(!is_scaled && !is_other, "{name}: the unit is no base unit");
        // `build_info` is a gauge of Prometheus' own convention.
        let is_type = TYPES.contains(&word) && word != "info";
        assert!(!is_type, "{name}: a type in the name");
    }
}

fn check_labels(name: &str, labels: &[(String, String)]) {
    let mut keys = BTreeSet::new();
    for (key, _) in labels {
        assert!(is_name(key) && !key.contains(':'), "{key} of {name}");
        assert!(!key.starts_with("__") && key != "quantile", "{key} of {name}");
        assert!(key != "le" || name.ends_with("_bucket"), "{key} of {name}");
        assert!(keys.insert(key), "{key} twice, of {name}");
    }
}

/// The suffix of a series of a histogram, its bound and its value.
type Part<'a> = (&'a str, f64, f64);

/// Buckets, sum and count of each set of labels.
fn check_histogram(family: &str, of: &Family) {
    let mut sets: BTreeMap<Labels, Vec<Part<'_>>> = BTreeMap::new();
    for (name, labels, value) in &of.series {
        let (bounds, others): (Vec<_>, Vec<_>) = labels.iter().cloned().partition(|(key, _)| key == "le");
        let bound = bounds.first().map_or(f64::NAN, |(_, bound)| {
            bound.parse().unwrap_or_else(|_| panic!("{bound} of {name}"))
        });
        let suffix = name.strip_prefix(family).expect("a series of its family");
        sets.entry(others).or_default().push((suffix, bound, *value));
    }
    for (labels, series) in sets {
        let of = |suffix| series.iter().filter(move |(other, ..)| *other == suffix);
        assert_eq!(of("_sum").count(), 1, "{family} {labels:?}");
        let [count] = of("_count").map(|(_, _, value)| *value).collect::<Vec<_>>()[..] else {
            panic!("{family} {labels:?} has not one count");
        };
        let buckets: Vec<_> = of("_bucket").map(|(_, bound, value)| (*bound, *value)).collect();
        assert_eq!(buckets.len() + 2, series.len(), "{family} {labels:?}");
        assert_eq!(
            buckets.last(),
            Some(&(f64::INFINITY, count)),
            "{family} {labels:?}"
        );
        let rises = buckets
            .windows(2)
            .all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        assert!(rises, "{family} {labels:?}: {buckets:?}");
    }
}

/// Judges a page; in OpenMetrics the family of a counter lacks the suffix of its series.
fn check(page: &str, is_open: bool) -> BTreeMap<String, Family> {
    let all = families(page);
    for (name, family) in &all {
        check_name(name);
        let help = family.help.as_deref().unwrap_or_default();
        assert!(!help.is_empty(), "{name} has no HELP");
        let kind = family.kind.as_deref().unwrap_or_default();
        assert!(!family.series.is_empty(), "{name} has no series");
        let mut distinct = BTreeSet::new();
        for (series, labels, _) in &family.series {
            check_labels(series, labels);
            assert!(distinct.insert((series, labels)), "{series} {labels:?} twice");
        }
        let is_named = |expected: &str| family.series.iter().all(|(series, ..)| series == expected);
        let is_total = name.ends_with("_total");
        let reserved = ["_bucket", "_sum", "_count"];
        assert!(!reserved.iter().any(|suffix| name.ends_with(suffix)), "{name}");
        match kind {
            "counter" if is_open => assert!(!is_total && is_named(&format!("{name}_total")), "{name}"),
            "counter" => assert!(is_total && is_named(name), "{name}"),
            "gauge" => assert!(!is_total && is_named(name), "{name}"),
            "histogram" => {
                assert!(!is_total, "{name}");
                check_histogram(name, family);
            }
            _ => panic!("{name} is a {kind:?}"),
        }
    }
    all
}

#[test]
fn the_page_of_a_running_server_keeps_the_conventions() {
    let dir = tempfile::tempdir().expect("a directory");
    let place = Place::claim();
    let admin = place.at(8080);
    let mut server = server_of_all_kinds(dir.path(), &place, "cpu_split = true\n");
    assert_eq!(options(place.at(5060), "counted"), "SIP/2.0 200 OK");
    let page = |accept: &str| {
        let (status, page) = ask(admin, "GET /metrics?by=worker", &format!("Accept: {accept}\r\n"));
        assert_eq!(status, 200, "{page}");
        page
    };
    // Counters are published a few times a second.
    let until = Instant::now() + PATIENCE;
    let has_traffic = |page: &str| {
        let all = families(page);
        let received = &all["trapezoid_requests_received_total"].series;
        received.iter().any(|(.., value)| *value > 0.0)
    };
    while !has_traffic(&page("text/plain")) {
        assert!(Instant::now() < until, "{}", page("text/plain"));
        std::thread::sleep(Duration::from_millis(20));
    }

    let plain = page("text/plain");
    assert!(!plain.contains("# EOF"), "Prometheus' own format");
    let plain = check(&plain, false);
    let open = page("application/openmetrics-text");
    assert!(open.ends_with("# EOF\n"), "OpenMetrics");
    let open = check(&open, true);
    let kind = |family: &Family| family.kind.clone();
    let kinds: BTreeSet<_> = plain.values().filter_map(kind).collect();
    assert_eq!(kinds.len(), 3, "{kinds:?}");
    assert!(plain.contains_key("trapezoid_cpu_seconds_total"), "{plain:?}");
    let name = |(name, family): (String, Family)| match kind(&family).as_deref() {
        Some("counter") => format!("{name}_total"),
        _ => name,
    };
    let open: Vec<String> = open.into_iter().map(name).collect();
    assert!(plain.keys().all(|name| open.contains(name)) && open.len() == plain.len());
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}
