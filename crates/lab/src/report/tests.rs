//! Reports of made-up results: their parts, and how they look in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::*;
use crate::case::Server;
use crate::experiments::synthetic::Synthetic;
use crate::experiments::{Scale, Session, batching, checks, overload, transport};
use crate::programs;

/// Put at the end of a page: what was drawn, in an element that can be found in the page's text.
const PROBE: &str = r#"<script>
setTimeout(() => {
  const canvases = [...document.querySelectorAll("canvas")].map((canvas) => {
    const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const colours = new Set();
    for (let at = 0; at < all.length; at += 4) {
      if (all[at + 3] > 200) colours.add(all[at] << 16 | all[at + 1] << 8 | all[at + 2]);
    }
    return { width: canvas.width, colours: colours.size };
  });
  const found = document.createElement("pre");
  found.id = "probe";
  found.textContent = JSON.stringify({
    canvases, rows: document.querySelectorAll(".wide tbody tr").length, plots: document.querySelectorAll(".plot").length,
    tables: document.querySelectorAll(".wide table").length,
    wide: document.documentElement.scrollWidth, view: document.documentElement.clientWidth,
    ground: getComputedStyle(document.body).backgroundColor,
  });
  document.body.append(found);
}, 300);
</script>"#;

#[derive(Debug, Deserialize)]
struct Canvas {
    width: u32,
    colours: usize,
}

#[derive(Debug, Deserialize)]
struct Found {
    canvases: Vec<Canvas>,
    rows: usize,
    plots: usize,
    tables: usize,
    wide: u32,
    view: u32,
    ground: String,
}

fn results(name: &str) -> Results {
    let scale = Scale::full();
    let (mut bench, mut results) = (Synthetic::new(), Results::new(name, false));
    results.provenance.began = "2026-01-01T00:00:00Z".to_owned();
    results.provenance.machine = crate::machine::read();
    if name == "peers" {
        bench.missing = None;
    }
    let mut session = Session {
        bench: &mut bench,
        results: &mut results,
        scale: &scale,
    };
    match name {
        "transport" => transport::run(&mut session, &[Server::Trapezoid]),
        "peers" => transport::run(&mut session, &[Server::Kamailio, Server::Trapezoid]),
        "overload" => overload::run(&mut session, Some(overload::QUOTA)),
        _ => batching::run(&mut session),
    }
    .unwrap();
    results.checks = checks::of(&results);
    results
}

const NAMES: [&str; 4] = ["transport", "peers", "overload", "batching"];

#[test]
fn each_report_has_its_parts_and_every_row_fits_its_heading() {
    for name in NAMES {
        let page = page(&results(name)).unwrap();
        let plots = page
            .sections
            .iter()
            .filter(|section| section.plot.is_some())
            .count();
        assert!(plots >= 2, "{name}: {plots}");
        for section in &page.sections {
            for row in &section.table.rows {
                assert_eq!(
                    row.len(),
                    section.table.head.len(),
                    "{name}, {}: {row:?}",
                    section.title
                );
            }
            if section.plot.is_some() {
                assert!(
                    !section.table.rows.is_empty(),
                    "{}: a plot without its figures",
                    section.title
                );
            }
        }
        let titles: Vec<&str> = page
            .sections
            .iter()
            .map(|section| section.title.as_str())
            .collect();
        for part in [
            "Shapes that must hold",
            "All runs",
            "Where, with what and when",
            "Where the server's CPU goes",
        ] {
            assert!(titles.contains(&part), "{name}: {titles:?}");
        }
    }
}

fn section<'a>(page: &'a Page, title: &str) -> &'a Section {
    let mut found = page
        .sections
        .iter()
        .filter(|section| section.title.starts_with(title));
    found.next().unwrap_or_else(|| panic!("no part {title}"))
}

#[test]
fn the_papers_numbers_stand_beside_ours() {
    let transport = page(&results("transport")).unwrap();
    let beside = section(&transport, "Beside the paper");
    assert_eq!(beside.table.rows.len(), 6);
    assert_eq!(
        beside.table.rows[4][1], "42.0",
        "state, UDP without authentication"
    );
    let here: f64 = beside.table.rows[4][2]
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((here - 100.0 * (1.0 - 25.0 / 35.0)).abs() < 6.0, "{here}");
    let batching = page(&results("batching")).unwrap();
    let all = section(&batching, "All settings");
    let best = all
        .table
        .rows
        .iter()
        .find(|row| row[0] == "Trapezoid fixed 32×16")
        .unwrap();
    assert_eq!(best[4], "12,100");
    let kamailio = all
        .table
        .rows
        .iter()
        .find(|row| row[0] == "Kamailio single 4")
        .unwrap();
    assert_eq!(kamailio[4], "–", "the paper did not measure Kamailio");
    assert!(all.text[0].contains("settings within 15 %"), "{}", all.text[0]);
    let peers = page(&results("peers")).unwrap();
    let ratios = section(&peers, "Ratios");
    let stateless = &ratios.table.rows[0];
    assert_eq!(stateless[6], "2.00 ×");
}

#[test]
fn who_was_full_and_what_is_missing_is_said() {
    let mut results = results("transport");
    results.absent.push(crate::results::Absent {
        what: "Kamailio".to_owned(),
        why: "it is not installed".to_owned(),
    });
    let page = page(&results).unwrap();
    let absent = section(&page, "What was not measured");
    assert_eq!(absent.table.rows[0], ["Kamailio", "it is not installed"]);
    assert!(
        absent.text.iter().any(|text| text.contains("generator")),
        "{:?}",
        absent.text
    );
    let peaks = section(&page, "Peaks");
    let at_least = peaks
        .table
        .rows
        .iter()
        .filter(|row| row[1].starts_with('≥'))
        .count();
    assert!(at_least > 0, "the generator gave out before registrations did");
}

/// Chromium, or nothing where it is missing and may be.
fn chromium() -> Option<PathBuf> {
    let found = programs::find("chromium");
    let may_miss = std::env::var_os("TRAPEZOID_SKIP_MISSING").is_some_and(|value| value == "1");
    assert!(
        found.is_some() || may_miss,
        "chromium is missing: `cargo xtask setup` installs it; TRAPEZOID_SKIP_MISSING=1 skips the tests that need it"
    );
    found
}

/// What a browser makes of a page; a picture of it is kept beside it.
fn looked_at(chromium: &Path, page: &Path, width: u32, dark: bool) -> Found {
    let directory = page.parent().unwrap();
    let browser = |more: &[String]| {
        let mut command = Command::new(chromium);
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            "--virtual-time-budget=5000",
        ]);
        if dark {
            command.arg("--blink-settings=preferredColorScheme=0");
        }
        let profile = page.with_extension("profile");
        command
            .arg(format!("--user-data-dir={}", profile.display()))
            .env("HOME", directory)
            .args(more)
            .arg(format!("file://{}", page.display()));
        programs::run(&mut command, "").unwrap()
    };
    let size = format!("--window-size={width},2600");
    let text = browser(&[size.clone(), "--dump-dom".to_owned()]);
    let found = text
        .split_once("<pre id=\"probe\">")
        .and_then(|(_, rest)| rest.split("</pre>").next());
    let found =
        found.unwrap_or_else(|| panic!("the page's script did not end:\n{}", programs::tail(&text, 5)));
    let picture = page.with_extension(format!("{width}{}.png", if dark { ".dark" } else { "" }));
    browser(&[size, format!("--screenshot={}", picture.display())]);
    assert!(std::fs::metadata(&picture).unwrap().len() > 10_000);
    serde_json::from_str(found).unwrap()
}

/// A browser draws every plot and table of a report, in a window of this width.
fn is_drawn(name: &str, width: u32, dark: bool) {
    let Some(chromium) = chromium() else { return };
    let kept = std::env::var_os("TRAPEZOID_KEEP").map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let directory = kept
        .as_deref()
        .filter(|path| path.is_dir())
        .unwrap_or(temporary.path());
    let results = results(name);
    let model = page(&results).unwrap();
    let path = directory.join(format!("{name}.html"));
    let html = html(&results)
        .unwrap()
        .replace("</body>", &format!("{PROBE}</body>"));
    std::fs::write(&path, html).unwrap();
    let found = looked_at(&chromium, &path, width, dark);
    let plots = model
        .sections
        .iter()
        .filter(|section| section.plot.is_some())
        .count();
    let rows: usize = model
        .sections
        .iter()
        .map(|section| section.table.rows.len())
        .sum();
    let tables = model
        .sections
        .iter()
        .filter(|section| !section.table.rows.is_empty())
        .count();
    assert_eq!((found.plots, found.canvases.len()), (plots, plots), "{found:?}");
    assert_eq!((found.tables, found.rows), (tables, rows));
    for canvas in &found.canvases {
        // Axes, labels, and at least one line.
        assert!(canvas.colours >= 3 && canvas.width > 200, "{canvas:?}");
    }
    assert!(found.wide <= found.view, "wider than the window: {found:?}");
    let is_dark = found.ground != "rgb(253, 253, 251)";
    assert_eq!(is_dark, dark, "{}", found.ground);
}

#[test]
fn a_browser_draws_a_wide_report() {
    is_drawn("transport", 1280, false);
}

#[test]
fn a_browser_draws_a_dark_report() {
    is_drawn("batching", 1280, true);
}

#[test]
fn a_browser_draws_a_narrow_report() {
    is_drawn("peers", 500, false);
}
