//! What the papers say, from the data files beside this crate. A number that a paper's text does not give is not here.

use serde::Deserialize;

use crate::failure::{Failure, Outcome};

/// One paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Paper {
    /// Title, authors, year.
    pub(crate) title: String,
    /// On what it was measured.
    pub(crate) conditions: String,
    #[serde(default, rename = "claim")]
    pub(crate) claims: Vec<Claim>,
    #[serde(default, rename = "bandwidth")]
    pub(crate) bandwidths: Vec<Bandwidth>,
    #[serde(default, rename = "cpu")]
    pub(crate) cpus: Vec<Cpu>,
    #[serde(default, rename = "query_time")]
    pub(crate) query_times: Vec<QueryTime>,
}

/// A number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// Where it stands.
    pub(crate) place: String,
}

/// Between proxy and database.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bandwidth {
    pub(crate) name: String,
    pub(crate) query_kbit_s: f64,
    pub(crate) answer_kbit_s: f64,
    pub(crate) calls_s: f64,
    pub(crate) place: String,
}

impl Bandwidth {
    /// Bytes for each call, both ways.
    pub(crate) fn bytes_each(&self) -> f64 {
        crate::cpu::ratio((self.query_kbit_s + self.answer_kbit_s) * 1e3 / 8.0, self.calls_s)
    }
}

/// CPU at a setting's peak.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cpu {
    pub(crate) name: String,
    pub(crate) proxy_percent: f64,
    pub(crate) database_percent: f64,
    pub(crate) place: String,
}

/// Time of a batch, round trip and all.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueryTime {
    pub(crate) rows: f64,
    pub(crate) ms: f64,
    pub(crate) place: String,
}

impl Paper {
    pub(crate) fn claim(&self, name: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.name == name)
    }
}

/// The paper of an experiment, where there is one.
pub(crate) fn of(experiment: &str) -> Outcome<Option<Paper>> {
    let text = match experiment {
        "transport" | "overload" => include_str!("../papers/nahum-2007.toml"),
        "batching" => include_str!("../papers/dacosta-2009.toml"),
        _ => return Ok(None),
    };
    let paper = toml::from_str(text).map_err(|error| Failure::failed("a paper's figures", error))?;
    Ok(Some(paper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn papers_are_read_and_each_number_has_its_place() {
        for name in ["transport", "batching", "overload"] {
            let paper = of(name).unwrap().unwrap();
            assert!(!paper.claims.is_empty() && paper.claims.iter().all(|claim| !claim.place.is_empty()));
        }
        assert_eq!(of("other").unwrap(), None);
        let batching = of("batching").unwrap().unwrap();
        assert_eq!(batching.claim("fixed 32×16").unwrap().value, 12_100.0);
        // Table 1: 512 processes take about 497 bytes a call, the hybrid about 86: 83 % less.
        let each: Vec<f64> = ["single 512", "fixed 32×16"]
            .iter()
            .filter_map(|name| batching.bandwidths.iter().find(|b| b.name == *name))
            .map(Bandwidth::bytes_each)
            .collect();
        assert!(
            (each[0] - 497.4).abs() < 0.1 && (each[1] - 85.8).abs() < 0.1,
            "{each:?}"
        );
    }
}
