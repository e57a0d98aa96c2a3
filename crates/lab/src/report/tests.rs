//! Reports of made-up results: their parts, and how they look in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::*;
use crate::case::{Purpose, Server};
use crate::experiments::synthetic::Synthetic;
use crate::experiments::{Scale, Session, batching, checks, overload, peers, transport};
use crate::programs;
use crate::statistics::Judgement;

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
    twice: [...document.querySelectorAll(".plot")].filter((plot) => {
      const marks = [...plot.querySelectorAll(".u-legend .u-marker")].slice(1);
      const colours = marks.map((mark) => mark.style.borderColor || mark.style.background);
      return new Set(colours).size !== marks.length || marks.length === 0;
    }).length,
    left: [...document.querySelectorAll("section:not(:last-of-type) td")].filter((cell) =>
      /^(≥ )?-?[0-9][0-9,.]*( %| ×)?$/.test(cell.textContent) && getComputedStyle(cell).textAlign !== "right").length,
    right: [...document.querySelectorAll("td")].filter((cell) =>
      /^[a-z]{3,} [a-z]/i.test(cell.textContent) && getComputedStyle(cell).textAlign === "right").length,
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
    /// Plots in which two series have the same colour.
    twice: usize,
    /// Cells with a number that are aligned left; `right`: cells with words that are aligned right.
    left: usize,
    right: usize,
    wide: u32,
    view: u32,
    ground: String,
}

fn results(name: &str) -> Results {
    made(name, &Scale::full())
}

fn made(name: &str, scale: &Scale) -> Results {
    let (mut bench, mut results) = (Synthetic::new(), Results::new(name, scale.quick));
    results.provenance.began = "2026-01-01T00:00:00Z".to_owned();
    results.provenance.machine = crate::machine::read();
    let mut session = Session::new(&mut bench, &mut results, scale);
    match name {
        "transport" => transport::run(&mut session),
        "peers" => peers::run(&mut session),
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
            if let Some(plot) = &section.plot {
                assert!(
                    !plot.x.is_empty() && !plot.y.is_empty(),
                    "{}: an axis without a name",
                    section.title
                );
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
        assert_eq!(
            titles[0], "Shapes that must hold",
            "what was made for it comes first"
        );
        for part in [
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

/// The index of a column.
fn column(section: &Section, head: &str) -> usize {
    let mut all = section.table.head.iter();
    all.position(|found| found == head)
        .unwrap_or_else(|| panic!("no column {head}: {:?}", section.table.head))
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
    let here = beside.table.rows[4][2].trim_start_matches("≥ ");
    let here: f64 = here.parse().unwrap();
    assert!((here - 100.0 * (1.0 - 25.0 / 35.0)).abs() < 6.0, "{here}");
    let batching = page(&results("batching")).unwrap();
    let all = section(&batching, "All settings");
    let best = all
        .table
        .rows
        .iter()
        .find(|row| row[0] == "Trapezoid fixed 32×16")
        .unwrap();
    assert_eq!(best[column(all, "paper")], "12,100");
    let kamailio = all
        .table
        .rows
        .iter()
        .find(|row| row[0] == "Kamailio single 4")
        .unwrap();
    assert_eq!(
        kamailio[column(all, "paper")],
        "–",
        "the paper did not measure Kamailio"
    );
    assert!(all.text[0].contains("settings within 15 %"), "{}", all.text[0]);
}

/// Of the made-up servers Kamailio costs twice as much, and the relay 15 µs.
#[test]
fn kamailio_stands_beside_trapezoid_and_the_floor() {
    let results = results("peers");
    let found = page(&results).unwrap();
    let costs = section(&found, "CPU for one operation near");
    let names: Vec<&str> = costs.table.rows.iter().map(|row| row[0].as_str()).collect();
    let scenarios = crate::experiments::peers::SCENARIOS;
    assert_eq!(names, scenarios.map(|scenario| scenario.name));
    let cell =
        |section: &Section, row: usize, head: &str| section.table.rows[row][column(section, head)].clone();
    // 25 µs, of which 40 % are in user mode; the peak that it implies is a second divided by it.
    assert_eq!(cell(costs, 0, "Kamailio, µs"), "50.0");
    assert_eq!(cell(costs, 0, "its user + system"), "20.0 + 30.0");
    assert_eq!(cell(costs, 0, "Trapezoid, µs"), "25.0");
    assert_eq!(cell(costs, 0, "our user + system"), "10.0 + 15.0");
    assert_eq!(cell(costs, 0, "the floor, µs"), "15.0");
    assert_eq!(cell(costs, 0, "Kamailio, implied peak /s"), "20,000");
    assert_eq!(cell(costs, 0, "Trapezoid, implied peak /s"), "40,000");
    assert_eq!(cell(costs, 0, "ratio"), "2.00 ×");
    assert_eq!(cell(costs, 0, "95 % of the ratio"), "2.00 to 2.00");
    let equal = section(&found, "CPU for one operation at Kamailio's rate");
    assert_eq!(equal.table.rows.len(), 7);
    assert_eq!(cell(equal, 1, "ratio"), "2.00 ×");
    assert_eq!(cell(equal, 1, "Trapezoid, of its CPU"), "39 %");
    let each = section(&found, "The runs near a peak");
    assert_eq!(each.table.rows.len(), 3 * 7);
    assert_eq!(cell(each, 0, "of its CPU"), "78 %");
    assert_eq!(cell(each, 0, "runs"), "5");
    // The generator gives out before it fills a registrar, and the report says so.
    assert!(
        each.text.iter().any(|text| text
            .starts_with("Trapezoid, register-memory: the CPU of the generator was full in 5 of 5")),
        "{:?}",
        each.text
    );
}

#[test]
fn what_makes_a_figure_of_peers_doubtful_is_said() {
    let mut results = results("peers");
    for row in &mut results.rows {
        if row.setup.server == Server::Kamailio && row.setup.case.auth && row.run.purpose == Purpose::Near {
            // It waits: its CPU has room, and calls are lost.
            row.server.total_s /= 2.0;
            row.load.succeeded -= row.load.offered / 50;
            row.load.failed += row.load.offered / 50;
            row.verdict = crate::statistics::Verdict::Failed;
            row.drops = 3;
        }
    }
    let found = page(&results).unwrap();
    let said = &section(&found, "The runs near a peak").text;
    for text in [
        "Kamailio, digest: calls were lost in 5 of 5 runs",
        "Kamailio, digest: less than 70 % of its CPU was used in 5 of 5 runs",
        "Kamailio, digest: datagrams overflowed its receive buffer in 5 of 5 runs",
    ] {
        assert!(said.iter().any(|line| line.starts_with(text)), "{text}: {said:?}");
    }
    // Without Kamailio there is no ratio, and no empty column.
    results.rows.retain(|row| row.setup.server != Server::Kamailio);
    let alone = page(&results).unwrap();
    let costs = section(&alone, "CPU for one operation near");
    assert!(
        !costs
            .table
            .head
            .iter()
            .any(|head| head.contains("Kamailio") || head == "ratio")
    );
    assert!(
        alone
            .verdict
            .findings
            .iter()
            .all(|text| !text.contains("Kamailio"))
    );
}

/// All of its calls succeed in the end, at many times the CPU: most of them long after they were offered.
#[test]
fn a_run_of_peers_that_fell_behind_is_left_out() {
    let mut results = results("peers");
    let fell = |row: &&mut crate::results::Row| {
        row.setup.server == Server::Kamailio && row.run.purpose == Purpose::Near && row.run.round == 2
    };
    for row in results.rows.iter_mut().filter(fell) {
        row.load.goodput /= 5.0;
        row.server.total_s *= 3.0;
    }
    let found = page(&results).unwrap();
    let costs = section(&found, "CPU for one operation near");
    assert_eq!(
        costs.table.rows[0][column(costs, "95 % of the ratio")],
        "2.00 to 2.00"
    );
    let each = section(&found, "The runs near a peak");
    assert_eq!(each.table.rows[0][column(each, "runs")], "4");
    let said =
        "Kamailio stateless, UDP, no auth: runs left out, since 5 % failed or were not completed in time: 1.";
    assert!(each.text.iter().any(|text| text == said), "{:?}", each.text);
}

#[test]
fn the_report_names_the_full_process_and_what_is_missing() {
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

#[test]
fn the_quick_form_shows_only_what_it_measured() {
    for name in NAMES {
        let results = made(name, &Scale::quick());
        let page = page(&results).unwrap();
        for section in &page.sections {
            let (table, title) = (&section.table, &section.title);
            for (column, head) in table.head.iter().enumerate().skip(1) {
                let empty = table.rows.iter().all(|row| row[column] == "–");
                assert!(
                    table.rows.is_empty() || !empty,
                    "{name}, {title}: nothing in {head}"
                );
            }
            assert!(
                !title.starts_with("Beside the paper"),
                "{name}: no peak was searched"
            );
        }
        let searched = page
            .sections
            .iter()
            .any(|section| section.title.starts_with("Peaks"));
        assert_eq!(
            searched,
            !results.peaks.is_empty() && name != "overload" && name != "batching"
        );
        for plot in page.sections.iter().filter_map(|section| section.plot.as_ref()) {
            let curve = plot.series.iter().any(|series| series.points.len() > 2);
            assert!(
                curve || plot.kind == Kind::Stacked,
                "{name}: a curve of two points: {plot:?}"
            );
        }
    }
}

/// Each point is a setting at its own peak: a line would say that there is something between two of them.
#[test]
fn settings_at_their_peaks_are_not_joined() {
    let results = results("batching");
    let page = page(&results).unwrap();
    let bandwidth = page
        .sections
        .iter()
        .find(|section| section.title.starts_with("Bandwidth"));
    let plot = bandwidth.and_then(|section| section.plot.as_ref()).unwrap();
    assert_eq!(plot.kind, Kind::Points);
    let html = html(&results).unwrap();
    let joined: Vec<&str> = html.matches(r#""joined":false"#).collect();
    let not_lines = page.sections.iter().filter_map(|section| section.plot.as_ref());
    assert_eq!(
        joined.len(),
        not_lines.filter(|plot| plot.kind != Kind::Lines).count()
    );
}

#[test]
fn the_verdict_comes_first() {
    for (name, begins) in [
        (
            "transport",
            "A stateless call over UDP takes 25.0 µs of the server's CPU",
        ),
        (
            "peers",
            "Near each one's own peak an operation takes 2.0 to 2.0 times as much CPU of Kamailio",
        ),
        ("batching", "The most that was carried: "),
        (
            "overload",
            "Trapezoid stateless, UDP, no auth: offered 10.0 times the peak",
        ),
    ] {
        let results = results(name);
        let page = page(&results).unwrap();
        assert_eq!(
            page.verdict.judgement,
            Some(Judgement::Held),
            "{name}: {:?}",
            results.checks
        );
        assert!(
            page.verdict.headline.starts_with("All "),
            "{name}: {}",
            page.verdict.headline
        );
        assert!(
            page.verdict.findings[0].starts_with(begins),
            "{name}: {:?}",
            page.verdict.findings
        );
        let html = html(&results).unwrap();
        let at = |text: &str| html.find(text).unwrap_or_else(|| panic!("{name}: no {text}"));
        assert!(at("class=\"verdict holds\"") < at("<nav"), "{name}");
    }
    let mut results = results("transport");
    results.checks[1].judgement = Judgement::Undecided;
    let said = page(&results).unwrap().verdict;
    assert!(
        said.headline.starts_with("4 of 5 shapes hold. Undecided: TCP"),
        "{said:?}"
    );
    results.checks[0].judgement = Judgement::Lost;
    results
        .notes
        .push("the experiment ended early: interrupted".to_owned());
    let said = page(&results).unwrap().verdict;
    assert_eq!(said.judgement, Some(Judgement::Lost));
    assert!(
        said.headline
            .starts_with("3 of 5 shapes hold. Lost: a stateless call"),
        "{said:?}"
    );
    assert!(
        said.findings
            .iter()
            .any(|finding| finding.contains("ended early")),
        "{said:?}"
    );
    results.checks.clear();
    let said = page(&results).unwrap().verdict;
    assert_eq!(
        (said.judgement, said.headline.as_str()),
        (None, "No shape was checked.")
    );
}

/// At 1.6 times a peak the made-up server completes 39 % of what is offered; of what is left some fails.
#[test]
fn completed_and_offered_make_the_share_that_stands_beside_them() {
    let mut results = results("transport");
    for row in &mut results.rows {
        // Like a real server past its peak: every call is answered, but late.
        (row.load.succeeded, row.load.failed) = (row.load.offered, 0);
    }
    let page = page(&results).unwrap();
    let section = section(&page, "Throughput against offered load: calls over UDP");
    let cell = |row: &[String], head: &str| -> f64 {
        let cell = &row[column(section, head)];
        cell.trim_end_matches(" %").replace(',', "").parse().unwrap()
    };
    let mut least = 100.0_f64;
    for row in &section.table.rows {
        let part = cell(row, "completed");
        let expected = 100.0 * cell(row, "completed /s") / cell(row, "offered /s");
        assert!((part - expected).abs() < 0.1, "{row:?}");
        assert_eq!(cell(row, "failed"), 0.0);
        least = least.min(part);
    }
    assert!(least < 50.0, "no row is past a peak: {least}");
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
    assert_eq!((found.twice, found.left), (0, 0), "{found:?}");
    assert_eq!(found.right, 0, "{found:?}");
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

#[test]
fn a_browser_draws_a_narrow_and_dark_report() {
    is_drawn("overload", 500, true);
}
