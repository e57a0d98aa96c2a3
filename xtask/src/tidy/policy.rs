//! What we may depend on: the rules of `deny.toml`, checked against the packages that are really built.
//!
//! cargo-deny checks the same file, and takes minutes to build; `cargo xtask deny` installs and runs
//! it. Here a key of the file that this module does not know is an error, so that no rule is there
//! for cargo-deny alone.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use toml::{Table, Value as Toml};

use super::Violation;
use crate::steps;

/// The file of rules.
pub(super) const RULES: &str = "deny.toml";

/// Where Cargo gets packages when a manifest does not say.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The workspaces that are checked, by their manifests.
const WORKSPACES: &[&str] = &["Cargo.toml", crate::fuzz::MANIFEST];

/// The rules of `deny.toml`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Policy {
    /// For which targets the product is built.
    targets: Vec<String>,
    /// Packages that nothing may bring, each with the reason.
    denied: Vec<(String, String)>,
    /// Versions that may be there beside another of the same package.
    doubles: BTreeSet<(String, String)>,
    /// SPDX names of the licences that a package may be used under.
    licences: Vec<String>,
    /// The same, for one package.
    exceptions: Vec<(String, Vec<String>)>,
}

/// A package of the graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    licence: Option<String>,
    /// `None`: a directory of this repository.
    source: Option<String>,
    /// What it takes in any version, but for directories of this repository.
    any_version_of: Vec<String>,
}

/// Checks each workspace's graph.
///
/// # Errors
/// If the rules cannot be read, or Cargo fails.
pub(super) fn check(rules: &str) -> Result<Vec<Violation>, String> {
    let policy = Policy::parse(rules).map_err(|error| format!("{RULES}: {error}"))?;
    let mut built = BTreeMap::new();
    for manifest in WORKSPACES {
        let all = packages(&steps::metadata(&[
            "--locked",
            "--all-features",
            "--manifest-path",
            manifest,
        ])?);
        for target in &policy.targets {
            for key in names(&tree(manifest, target)?) {
                let package = all.get(&key).ok_or(format!("cargo metadata has no {key:?}"))?;
                built.insert(key, package.clone());
            }
        }
    }
    Ok(policy.violations(&built))
}

/// What is built for a target: each line begins with a package's name and version. `cargo metadata`
/// says more about packages, but its graph also has those of features that are off.
fn tree(manifest: &str, target: &str) -> Result<String, String> {
    let out = steps::cargo()
        .args([
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--prefix",
            "none",
        ])
        .args([
            "--edges",
            "normal,build,dev",
            "--format",
            "{p}",
            "--target",
            target,
        ])
        .args(["--manifest-path", manifest])
        .current_dir(steps::root())
        .output()
        .map_err(|error| format!("cargo tree: {error}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    } else {
        Err(format!("cargo tree: {}", String::from_utf8_lossy(&out.stderr)))
    }
}

type Key = (String, String);

fn names(tree: &str) -> BTreeSet<Key> {
    let mut names = BTreeSet::new();
    for line in tree.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some(version)) = (words.next(), words.next()) {
            names.insert((name.to_owned(), version.trim_start_matches('v').to_owned()));
        }
    }
    names
}

/// The packages of `cargo metadata`.
fn packages(metadata: &Value) -> BTreeMap<Key, Package> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let listed = metadata["packages"].as_array().into_iter().flatten();
    let packages = listed.map(|p| Package {
        name: text(&p["name"]).unwrap_or_default(),
        version: text(&p["version"]).unwrap_or_default(),
        licence: text(&p["license"]),
        source: text(&p["source"]),
        any_version_of: p["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|d| d["req"] == "*" && d["path"].is_null())
            .filter_map(|d| text(&d["name"]))
            .collect(),
    });
    packages
        .map(|p| ((p.name.clone(), p.version.clone()), p))
        .collect()
}

impl Policy {
    fn parse(text: &str) -> Result<Self, String> {
        let mut file = Section::of("", text.parse::<Table>().map_err(|error| error.to_string())?);
        let mut policy = Self::default();

        let mut graph = file.section("graph")?;
        policy.targets = graph.list("targets")?;
        graph.must_be("all-features", &Toml::Boolean(true))?;
        graph.end()?;

        let mut bans = file.section("bans")?;
        bans.must_be("multiple-versions", &Toml::from("deny"))?;
        bans.must_be("wildcards", &Toml::from("deny"))?;
        bans.must_be("allow-wildcard-paths", &Toml::Boolean(true))?;
        policy.denied = bans.crates("deny")?;
        for (package, _) in bans.crates("skip")? {
            let (name, version) = package.split_once('@').ok_or(format!(
                "bans.skip: `{package}` names no version (`NAME@VERSION`)"
            ))?;
            policy.doubles.insert((name.to_owned(), version.to_owned()));
        }
        bans.end()?;

        let mut licences = file.section("licenses")?;
        policy.licences = licences.list("allow")?;
        for mut exception in licences.tables("exceptions")? {
            let (name, allowed) = (exception.text("crate")?, exception.list("allow")?);
            policy.exceptions.push((name, allowed));
            exception.end()?;
        }
        // How sure cargo-deny has to be where it reads a text; we read what the package declares.
        licences.take("confidence-threshold")?;
        licences.end()?;

        let mut sources = file.section("sources")?;
        sources.must_be("unknown-registry", &Toml::from("deny"))?;
        sources.must_be("unknown-git", &Toml::from("deny"))?;
        sources.end()?;
        file.end()?;
        Ok(policy)
    }

    fn violations(&self, built: &BTreeMap<Key, Package>) -> Vec<Violation> {
        let mut found = Vec::new();
        for package in built.values() {
            let mut broken = |message| {
                let place = format!("{} {}", package.name, package.version);
                found.push(Violation::new(place, message));
            };
            if let Some((_, reason)) = self.denied.iter().find(|(name, _)| *name == package.name) {
                broken(format!(
                    "{RULES} bans it: {reason}; `cargo tree -i {}`",
                    package.name
                ));
            }
            if let Some(other) = package.source.as_deref().filter(|source| *source != CRATES_IO) {
                broken(format!("comes from {other}; only crates.io is a source"));
            }
            if let Err(why) = self.allows(&package.name, package.licence.as_deref()) {
                broken(why);
            }
            for name in &package.any_version_of {
                broken(format!("takes any version of {name}: name one"));
            }
        }
        found.extend(self.doubles(built));
        found
    }

    fn allows(&self, name: &str, licence: Option<&str>) -> Result<(), String> {
        let licence = licence.ok_or("declares no licence")?;
        let expression = spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX)
            .map_err(|error| format!("its licence `{licence}` is no SPDX expression: {error}"))?;
        let allowed = |requirement: &spdx::LicenseReq| {
            let wanted = requirement.to_string();
            let mut exceptions = self.exceptions.iter().filter(|(package, _)| package == name);
            self.licences.contains(&wanted) || exceptions.any(|(_, licences)| licences.contains(&wanted))
        };
        if expression.evaluate(allowed) {
            Ok(())
        } else {
            Err(format!(
                "its licence `{licence}` needs one that {RULES} does not allow"
            ))
        }
    }

    /// Packages in two versions: all but one of them have to be expected, and all that are expected
    /// have to be there.
    fn doubles(&self, built: &BTreeMap<Key, Package>) -> Vec<Violation> {
        let mut found = Vec::new();
        for (name, version) in &self.doubles {
            let others = built.keys().filter(|(n, v)| n == name && v != version);
            if !built.contains_key(&(name.clone(), version.clone())) || others.count() == 0 {
                found.push(Violation::new(
                    format!("{name} {version}"),
                    format!("{RULES} expects it beside another version, which is no longer so: take it off bans.skip"),
                ));
            }
        }
        let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, version) in built.keys().filter(|key| !self.doubles.contains(*key)) {
            versions.entry(name).or_default().push(version);
        }
        for (name, versions) in versions {
            if versions.len() > 1 {
                found.push(Violation::new(
                    name,
                    format!(
                        "is there in the versions {}: bring them together, or name all but one under bans.skip \
                         of {RULES} with the reason",
                        versions.join(", ")
                    ),
                ));
            }
        }
        found
    }
}

/// A table that gives its keys out one by one, so that what is left is what is not known.
struct Section {
    name: String,
    rest: Table,
}

impl Section {
    fn of(name: &str, rest: Table) -> Self {
        Self {
            name: name.to_owned(),
            rest,
        }
    }

    fn take(&mut self, key: &str) -> Result<Toml, String> {
        let missing = format!("`{}` is missing", self.path(key));
        self.rest.remove(key).ok_or(missing)
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.name)
        }
    }

    fn section(&mut self, key: &str) -> Result<Self, String> {
        let value = self.take(key)?;
        let table = value.as_table().cloned();
        let table = table.ok_or_else(|| format!("`{}` is no table but {value}", self.path(key)))?;
        Ok(Self::of(&self.path(key), table))
    }

    fn array(&mut self, key: &str) -> Result<Vec<Toml>, String> {
        let value = self.take(key)?;
        let items = value.as_array().cloned();
        items.ok_or_else(|| format!("`{}` is no list but {value}", self.path(key)))
    }

    fn list(&mut self, key: &str) -> Result<Vec<String>, String> {
        let path = self.path(key);
        let words = self.array(key)?.into_iter().map(|item| {
            let word = item.as_str().map(str::to_owned);
            word.ok_or(format!("`{path}` has an item that is no text: {item}"))
        });
        words.collect()
    }

    fn tables(&mut self, key: &str) -> Result<Vec<Self>, String> {
        let path = self.path(key);
        let tables = self.array(key)?.into_iter().map(|item| {
            let table = item.as_table().cloned();
            let table = table.ok_or_else(|| format!("`{path}` has an item that is no table: {item}"))?;
            Ok(Self::of(&path, table))
        });
        tables.collect()
    }

    fn text(&mut self, key: &str) -> Result<String, String> {
        let value = self.take(key)?;
        let text = value.as_str().map(str::to_owned);
        text.ok_or_else(|| format!("`{}` is no text but {value}", self.path(key)))
    }

    /// A list of tables, each a `crate` and a `reason`.
    fn crates(&mut self, key: &str) -> Result<Vec<(String, String)>, String> {
        let crates = self.tables(key)?.into_iter().map(|mut entry| {
            let found = (entry.text("crate")?, entry.text("reason")?);
            entry.end()?;
            Ok(found)
        });
        crates.collect()
    }

    fn must_be(&mut self, key: &str, wanted: &Toml) -> Result<(), String> {
        let value = self.take(key)?;
        if value == *wanted {
            Ok(())
        } else {
            Err(format!(
                "`{}` is {value}; tidy knows only {wanted}",
                self.path(key)
            ))
        }
    }

    fn end(self) -> Result<(), String> {
        match self.rest.keys().next() {
            None => Ok(()),
            Some(key) => Err(format!("tidy does not know `{}`", self.path(key))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy {
            targets: vec![],
            denied: vec![("ring".into(), "one provider".into())],
            doubles: BTreeSet::from([("syn".into(), "2.0.0".into())]),
            licences: ["MIT", "Apache-2.0", "Unicode-3.0"].map(String::from).into(),
            exceptions: vec![("fuzzer".into(), vec!["NCSA".into()])],
        }
    }

    fn package(name: &str, version: &str) -> Package {
        Package {
            name: name.into(),
            version: version.into(),
            licence: Some("MIT OR Apache-2.0".into()),
            source: Some(CRATES_IO.into()),
            any_version_of: vec![],
        }
    }

    /// The graph that the policy expects, and these.
    fn messages(more: &[Package]) -> Vec<String> {
        let expected = [package("syn", "2.0.0"), package("syn", "3.0.0")];
        let built = expected.iter().chain(more);
        let built = built
            .map(|p| ((p.name.clone(), p.version.clone()), p.clone()))
            .collect();
        let found = policy().violations(&built).into_iter();
        found.map(|v| format!("{}: {}", v.place, v.message)).collect()
    }

    #[test]
    fn what_is_allowed_passes() {
        let ours = Package {
            source: None,
            ..package("sip-core", "0.1.0")
        };
        let of = |licence: &str| Package {
            licence: Some(licence.into()),
            ..package("other", "1.0.0")
        };
        assert_eq!(messages(&[ours]), [""; 0]);
        for licence in [
            "MIT",
            "Unlicense/MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "MIT AND Apache-2.0",
        ] {
            assert_eq!(messages(&[of(licence)]), [""; 0], "{licence}");
        }
        for licence in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "Apache-2.0 WITH LLVM-exception",
            "mine",
        ] {
            assert_eq!(messages(&[of(licence)]).len(), 1, "{licence}");
        }
    }

    #[test]
    fn each_rule_that_is_broken_is_named() {
        let broken = [
            (package("ring", "0.17.0"), "bans it: one provider"),
            (
                Package {
                    licence: None,
                    ..package("a", "1.0.0")
                },
                "declares no licence",
            ),
            (
                Package {
                    source: Some("git+https://example.com/a".into()),
                    ..package("a", "1.0.0")
                },
                "only crates.io",
            ),
            (
                Package {
                    any_version_of: vec!["b".into()],
                    ..package("a", "1.0.0")
                },
                "any version of b",
            ),
            (package("syn", "1.0.0"), "in the versions 1.0.0, 3.0.0"),
        ];
        for (package, message) in broken {
            let found = messages(&[package]);
            assert!(found.len() == 1 && found[0].contains(message), "{found:?}");
        }
    }

    #[test]
    fn a_double_that_is_gone_is_taken_off_the_list() {
        for one in ["2.0.0", "3.0.0"] {
            let left = package("syn", one);
            let built = BTreeMap::from([((left.name.clone(), left.version.clone()), left)]);
            let found = policy().violations(&built);
            assert!(
                found.len() == 1 && found[0].message.contains("no longer so"),
                "{found:?}"
            );
        }
    }

    #[test]
    fn the_tree_names_packages_and_versions() {
        let tree = "sip-core v0.1.0 (/somewhere)\nmemchr v2.8.3\nserde_derive v1.0.0 (proc-macro) (*)\n\n";
        let key = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        let wanted = [
            key("memchr", "2.8.3"),
            key("serde_derive", "1.0.0"),
            key("sip-core", "0.1.0"),
        ];
        assert_eq!(names(tree), BTreeSet::from(wanted));
    }

    #[test]
    fn a_rule_that_tidy_does_not_know_is_an_error() {
        let rules = include_str!("../../../deny.toml");
        assert!(Policy::parse(rules).is_ok_and(|p| !p.denied.is_empty() && p.licences.len() > 3));
        let unknown = rules.replace("[sources]", "[sources]\nallow-git = []");
        let error = Policy::parse(&unknown).expect_err("an unknown key");
        assert!(error.contains("sources.allow-git"), "{error}");
        let weaker = rules.replace("wildcards = \"deny\"", "wildcards = \"warn\"");
        assert!(Policy::parse(&weaker).is_err());
    }
}
