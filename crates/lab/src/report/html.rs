//! The page: one file, styles, script and uPlot 1.6.32 in it.

use minijinja::{Environment, Value, context};
use serde::Serialize;

use super::colours::colours;
use super::model::{Kind, Page, Plot};
use crate::failure::{Failure, Outcome};
use crate::results::Results;
use crate::statistics::Judgement;

const TEMPLATE: &str = include_str!("../../templates/report.html");
const STYLE: &str = include_str!("../../templates/report.css");
const SCRIPT: &str = include_str!("../../templates/report.js");
const PLOTTER: &str = include_str!("../../assets/uPlot.iife.min.js");
const PLOTTER_STYLE: &str = include_str!("../../assets/uPlot.min.css");

/// A plot as the script takes it: x values that all series share, and a value or none of each series at each.
#[derive(Debug, Serialize)]
struct Aligned<'a> {
    x: &'a str,
    y: &'a str,
    x_log: bool,
    stacked: bool,
    /// Whether the points of a series are joined by lines.
    joined: bool,
    labels: &'a [String],
    names: Vec<&'a str>,
    dashed: Vec<bool>,
    /// Colours of the series on a light background; `dark` has those on a dark one.
    light: Vec<String>,
    dark: Vec<String>,
    data: Vec<Vec<Option<f64>>>,
}

fn aligned(plot: &Plot) -> Aligned<'_> {
    let mut xs: Vec<f64> = plot
        .series
        .iter()
        .flat_map(|series| series.points.iter().map(|(x, _)| *x))
        .collect();
    xs.retain(|x| x.is_finite());
    xs.sort_by(f64::total_cmp);
    xs.dedup();
    let of = |points: &[(f64, f64)]| -> Vec<Option<f64>> {
        let at = |x: &f64| {
            points
                .iter()
                .find(|(px, _)| px.total_cmp(x).is_eq())
                .map(|(_, y)| *y)
        };
        xs.iter().map(at).map(|y| y.filter(|y| y.is_finite())).collect()
    };
    let mut data = vec![xs.iter().copied().map(Some).collect::<Vec<_>>()];
    data.extend(plot.series.iter().map(|series| of(&series.points)));
    let (light, dark) = colours(plot.series.len());
    Aligned {
        light,
        dark,
        x: &plot.x,
        y: &plot.y,
        x_log: plot.x_log,
        stacked: plot.kind == Kind::Stacked,
        joined: plot.kind == Kind::Lines,
        labels: &plot.labels,
        names: plot.series.iter().map(|series| series.name.as_str()).collect(),
        dashed: plot.series.iter().map(|series| series.dashed).collect(),
        data,
    }
}

/// JSON that may stand in a script element: nothing in it can end that.
fn json(value: &impl Serialize) -> Outcome<String> {
    let text = serde_json::to_string(value).map_err(|error| Failure::failed("the report", error))?;
    Ok(text
        .replace('<', "\\u003c")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029"))
}

pub(super) fn render(page: &Page, results: &Results) -> Outcome<String> {
    let failed = |error: minijinja::Error| Failure::failed("the report", error);
    let mut environment = Environment::new();
    // By its name the template is HTML: every value is escaped.
    environment
        .add_template("report.html", TEMPLATE)
        .map_err(failed)?;
    let plots = page.sections.iter().map(|section| match &section.plot {
        Some(plot) => json(&aligned(plot)).map(Some),
        None => Ok(None),
    });
    let plots: Vec<Option<String>> = plots.collect::<Outcome<_>>()?;
    let safe = Value::from_safe_string;
    let sections: Vec<Value> = page
        .sections
        .iter()
        .zip(plots)
        .map(|(section, plot)| {
            context! {
                title => section.title,
                text => section.text,
                head => section.table.head,
                rows => section.table.rows,
                numeric => section.table.numeric(),
                plot => plot.map(safe),
            }
        })
        .collect();
    let template = environment.get_template("report.html").map_err(failed)?;
    template
        .render(context! {
            title => page.title,
            judgement => page.verdict.judgement.map(|judgement| match judgement {
                Judgement::Unmeasured if results.quick => "lost",
                Judgement::Unmeasured => "undecided",
                Judgement::Held | Judgement::Undecided | Judgement::Lost => judgement.word(),
            }),
            verdict => page.verdict,
            introduction => page.introduction,
            sections,
            quick => results.quick,
            began => results.provenance.began,
            style => safe(format!("{PLOTTER_STYLE}\n{STYLE}")),
            plotter => safe(PLOTTER.to_owned()),
            script => safe(SCRIPT.to_owned()),
        })
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::super::model::{Section, Series, Table, Verdict, lines};
    use super::*;

    fn page(text: &str) -> Page {
        let mut table = Table::new([text]);
        table.push([text.to_owned()]);
        Page {
            title: text.to_owned(),
            verdict: Verdict {
                judgement: None,
                headline: text.to_owned(),
                findings: vec![text.to_owned()],
            },
            introduction: vec![text.to_owned()],
            sections: vec![Section {
                title: text.to_owned(),
                text: vec![text.to_owned()],
                plot: lines(
                    text,
                    "y",
                    false,
                    vec![Series::new(text, vec![(1.0, 2.0), (3.0, 4.0)])],
                ),
                table,
            }],
        }
    }

    #[test]
    fn what_programs_say_cannot_become_markup() {
        let html = render(
            &page("</script><img src=x onerror=alert(1)>"),
            &Results::new("transport", true),
        )
        .unwrap();
        assert!(!html.contains("<img"), "escaped in text and in data");
        assert!(html.contains("&lt;img") && html.contains("\\u003c/script>"));
    }

    #[test]
    fn nothing_is_fetched() {
        let html = render(&page("a"), &Results::new("transport", true)).unwrap();
        for word in [" src=", "@import", "url(", "<link", "fetch(", "XMLHttpRequest"] {
            assert!(!html.contains(word), "{word}");
        }
        assert!(
            html.contains("default-src 'none'"),
            "and the browser has to refuse it"
        );
    }

    #[test]
    fn series_share_their_places() {
        let plot = lines(
            "x",
            "y",
            true,
            vec![
                Series::new("a", vec![(1.0, 10.0), (3.0, 30.0)]),
                Series::new("b", vec![(3.0, 3.0), (2.0, f64::NAN)]),
            ],
        );
        let plot = plot.unwrap();
        let found = aligned(&plot);
        assert_eq!(found.data[0], [Some(1.0), Some(2.0), Some(3.0)]);
        assert_eq!(found.data[1], [Some(10.0), None, Some(30.0)]);
        assert_eq!(found.data[2], [None, None, Some(3.0)]);
        assert!(lines("x", "y", false, vec![Series::new("a", vec![])]).is_none());
    }
}
