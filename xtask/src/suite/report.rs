//! What nextest says of a run, read from its JUnit file.

use std::fmt;
use std::path::Path;
use std::time::Duration;

/// One test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Case {
    /// The test program as nextest names it: `sip-core` (unit tests), `sip-core::suite`.
    pub(super) program: String,
    /// The path of the test in it: `forking::the_best_answer_wins`.
    pub(super) test: String,
    pub(super) took: Duration,
    pub(super) passed: bool,
}

impl Case {
    /// nextest's expression for this test and no other.
    pub(super) fn filter(&self) -> String {
        format!("binary_id(={}) & test(={})", self.program, self.test)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.program, self.test)
    }
}

/// All tests of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) cases: Vec<Case>,
}

impl Report {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let of_path = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| of_path(&error))?;
        Self::parse(&text).map_err(|error| of_path(&error))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let document = roxmltree::Document::parse(text).map_err(|error| error.to_string())?;
        let cases = document
            .descendants()
            .filter(|node| node.has_tag_name("testcase"));
        let cases = cases.map(|node| {
            let attribute = |name| node.attribute(name).ok_or(format!("a test case has no `{name}`"));
            let seconds: f64 = attribute("time")?.parse().unwrap_or_default();
            let bad = node
                .children()
                .any(|c| c.has_tag_name("failure") || c.has_tag_name("error"));
            Ok(Case {
                program: attribute("classname")?.to_owned(),
                test: attribute("name")?.to_owned(),
                took: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
                passed: !bad,
            })
        });
        let cases: Vec<Case> = cases.collect::<Result<_, String>>()?;
        if cases.is_empty() {
            return Err("no test ran".into());
        }
        Ok(Self { cases })
    }

    pub(super) fn failed(&self) -> Vec<&Case> {
        self.cases.iter().filter(|case| !case.passed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="3" failures="1" errors="1" time="7.5">
  <testsuite name="sip-core::suite" tests="2" failures="1" errors="0">
    <testcase name="forking::best" classname="sip-core::suite" time="0.012"></testcase>
    <testcase name="forking::worst" classname="sip-core::suite" time="6.5">
      <failure message="thread &apos;x&apos; panicked" type="test failure">text</failure>
      <system-out>out</system-out>
    </testcase>
  </testsuite>
  <testsuite name="xtask" tests="1" failures="0" errors="1">
    <testcase name="a" classname="xtask" time="1"><error type="test timeout"/></testcase>
  </testsuite>
</testsuites>"#;

    #[test]
    fn each_test_has_its_end_and_its_time() {
        let report = Report::parse(RUN).expect("a report");
        assert_eq!(report.cases.len(), 3);
        assert_eq!(report.cases[0].to_string(), "sip-core::suite forking::best");
        assert_eq!(report.cases[1].took, Duration::from_millis(6500));
        let failed: Vec<String> = report.failed().into_iter().map(ToString::to_string).collect();
        assert_eq!(failed, ["sip-core::suite forking::worst", "xtask a"]);
        assert_eq!(
            report.cases[1].filter(),
            "binary_id(=sip-core::suite) & test(=forking::worst)"
        );
    }

    #[test]
    fn no_report_is_an_error() {
        assert!(Report::parse("<testsuites/>").is_err());
        assert!(Report::parse("no XML").is_err());
    }
}
