//! Keys and values of later versions. They are refused by name, so that no operator relies on a setting
//! without effect.

/// Unknown keys of later versions, and the remedy. Paths are without indices.
const KEYS: &[(&str, &str)] = &[("authd", "authentication is done by this process; remove it")];

/// Unknown values of later versions: path without indices, value, remedy.
const VALUES: &[(&str, &str, &str)] = &[
    ("state.mode", "dialog", "use \"transaction\" or \"stateless\""),
    (
        "state.mode",
        "distributed",
        "use \"transaction\" or \"stateless\"",
    ),
    ("route.state", "dialog", "use \"transaction\" or \"stateless\""),
    (
        "route.state",
        "distributed",
        "use \"transaction\" or \"stateless\"",
    ),
    ("credentials.on_unavailable", "backup", "use \"503\" or \"504\""),
    ("domain.auth.schemes", "proxychain", "use \"digest\""),
];

/// The remedy for the key at `path`, if a later version has it.
pub(crate) fn key(path: &str) -> Option<&'static str> {
    let path = without_indices(path);
    KEYS.iter()
        .find(|(key, _)| *key == path)
        .map(|(_, remedy)| *remedy)
}

/// The remedy for `value` at `path`, if a later version has it.
pub(crate) fn value(path: &str, value: &str) -> Option<&'static str> {
    let path = without_indices(path);
    VALUES
        .iter()
        .find(|(key, text, _)| *key == path && *text == value)
        .map(|(_, _, remedy)| *remedy)
}

fn without_indices(path: &str) -> String {
    let mut inside = false;
    path.chars()
        .filter(|&c| {
            let keep = !inside && c != '[';
            inside = (inside || c == '[') && c != ']';
            keep
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_do_not_matter() {
        assert_eq!(
            without_indices("domain[3].auth.schemes[0]"),
            "domain.auth.schemes"
        );
        assert!(key("authd").is_some());
        assert!(key("route[0].authd").is_none());
        assert!(value("route[12].state", "dialog").is_some());
        assert!(value("route[12].state", "transaction").is_none());
    }
}
