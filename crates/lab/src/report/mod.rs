//! The report: one page that needs no network. First what is on it (pure), then the page.

mod batching;
mod colours;
mod connections;
mod html;
mod memory;
mod model;
mod overload;
mod peers;
mod pings;
mod split;
#[cfg(test)]
mod tests;
mod transport;
mod verdict;
mod workers;

use crate::failure::{Failure, Outcome};
use crate::results::Results;

pub use model::{Kind, Page, Plot, Section, Series, Table, Verdict};
pub(crate) use model::{number, or_dash};

/// The page of an experiment.
///
/// # Errors
/// A paper's figures, or the template, cannot be read: faults of this program.
pub fn page(results: &Results) -> Outcome<Page> {
    let paper = crate::paper::of(&results.experiment)?;
    let paper = paper.as_ref();
    let mut page = match results.experiment.as_str() {
        "batching" => batching::page(results, paper),
        "overload" => overload::page(results),
        "peers" => peers::page(results),
        "connections" => connections::page(results),
        "memory" => memory::page(results),
        "workers" => workers::page(results),
        "split" => split::page(results),
        "pings" => pings::page(results),
        _ => transport::page(results, paper),
    };
    page.verdict = verdict::of(results);
    page.sections.insert(0, model::checks(results));
    page.sections.extend(model::components(results));
    page.sections.extend(model::absent(results));
    if !results.rows.is_empty() {
        page.sections.push(model::runs(results));
    }
    page.sections.push(model::provenance(results));
    for section in &mut page.sections {
        section.table = std::mem::take(&mut section.table).measured();
        section.plot = section.plot.take().filter(Plot::shows_a_shape);
    }
    Ok(page)
}

/// The same as HTML.
///
/// # Errors
/// As [`page`].
pub fn html(results: &Results) -> Outcome<String> {
    html::render(&page(results)?, results)
}

/// Writes `report.html` into a directory.
///
/// # Errors
/// As [`page`], or it cannot be written.
pub fn write(results: &Results, directory: &std::path::Path) -> Outcome<()> {
    let path = directory.join("report.html");
    std::fs::write(&path, html(results)?).map_err(|error| Failure::failed(path.display(), error))
}
